"""The audit log: what people and API calls changed, written in the change's own transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from noonday.store import Copy, Row, Tx


class Entry(NamedTuple):
    """One mutation. ``actor`` is an API key's id, or the command that acted."""

    tenant_id: int | None
    actor: str
    action: str
    object_type: str
    object_id: str
    before: str | None = None
    after: str | None = None
    request_id: str | None = None


def document(value: Any) -> str:
    """A before or after as the log keeps it; never holds a secret."""
    return msgspec.json.encode(value).decode()


WRITE: Final = Copy("audit_log", ("at", *Entry._fields))


async def write(tx: Tx, entries: Sequence[Entry], at: datetime | None = None) -> None:
    """Append to the log. ``at`` is the transaction's time, for those who have it at hand."""
    if entries:
        at = await tx.clock() if at is None else at
        await tx.copy(WRITE, [(at, *entry) for entry in entries])


PAGE: Final = """
SELECT id, at, tenant_id, actor, action, object_type, object_id, before, after, request_id
FROM audit_log WHERE (at, id) < ($1, $2) ORDER BY at DESC, id DESC LIMIT $3
"""


async def page(tx: Tx, before_at: datetime, before_id: int, limit: int) -> list[Row]:
    """The log, newest first, from just before a position."""
    return await tx.rows(PAGE, before_at, before_id, limit)
