"""What Postgres plans for the statements of the product, as they are really called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from noonday.store import Row, Tx


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


class ExplainingTx(Tx):
    """A transaction that asks for the plan of each statement, with its values, and runs it."""

    __slots__ = ("plans",)

    def __init__(self, tx: Tx, now: datetime | None = None) -> None:
        super().__init__(tx._connection, now)
        self.plans: dict[str, Plan] = {}

    async def _explain(self, statement: str, *args: Any) -> None:
        shown = await self._connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement}", *args)
        self.plans[statement] = Plan.of(json.loads(shown)[0]["Plan"])

    async def rows(self, statement: str, *args: Any) -> list[Row]:
        await self._explain(statement, *args)
        return await super().rows(statement, *args)

    async def row(self, statement: str, *args: Any) -> Row | None:
        await self._explain(statement, *args)
        return await super().row(statement, *args)

    async def value(self, statement: str, *args: Any) -> Any:
        await self._explain(statement, *args)
        return await super().value(statement, *args)

    async def execute(self, statement: str, *args: Any) -> int:
        await self._explain(statement, *args)
        return await super().execute(statement, *args)
