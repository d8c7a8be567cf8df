"""What Postgres plans for the statements of the product, as they are really called."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from noonday.store import Row, Store, Tx


@dataclass
class Plan:
    """What a plan touches."""

    scans: set[str] = field(default_factory=set)
    """Tables, partitions by their own name, that are read as a whole."""
    uses: list[str] = field(default_factory=list)
    """Indexes, as often as the plan goes by them."""
    tables: set[str] = field(default_factory=set)
    """Every table and partition that is read or written."""

    @classmethod
    def of(cls, node: dict[str, Any]) -> Plan:
        plan = cls()
        for each in _nodes(node):
            if "Relation Name" in each:
                plan.tables.add(each["Relation Name"])
            if each["Node Type"] == "Seq Scan":
                plan.scans.add(each["Relation Name"])
            if "Index Name" in each:
                plan.uses.append(each["Index Name"])
        return plan

    @property
    def indexes(self) -> set[str]:
        """Which indexes it goes by."""
        return set(self.uses)


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for each in node.get("Plans", []):
        yield from _nodes(each)


class LookingTx(Tx):
    """A transaction that looks at each statement, with its values, before it runs it."""

    __slots__ = ()

    async def look(self, statement: str, *args: Any) -> None:
        """Note what there is to note of it."""
        raise NotImplementedError

    async def rows(self, statement: str, *args: Any) -> list[Row]:
        await self.look(statement, *args)
        return await super().rows(statement, *args)

    async def row(self, statement: str, *args: Any) -> Row | None:
        await self.look(statement, *args)
        return await super().row(statement, *args)

    async def value(self, statement: str, *args: Any) -> Any:
        await self.look(statement, *args)
        return await super().value(statement, *args)

    async def execute(self, statement: str, *args: Any) -> int:
        await self.look(statement, *args)
        return await super().execute(statement, *args)


class ExplainingTx(LookingTx):
    """A transaction that asks for the plan of each statement, with its values, and runs it."""

    __slots__ = ("plans",)

    def __init__(self, tx: Tx, now: datetime | None = None) -> None:
        super().__init__(tx._connection, now)
        self.plans: dict[str, Plan] = {}

    async def look(self, statement: str, *args: Any) -> None:
        shown = await self._connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement}", *args)
        self.plans[statement] = Plan.of(json.loads(shown)[0]["Plan"])


class ComparingTx(LookingTx):
    """A transaction that carries out each statement twice, the first time to count how many pairs
    of rows its joins compare in vain; nothing of that stays."""

    __slots__ = ("compared",)

    def __init__(self, tx: Tx, now: datetime | None = None) -> None:
        super().__init__(tx._connection, now)
        self.compared: dict[str, int] = {}

    async def look(self, statement: str, *args: Any) -> None:
        await self._connection.execute("SAVEPOINT before")
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
        plan = json.loads(await self._connection.fetchval(explain, *args))[0]["Plan"]
        await self._connection.execute("ROLLBACK TO SAVEPOINT before")
        self.compared[statement] = round(
            sum(
                each.get("Rows Removed by Join Filter", 0) * each["Actual Loops"]
                for each in _nodes(plan)
            )
        )


class CountingTx(LookingTx):
    """A transaction that runs each statement twice, first to count the pages it looks at."""

    __slots__ = ("pages",)

    def __init__(self, tx: Tx, now: datetime | None = None) -> None:
        super().__init__(tx._connection, now)
        self.pages: dict[str, int] = {}
        """Pages that each statement has looked at, as often as it did."""

    async def look(self, statement: str, *args: Any) -> None:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
        plan = json.loads(await self._connection.fetchval(explain, *args))[0]["Plan"]
        looked_at = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        self.pages[statement] = self.pages.get(statement, 0) + looked_at


# A bitmap looks at a page once, an index for each entry: which of them is chosen wavers.
ENTRY_BY_ENTRY = "SET LOCAL enable_bitmapscan = off"


async def compared(store: Store, statement: str, call: Callable[[Tx], Awaitable[object]]) -> int:
    """How many pairs of rows ``statement`` compares in vain as ``call`` runs it; nothing stays."""
    found: dict[str, int] = {}
    with suppress(_Undone):
        async with store.transaction() as tx:
            comparing = ComparingTx(tx, tx.now)
            await call(comparing)
            found = comparing.compared
            raise _Undone
    return found[statement]


async def pages(store: Store, statement: str, call: Callable[[Tx], Awaitable[object]]) -> int:
    """How many pages ``statement`` looks at, entry by entry of its index, when ``call`` runs it;
    nothing of that stays."""
    counted: dict[str, int] = {}
    with suppress(_Undone):
        async with store.transaction() as tx:
            await tx.execute(ENTRY_BY_ENTRY)
            counting = CountingTx(tx, tx.now)
            await call(counting)
            counted = counting.pages
            raise _Undone
    return counted[statement]


class _Undone(Exception):
    pass
