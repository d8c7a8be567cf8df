"""What a call changed, or was denied, noted in the audit log by its own transaction."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from noonday.api import problems
from noonday.api.context import caller_of
from noonday.store import Tx, audit


async def note(
    tx: Tx,
    request: Request,
    action: str,
    what: tuple[str, object],
    before: Any = None,
    after: Any = None,
) -> None:
    """One entry: the caller did ``action`` to ``what`` (its type and its id)."""
    caller = caller_of(request)
    kind, name = what
    entry = audit.Entry(
        caller.tenant_id, caller.key_id, action, kind, str(name),
        None if before is None else audit.document(before),
        None if after is None else audit.document(after),
        problems.request_id(request),
    )  # fmt: skip
    await audit.write(tx, [entry])


async def denied(tx: Tx, request: Request, action: str, what: tuple[str, object]) -> None:
    """One entry: the caller tried ``action`` on what is not there, or belongs to somebody else."""
    await note(tx, request, action, what, after={"denied": "not_found"})
