"""Time is the database's: a wrong clock on a worker's wall never reaches a receiver."""

from __future__ import annotations

import time
from datetime import timedelta
from email.utils import formatdate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noonday.domain.model import Reading
from noonday.executors import Sent
from noonday.executors.http import HttpExecutor
from tests.executors.attempts import attempt
from tests.support.receivers import Answer, RecordingReceiver

SECONDS = st.floats(0, 1e6)


@given(st.floats(-1e9, 1e9), SECONDS, SECONDS, st.floats(0, 10), st.floats(0, 10))
def test_a_wrong_clock_is_corrected_to_within_what_a_claim_took(
    error: float, began: float, since: float, there: float, back: float
) -> None:
    asked, answered, read_at = began, began + there + back, began + there
    monotonic = answered + since
    true = 1e9 + monotonic - read_at
    told = Reading(1e9, asked, answered).now(true + error, monotonic)
    assert abs(told - true) <= min(abs(error), max(there, back)) + 1e-3


@pytest.mark.parametrize("error_sec", [-28_800, -90, 90, 28_800])
async def test_a_signature_and_a_date_go_by_the_database(
    executor: HttpExecutor, receiver: RecordingReceiver, error_sec: int
) -> None:
    """Seen from the database, this machine's clock is wrong by that much."""
    there = time.time() + error_sec
    until = formatdate(there + 60, usegmt=True)
    receiver.answer("/", Answer(503, (("Retry-After", until),)))
    read = Reading(there, time.monotonic(), time.monotonic())
    made = msgspec.structs.replace(attempt(f"{receiver.url}/"), clock=read)
    outcome = await executor.execute(made, Sent())
    assert abs(int(receiver.requests[0]["webhook-timestamp"]) - there) < 30
    assert outcome.retry_after is not None
    assert abs(outcome.retry_after - timedelta(seconds=60)) < timedelta(seconds=30)
