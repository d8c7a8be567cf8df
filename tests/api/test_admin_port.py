"""The admin port tells whether a process lives, whether it is ready, and how it does."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from noonday.api.admin_port import create_admin_app
from noonday.listening import bind, serving
from noonday.telemetry import Metrics


async def test_a_process_is_ready_when_every_check_is_well() -> None:
    faults: dict[str, str | None] = {"database": None, "loop": None}

    async def checks() -> Mapping[str, str | None]:
        return faults

    metrics = Metrics("1.2.3")
    app = create_admin_app(checks, metrics.render, ["fsync is off"])
    async with (
        serving(app, bind("127.0.0.1", 0)) as address,
        aiohttp.ClientSession(address) as session,
    ):
        async with session.get("/readyz") as answer:
            assert answer.status == 200
            assert await answer.json() == {
                "ready": True,
                "checks": [
                    {"name": "database", "ok": True, "detail": None},
                    {"name": "loop", "ok": True, "detail": None},
                ],
                "unsafe": ["fsync is off"],
            }
        faults["database"] = "no answer"
        async with session.get("/readyz") as answer:
            assert answer.status == 503
            body = await answer.json()
            assert body["ready"] is False
            assert body["checks"][0] == {"name": "database", "ok": False, "detail": "no answer"}
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        async with session.get("/metrics") as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=")
            assert 'noonday_build_info{role="",version="1.2.3"}' in await answer.text()
