from __future__ import annotations

import socket
from typing import Any

import pytest
from structlog.testing import capture_logs

from noonday.domain.model import OutcomeKind
from noonday.executors import Sent
from noonday.executors.answers import clean
from noonday.executors.http import HttpExecutor
from tests.executors.attempts import attempt
from tests.executors.raw import saying, serving
from tests.support.receivers import Answer, RecordingReceiver

HEADERS = {"Authorization": "Bearer TOKEN3"}
PATH = "/services/TOKEN1?token=TOKEN2"


async def error_of(executor: HttpExecutor, url: str, **options: Any) -> str:
    with capture_logs() as logs:
        outcome = await executor.execute(attempt(url, headers=HEADERS, **options), Sent())
    assert "TOKEN" not in f"{outcome!r} {logs!r}"
    assert outcome.error
    assert outcome.error.isprintable()
    assert len(outcome.error) <= 500
    return outcome.error


async def test_no_error_holds_a_path_a_query_a_credential_or_a_header(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    receiver.answer(PATH, 500, 404, Answer(302, (("Location", "/TOKEN4"),)), Answer(drop="before"))
    for _ in range(4):
        await error_of(executor, receiver.url + PATH)
    receiver.answer(PATH, Answer(hold=True))
    await error_of(executor, receiver.url + PATH, timeout_sec=0.1)
    await error_of(executor, receiver.url.replace("//", "//u:TOKEN5@") + PATH)
    await error_of(executor, receiver.url + PATH + " TOKEN6")
    await error_of(executor, "http://169.254.169.254" + PATH)
    await error_of(executor, receiver.url.replace("http", "ftp") + PATH)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        await error_of(executor, f"http://127.0.0.1:{unused.getsockname()[1]}{PATH}")
    async with serving(saying(b"TOKEN7 \x1b[31m\0 \xff\r\n\r\n")) as server:
        await error_of(executor, server.url.replace("/hook", PATH))
    async with serving(saying(b"HTTP/1.1 500 TOKEN8\x1b[31m\xff\r\nX: TOKEN9\r\n\r\n")) as server:
        await error_of(executor, server.url.replace("/hook", PATH))


async def test_a_fault_that_nobody_foresaw_is_logged_and_ends_in_a_known_state() -> None:
    text = f"http://a.example{PATH}"

    def getaddrinfo(*_: object) -> list[Any]:
        raise LookupError(text)

    executor = HttpExecutor(getaddrinfo=getaddrinfo)
    await executor.open()
    with capture_logs() as logs:
        sent = Sent()
        outcome = await executor.execute(attempt(text), sent)
    assert outcome.kind is OutcomeKind.TRANSIENT
    assert outcome.error == "unforeseen fault: LookupError"
    assert (outcome.unknown, sent.maybe) == (False, False)
    (entry,) = logs
    assert (entry["log_level"], entry["error"]) == ("error", "LookupError")
    assert "TOKEN" not in repr(logs)
    await executor.close()


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\0b\x1b[31mc\nd\u202ee\ud800f", "a b [31mc d e f"),
        ("é 🙂", "é 🙂"),
        ("x" * 600, "x" * 500),
    ],
)
def test_text_from_outside_is_cleaned_before_it_is_stored(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
    assert clean(text).encode()
