from __future__ import annotations

import email.utils
import time
from datetime import timedelta

import pytest

from noonday.domain.model import OutcomeKind
from noonday.executors import Sent
from noonday.executors.answers import parse_retry_after
from noonday.executors.http import HttpExecutor
from tests.executors.attempts import attempt
from tests.support.receivers import Answer, RecordingReceiver

NOW = 1_800_000_000.0
CENTURY = timedelta(days=36_525)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, OutcomeKind.SUCCESS),
        (201, OutcomeKind.SUCCESS),
        (202, OutcomeKind.SUCCESS),
        (204, OutcomeKind.SUCCESS),
        (299, OutcomeKind.SUCCESS),
        (300, OutcomeKind.TRANSIENT),
        (304, OutcomeKind.TRANSIENT),
        (400, OutcomeKind.PERMANENT),
        (401, OutcomeKind.PERMANENT),
        (403, OutcomeKind.PERMANENT),
        (404, OutcomeKind.PERMANENT),
        (408, OutcomeKind.TRANSIENT),
        (409, OutcomeKind.PERMANENT),
        (410, OutcomeKind.GONE),
        (422, OutcomeKind.PERMANENT),
        (425, OutcomeKind.TRANSIENT),
        (429, OutcomeKind.TRANSIENT),
        (499, OutcomeKind.PERMANENT),
        (500, OutcomeKind.TRANSIENT),
        (503, OutcomeKind.TRANSIENT),
        (599, OutcomeKind.TRANSIENT),
        (600, OutcomeKind.TRANSIENT),
        (999, OutcomeKind.TRANSIENT),
    ],
)
async def test_every_status_ends_in_its_class(
    executor: HttpExecutor, receiver: RecordingReceiver, status: int, kind: OutcomeKind
) -> None:
    receiver.answer("/hook", status)
    outcome = await executor.execute(attempt(f"{receiver.url}/hook"), Sent())
    assert (outcome.kind, outcome.http_status, outcome.unknown) == (kind, status, False)
    assert (outcome.error is None) == (kind is OutcomeKind.SUCCESS)
    assert outcome.error is None or str(status) in outcome.error


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "location",
    [
        "/elsewhere",
        "//127.0.0.1:{port}/elsewhere",
        "http://127.0.0.1:{port}/elsewhere",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
    ],
)
async def test_a_redirect_is_a_named_failure_and_is_not_followed(
    executor: HttpExecutor, receiver: RecordingReceiver, status: int, location: str
) -> None:
    async with RecordingReceiver() as elsewhere:
        to = location.format(port=elsewhere.port)
        receiver.answer("/hook", Answer(status, (("Location", to),)))
        outcome = await executor.execute(attempt(f"{receiver.url}/hook"), Sent())
        assert outcome.kind is OutcomeKind.TRANSIENT
        assert outcome.error == f"answered {status}: a redirect, which is not followed"
        assert elsewhere.connections == 0
    assert [request.path for request in receiver.requests] == ["/hook"]


@pytest.mark.parametrize("status", [429, 503, 302])
async def test_the_wish_for_a_later_retry_is_passed_on(
    executor: HttpExecutor, receiver: RecordingReceiver, status: int
) -> None:
    headers = (("Retry-After", "soon"), ("Retry-After", "120"), ("Retry-After", "7"))
    receiver.answer("/hook", Answer(status, headers))
    outcome = await executor.execute(attempt(f"{receiver.url}/hook"), Sent())
    assert outcome.retry_after == timedelta(seconds=120)


async def test_a_date_to_retry_after_is_read_against_the_clock(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    date = email.utils.formatdate(time.time() + 120, usegmt=True)
    receiver.answer("/hook", Answer(503, (("Retry-After", date),)))
    outcome = await executor.execute(attempt(f"{receiver.url}/hook"), Sent())
    assert outcome.retry_after is not None
    assert 110 <= outcome.retry_after.total_seconds() <= 120


@pytest.mark.parametrize(
    ("values", "wait"),
    [
        (["120"], timedelta(seconds=120)),
        (["0"], timedelta(0)),
        ([" 5 "], timedelta(seconds=5)),
        (["9999999999"], CENTURY),
        (["9" * 60], CENTURY),
        (["9" * 5_000], None),
        (["-5"], None),
        (["+5"], None),
        (["1.5"], None),
        (["1e3"], None),
        (["0x10"], None),
        (["soon"], None),
        ([""], None),
        (["٣"], None),
        (["120, 60"], None),
        ([], None),
        (["soon", "60", "5"], timedelta(seconds=60)),
        (["Fri, 15 Jan 2027 08:02:00 GMT"], timedelta(seconds=120)),
        (["Friday, 15-Jan-27 08:02:00 GMT"], timedelta(seconds=120)),
        (["Fri Jan 15 08:02:00 2027"], timedelta(seconds=120)),
        (["Fri, 15 Jan 2027 07:00:00 GMT"], timedelta(0)),
        (["Sun, 06 Nov 1994 08:49:37 GMT"], timedelta(0)),
        (["Thu, 31 Dec 2099 23:59:59 GMT"], timedelta(seconds=2_302_444_799)),
        (["Fri, 31 Dec 9999 23:59:59 GMT"], CENTURY),
        (["Fri, 99 Jan 2027 08:02:00 GMT"], None),
        (["Fri, 15 Jan 99999999999999999999 08:02:00 GMT"], None),
        (["Fri, 15 Jan 2027 08:02:00 +9999999"], None),
    ],
)
def test_retry_after_takes_both_legal_forms_and_nothing_hostile(
    values: list[str], wait: timedelta | None
) -> None:
    assert parse_retry_after(values, NOW) == wait
