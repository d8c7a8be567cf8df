"""For admins, over all tenants: tenants, API keys, and what the service consists of."""

from __future__ import annotations

from datetime import datetime
from typing import Final, cast
from uuid import UUID

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, problems
from noonday.api.auth import Gate
from noonday.api.context import context_of
from noonday.api.documents import (
    ApiKeyDocument,
    AuditDocument,
    ShardDocument,
    TenantDocument,
    WorkerDocument,
    maybe,
    stamp,
)
from noonday.api.ids import name_of
from noonday.api.notes import note
from noonday.api.pages import json, place, there
from noonday.api.problems import Problem, not_found
from noonday.api.queries import Query
from noonday.api.reading import Fault
from noonday.api.schemas import ApiKeyBody, TenantBody, TenantChanges
from noonday.domain.caps import tenant_cap
from noonday.domain.quotas import Quotas
from noonday.domain.roles import role_named
from noonday.store import (
    Row,
    Tx,
    api_keys,
    audit,
    caps,
    limits,
    locks,
    reports,
    shards,
    tenants,
    workers,
)

SETTINGS: Final = (
    "max_payload_bytes", "keep_responses", "max_running", "weight", "deliveries_per_sec",
    "jitter_sec",
    *Quotas._fields,
)  # fmt: skip
"""What is on record of a tenant when somebody changes it."""
NO_STORE = {"Cache-Control": "no-store"}
"""Goes with what is shown once."""


# --- tenants ----------------------------------------------------------------------------------


async def tenants_page(request: Request) -> Response:
    """All tenants, oldest first."""
    where = place(request, Query(request))
    (after,) = where.after(tuple[int]) or (0,)
    async with context_of(request).store.transaction() as tx:
        rows = await tenants.page(tx, after, where.limit + 1)
    return where.answer_rows(rows, _tenant, lambda row: (row["id"],))


async def tenant(request: Request) -> Response:
    """One tenant."""
    async with context_of(request).store.transaction() as tx:
        row = await _named_tenant(tx, request)
    return json(_tenant(row))


async def create_tenant(request: Request) -> Response:
    """A new tenant; its signing secret is shown only now."""
    wanted = await bodies.parsed(request, TenantBody)
    context = context_of(request)
    async with context.store.transaction() as tx:
        made = await tenants.create(tx, context.secretbox, wanted.name, wanted.max_payload_bytes)
        if made is None:
            raise Problem(409, "already_exists", "There is a tenant of this name.")
        await tenants.change(
            tx,
            made[0],
            keep_responses=wanted.keep_responses,
            weight=wanted.weight,
            jitter_sec=wanted.jitter_sec,
        )
        await _set_quotas(tx, there(await tenants.one(tx, wanted.name)), wanted)
        await tenants.limit_deliveries(tx, made[0], wanted.deliveries_per_sec)
        if wanted.max_running is not None:
            await limits.put_own(tx, made[0], wanted.max_running)
        row = there(await tenants.one(tx, wanted.name))
        await note(tx, request, "tenant.create", ("tenant", wanted.name), after=_settings(row))
    headers = {"Location": f"/v1/tenants/{wanted.name}", **NO_STORE}
    return json(_tenant(row, made[1]), 201, headers)


async def change_tenant(request: Request) -> Response:
    """Change a tenant's settings. What attempts already keep stays."""
    wanted = await bodies.parsed(request, TenantChanges)
    async with context_of(request).store.transaction() as tx:
        found = await _named_tenant(tx, request)
        if wanted.max_running is not UNSET:
            await locks.own_tenant(tx, found["id"])
            await limits.put_own(tx, found["id"], wanted.max_running)
            await caps.put_back(tx, found["id"], tenant_cap(found["id"]))
        await tenants.change(
            tx,
            found["id"],
            max_payload_bytes=wanted.max_payload_bytes,
            keep_responses=wanted.keep_responses,
            weight=wanted.weight,
            jitter_sec=wanted.jitter_sec,
        )
        # Read again: by now the row is locked.
        await _set_quotas(tx, there(await tenants.one(tx, found["name"])), wanted)
        if wanted.deliveries_per_sec is not UNSET:
            await tenants.limit_deliveries(tx, found["id"], wanted.deliveries_per_sec)
        row = there(await tenants.one(tx, found["name"]))
        before, after = _settings(found), _settings(row)
        await note(tx, request, "tenant.change", ("tenant", found["name"]), before, after)
    _forget_callers(request)
    return json(_tenant(row))


