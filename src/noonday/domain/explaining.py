"""Why a job is not running just now: the one constraint that holds it, and what would free it.

What holds a run is looked for from the job inwards: its schedule, a retry, a hold, its lane, the
workers, and last the place in the queue. The first that holds is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from noonday.domain.catch_up import Delay
from noonday.domain.fair import standing
from noonday.domain.lane_clock import LaneReport
from noonday.domain.model import EPOCH, PRIORITIES
from noonday.domain.ranking import QUEUE, is_queued, queued, seconds, tag_of

MOST_AHEAD: Final = 10_000
"""Runs ahead of one are counted up to here."""
LONGEST_ESTIMATE: Final = timedelta(days=30)


class Constraint(StrEnum):
    """The closed set of what may hold a job."""

    NONE = "none"
    """Nothing does: it is running."""
    ENDED = "ended"
    CANCELLED = "cancelled"
    SUSPENDED = "suspended"
    PAUSED = "paused"
    NOT_DUE = "not_due"
    SCHEDULER = "scheduler"
    """It is due, and no scheduler has made a run of it yet."""
    RETRY = "retry"
    TENANT_CAP = "tenant_cap"
    HOST_CAP = "host_cap"
    CONCURRENCY_KEY = "concurrency_key"
    BREAKER = "breaker"
    RATE_LIMIT = "rate_limit"
    AFTER = "after"
    OVERLAP = "overlap"
    LANE_PAUSED = "lane_paused"
    LANE_SHED = "lane_shed"
    LANE_CAP = "lane_cap"
    NO_WORKER = "no_worker"
    QUEUED = "queued"


_FLOWS: Final = frozenset(
    (
        Constraint.TENANT_CAP,
        Constraint.HOST_CAP,
        Constraint.CONCURRENCY_KEY,
        Constraint.RATE_LIMIT,
        Constraint.LANE_CAP,
        Constraint.QUEUED,
    )
)
"""Where what waits moves on by itself, so that a start can be foreseen."""


class Use(NamedTuple):
    """How much of a cap is used."""

    used: int
    limit: int
    runs: Sequence[str] = ()
    """Some of the runs that use it."""


class Facts(NamedTuple):
    """What is known of a job at ``now``. Rows are as the store reads them; None is not there."""

    now: datetime
    job: Mapping[str | int, Any]
    timer: Mapping[str | int, Any] | None = None
    scheduler_alive: bool = True
    delay: Delay | None = None
    """Of what is late in its lane and recurs."""
    run: Mapping[str | int, Any] | None = None
    """Of its unfinished runs the one that is furthest."""
    last: Mapping[str | int, Any] | None = None
    """Its last ledger row, if nothing of it is unfinished."""
    use: Use | None = None
    """Of the cap that the run is held by, or of its lane's."""
    target: Mapping[str | int, Any] | None = None
    """The breaker that the run is held by."""
    rate_per_sec: float | None = None
    """The rate that the run is held by."""
    waiting: Mapping[str | int, Any] | None = None
    """What is to be armed once its parents have ended."""
    parents: Sequence[str] = ()
    """Jobs that have to end before it."""
    lane: Mapping[str | int, Any] | None = None
    slots: int = 0
    """Slots of living workers that serve its lane."""
    ahead: int | None = None
    """Runs that come before it, where it waits; counted up to ``MOST_AHEAD``."""
    starts_per_sec: float | None = None
    """How many runs begin, where it waits; None if nothing is measured."""


class Explanation(msgspec.Struct, frozen=True):
    """The answer. ``detail`` and ``frees`` are sentences for people."""

    constraint: Constraint
    detail: str
    frees: str
    since: datetime | None = None
    until: datetime | None = None
    """When it ends by itself, as far as that is known."""
    position: int | None = None
    """Its place among those that wait for the same; 1 is next. Not above ``MOST_AHEAD``."""
    estimated_start_at: datetime | None = None
    blocked_by: tuple[str, ...] = ()
    """Ids of the runs, or of the jobs, that hold it."""
    use: Use | None = None


def explain(facts: Facts) -> Explanation:
    """The one constraint that holds a job now."""
    if facts.run is None:
        return _of_job(facts)
    state = facts.run["state"]
    if state == "RUNNING":
        return _running(facts, facts.run)
    if state == "RETRYING":
        return _retrying(facts.run)
    found = _held(facts, facts.run) if facts.run["hold"] else _in_lane(facts, facts.run)
    return _placed(found, facts)


# --- without an unfinished run ----------------------------------------------------------------


def _of_job(facts: Facts) -> Explanation:
    job = facts.job
    why = f": {job['state_reason']}" if job["state_reason"] else ""
    since = job["state_changed_at"]
    match job["state"]:
        case "CANCELLED":
            return Explanation(
                Constraint.CANCELLED, f"The job is cancelled{why}.",
                "Nothing: create it anew.", since,
            )  # fmt: skip
        case "SUSPENDED":
            return Explanation(
                Constraint.SUSPENDED, f"The job is suspended{why}.",
                "Change what is wrong with it and resume it; or create it anew.", since,
            )  # fmt: skip
        case "PAUSED":
            until = job.get("paused_until")
            frees = "Resume it." if until is None else "The end of its pause; or resume it."
            return Explanation(
                Constraint.PAUSED, f"The job is paused{why}.", frees, since, until=until
            )
    if facts.waiting is not None:
        return _after(facts)
    return _armed(facts, facts.timer) if facts.timer is not None else _ended(facts)


