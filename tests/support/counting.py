"""A store that remembers which statements it was given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from noonday.store import Row, Store, Tx


class CountingStore(Store):
    """All else is the store it is made of."""

    def __init__(self, store: Store) -> None:
        super().__init__(store._pool, store._direct_dsn)
        self.now = store.now
        self.statements: list[str] = []

    @asynccontextmanager
    async def transaction(self, opening: str = "") -> AsyncIterator[Tx]:
        async with super().transaction(opening) as tx:
            yield _CountingTx(tx, self.statements)

    @asynccontextmanager
    async def singly(self) -> AsyncIterator[Tx]:
        async with super().singly() as tx:
            yield _CountingTx(tx, self.statements)


class _CountingTx(Tx):
    __slots__ = ("_statements",)

    def __init__(self, tx: Tx, statements: list[str]) -> None:
        super().__init__(tx._connection, tx.now, tx.opening)
        self._statements = statements

    async def rows(self, statement: str, *args: Any) -> list[Row]:
        self._statements.append(statement)
        return await super().rows(statement, *args)

    async def row(self, statement: str, *args: Any) -> Row | None:
        self._statements.append(statement)
        return await super().row(statement, *args)

    async def value(self, statement: str, *args: Any) -> Any:
        self._statements.append(statement)
        return await super().value(statement, *args)

    async def execute(self, statement: str, *args: Any) -> int:
        self._statements.append(statement)
        return await super().execute(statement, *args)
