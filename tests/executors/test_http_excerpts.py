"""What is kept of an answer: little, clean, and never what was sent."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.domain.model import Excerpt, Outcome, OutcomeKind
from noonday.executors import Sent
from noonday.executors.echoes import Echoes
from noonday.executors.excerpts import HEADERS, MAX_TEXT, Body, _decoded, _shown
from noonday.executors.http import HttpExecutor
from tests.executors.attempts import attempt
from tests.executors.raw import dripping, saying, serving
from tests.support.receivers import Answer, RecordingReceiver

MIB = 1024 * 1024
NOISE = random.Random(1).randbytes(5 * MIB)


async def ask(
    executor: HttpExecutor, receiver: RecordingReceiver, answer: Answer, **options: Any
) -> Outcome:
    receiver.answer("/hook", answer)
    return await executor.execute(attempt(f"{receiver.url}/hook", **options), Sent())


async def kept(executor: HttpExecutor, raw: bytes, **options: Any) -> Outcome:
    async with serving(saying(raw)) as server:
        return await executor.execute(attempt(server.url, timeout_sec=3, **options), Sent())


def body_of(outcome: Outcome) -> str:
    assert outcome.response is not None
    # What is kept goes into JSON, and into a database that knows no NUL.
    assert "\\u0000" not in json.dumps(msgspec.to_builtins(outcome.response))
    return outcome.response.body


async def test_the_beginning_of_the_answer_is_kept_with_some_of_its_headers(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    headers = (
        ("Content-Type", "text/plain; charset=utf-8"),
        ("X-Request-Id", "abc"),
        ("Retry-After", "7"),
        ("Set-Cookie", "session=SECRET"),
        ("Location", "/SECRET"),
        ("X-Api-Key", "SECRET"),
        ("X-Anything", "SECRET"),
    )
    outcome = await ask(executor, receiver, Answer(503, headers, "späte\n\tZeit".encode()))
    assert outcome.response == Excerpt(
        {
            "content-length": "12",
            "content-type": "text/plain; charset=utf-8",
            "retry-after": "7",
            "x-request-id": "abc",
        },
        "späte\n\tZeit",
    )


async def test_of_a_success_too_and_nothing_where_there_is_nothing_beside_the_status(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    for status in (200, 204, 404, 500):
        assert (await ask(executor, receiver, Answer(status))).response is None
    served = (("Server", "nginx"), ("Content-Type", "text/plain"))
    assert (await ask(executor, receiver, Answer(200, served))).response is None
    failed = await ask(executor, receiver, Answer(502, served))
    assert failed.response is not None
    assert failed.response.headers["server"] == "nginx"
    said = await ask(executor, receiver, Answer(200, (), b"thanks"))
    assert said.response == Excerpt({"content-length": "6"}, "thanks")
    traced = await ask(executor, receiver, Answer(200, (("X-Request-Id", "abc"),)))
    assert traced.response == Excerpt({"x-request-id": "abc"})


async def test_what_never_answered_has_no_excerpt(executor: HttpExecutor) -> None:
    for raw in (b"", b"nonsense\r\n\r\n"):
        assert (await kept(executor, raw)).response is None


async def test_an_answer_that_breaks_off_or_takes_too_long_keeps_what_came(
    executor: HttpExecutor,
) -> None:
    head = b"HTTP/1.1 %d X\r\nContent-Length: 5000\r\n\r\nbeginning"
    for status, kind in ((200, OutcomeKind.TRANSIENT), (422, OutcomeKind.PERMANENT)):
        outcome = await kept(executor, head % status)
        assert outcome.kind is kind
        assert outcome.response == Excerpt({"content-length": "5000"}, "beginning", truncated=True)
    async with serving(dripping(head % 200, b".", 0.02)) as server:
        late = await executor.execute(attempt(server.url, timeout_sec=0.3), Sent())
    assert (late.kind, late.http_status) == (OutcomeKind.TIMEOUT, 200)
    assert body_of(late).startswith("beginning")


@pytest.mark.parametrize("size", [999, 1_000, 1_001, 5_000, 200_000])
async def test_a_cut_is_marked_and_goes_through_no_character(
    executor: HttpExecutor, receiver: RecordingReceiver, size: int
) -> None:
    text = ("a" + "é🙂" * size).encode()[:size].decode("utf-8", "ignore")
    outcome = await ask(executor, receiver, Answer(500, (), text.encode()))
    shown = body_of(outcome)
    assert text.startswith(shown)
    assert MAX_TEXT - 4 < len(shown.encode()) <= MAX_TEXT or shown == text
    assert outcome.response is not None
    assert outcome.response.truncated == (len(text.encode()) > MAX_TEXT)


@pytest.mark.parametrize(
    ("content_type", "data", "shown"),
    [
        ("text/plain", "Zoë".encode(), "Zoë"),
        ("text/plain; charset=ISO-8859-1", b"Zo\xeb", "Zoë"),
        ("text/plain; charset='windows-1252'", b"5 \x80", "5 €"),
        ("text/plain;charset=koi8-r", "нет".encode("koi8-r"), "нет"),
        ("text/plain; charset=shift_jis", "いいえ".encode("cp932"), "いいえ"),
        ("text/plain; charset=utf-16", "no".encode("utf-16"), "no"),
        ("text/plain; charset=unknown-8bit", b"Zo\xeb", "Zo\ufffd"),
        ("text/plain; charset=idna", b"xn--a", "xn--a"),
        ("text/plain; charset=unicode_escape", b"\\x41\\d", "\\x41\\d"),
        ("text/plain; charset=hex", b"zz", "zz"),
        ("", b"Zo\xeb", "Zo\ufffd"),
        ("", b"\xef\xbb\xbfbom", "bom"),
        ("", b"a\0b\x1b[31mc\x07\x7f" + b"." * 40, "a b [31mc  " + "." * 40),
        ("", b"one\r\ntwo\rthree\n\tfour\n", "one\ntwo\nthree\n\tfour"),
        ("", "a\u202eb\u2028c".encode(), "a b c"),
        ("application/octet-stream", b"but text", "but text"),
        ("image/png", b"but text", "(binary, 8 bytes)"),
        ("", NOISE[:5_120], "(binary, 5,120 bytes)"),
        ("text/plain; charset=latin-1", NOISE[:5_120], "(binary, 5,120 bytes)"),
        ("text/html", gzip.compress(b"x", mtime=0), "(binary, 21 bytes)"),
        ("", "нет, больше ничего не надо".encode("koi8-r"), "(binary, 26 bytes)"),
    ],
)
async def test_a_body_is_read_as_the_text_it_is_or_only_noted(
    executor: HttpExecutor,
    receiver: RecordingReceiver,
    content_type: str,
    data: bytes,
    shown: str,
) -> None:
    headers = (("Content-Type", content_type),) if content_type else ()
    assert body_of(await ask(executor, receiver, Answer(500, headers, data))) == shown


@pytest.mark.parametrize(
    "data", [gzip.compress(b"x" * 100, mtime=0), b"lies", gzip.compress(b"x", mtime=0)[:-4]]
)
async def test_a_compressed_body_is_only_noted_whether_its_checksum_holds_or_not(
    executor: HttpExecutor, receiver: RecordingReceiver, data: bytes
) -> None:
    """RTY-08: nothing is decompressed, so nothing that is broken can break the outcome."""
    outcome = await ask(executor, receiver, Answer(200, (("Content-Encoding", "gzip"),), data))
    assert outcome.kind is OutcomeKind.SUCCESS
    assert body_of(outcome) == f"(compressed, {len(data)} bytes)"


@pytest.mark.parametrize(
    ("data", "begins"),
    [
        (b"text " * MIB, "text text"),
        (NOISE, "(binary, 5,242,880 bytes)"),
        (b"\0" * 5 * MIB, "(binary, 5,242,880 bytes)"),
    ],
)
async def test_a_success_with_megabytes_is_a_success_cut_and_marked(
    executor: HttpExecutor, receiver: RecordingReceiver, data: bytes, begins: str
) -> None:
    """RTY-05: delivered is delivered, and what is kept of the answer can be stored."""
    raw = Answer(200, (), data)
    tracemalloc.start()
    try:
        outcome = await ask(executor, receiver, raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (outcome.kind, outcome.unknown) == (OutcomeKind.SUCCESS, False)
    assert body_of(outcome).startswith(begins)
    assert len(msgspec.json.encode(outcome.response)) < 5_000
    assert outcome.response is not None
    assert outcome.response.truncated
    assert len(receiver.requests) == 1
    # The receiver runs in this process and makes its answer from `data`: three copies at most.
    assert peak < 3 * len(data) + MIB


async def test_a_long_body_that_never_comes_costs_the_success_nothing(
    executor: HttpExecutor,
) -> None:
    """RTY-05: the beginning of a body is waited for shortly, whatever the deadline is."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 314572800\r\n\r\n"
    for timeout_sec in (0.1, 5.0):
        async with serving(dripping(head + b"beg", b"", 1)) as server:
            made = attempt(server.url, timeout_sec=timeout_sec)
            outcome = await executor.execute(made, Sent())
        assert outcome == Outcome(
            OutcomeKind.SUCCESS, 200, response=Excerpt({"content-length": "314572800"}, "beg", True)
        )
    cut = await kept(executor, head + b"beg")
    assert (cut.kind, body_of(cut)) == (OutcomeKind.SUCCESS, "beg")