def _settings(row: Row) -> dict[str, object]:
    return {name: row[name] for name in SETTINGS}


async def _set_quotas(tx: Tx, found: Row, wanted: TenantBody | TenantChanges) -> None:
    """What is not given stays as it was found; a burst without a rate means nothing."""
    was = Quotas(*(found[name] for name in Quotas._fields))
    given = {name: getattr(wanted, name) for name in Quotas._fields}
    given = {name: value for name, value in given.items() if value is not UNSET}
    quotas = was._replace(**given)
    if quotas.creates_per_sec is None and quotas.creates_burst is not None:
        if given.get("creates_burst") is not None:
            fault = Fault("/creates_burst", "conflict", "needs creates_per_sec")
            raise problems.invalid([fault])
        quotas = quotas._replace(creates_burst=None)
    if quotas != was:
        await tenants.set_quotas(tx, found["id"], quotas)


def _forget_callers(request: Request) -> None:
    """What keys and their tenants may do was changed: here that holds at once."""
    cast("Gate", request.app.state.gate).forget()


async def rotate_secret(request: Request) -> Response:
    """A new signing secret, shown only now; those before are signed with for a day more."""
    context = context_of(request)
    async with context.store.transaction() as tx:
        found = await _named_tenant(tx, request)
        secret = await tenants.rotate(tx, context.secretbox, found["id"])
        await note(tx, request, "tenant.rotate_signing_secret", ("tenant", found["name"]))
        row = await tenants.one(tx, found["name"])
    return json(_tenant(there(row), secret), headers=NO_STORE)


async def _named_tenant(tx: Tx, request: Request) -> Row:
    row = await tenants.one(tx, name_of(request, "No tenant"))
    if row is None:
        raise not_found("No tenant")
    return row


def _tenant(row: Row, secret: bytes | None = None) -> TenantDocument:
    return TenantDocument(
        id=row["id"],
        name=row["name"],
        max_payload_bytes=row["max_payload_bytes"],
        keep_responses=row["keep_responses"],
        creates_per_sec=row["creates_per_sec"],
        creates_burst=row["creates_burst"],
        create_bytes_per_sec=row["create_bytes_per_sec"],
        max_pending_jobs=row["max_pending_jobs"],
        deliveries_per_sec=row["deliveries_per_sec"],
        max_running=row["max_running"],
        weight=row["weight"],
        jitter_sec=row["jitter_sec"],
        created_at=stamp(row["created_at"]),
        secrets_rotated_at=stamp(row["secrets_rotated_at"]),
        signing_secret=None if secret is None else tenants.written(secret),
    )


# --- API keys ---------------------------------------------------------------------------------


async def api_keys_page(request: Request) -> Response:
    """The API keys of all tenants, or of one; never their secrets."""
    query = Query(request)
    name = query.text("tenant")
    where = place(request, query, name)
    (after,) = where.after(tuple[str]) or ("",)
    async with context_of(request).store.transaction() as tx:
        rows = await api_keys.page(tx, after, name, where.limit + 1)
    return where.answer_rows(rows, _api_key, lambda row: (row["id"],))


async def create_api_key(request: Request) -> Response:
    """A new API key; it is shown only now."""
    wanted = await bodies.parsed(request, ApiKeyBody)
    role = role_named(wanted.role)
    async with context_of(request).store.transaction() as tx:
        owner = await tenants.one(tx, wanted.tenant)
        if owner is None or role is None:
            raise problems.invalid([Fault("/tenant", "unknown_tenant", "is not a tenant's name")])
        await _require_future(tx, wanted.expires_at)
        token = await api_keys.create(tx, owner["id"], role, wanted.name, wanted.expires_at)
        key_id = api_keys.id_of(token)
        after = {"tenant": wanted.tenant, "role": wanted.role, "name": wanted.name}
        await note(tx, request, "api_key.create", ("api_key", key_id), after=after)
        row = await api_keys.one(tx, key_id)
    headers = {"Location": f"/v1/api-keys/{key_id}", **NO_STORE}
    return json(_api_key(there(row), token), 201, headers)


