from __future__ import annotations

import asyncio

import pytest

from noonday.domain.model import OutcomeKind
from noonday.executors import Sent
from noonday.executors.http import HttpExecutor
from tests.executors.attempts import attempt
from tests.executors.raw import read_request, serving
from tests.support.receivers import Answer, RecordingReceiver


async def test_a_cancelled_attempt_hangs_up_and_says_that_it_may_have_been_sent(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    receiver.answer("/hook", Answer(hold=True))
    sent = Sent()
    task = asyncio.create_task(executor.execute(attempt(f"{receiver.url}/hook"), sent))
    await receiver.wait_for(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await receiver.wait_for_hang_up()
    assert sent.maybe


async def test_an_attempt_cancelled_within_its_answer_hangs_up(executor: HttpExecutor) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n...")
        begun.set()
        await reader.read()
        gone.set()

    async with serving(handle) as server:
        sent = Sent()
        task = asyncio.create_task(executor.execute(attempt(server.url), sent))
        async with asyncio.timeout(3):
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await gone.wait()
    assert sent.maybe


async def test_an_attempt_cancelled_before_it_was_sent_can_be_handed_back(
    receiver: RecordingReceiver,
) -> None:
    executor = HttpExecutor(allow_private=True, ports=None, limit_per_host=1)
    await executor.open()
    receiver.answer("/held", Answer(hold=True))
    first = asyncio.create_task(executor.execute(attempt(f"{receiver.url}/held"), Sent()))
    await receiver.wait_for(1)
    sent = Sent()
    second = asyncio.create_task(executor.execute(attempt(f"{receiver.url}/never"), sent))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    receiver.release()
    assert (await first).kind is OutcomeKind.SUCCESS
    assert not sent.maybe
    assert receiver.of("/never") == []
    await executor.close()


async def test_an_upload_is_cut_off_when_cancelled(executor: HttpExecutor) -> None:
    gone = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        started.set()
        await unblocked.wait()
        try:
            while await reader.read(65_536):
                pass
        finally:
            gone.set()

    started, unblocked = asyncio.Event(), asyncio.Event()
    async with serving(slow) as server:
        sent = Sent()
        body = b"x" * 20_000_000
        task = asyncio.create_task(executor.execute(attempt(server.url, body=body), sent))
        async with asyncio.timeout(5):
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            unblocked.set()
            await gone.wait()
        assert sent.maybe