@pytest.mark.parametrize("name", [name for name in HEADERS if name != "content-length"])
@pytest.mark.parametrize(
    "value",
    [b"x" * 200_000, b"a \xff\x1b[31m\xc2\x85\xe2\x80\xae b", b"\xc3\xa9" * 4_000, b"9" * 5_000],
    ids=["long", "odd", "letters", "digits"],
)
async def test_a_header_is_kept_cut_and_clean(
    executor: HttpExecutor, name: str, value: bytes
) -> None:
    """RTY-05: one header of 200 kB is a success, and cut."""
    raw = b"HTTP/1.1 200 OK\r\n%s: %s\r\nContent-Length: 2\r\n\r\nok" % (name.encode(), value)
    outcome = await kept(executor, raw)
    assert (outcome.kind, outcome.http_status) == (OutcomeKind.SUCCESS, 200)
    assert outcome.response is not None
    assert len(outcome.response.headers[name]) <= 200
    assert outcome.response.headers[name].isprintable()
    assert body_of(outcome)


async def test_a_status_line_leaves_nothing_behind(executor: HttpExecutor) -> None:
    """RTY-08: an error text is ours; what a stranger puts into the reason is not in it."""
    for reason in (b"\0 NUL", b"\xff\x1b[31m", b"X" * 200_000, b"X" * 2 * MIB):
        raw = b"HTTP/1.1 500 " + reason + b"\r\nContent-Length: 0\r\n\r\n"
        outcome = await kept(executor, raw)
        assert outcome.kind is OutcomeKind.TRANSIENT
        assert outcome.error
        assert outcome.error.isprintable()
        assert len(outcome.error) <= 500
        assert "X" not in outcome.error