async def _require_future(tx: Tx, expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= await tx.clock():
        raise problems.invalid([Fault("/expires_at", "out_of_range", "must lie in the future")])


async def revoke_api_key(request: Request) -> Response:
    """End an API key for good: here at once, in other processes within five seconds."""
    key_id = name_of(request, "No API key", "id")
    async with context_of(request).store.transaction() as tx:
        if not await api_keys.other_admins(tx, key_id):
            raise Problem(
                409,
                "last_admin_key",
                "This is the last key with the role admin; make another one before it goes.",
            )
        if await api_keys.revoke(tx, key_id):
            await note(tx, request, "api_key.revoke", ("api_key", key_id))
        row = await api_keys.one(tx, key_id)
    if row is None:
        raise not_found("No API key")
    _forget_callers(request)
    return json(_api_key(row))


def _api_key(row: Row, token: str | None = None) -> ApiKeyDocument:
    return ApiKeyDocument(
        id=row["id"],
        tenant=row["tenant"],
        role=row["role"],
        name=row["name"],
        created_at=stamp(row["created_at"]),
        expires_at=maybe(row["expires_at"]),
        revoked_at=maybe(row["revoked_at"]),
        key=token,
    )


# --- the service ------------------------------------------------------------------------------


async def workers_list(request: Request) -> Response:
    """Every process that is registered."""
    where = place(request, Query(request))
    (after,) = where.after(tuple[UUID]) or (None,)
    async with context_of(request).store.transaction() as tx:
        rows = sorted(await workers.every(tx), key=lambda row: row["id"])
    rest = [row for row in rows if after is None or row["id"] > after]
    return where.answer_rows(rest, _worker, lambda row: (row["id"],))


def _worker(row: Row) -> WorkerDocument:
    return WorkerDocument(
        id=str(row["id"]),
        role=row["role"],
        name=row["name"],
        host=row["host"],
        pid=row["pid"],
        slots=row["slots"],
        in_flight=row["in_flight"],
        stopping=row["stopping"],
        alive=row["alive"],
        started_at=stamp(row["started_at"]),
        seen_at=stamp(row["seen_at"]),
    )


async def shards_list(request: Request) -> Response:
    """Every shard and who owns it."""
    where = place(request, Query(request))
    (after,) = where.after(tuple[int]) or (-1,)
    async with context_of(request).store.transaction() as tx:
        rows = [row for row in await shards.every(tx) if row["shard"] > after]
    return where.answer_rows(rows, _shard, lambda row: (row["shard"],))


def _shard(row: Row) -> ShardDocument:
    owner = row["owner_id"]
    return ShardDocument(
        shard=row["shard"],
        epoch=row["epoch"],
        owner_id=None if owner is None else str(owner),
        leased_until=maybe(row["leased_until"]),
    )


async def audit_page(request: Request) -> Response:
    """Every change that people and API calls made, newest first."""
    where = place(request, Query(request))
    at, entry_id = where.after(tuple[datetime, int]) or (reports.END, 0)
    async with context_of(request).store.transaction() as tx:
        rows = await audit.page(tx, at, entry_id, where.limit + 1)
    return where.answer_rows(rows, _audit, lambda row: (row["at"], row["id"]))


def _audit(row: Row) -> AuditDocument:
    return AuditDocument(
        id=row["id"],
        at=stamp(row["at"]),
        tenant_id=row["tenant_id"],
        actor=row["actor"],
        action=row["action"],
        object_type=row["object_type"],
        object_id=row["object_id"],
        before=_raw(row["before"]),
        after=_raw(row["after"]),
        request_id=row["request_id"],
    )


def _raw(document: str | None) -> msgspec.Raw | None:
    return None if document is None else msgspec.Raw(document.encode())
