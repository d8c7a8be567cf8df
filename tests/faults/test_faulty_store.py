"""The faults that are injected are what they are said to be, by the product's own translation."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from noonday.domain.errors import CommitUnknown, StoreUnavailable
from noonday.store import Store
from tests.support.database import open_store
from tests.support.faulty import AT_STATEMENT, Faults, FaultyStore, Kind

WRITE = """
INSERT INTO audit_log (at, actor, action, object_type, object_id)
VALUES (now(), 'x', 'x', 'x', 'x')
"""
COUNT = "SELECT count(*) FROM audit_log"

SLOW = {Kind.SLOW, Kind.LINGERING}
CAUSES = {
    Kind.TOO_MANY: asyncpg.TooManyConnectionsError,
    Kind.SERIALIZATION: asyncpg.SerializationError,
    Kind.DEADLOCK: asyncpg.DeadlockDetectedError,
    Kind.LOCKED: asyncpg.LockNotAvailableError,
    Kind.READ_ONLY: asyncpg.ReadOnlySQLTransactionError,
    Kind.TERMINATED: (asyncpg.AdminShutdownError, asyncpg.PostgresConnectionError),
    Kind.CUT: asyncpg.ConnectionDoesNotExistError,
    Kind.REFUSED: asyncpg.SerializationError,
    Kind.UNSAID: asyncpg.ConnectionDoesNotExistError,
    Kind.UNHEARD: asyncpg.ConnectionDoesNotExistError,
}
UNKNOWN = {Kind.UNSAID, Kind.UNHEARD}


@pytest.fixture
async def faulty(database_url: str) -> AsyncIterator[FaultyStore]:
    opened = await open_store(database_url, FaultyStore.under(Faults()), size=2)
    assert isinstance(opened, FaultyStore)
    yield opened
    await opened.close()


async def write(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.execute(WRITE)


async def written(store: Store) -> int:
    async with store.transaction() as tx:
        return int(await tx.value(COUNT))


def test_each_kind_is_slow_or_an_error() -> None:
    assert SLOW | CAUSES.keys() == set(Kind)


@pytest.mark.parametrize("kind", CAUSES)
async def test_a_fault_is_the_real_error_and_writes_nothing_unless_it_was_only_unheard(
    store: Store, faulty: FaultyStore, kind: Kind
) -> None:
    faulty.faults.once(kind)
    with pytest.raises(StoreUnavailable) as caught:
        await write(faulty)
    assert isinstance(caught.value.__cause__, CAUSES[kind])
    assert isinstance(caught.value, CommitUnknown) == (kind in UNKNOWN)
    assert await written(store) == (kind is Kind.UNHEARD)
    assert faulty.faults.met == {kind: 1}
    await write(faulty)
    assert await written(store) == 1 + (kind is Kind.UNHEARD), "the next one finds all well"


@pytest.mark.parametrize("kind", sorted(SLOW))
async def test_what_is_slow_is_carried_out(store: Store, faulty: FaultyStore, kind: Kind) -> None:
    faulty.faults.once(kind)
    await write(faulty)
    assert await written(store) == 1


async def test_a_read_passes_on_a_server_that_takes_no_writes(faulty: FaultyStore) -> None:
    faulty.faults.once(Kind.READ_ONLY)
    assert await written(faulty) == 0


@pytest.mark.parametrize("kind", sorted(CAUSES))
async def test_a_connection_of_ones_own_has_the_same_faults(
    store: Store, faulty: FaultyStore, kind: Kind
) -> None:
    faulty.faults.once(kind)
    with pytest.raises(StoreUnavailable):
        async with faulty.direct() as connection, connection.transaction() as tx:
            await tx.execute(WRITE)
    assert await written(store) == (kind is Kind.UNHEARD)


async def test_the_same_seed_makes_the_same_faults() -> None:
    def drawn(seed: int) -> list[Kind | None]:
        faults = Faults(seed)
        faults.rage(0.3)
        return [faults.draw(AT_STATEMENT) for _ in range(200)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert set(drawn(1)) == {None, *AT_STATEMENT}
