"""Payloads come back byte for byte, inline or from the blob store, and leave nothing behind."""

from __future__ import annotations

import base64
from pathlib import Path
from uuid import uuid4

import pytest

from noonday.api.context import INLINE_BYTES
from noonday.store import Store, workers
from tests.support.database_locks import value
from tests.support.servers import Api, a_context, a_job, running_api


def blobs_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def stored(api: Api) -> bytes:
    """The payload of the one job, wherever it is kept."""
    async with api.store.transaction() as tx:
        row = await tx.one("SELECT payload, payload_ref FROM jobs")
    if row["payload"] is not None:
        return bytes(row["payload"])
    return await api.context.blobs.get(row["payload_ref"])


@pytest.mark.parametrize(
    "payload",
    [b"null", b'{"b":1, "a":1,\t"a":2}', b"1e400", '"\\u0000 🙂"'.encode(), b'[ 1.0 ]',
     b'"' + b"x" * (INLINE_BYTES - 2) + b'"', b'"' + b"x" * (INLINE_BYTES - 1) + b'"'],
    ids=["null", "object", "big", "text", "spaces", "inline", "blob"],
)  # fmt: skip
async def test_a_payload_is_kept_byte_for_byte(api: Api, payload: bytes) -> None:
    head = b'{"schedule":{"type":"once","delay":"P1D"},"target":{"type":"http","url":"https://r.example/"}'
    answer = await api.admin.call("POST", "/v1/jobs", data=head + b',"payload":' + payload + b"}")
    assert (answer.status, answer.body["payload_bytes"]) == (202, len(payload))
    assert await stored(api) == payload
    inline = await value(api.store, "SELECT payload IS NOT NULL FROM jobs")
    assert inline == (len(payload) <= INLINE_BYTES)


async def test_other_bytes_come_as_base64(api: Api) -> None:
    data = bytes(range(256)) * 200
    job = a_job(payload_base64=base64.b64encode(data).decode(), content_type="image/x-any")
    del job["payload"]
    answer = await api.admin.post("/v1/jobs", job)
    assert (answer.status, answer.body["content_type"]) == (202, "image/x-any")
    assert await stored(api) == data


async def test_a_payload_of_a_job_that_is_not_created_is_removed(api: Api, tmp_path: Path) -> None:
    big = "x" * 100_000
    folder = tmp_path / "blobs"
    for _ in range(2):
        assert (
            await api.admin.post("/v1/jobs", a_job(payload=big), idempotency_key="k")
        ).status == 202
        assert len(blobs_in(folder)) == 1
    conflict = await api.admin.post("/v1/jobs", a_job(payload=big + "y"), idempotency_key="k")
    assert conflict.status == 409
    batch = {"atomic": True, "jobs": [{"job": a_job(payload=big)}, {"job": a_job(
        schedule={"type": "once", "run_at": "1999-01-01T00:00:00Z"})}]}  # fmt: skip
    assert (await api.admin.post("/v1/jobs:batch", batch)).status == 422
    assert len(blobs_in(folder)) == 1


async def test_a_big_payload_that_other_hosts_cannot_read_is_refused(
    store: Store, tmp_path: Path
) -> None:
    big = a_job(payload="x" * 100_000)
    async with running_api(a_context(store, tmp_path / "one")) as api:
        assert (await api.admin.post("/v1/jobs", big)).status == 202
        async with store.transaction() as tx:
            await workers.report(tx, uuid4(), "worker", "far")
            await tx.execute("UPDATE workers SET host = 'another-host'")
        refused = await api.admin.post("/v1/jobs", big)
        assert (refused.status, refused.code) == (413, "too_large")
        assert "blobs_shared" in refused.body["detail"]
        assert (await api.admin.post("/v1/jobs", a_job())).status == 202
    async with running_api(a_context(store, tmp_path / "two", blobs_shared=True)) as shared:
        assert (await shared.admin.post("/v1/jobs", big)).status == 202
