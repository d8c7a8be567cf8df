"""Bodies are read up to a limit, whole or in pieces, and only as JSON."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from tests.support.database_locks import value
from tests.support.servers import Api, a_job

MIB = 1024 * 1024
JOB = b'{"schedule":{"type":"once"},"target":{"type":"http","url":"https://receiver.example/run"}}'


async def endless() -> AsyncIterator[bytes]:
    """A chunked body that does not say how long it is, and does not end."""
    while True:
        yield b" " * 65_536


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for byte in body:
        yield bytes([byte])


@pytest.mark.parametrize(("path", "limit"), [("/v1/jobs", 2 * MIB), ("/v1/jobs:batch", 10 * MIB)])
async def test_a_body_over_the_limit_is_refused_while_it_streams(
    api: Api, path: str, limit: int
) -> None:
    try:
        answer = await api.admin.call("POST", path, data=endless())
    except ConnectionError:
        pytest.fail("the connection was cut before the answer")
    assert (answer.status, answer.code) == (413, "too_large")
    assert str(limit) in answer.body["detail"]
    assert answer.headers["connection"] == "close"


async def test_answers_with_and_without_a_body_follow_each_other_on_one_connection(
    api: Api,
) -> None:
    host, _, port = api.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    about = f"Host: x\r\nAuthorization: Bearer {api.admin.token}\r\n"
    asked = f"HEAD /v1/jobs HTTP/1.1\r\n{about}\r\n".encode()
    post = (
        f"POST /v1/jobs HTTP/1.1\r\n{about}Content-Type: application/json\r\n"
        f"Content-Length: {len(JOB)}\r\nExpect: 100-continue\r\n\r\n"
    )
    async with asyncio.timeout(10):
        for _ in range(2):
            writer.write(asked)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            writer.write(post.encode())
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(JOB)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 202 ")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            assert (await reader.readexactly(length)).startswith(b"{")
    writer.close()


async def test_a_body_that_says_it_is_too_large_is_not_read(api: Api) -> None:
    host, _, port = api.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.admin.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {10**12}\r\n\r\n".encode()
    )
    async with asyncio.timeout(10):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_a_body_may_come_in_pieces(api: Api) -> None:
    answer = await api.admin.call("POST", "/v1/jobs", data=in_pieces(JOB))
    assert answer.status == 202


async def test_a_client_that_goes_away_within_its_body_leaves_nothing(api: Api) -> None:
    host, _, port = api.address.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.admin.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(JOB) + 1}\r\n\r\n"
    )
    writer.write(head.encode() + JOB)
    await writer.drain()
    writer.transport.abort()
    assert (await api.admin.post("/v1/jobs", a_job())).status == 202
    assert await value(api.store, "SELECT count(*) FROM jobs") == 1


@pytest.mark.parametrize(
    "kind",
    ["", "text/plain", "application/xml", "application/json-patch+json",
     "application/x-www-form-urlencoded", "application/json; charset=latin-1"],
)  # fmt: skip
async def test_a_body_of_another_type_is_refused(api: Api, kind: str) -> None:
    answer = await api.admin.call("POST", "/v1/jobs", data=JOB, content_type=kind)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON", 'application/json; charset="utf-8"']
)
async def test_json_may_be_called_by_any_of_its_names(api: Api, kind: str) -> None:
    assert (await api.admin.call("POST", "/v1/jobs", data=JOB, content_type=kind)).status == 202


async def test_a_compressed_body_is_refused(api: Api) -> None:
    packed = gzip.compress(JOB)
    answer = await api.admin.call("POST", "/v1/jobs", data=packed, content_encoding="gzip")
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b"\xff", b'"x"', b"1e999", JOB + b"x"])
async def test_what_is_not_a_job_is_a_problem_and_never_a_crash(api: Api, body: bytes) -> None:
    for path in ("/v1/jobs", "/v1/jobs:batch", "/v1/tenants", "/v1/api-keys"):
        answer = await api.admin.call("POST", path, data=body)
        assert answer.status in (400, 422), path
        assert answer.body["errors"], path


async def test_a_trigger_needs_no_body_but_refuses_a_bad_one(api: Api) -> None:
    job = await api.admin.create()
    path = f"/v1/jobs/{job}/trigger"
    assert (await api.admin.post(path)).status == 202
    assert (await api.admin.post(path, {})).status == 202
    assert (await api.admin.post(path, {"when": "now"})).status == 422
    assert (await api.admin.call("POST", path, data=b"x", content_type="text/plain")).status == 415
