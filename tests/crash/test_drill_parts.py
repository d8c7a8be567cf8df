"""The parts of a drill that decide what it says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noonday.domain.errors import CommitUnknown, StoreUnavailable
from noonday.domain.model import Kind, RunKey
from noonday.drill import duplicates, verdict
from noonday.drill.frames import Frames
from noonday.drill.links import Link, Odds, Trap
from noonday.drill.marks import Mark
from noonday.drill.wires import Weather
from noonday.store import Store, workers
from tests.support import seeds
from tests.support.holds import eventually

RUN = RunKey(UUID(int=7), Kind.SCHEDULE, datetime(2026, 1, 1, tzinfo=UTC))
FIGURES = {"deliveries": 240, "kills": 10, "takeovers": 2}


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


TALK = (
    message(b"", b"\0\3\0\0user\0me\0\0"),
    message(b"Q", b"BEGIN;\0"),
    message(b"P", b"s1\0SELECT 1\0\0\0"),
    message(b"B", b"\0s1\0\0\0"),
    message(b"S", b""),
    message(b"Q", b"COMMIT;\0"),
)


@given(st.lists(st.integers(0, sum(map(len, TALK))), max_size=8))
def test_what_is_said_is_read_alike_in_whatever_pieces_it_comes(cuts: list[int]) -> None:
    whole, frames = b"".join(TALK), Frames()
    edges = [0, *sorted(cuts), len(whole)]
    found = [
        frame for start, end in itertools.pairwise(edges) for frame in frames.feed(whole[start:end])
    ]
    assert [frame.data for frame in found] == list(TALK)
    said = [frame.statement for frame in found]
    assert said == [None, "BEGIN;", None, "SELECT 1", None, "COMMIT;"]


# --- a link, between a real store and a real Postgres -----------------------------------------


@pytest.fixture
async def link(database_url: str) -> AsyncIterator[Link]:
    opened = Link(database_url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def linked(link: Link) -> AsyncIterator[Store]:
    opened = await Store.open(link.url, size=2)
    yield opened
    await opened.close()


async def forget(store: Store) -> None:
    async with store.transaction() as tx:
        await workers.report(tx, UUID(int=1), "worker", "w")
        await workers.forget(tx)


async def known(store: Store) -> int:
    async with store.transaction() as tx:
        return int(await tx.value("SELECT count(*) FROM workers"))


async def test_a_lost_answer_leaves_what_was_committed(
    link: Link, linked: Store, store: Store
) -> None:
    trap = Trap("janitor", "lose")
    link.set(trap)
    with pytest.raises(CommitUnknown):
        await forget(linked)
    assert trap.sprung.is_set()
    assert (await known(store), link.lost) == (1, 1)


async def test_what_is_kept_back_before_its_commit_is_seen_by_nobody(
    link: Link, linked: Store, store: Store
) -> None:
    trap = Trap("janitor", "hold before")
    link.set(trap)
    task = asyncio.create_task(forget(linked))
    await trap.sprung.wait()
    assert await known(store) == 0
    link.disarm(trap)
    await task
    assert await known(store) == 1


async def test_what_its_killed_process_said_last_never_passes(
    link: Link, linked: Store, store: Store
) -> None:
    trap = Trap("janitor", "hold before", drop=True)
    link.set(trap)
    task = asyncio.create_task(forget(linked))
    await trap.sprung.wait()
    link.disarm(trap)
    with pytest.raises(CommitUnknown):
        await task
    assert await known(store) == 0


async def test_a_commit_is_done_before_its_answer_is_kept_back(
    link: Link, linked: Store, store: Store
) -> None:
    trap = Trap("janitor", "hold after")
    link.set(trap)
    task = asyncio.create_task(forget(linked))
    await trap.sprung.wait()
    assert await known(store) == 1
    assert not task.done()
    link.disarm(trap)
    await task


async def test_a_trap_leaves_other_transactions_alone(link: Link, linked: Store) -> None:
    trap = Trap("claim", "lose")
    link.set(trap)
    await forget(linked)
    assert not trap.sprung.is_set()


async def test_jobs_that_are_copied_are_seen_as_created(link: Link, linked: Store) -> None:
    async with linked.transaction() as tx:
        await seeds.ready(tx, count=2)
    assert link.seen["create"] == 1


async def test_odds_of_one_meet_every_commit(link: Link, linked: Store, store: Store) -> None:
    always = SimpleNamespace(random=lambda: 0.0)
    link.odds = Odds(1.0, 0.0, always)  # type: ignore[arg-type]
    with pytest.raises(CommitUnknown):
        await forget(linked)
    assert await known(store) == 0
    link.odds = Odds(0.0, 1.0, always)  # type: ignore[arg-type]
    with pytest.raises(CommitUnknown):
        await forget(linked)
    assert await known(store) == 1


async def test_a_cut_is_noticed_and_what_was_kept_still_comes_after_a_silence(
    link: Link, linked: Store, store: Store
) -> None:
    await forget(linked)
    link.turn(Weather.CUT)
    with pytest.raises(StoreUnavailable):
        await forget(linked)
    link.turn(Weather.SILENT)
    task = asyncio.create_task(known(linked))
    await eventually(lambda: link.disturbed)
    link.turn(Weather.FAIR)
    assert await task == await known(store)


# --- the verdict ------------------------------------------------------------------------------


def mark(number: str, name: str, effect: str | None = "seen") -> Mark:
    return Mark(number, name, ["here"], effect=effect)


def why(marks: list[Mark], *named: str, seconds: float = 60, **figures: int) -> list[str]:
    all_named = not named
    numbers = named or ("F1", "F2", "F6")
    counted = FIGURES | figures
    return list(verdict.emptiness(seconds, numbers, counted, marks, all_named=all_named))


def test_a_full_drill_is_not_empty() -> None:
    assert why([mark("F1", "kill"), mark("F6", "stop")]) == []


@pytest.mark.parametrize("what", FIGURES)
def test_a_drill_in_which_too_little_happened_is_empty(what: str) -> None:
    assert len(why([], **{what: FIGURES[what] - 1})) == 1
    assert len(why([], seconds=600)) == 3


def test_a_fault_without_an_effect_makes_a_drill_empty() -> None:
    assert any("F6" in line for line in why([mark("F6", "stop", None)]))
    assert why([mark("F6", "stop", None), mark("F6", "stop")]) == []
    both = [mark("F6", "stop a worker", None), mark("F6", "stop an API")]
    assert len(why(both)) == 1


def test_a_fault_that_was_named_and_never_struck_makes_a_drill_empty() -> None:
    assert why([mark("F6", "stop")], "F6", "F9") == ["F9 was named, and never struck"]


# --- duplicates -------------------------------------------------------------------------------


def note(at: float, attempt: int, mood: str = "well", *, worked: bool = True) -> dict[str, Any]:
    return {"at": at, "run_id": str(RUN), "attempt": attempt, "mood": mood, "worked": worked}


def causes(notes: list[dict[str, Any]], status: str, *, unknown: bool = False) -> list[str]:
    row = {"attempt": 1, "status": status, "unknown": unknown}
    evidence: Any = SimpleNamespace(executions={RUN: [row]})
    return [found.cause for found in duplicates.find(evidence, notes)]


def test_work_that_was_never_done_is_no_duplicate() -> None:
    assert causes([note(1, 1, "error", worked=False), note(2, 2)], "FAILED") == []


@pytest.mark.parametrize(
    ("status", "mood", "unknown", "cause"),
    [
        ("LEASE_EXPIRED", "well", True, "its lease ran out before the answer was on record"),
        ("INTERRUPTED", "well", True, "its worker was stopped before the answer came"),
        ("FAILED", "breaking off", True, "the receiver was breaking off"),
        ("FAILED", "well", True, "the answer was lost on the way"),
        ("FAILED", "well", False, duplicates.UNEXPLAINED),
        ("SUCCESS", "well", False, duplicates.UNEXPLAINED),
    ],
)
def test_a_duplicate_has_the_cause_that_is_on_record(
    status: str, mood: str, unknown: bool, cause: str
) -> None:
    assert causes([note(1, 1, mood), note(2, 2)], status, unknown=unknown) == [cause]
