"""What a tenant's hosts and concurrency keys are limited to."""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies
from noonday.api.context import caller_of, context_of
from noonday.api.documents import LimitDocument
from noonday.api.ids import name_of
from noonday.api.notes import note
from noonday.api.pages import json, place, there
from noonday.api.problems import not_found
from noonday.api.queries import Query
from noonday.api.schemas import HostLimitBody, KeyLimitBody
from noonday.domain.caps import host_cap, key_cap
from noonday.store import Row, caps, limits, locks
from noonday.store.limits import Limit

_KEY: Final = re.compile("[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,200}")
_CAP: Final = {"host": host_cap, "key": key_cap}
_KEYS: Final = "/v1/limits/keys/"
_BEGINNING: Final = ("", "")


async def page(request: Request) -> Response:
    """The tenant's own cap, then the limits of its hosts and of its keys, by name."""
    where = place(request, Query(request))
    after = where.after(tuple[str, str])
    tenant_id = caller_of(request).tenant_id
    async with context_of(request).store.transaction() as tx:
        rows = [] if after else [await limits.own(tx, tenant_id)]
        rows += await limits.page(tx, tenant_id, after or _BEGINNING, where.limit + 1)
    return where.answer_rows(rows, _document, _position)


def _position(row: Row) -> tuple[str, str]:
    return _BEGINNING if row["kind"] == "tenant" else (row["kind"], row["name"])


async def put_host(request: Request) -> Response:
    """Limit the tenant's runs that call a host."""
    host = _host_of(request)
    wanted = await bodies.parsed(request, HostLimitBody)
    return await _change(request, "host", host, Limit(wanted.max_running, wanted.rate_per_sec))


async def free_host(request: Request) -> Response:
    """The tenant's runs that call a host are not limited any more."""
    return await _change(request, "host", _host_of(request), None)


async def put_key(request: Request) -> Response:
    """So many runs of a concurrency key are carried out at a time."""
    key = _key_of(request)
    wanted = await bodies.parsed(request, KeyLimitBody)
    return await _change(request, "key", key, Limit(wanted.max_running))


async def free_key(request: Request) -> Response:
    """Runs of a concurrency key are carried out one at a time again."""
    return await _change(request, "key", _key_of(request), None)


def _host_of(request: Request) -> str:
    return name_of(request, "No host", "host").lower()


def _key_of(request: Request) -> str:
    # (The router drops a line feed at the end.)
    key: str = request.scope["path"].removeprefix(_KEYS)
    if not _KEY.fullmatch(key):
        raise not_found("No concurrency key")
    return key


async def _change(request: Request, kind: str, name: str, limit: Limit | None) -> Response:
    """Set a limit, or take it away. What is above a lower one and was not claimed waits again."""
    tenant_id = caller_of(request).tenant_id
    cap = _CAP[kind](tenant_id, name)
    async with context_of(request).store.transaction() as tx:
        await locks.own_tenant(tx, tenant_id)
        before = await limits.one(tx, tenant_id, kind, name)
        if limit is not None:
            await limits.put(tx, tenant_id, kind, name, limit)
        elif not await limits.delete(tx, tenant_id, kind, name):
            raise not_found("No limit")
        await caps.put_back(tx, tenant_id, cap)
        after = await limits.one(tx, tenant_id, kind, name)
        action = "limit.clear" if limit is None else "limit.set"
        await note(tx, request, action, (kind, name), _settings(before), _settings(after))
    if after is not None:
        return json(_document(after))
    gone = there(before)
    most = 1 if kind == "key" else None
    return json(_document({**gone, "max_running": most, "rate_per_sec": None}))


def _settings(row: Row | None) -> Any:
    if row is None:
        return None
    return {"max_running": row["max_running"], "rate_per_sec": row["rate_per_sec"]}


def _document(row: Row) -> LimitDocument:
    return LimitDocument(
        kind=row["kind"],
        name=row["name"],
        max_running=row["max_running"],
        rate_per_sec=row["rate_per_sec"],
        used=row["used"],
        waiting=row["waiting"],
    )
