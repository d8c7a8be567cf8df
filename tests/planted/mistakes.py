"""Known mistakes, one at a time, to show that each is found by the layer that should find it.

Each changes the product in the process that it is planted in, before anything else runs, and fails
loudly when what it changes is not there any more. Nothing of this is in the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

VARIABLE = "NOONDAY_TEST_PLANT"
"""Names the mistake to plant."""


@dataclass(frozen=True)
class Mistake:
    """What is planted, and the tests that find it: the arguments of a run that then fails."""

    plant: Callable[[], None]
    found_by: Sequence[str]


def _edit(module: ModuleType, statement: str, *changes: tuple[str, str]) -> None:
    text = getattr(module, statement)
    for old, new in changes:
        assert old in text, f"{statement} has no {old!r} any more"
        text = text.replace(old, new)
    setattr(module, statement, text)


def _replace(owner: Any, name: str, by: Any) -> None:
    assert hasattr(owner, name), f"there is no {name} any more"
    setattr(owner, name, by)


def result_without_its_lease_version() -> None:
    from noonday.store import runs

    for statement in ("COMPLETE", "RETRY", "DEAD_LETTER"):
        _edit(
            runs,
            statement,
            (" AND r.lease_version = i.lease_version", ""),
            (" AND r.lease_version = h.lease_version", ""),
        )


def reaper_without_a_look_at_the_lease() -> None:
    from noonday.store import runs

    condition = "AND (h.status <> 'LEASE_EXPIRED' OR r.locked_until < h.clock)"
    _edit(runs, "RELEASE", (condition, ""))


def heartbeat_that_revives_a_lease() -> None:
    from noonday.store import runs

    _edit(runs, "HEARTBEAT", (" AND r.locked_until > coalesce($6, now())", ""))


def run_without_a_new_ledger_row() -> None:
    from noonday.store import occurrences

    _edit(occurrences, "OPEN", ("\nJOIN ledger AS l", "\nLEFT JOIN ledger AS l"))


def interruption_that_counts_as_a_failure() -> None:
    from noonday.store import runs

    _edit(runs, "RELEASE", ("failures + (h.status = 'LEASE_EXPIRED')::int", "failures + 1"))


def one_attempt_too_many() -> None:
    import msgspec

    from noonday.domain import lifecycle

    settle = lifecycle.settle

    def generous(lease: Any, outcome: Any, policy: Any, *rest: Any) -> Any:
        more = msgspec.structs.replace(policy, max_attempts=policy.max_attempts + 1)
        return settle(lease, outcome, more, *rest)

    _replace(lifecycle, "settle", generous)


def next_occurrence_from_the_clock() -> None:
    from noonday.domain import schedule

    interval = schedule._next_interval

    def from_now(wanted: Any, after: datetime) -> Any:
        found = interval(wanted, after)
        late = timedelta(microseconds=datetime.now(UTC).microsecond)
        return None if found is None else found + late

    _replace(schedule, "_next_interval", from_now)


def redirect_that_is_followed() -> None:
    from urllib.parse import urljoin

    from msgspec.structs import replace

    from noonday.executors.http import HttpExecutor

    exchange = HttpExecutor._exchange

    async def follow(self: Any, attempt: Any, *rest: Any) -> Any:
        outcome = await exchange(self, attempt, *rest)
        response = rest[2].response
        if not 300 <= response.status < 400 or "Location" not in response.headers:
            return outcome
        url = urljoin(attempt.target.url, response.headers["Location"])
        further = replace(attempt, target=replace(attempt.target, url=url))
        return await exchange(self, further, self._place(url), *rest[1:])

    _replace(HttpExecutor, "_exchange", follow)


def signature_from_before_the_wait() -> None:
    from contextvars import ContextVar

    from noonday.executors import http
    from noonday.executors.sending import now

    asked: ContextVar[float] = ContextVar("asked")
    call = http.HttpExecutor._call

    async def early(self: Any, attempt: Any, *rest: Any) -> Any:
        asked.set(now(attempt))
        return await call(self, attempt, *rest)

    _replace(http.HttpExecutor, "_call", early)
    _replace(http, "now", lambda _: asked.get())


def commit_that_failed_and_counts() -> None:
    from contextlib import suppress

    from noonday import store
    from noonday.domain.errors import StoreUnavailable

    commit = store._commit

    async def hope(transaction: Any) -> None:
        with suppress(StoreUnavailable):
            await commit(transaction)

    _replace(store, "_commit", hope)


def scheduler_without_a_fence() -> None:
    from noonday.store import shards

    async def trust(tx: Any, *_: Any) -> Any:
        return await tx.moment()

    _replace(shards, "fence", trust)


def late_timers_that_wait_and_are_left_behind() -> None:
    from noonday.loops.catching_up import CatchingUp

    looked = CatchingUp._looked

    def behind(self: Any, found: Any, at: Any, *, whole: bool) -> None:
        looked(self, found, at, whole=whole)
        if found:
            self.floor = found[-1]["due_at"] + timedelta(microseconds=1)

    _replace(CatchingUp, "_looked", behind)


def claim_of_what_is_held() -> None:
    from noonday.store import runs

    _edit(runs, "CLAIM", (" AND r.claimable", ""), (" AND r.hold IS NULL", ""))


def settle_in_doubt_that_is_written_again() -> None:
    from noonday.store import executions

    async def nothing(*_: Any) -> set[Any]:
        return set()

    _replace(executions, "written", nothing)


def cancel_that_ends_what_runs() -> None:
    from noonday.store import cancels

    _edit(cancels, "CANCEL", ("('READY', 'RETRYING')", "('READY', 'RETRYING', 'RUNNING')"))


def key_that_nobody_remembers() -> None:
    from noonday.store import idempotency

    async def nothing(*_: Any) -> dict[Any, Any]:
        return {}

    _replace(idempotency, "find", nothing)


def hold_that_spends_an_attempt() -> None:
    from noonday.store import holds

    _edit(holds, "HOLD", ("attempt = r.attempt - 1", "attempt = r.attempt"))


def replay_under_old_versions() -> None:
    from noonday.store import dead_letters

    _edit(dead_letters, "REPLAY", ("o.attempts, o.lease_version", "0, 0"))


def retry_that_comes_too_early() -> None:
    from noonday.store import runs

    _edit(
        runs, "RETRIES_DUE", ("retry_at <= coalesce($2, now())", "coalesce($2, now()) IS NOT NULL")
    )


def slots_counted_before_the_lock() -> None:
    from noonday.loops import admitting
    from noonday.store import caps, locks

    async def give(self: Any, tenant_id: int, moved: Sequence[str]) -> Any:
        async with self._store.transaction() as tx:
            found = await caps.waiting(tx, tenant_id, moved, admitting.EACH)
            await locks.own_tenant(tx, tenant_id)
            return await self._let_go(tx, found)

    _replace(admitting.Admitting, "_give", give)


def cap_of_a_lane_that_takes_no_lock() -> None:
    from noonday.store import locks

    async def mine(_tx: Any, keys: Sequence[int]) -> list[bool]:
        return [True for _ in keys]

    _replace(locks, "try_keys", mine)


def slots_outside_their_span() -> None:
    from noonday.store import lanes

    async def forget(*_: Any) -> None:
        return None

    _replace(lanes, "note_claimed", forget)


def retry_that_loses_its_place() -> None:
    from noonday.store import runs

    _edit(runs, "RETRY", ("claimable = false,", "claimable = false, key_slot = false,"))


def insert_without_a_look_at_caps() -> None:
    from noonday.store import occurrences

    held = "CASE WHEN c.waits_for IS NOT NULL THEN 'cap' END, c.waits_for"
    for statement in ("OPEN", "OPEN_NEW"):
        _edit(occurrences, statement, ("c.waits_for IS NULL", "true"), (held, "NULL, NULL"))


def change_that_drops_what_is_due() -> None:
    from noonday.store import firing

    _replace(firing, "MOST_FIRED", 0)


def change_that_leaves_the_version_as_it_was() -> None:
    from noonday.store import changes, jobs

    for module, statement in ((changes, "REDEFINE"), (jobs, "TURN")):
        _edit(module, statement, (", schedule_version = schedule_version + 1", ""))


CHANGES = "tests/races/test_changes.py"


def backfill_of_what_has_run() -> None:
    from noonday.store import backfills

    _edit(backfills, "RAN", ("kind = 2 OR (kind = 0 AND", "kind = 2 OR (kind = 1 AND"))


def backfill_ahead_of_the_scheduler() -> None:
    from noonday.domain.ranking import END
    from noonday.store import backfills

    async def never(*_: Any) -> datetime:
        return END

    _replace(backfills, "undecided_from", never)


def backfill_that_is_lost_to_its_schedule() -> None:
    from noonday.store import overlaps

    for statement in ("OTHERS", "TO_DO"):
        _edit(overlaps, statement, (" AND r.kind <> 2", ""))


MATRIX = "tests/store/test_matrix.py"
LEASES = "tests/races/test_leases.py"
BACKFILLS = "tests/loops/test_backfills.py"
CAPS = "tests/loops/test_caps.py"
TICKS = "tests/races/test_ticks.py"
LANES = "tests/races/test_lanes.py"
WORKER = "tests/loops/test_worker.py"
EACH_EVENT = f"{MATRIX}::test_an_event_does_what_the_table_says_or_nothing"

MISTAKES: dict[str, Mistake] = {
    name: Mistake(plant, found_by)
    for name, plant, *found_by in (
        (
            "a result is written under any lease version",
            result_without_its_lease_version,
            f"{LEASES}::test_a_stale_worker_cannot_complete_a_reclaimed_run",
        ),
        (
            "the reaper takes a lease that has not run out",
            reaper_without_a_look_at_the_lease,
            *(EACH_EVENT, "-k", "expire"),
        ),
        (
            "a heartbeat revives a lease that has run out",
            heartbeat_that_revives_a_lease,
            *(EACH_EVENT, "-k", "heartbeat"),
        ),
        (
            "an occurrence that was in the ledger runs once more",
            run_without_a_new_ledger_row,
            f"{MATRIX}::test_an_occurrence_that_is_in_the_ledger_makes_no_second_run",
        ),
        (
            "an interruption by us counts as a failure",
            interruption_that_counts_as_a_failure,
            *(EACH_EVENT, "-k", "interrupt"),
        ),
        (
            "a run is tried once too often",
            one_attempt_too_many,
            f"{WORKER}::test_failures_are_retried_until_the_budget_is_used_up",
        ),
        (
            "the next occurrence is computed from the clock",
            next_occurrence_from_the_clock,
            "tests/domain/test_schedule_misfires.py",
        ),
        (
            "a redirect is followed",
            redirect_that_is_followed,
            "tests/executors/test_field_cases.py::"
            "test_a_login_page_behind_a_redirect_is_no_success_and_sees_no_header_of_ours",
        ),
        (
            "an attempt is signed before it has a connection",
            signature_from_before_the_wait,
            "tests/executors/test_signing.py::"
            "test_an_attempt_that_waits_long_for_its_connection_is_signed_when_it_is_sent",
        ),
        (
            "a commit that failed is answered as if it had not",
            commit_that_failed_and_counts,
            "tests/api/test_commits.py::test_when_the_answer_to_a_commit_is_lost_the_database_is_asked",
        ),
        (
            "a scheduler writes although its shards are somebody else's",
            scheduler_without_a_fence,
            f"{TICKS}::test_an_owner_with_an_old_epoch_writes_nothing",
        ),
        (
            "late timers that wait for their lane are left behind",
            late_timers_that_wait_and_are_left_behind,
            "tests/loops/test_catching_up.py::"
            "test_late_recurring_jobs_wait_while_runs_of_their_lane_do_and_are_fired_then",
        ),
        (
            "a run that is held is claimed",
            claim_of_what_is_held,
            *(EACH_EVENT, "-k", "claim"),
        ),
        (
            "a settle whose answer was lost is written again without a look",
            settle_in_doubt_that_is_written_again,
            f"{WORKER}::test_a_settle_whose_answer_is_lost_is_written_once_and_is_not_called_stale",
        ),
        (
            "a cancel ends what a worker has under way",
            cancel_that_ends_what_runs,
            *(EACH_EVENT, "-k", "cancel"),
        ),
        (
            "a change drops what was due of the job as it was",
            change_that_drops_what_is_due,
            *(CHANGES, "-k", "and_a_tick and pause"),
        ),
        (
            "a change leaves the version of the schedule as it was",
            change_that_leaves_the_version_as_it_was,
            *(CHANGES, "-k", "of_a_paused_job"),
        ),
        (
            "a request with a key that was used goes ahead",
            key_that_nobody_remembers,
            "tests/api/test_idempotency.py::test_fifty_equal_posts_of_each_key_make_one_job_each",
        ),
        (
            "a run that is put on hold has used an attempt",
            hold_that_spends_an_attempt,
            *(EACH_EVENT, "-k", "hold"),
        ),
        (
            "a replay begins attempt numbers and lease versions anew",
            replay_under_old_versions,
            *(EACH_EVENT, "-k", "replay"),
        ),
        (
            "a retry does not wait for its time",
            retry_that_comes_too_early,
            f"{MATRIX}::test_a_retry_stays_until_its_time_has_come",
        ),
        (
            "slots are counted before the lock is had",
            slots_counted_before_the_lock,
            "tests/races/test_crowd_of_caps.py::"
            "test_a_thousand_keys_among_sixteen_workers_are_never_carried_out_twice_at_a_time",
        ),
        (
            "claims of a lane count its slots at the same time",
            cap_of_a_lane_that_takes_no_lock,
            f"{LANES}::test_two_claims_of_a_capped_lane_do_not_wait_for_each_other",
        ),
        (
            "slots of a lane are counted where none was noted",
            slots_outside_their_span,
            f"{LANES}::test_slots_of_a_cap_outlive_nobody_who_held_them",
        ),
        (
            "a retry gives up its place in its key",
            retry_that_loses_its_place,
            f"{CAPS}::test_a_retry_keeps_its_key_and_frees_the_rest",
        ),
        (
            "a run is inserted without a look at its caps",
            insert_without_a_look_at_caps,
            f"{CAPS}::test_runs_of_one_key_go_one_at_a_time_in_their_order",
        ),
        (
            "a backfill runs what has run",
            backfill_of_what_has_run,
            f"{BACKFILLS}::test_what_the_ledger_says_has_run_or_will_is_not_run_again",
        ),
        (
            "a backfill runs what the scheduler is about to fire",
            backfill_ahead_of_the_scheduler,
            f"{BACKFILLS}::test_what_the_timer_stands_at_is_left_to_the_scheduler",
        ),
        (
            "a run of a backfill makes way for its schedule",
            backfill_that_is_lost_to_its_schedule,
            f"{BACKFILLS}::test_the_schedule_waits_for_a_run_of_the_past_and_comes_before_the_next",
        ),
    )
}


IN_A_DRILL: dict[str, tuple[list[str], set[str]]] = {
    "the next occurrence is computed from the clock": (["F1"], {"I2", "I4", "I16"}),
}
"""The faults of a drill under which a mistake shows, and the invariants that it then breaks."""


def plant(name: str) -> None:
    """Plant the mistake of this name in the running process."""
    MISTAKES[name].plant()