async def test_a_receiver_that_repeats_the_request_tells_no_secret_and_no_payload(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    headers = {"Authorization": "Bearer s3cret-token", "Cookie": "id=s3cret-cookie", "X-Team": "eu"}
    body = json.dumps({"iban": "DE02120300000000202051", "amount": 12.5}).encode()
    made: dict[str, Any] = {"headers": headers, "body": body}
    await ask(executor, receiver, Answer(), **made)
    first = receiver.requests[0]
    echo = json.dumps({"headers": dict(first.headers), "data": body.decode()}, indent=2)
    # Signed anew with the same second or another one: both ways it is not in what is kept.
    raised = [("X-Request-Id", "Bearer s3cret-token"), ("WWW-Authenticate", 'Bearer x="eu"')]
    outcome = await ask(executor, receiver, Answer(401, tuple(raised), echo.encode()), **made)
    shown = repr(outcome)
    assert "s3cret" not in shown
    assert "DE02120300000000202051" not in shown
    assert '"X-Team": "eu"' in body_of(outcome)
    assert outcome.response is not None
    assert outcome.response.headers["x-request-id"] == "…"


async def test_the_signatures_of_a_request_are_not_kept(executor: HttpExecutor) -> None:
    seen: list[str] = []

    async def echo(reader: Any, writer: Any) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        seen.extend(head.split("\r\n"))
        writer.write(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n" % len(head) + head.encode())
        await writer.drain()

    async with serving(echo) as server:
        outcome = await executor.execute(attempt(server.url, body=b"", method="GET"), Sent())
    lines = [line.partition(": ") for line in seen if "ignature" in line]
    assert len(lines) == 2
    for _, _, signature in lines:
        assert signature not in body_of(outcome)
        assert signature[-30:] not in body_of(outcome)
    assert "X-Run-Id: " in body_of(outcome)


async def test_a_secret_across_the_cut_is_hidden(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    headers = {"Authorization": "0123456789abcdef" * 400}
    for before in range(MAX_TEXT - 40, MAX_TEXT + 10, 7):
        data = b"-" * before + headers["Authorization"].encode()
        outcome = await ask(executor, receiver, Answer(500, (), data), headers=headers)
        assert "0123" not in body_of(outcome)
        assert body_of(outcome).startswith("-" * min(before, MAX_TEXT))


@pytest.mark.parametrize(
    ("status", "values", "duplicate"),
    [
        (200, ["1"], True),
        (204, ["1"], True),
        (200, ["1", "1"], True),
        (200, [], False),
        (200, ["0"], False),
        (200, ["true"], False),
        (200, ["01"], False),
        (200, ["1, 1"], False),
        (200, ["1", "0"], False),
        (302, ["1"], False),
        (409, ["1"], False),
        (500, ["1"], False),
    ],
)
async def test_only_a_success_can_say_that_it_is_a_repeat(
    executor: HttpExecutor,
    receiver: RecordingReceiver,
    status: int,
    values: list[str],
    duplicate: bool,
) -> None:
    headers = tuple(("X-Noonday-Duplicate", value) for value in values)
    assert (await ask(executor, receiver, Answer(status, headers))).duplicate is duplicate


TYPES = ["", "text/plain", "image/png", *(f"text/plain; charset={name}" for name in (
    "utf-8", "utf-16", "utf-16le", "gb18030", "big5", "euc-kr", "cp932", "windows-1258", "\0", "'"
))]  # fmt: skip


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(st.binary(max_size=3_000), st.sampled_from(TYPES), st.booleans())
def test_whatever_a_body_is_it_can_be_stored(data: bytes, media_type: str, whole: bool) -> None:
    body = Body()
    body.begins, body.count, body.whole = data, len(data), whole
    head, _ = _decoded(body, media_type, 100)
    assert len(head) <= MAX_TEXT
    echoes = Echoes(attempt("https://a.b/"), {})
    shown = _shown({"content-type": media_type}, body, None, echoes)
    assert all(mark.isprintable() or mark in "\n\t" for mark in shown)
    shown.encode()