def _armed(facts: Facts, timer: Mapping[str | int, Any]) -> Explanation:
    due_at = timer["due_at"]
    if due_at > facts.now:
        return Explanation(
            Constraint.NOT_DUE,
            f"It is not due: it starts in {_words(due_at - facts.now)}.",
            "Its time; or trigger it to run it now, beside its schedule.",
            until=due_at, estimated_start_at=due_at,
        )  # fmt: skip
    late = _words(facts.now - due_at)
    if not facts.scheduler_alive:
        return Explanation(
            Constraint.SCHEDULER,
            f"It has been due for {late}, and no scheduler process looks after its shard.",
            "Start a scheduler: noonday scheduler.", since=due_at,
        )  # fmt: skip
    delay, job = facts.delay, facts.job
    if delay is not None and job["schedule_type"] != "once" and job["priority"] >= delay.priority:
        return Explanation(
            Constraint.SCHEDULER,
            f"It has been due for {late}, and waits since runs of its lane have waited for "
            f"{delay.waited_sec:.0f} s.",
            "Shorter waits in its lane; see noonday backlog.", since=due_at,
        )  # fmt: skip
    return Explanation(
        Constraint.SCHEDULER, f"It has been due for {late}; the scheduler has not come to it yet.",
        "The scheduler's next ticks.", since=due_at, estimated_start_at=facts.now,
    )  # fmt: skip


def _ended(facts: Facts) -> Explanation:
    last = facts.last
    if last is None or last["outcome"] is None:
        return Explanation(
            Constraint.ENDED, "Nothing of it is left to run.", "Trigger it, or create it anew."
        )
    reason = f" ({last['reason']})" if last["reason"] else ""
    frees = "Trigger it to run it once more, or create it anew."
    if last["outcome"] == "FAILED":
        frees = "Replay its dead letter, when what went wrong is mended."
    return Explanation(
        Constraint.ENDED, f"It has ended: {last['outcome']}{reason}.", frees, since=last["ended_at"]
    )


# --- with an unfinished run -------------------------------------------------------------------


def _running(facts: Facts, run: Mapping[str | int, Any]) -> Explanation:
    detail = f"It is running: attempt {run['attempt']}, for {_words(facts.now - run['leased_at'])}"
    if run["cancel_requested_at"] is not None:
        told = "knows" if run["cancel_told_at"] else "does not know yet"
        detail += f"; it was asked to stop, and its worker {told}"
    frees = "Nothing has to. Cancel the run to stop it."
    if run["locked_until"] < facts.now:
        detail += "; its lease has run out, so its worker is probably gone"
        frees = "The reaper, within a second or two, offers it again."
    return Explanation(Constraint.NONE, f"{detail}.", frees, since=run["leased_at"], until=None)


def _retrying(run: Mapping[str | int, Any]) -> Explanation:
    return Explanation(
        Constraint.RETRY,
        f"Attempt {run['attempt']} failed; it waits for its next one.",
        "Its time.", until=run["retry_at"], estimated_start_at=run["retry_at"],
    )  # fmt: skip


def _held(facts: Facts, run: Mapping[str | int, Any]) -> Explanation:
    match run["hold"]:
        case "cap":
            return _capped(facts, run)
        case "breaker":
            return _left_alone(facts.target)
        case "rate":
            return _paced(facts)
    return Explanation(
        Constraint.OVERLAP, "Another run of the job is unfinished.", "The end of that run."
    )


def _capped(facts: Facts, run: Mapping[str | int, Any]) -> Explanation:
    use = facts.use or Use(0, 0)
    full = f"{use.used}/{use.limit} are in use"
    if run["hold_key"] == run["key_cap"]:
        key = run["key_cap"].split(":", 2)[2]
        holders = f" by run {', '.join(use.runs)}" if use.runs else ""
        found = Explanation(
            Constraint.CONCURRENCY_KEY, f"Its concurrency key {key!r} is held{holders}: {full}.",
            f"The end of a run with that key{_or_more(use)}.",
        )  # fmt: skip
    elif run["hold_key"] == run["host_cap"]:
        host = run["host_cap"].split(":", 2)[2]
        found = Explanation(
            Constraint.HOST_CAP, f"Its target host {host} has no slot free: {full}.",
            f"The end of a run to that host{_or_more(use)}.",
        )  # fmt: skip
    else:
        found = Explanation(
            Constraint.TENANT_CAP, f"The tenant has no slot free: {full}.",
            f"The end of a run of the tenant{_or_more(use)}.",
        )  # fmt: skip
    return msgspec.structs.replace(found, blocked_by=tuple(use.runs), use=use)


