"""Batches that one bad row cannot take down.

A batch is written by few statements in one transaction. When Postgres refuses it because of a
row's data, the batch is halved until the bad row stands alone with its own error, and all the
others are written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from noonday.store import ROW_FAULTS

Item = TypeVar("Item")
Result = TypeVar("Result")


async def bisect(
    items: Sequence[Item], write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]]
) -> list[Result | Exception]:
    """Write ``items``, isolating those that Postgres refuses.

    ``write`` opens its own transaction and answers with one result per item, in order. What is
    not a row's fault (no database, say) is raised: then nothing is known to be written.
    """
    if not items:
        return []
    try:
        return list(await write(items))
    except ROW_FAULTS as error:
        if len(items) == 1:
            return [error]
    middle = len(items) // 2
    return [*await bisect(items[:middle], write), *await bisect(items[middle:], write)]
