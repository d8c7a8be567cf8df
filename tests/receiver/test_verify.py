from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noonday import receiver
from noonday.executors import Sent
from noonday.executors.http import HttpExecutor
from noonday.receiver import InvalidSignature, verify
from tests.executors.attempts import JOB, OCCURRENCE, OLDER_SECRET, attempt
from tests.receiver.requests import BODY, NOW, WHSEC, headers, shown
from tests.support.receivers import RecordingReceiver


def refused(sent: dict[str, str], body: bytes = BODY, *, now: float = NOW) -> str:
    with pytest.raises(InvalidSignature) as caught:
        verify(sent, body, WHSEC, now=now)
    return caught.value.reason


def test_a_verified_request_says_what_it_is_about() -> None:
    delivery = verify(headers(number=3, lease_version=5), BODY, WHSEC, now=NOW)
    assert delivery.job_id == str(JOB)
    assert delivery.run_id == str(attempt("http://example.com/").run)
    assert delivery.occurrence == OCCURRENCE
    assert (delivery.attempt, delivery.lease_version) == (3, 5)
    assert (delivery.timestamp, delivery.body) == (NOW, BODY)


async def test_what_the_executor_sends_verifies() -> None:
    executor = HttpExecutor(allow_private=True, ports=None)
    await executor.open()
    async with RecordingReceiver() as running:
        await executor.execute(attempt(f"{running.url}/hook", number=2, lease_version=4), Sent())
        (request,) = running.requests
    await executor.close()
    delivery = verify(dict(request.headers), request.body, WHSEC)
    assert (delivery.attempt, delivery.lease_version) == (2, 4)


@pytest.mark.parametrize("form", [str.lower, str.upper, str.title])
def test_the_case_of_header_names_does_not_matter(form: Callable[[str], str]) -> None:
    sent = {form(name): value for name, value in headers().items()}
    assert verify(sent, BODY, WHSEC, now=NOW).attempt == 1


def test_while_a_secret_rotates_the_old_and_the_new_one_verify() -> None:
    old = shown(OLDER_SECRET)
    both = headers(secrets=(OLDER_SECRET, bytes(range(32))))
    for secrets in (WHSEC, old, [old, WHSEC], [WHSEC.removeprefix("whsec_").rstrip("=")]):
        assert verify(both, BODY, secrets, now=NOW)
    with pytest.raises(InvalidSignature):
        verify(headers(), BODY, old, now=NOW)
    assert verify(headers(), BODY, [old, WHSEC], now=NOW)


@pytest.mark.parametrize(
    ("name", "forged"),
    [
        ("X-Run-Id", "019390f0000070008000000000000001-s1795953600250001"),
        ("X-Job-Id", "019390f0-0000-7000-8000-000000000002"),
        ("X-Occurrence", "2026-11-29T12:00:00.251Z"),
        ("X-Attempt", "2"),
        ("X-Lease-Version", "9"),
        ("X-Lease-Version", "01"),
        ("webhook-id", "another"),
        ("webhook-timestamp", str(NOW + 1)),
        ("Idempotency-Key", "another"),
        ("webhook-signature", "v1,AAAA"),
        ("webhook-signature", "v1a,AAAA"),
        ("webhook-signature", "nothing"),
        ("X-Scheduler-Signature", f"t={NOW},v1=00"),
        ("X-Scheduler-Signature", f"t={NOW}"),
        ("X-Scheduler-Signature", "nothing"),
        ("X-Run-Id", "é"),
        ("X-Run-Id", "\ud800"),
    ],
)
def test_whatever_is_forged_is_refused(name: str, forged: str) -> None:
    assert refused(headers() | {name: forged})


@pytest.mark.parametrize("name", list(receiver._SIGNED))
def test_whatever_is_missing_is_refused(name: str) -> None:
    sent = {key: value for key, value in headers().items() if key.lower() != name}
    assert refused(sent) == f"{name} is missing"
    assert refused(sent | {name: ""}) == f"{name} is missing"


@pytest.mark.parametrize(
    "body", [b"", BODY + b"\n", BODY.replace(b" ", b""), BODY.decode().encode("latin-1")]
)
def test_another_body_is_refused(body: bytes) -> None:
    assert refused(headers(), body)


def test_a_header_given_twice_is_refused() -> None:
    assert refused(headers() | {"x-RUN-id": "another"}) == "x-run-id is there twice"


def test_an_old_signature_is_refused_and_one_from_the_future() -> None:
    for off in (-300, 0, 300):
        assert verify(headers(), BODY, WHSEC, now=NOW + off)
    for off in (-301, 301):
        assert refused(headers(), now=NOW + off).startswith("the signature is too old")
    assert verify(headers(), BODY, WHSEC, now=NOW + 3_000, tolerance_sec=3_000)


def test_a_signature_cannot_be_made_younger_by_its_header() -> None:
    later = str(NOW + 1_000)
    sent = headers() | {"webhook-timestamp": later}
    assert refused(sent, now=NOW + 1_000) == "the two signatures have different times"
    sent["X-Scheduler-Signature"] = sent["X-Scheduler-Signature"].replace(str(NOW), later)
    assert refused(sent, now=NOW + 1_000) == "x-scheduler-signature does not match"


def test_a_fencing_token_cannot_be_carried_over_to_another_attempt() -> None:
    first, second = headers(), headers(number=2, lease_version=2)
    mixed = first | {name: second[name] for name in ("X-Lease-Version", "X-Attempt")}
    assert refused(mixed) == "x-scheduler-signature does not match"


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!!", "whsec_é", []])
def test_a_secret_that_is_none_is_a_mistake_and_no_refusal(secret: str | list[str]) -> None:
    with pytest.raises(ValueError, match="secret") as caught:
        verify(headers(), BODY, secret, now=NOW)
    assert not isinstance(caught.value, InvalidSignature)


@given(
    st.dictionaries(st.sampled_from(receiver._SIGNED), st.text(), max_size=3),
    st.binary() | st.just(BODY),
)
def test_any_change_is_refused_without_an_accident(changes: dict[str, str], body: bytes) -> None:
    sent = {name.lower(): value for name, value in headers().items()}
    if sent | changes == sent and body == BODY:
        assert verify(sent, body, WHSEC, now=NOW)
    else:
        assert refused(sent | changes, body)


def test_the_file_stands_alone_and_needs_only_the_standard_library(tmp_path: Path) -> None:
    file = Path(receiver.__file__)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    shutil.copy(file, tmp_path / "copied.py")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import copied; copied.MemoryStore()"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=30)