def _or_more(use: Use) -> str:
    return ", or a higher limit: it is 0" if use.limit == 0 else ", or a higher limit"


def _left_alone(target: Mapping[str | int, Any] | None) -> Explanation:
    if target is None or target["state"] == "CLOSED":
        return Explanation(
            Constraint.BREAKER, "Its target works again; held runs flow back at a ramp.",
            "Its turn in the ramp.", None if target is None else target["since"],
        )  # fmt: skip
    host, state = target["host"], target["state"].lower().replace("_", " ")
    if target["state"] == "SUSPENDED":
        return Explanation(
            Constraint.BREAKER, f"Its target {target['url'] or host} is suspended: "
            f"{target['reason']}.", f"noonday targets resume {host}", target["since"],
        )  # fmt: skip
    until = target["probe_at"] if target["state"] == "OPEN" else None
    return Explanation(
        Constraint.BREAKER, f"The breaker of {host} is {state}: {target['reason']}.",
        f"Runs that try it and succeed; or noonday targets resume {host}", target["since"], until,
    )  # fmt: skip


def _paced(facts: Facts) -> Explanation:
    rate = "" if facts.rate_per_sec is None else f" of {facts.rate_per_sec:g} per second"
    return Explanation(
        Constraint.RATE_LIMIT, f"Deliveries are at their rate limit{rate}.",
        "Its turn at that rate, or a higher limit.",
    )  # fmt: skip


def _after(facts: Facts) -> Explanation:
    jobs = ", ".join(facts.parents[:3]) + (" …" if len(facts.parents) > 3 else "")
    return Explanation(
        Constraint.AFTER, f"It waits for jobs that have not ended: {jobs}.",
        "The end of the last of them, and its own time.", blocked_by=tuple(facts.parents),
    )  # fmt: skip


# --- claimable --------------------------------------------------------------------------------


def _in_lane(facts: Facts, run: Mapping[str | int, Any]) -> Explanation:
    name, lane = run["lane"], facts.lane
    if lane is not None and lane["paused_at"] is not None:
        return Explanation(
            Constraint.LANE_PAUSED, f"The lane {name} is paused: {lane['pause_reason']}.",
            f"noonday lanes resume {name}", lane["paused_at"],
        )  # fmt: skip
    if lane is not None and lane["shed_at"] is not None:
        return Explanation(
            Constraint.LANE_SHED, f"The lane {name} waits for more urgent ones: "
            f"{lane['shed_reason']}.", "Their objectives being met again.", lane["shed_at"],
        )  # fmt: skip
    if facts.slots == 0:
        return Explanation(
            Constraint.NO_WORKER, f"No living worker serves the lane {name}.",
            f"Start one: noonday worker --pool {name}=16", run["ready_at"],
        )  # fmt: skip
    if facts.use is not None and facts.use.used >= facts.use.limit:
        return Explanation(
            Constraint.LANE_CAP, f"The lane {name} has no slot free: "
            f"{facts.use.used}/{facts.use.limit} are in use.",
            f"The end of a run in the lane{_or_more(facts.use)}.", run["ready_at"], use=facts.use,
        )  # fmt: skip
    return Explanation(
        Constraint.QUEUED, f"It is READY and waits for its turn in the lane {name}.",
        "A free slot of a worker.", run["ready_at"],
    )  # fmt: skip


def _placed(found: Explanation, facts: Facts) -> Explanation:
    """With its place and, where a rate is measured, when its turn may come."""
    if facts.ahead is None:
        return found
    place = msgspec.structs.replace(found, position=facts.ahead + 1)
    known = facts.starts_per_sec and facts.ahead < MOST_AHEAD
    if not known or found.constraint not in _FLOWS:
        return place
    pause = (facts.ahead + 1) / (facts.starts_per_sec or 1.0)
    begins = facts.now + min(timedelta(seconds=pause), LONGEST_ESTIMATE)
    return msgspec.structs.replace(place, estimated_start_at=begins)


def ranges_before(
    rank: datetime,
    priority: int,
    now: datetime,
    ageing_sec: float,
    reports: Sequence[LaneReport] = (),
) -> list[tuple[int, datetime, datetime]]:
    """Where the runs of a lane lie that are claimed before one of ``rank``, as its workers claim:
    priorities, each with ranks from and to."""
    stands = standing(reports, seconds(now), (0.0,) * len(PRIORITIES))
    v, rate = min(stands.starts), stands.rate or 1.0
    step = ageing_sec * rate
    if is_queued(rank):
        key = tag_of(rank) - v + priority * step
    else:
        key = rate * (rank - now).total_seconds() + priority * step
    found = []
    for each in PRIORITIES:
        ahead = key - each * step
        found.append((each, EPOCH, min(now + timedelta(seconds=ahead / rate), QUEUE)))
        found.append((each, QUEUE, max(queued(v + ahead), QUEUE)))
    return found


def _words(span: timedelta) -> str:
    """A length of time for people, in its two largest units."""
    seconds = int(span.total_seconds())
    if seconds < 1:
        return "less than a second"
    parts = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
