"""What a process says of itself: every log field and every metric, by name.

Neither grows with the number of jobs: labels come from closed sets (the busiest tenants by name,
the rest together), and a log line carries only the fields named here, never a payload, a header
or a secret.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Final, Generic, NamedTuple, TextIO, TypeVar

import msgspec
import prometheus_client
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString
from structlog.typing import EventDict, Processor, WrappedLogger

# --- Logs -------------------------------------------------------------------------------------

_EVERY_LINE: Final = {"at", "level", "event", "logger", "exception", "frames"}
_WHO: Final = {"role", "worker", "host", "pid", "version", "address"}
_WHAT: Final = {
    *("job_id", "run_id", "occurrence_at", "attempt", "lease_version", "tenant", "lane"),
    *("shard", "epoch", "loop", "key_id", "target_host", "partition", "migration", "file"),
    *("request_id", "method", "route", "setting", "signal", "operation", "replay_id", "target"),
    *("alert", "subject"),
}
_OUTCOME: Final = {"outcome", "reason", "error", "status", "http_status", "retry_at"}
_HOW_MUCH: Final = {
    *("count", "owned", "slots", "in_flight", "bytes", "wanted"),
    *("duration_sec", "late_sec", "wait_sec"),
}
FIELDS: Final = frozenset(_EVERY_LINE | _WHO | _WHAT | _OUTCOME | _HOW_MUCH)
"""All that a log line may carry. ``error`` and ``reason`` are for people, without secrets."""

LONGEST_TEXT: Final = 2_000
LONGEST_TRACEBACK: Final = 16_000

# Control characters forge lines and steer terminals; lone surrogates cannot be written at all.
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_UNPRINTABLE_BUT_LINES: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def configure_logs(level: str, style: str, stream: TextIO | None = None, **fields: object) -> None:
    """Send all logs of this process, those of libraries too, to ``stream`` (standard error).

    ``style`` is ``json`` (a line each), ``console`` (for people) or ``auto``: console on a
    terminal. ``fields`` go with every line. May be called again.
    """
    out = stream or sys.stderr
    least = logging.getLevelNamesMapping()[level.upper()]
    prepare: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
        _always(fields),
        _only_known,
        _tidy,
    ]
    for_people = style == "console" or (style == "auto" and out.isatty())
    render = _console(out) if for_people else structlog.processors.JSONRenderer(_json)
    structlog.configure(
        processors=[*prepare, render],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(out),
    )
    logging.basicConfig(
        handlers=[_for_libraries(out, prepare, render)],
        # Libraries speak up when something is wrong; their chatter is for debugging.
        level=least if least == logging.DEBUG else max(least, logging.WARNING),
        force=True,
    )


def _for_libraries(out: TextIO, prepare: list[Processor], render: Processor) -> logging.Handler:
    handler = logging.StreamHandler(out)
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.add_logger_name, strip, *prepare, render]
        )
    )
    return handler


def _console(out: TextIO) -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=out.isatty(),
        timestamp_key="at",
        # The default one prints the values of local variables: payloads, secrets.
        exception_formatter=structlog.dev.plain_traceback,
    )


def _json(line: EventDict, **_options: object) -> str:
    return msgspec.json.encode(line).decode()


def _always(fields: Mapping[str, object]) -> Processor:
    """Adds the fields of the process to each line."""

    def add(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
        return {**fields, **line}

    return add


def _only_known(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    """Leave out what is not in ``FIELDS``, and say so: a payload must not slip in."""
    unknown = line.keys() - FIELDS
    if unknown:
        line = {name: value for name, value in line.items() if name in FIELDS}
        line["left_out"] = ",".join(sorted(unknown))
    return line


def _tidy(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    """Every value as a number or a short printable text."""
    for name, value in line.items():
        if value is None or isinstance(value, bool | int | float):
            continue
        text = value.isoformat() if isinstance(value, datetime) else str(value)
        if name in ("exception", "frames"):
            line[name] = _UNPRINTABLE_BUT_LINES.sub(_escaped, text[-LONGEST_TRACEBACK:])
        else:
            line[name] = _UNPRINTABLE.sub(_escaped, text[:LONGEST_TEXT])
    return line


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


# --- Metrics ----------------------------------------------------------------------------------

OTHER: Final = "other"
TOP_TENANTS: Final = 50
_MOST_LANES: Final = 128
CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_LATEST

_METHODS: Final = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
_WORK_SEC: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_WAIT_SEC: Final = (
    *(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 30, 60, 300, 1_800, 7_200),
)
_BATCH: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)

CAUSES: Final = (
    "lease_expired", "interrupted", "lost_answer", "failed_answer", "replay", "unexplained",
)  # fmt: skip
"""What explains that a receiver says it had done a run already."""
UNEXPLAINED: Final = CAUSES[-1]

_M = TypeVar("_M", Counter, Gauge, Histogram)
_C = TypeVar("_C", bound=Collector)


class Depth(NamedTuple):
    """How much stands in a lane."""

    ready: int
    """READY runs that may be claimed."""
    oldest_age_sec: float
    """How long the one waiting longest could have been claimed; 0 when none waits."""
    running: int = 0
    past_lease: int = 0
    """Runs still RUNNING although their lease has expired: the reaper's work."""
    past_lease_sec: float = 0.0
    """How long the lease that expired first has been over; 0 when none is."""
    objective_sec: float = 60.0
    """How long runs may wait, as the operator wishes."""
    paused: bool = False
    """Whether a person has paused it."""
    shed: bool = False
    """Whether it waits while others miss their objective."""


class LaneWork(NamedTuple):
    """What a worker did in a lane since it started."""

    slots: int = 0
    free: int = 0
    started: int = 0
    ended: int = 0
    busy_sec: float = 0.0
    """Seconds of all slots in which an attempt ran."""


class Totals(NamedTuple):
    """What some counters stand at: what a process says of itself is made from two of these."""

    leases_expired: float = 0
    successes: float = 0
    unexplained: float = 0
    loop_errors: Mapping[str, float] = {}
    ticks: Sequence[tuple[float, float]] = ()
    """The scheduler's ticks: upper bounds in seconds, and cumulative counts."""


class Metrics:
    """The metrics of one process, on a registry of their own; its methods name what happened."""

    def __init__(self, version: str = "", role: str = "") -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        prometheus_client.ProcessCollector(registry=self._registry)
        build = GaugeMetricFamily("noonday_build_info", "The release", labels=["version", "role"])
        build.add_metric([version, role], 1)
        self._registry.register(_Fixed(build))
        self._lanes = self._collector(_Lanes())
        self._holds = self._collector(_Holds())
        self._tenants = self._collector(_Tenants(TOP_TENANTS))
        self._standing = self._collector(_Standing())
        self._horizon = self._collector(_Horizon())
        self._works = self._collector(_Works())
        self._wanted = self._collector(_Wanted())

        self._jobs_accepted = self._counter("jobs_accepted", "Jobs answered with 202")
        self._quota_refusals = _Bound(
            self._counter(
                "quota_refusals", "Jobs and triggers refused for a quota, by which", "quota"
            ),
            4,
        )
        self._pending_corrected = self._counter(
            "pending_corrected", "By how much recounts of pending jobs differed from what was noted"
        )
        self._jobs_suspended = self._counter(
            "jobs_suspended", "Jobs taken out of service because they cannot be computed"
        )
        self._enqueued = self._counter("occurrences_enqueued", "Occurrences that became a run")
        self._missed = self._counter("occurrences_missed", "Occurrences recorded as missed")
        self._skipped = self._counter("occurrences_skipped", "Occurrences recorded as skipped")
        self._retries = self._counter("retries", "Attempts that will be followed by another")
        self._dead_letters = _Bound(
            self._counter("dead_letters", "Runs given up, by reason", "reason"), 32
        )
        self._outcomes = _Bound(
            self._counter("attempt_outcomes", "Attempts that ended, by outcome", "outcome"), 32
        )
        self._replayed = _Bound(
            self._counter(
                "replayed_runs", "Runs that replays reopened, and what came of them", "outcome"
            ),
            8,
        )
        self._replays_stopped = _Bound(
            self._counter("replays_stopped", "Replays stopped by their gate, by why", "reason"), 8
        )
        self._leases_expired = self._counter(
            "leases_expired", "Leases that ended without the worker's word"
        )
        self._stale_settles = self._counter(
            "stale_settles", "Results refused because the lease was lost"
        )
        self._suspected = self._counter(
            "suspected_duplicates", "Attempts that a receiver may have seen twice"
        )
        self._duplicates = _Bound(
            self._counter("duplicates", "Runs that a receiver had done already, by cause", "cause"),
            len(CAUSES),
        )
        for cause in CAUSES:  # a series that begins above zero has not increased for Prometheus
            self._duplicates(cause)
        self._held = _Bound(
            self._counter("runs_held", "Runs put on hold instead of being sent, by kind", "kind"), 8
        )
        self._dependents = _Bound(
            self._counter("dependents", "Jobs that wait for no other any more", "result"), 4
        )
        self._admitted = _Bound(
            self._counter("runs_admitted", "Held runs that were let go, by why", "why"), 8
        )
        self._target_changes = _Bound(
            self._counter("target_changes", "Changes of targets, by kind", "kind"), 8
        )
        self._stragglers = _Bound(
            self._counter("floor_stragglers", "Rows found below a floor, by table", "table"), 8
        )
        self._notifications = _Bound(
            self._counter("notifications", "Wake-ups between processes", "direction"), 4
        )
        self._slots = _Bound(self._gauge("worker_slots", "Slots of a worker, by pool", "pool"), 16)
        self._busy_slots = _Bound(
            self._gauge("worker_busy_slots", "Slots that an attempt runs in, by pool", "pool"), 16
        )
        self._start = self._collector(
            _Waits("schedule_to_start_seconds", "From due to the start of the first attempt")
        )
        self._lag = self._histogram(
            "materialization_lag_seconds", "How late the oldest timer of a tick was", _WAIT_SEC
        )
        self._of_timers()
        self._ticks = _Bound(
            self._histogram("tick_seconds", "Time a tick took, by loop", _WORK_SEC, "loop"), 32
        )
        self._batches = _Bound(
            self._histogram("tick_batch", "Rows a tick handled, by loop", _BATCH, "loop"), 32
        )
        self._loop_errors = _Bound(
            self._counter("loop_errors", "Ticks that failed, by loop", "loop"), 32
        )
        self._shards_owned = Gauge(
            "noonday_shards_owned", "Shards of timers it owns", registry=self._registry
        )
        self._notices = _Bound(
            self._counter("alert_notices", "Notices posted, by what came of it", "outcome"), 4
        )
        self._requests = _Bound(
            self._counter(
                "http_requests", "Requests, by route and status", "route", "method", "status"
            ),
            1_000,
        )
        self._request_time = _Bound(
            self._histogram("http_request_seconds", "Time to answer, by route", _WORK_SEC, "route"),
            100,
        )

    def _of_timers(self) -> None:
        self._caught_up = self._counter("late_timers_fired", "Timers fired long after their time")
        self._catching_up = self._gauge("catching_up", "1 while it finds timers that are late")
        self._delayed = self._gauge(
            "late_timers_delayed", "Late timers that wait since runs of their lane do"
        )
        self._repaired = _Bound(
            self._counter("jobs_repaired", "Jobs whose timer stood wrong, by how", "what"), 4
        )

    def _collector(self, collector: _C) -> _C:
        self._registry.register(collector)
        return collector

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"noonday_{name}", help, labels, registry=self._registry)

    def _gauge(self, name: str, help: str, *labels: str) -> Gauge:
        return Gauge(f"noonday_{name}", help, labels, registry=self._registry)

    def _histogram(
        self, name: str, help: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"noonday_{name}", help, labels, registry=self._registry, buckets=buckets)

    def render(self) -> bytes:
        """All metrics as Prometheus reads them; the media type is ``CONTENT_TYPE``."""
        return prometheus_client.generate_latest(self._registry)

    # --- jobs and occurrences

    def jobs_accepted(self, count: int = 1) -> None:
        """Jobs were made durable and answered with 202."""
        self._jobs_accepted.inc(count)

    def quota_exceeded(self, quota: str, count: int) -> None:
        """Jobs or triggers were refused: ``creates``, ``bytes`` or ``pending`` was used up."""
        self._quota_refusals(quota).inc(count)

    def pending_corrected(self, by: int) -> None:
        """A recount found so many jobs more or fewer than processes had noted."""
        self._pending_corrected.inc(by)

    def job_suspended(self) -> None:
        """A job cannot be computed and was taken out of service."""
        self._jobs_suspended.inc()

    def materialized(self, ready: int, missed: int = 0, skipped: int = 0) -> None:
        """Occurrences were written: those with a run, and those recorded as not run."""
        self._enqueued.inc(ready)
        self._missed.inc(missed)
        self._skipped.inc(skipped)

    def materialization_lag(self, late_sec: float) -> None:
        """The oldest timer of a tick was ``late_sec`` past its due time."""
        self._lag.observe(max(late_sec, 0.0))

    def caught_up(self, count: int) -> None:
        """So many timers were fired long after their time."""
        self._caught_up.inc(count)

    def catch_up_stands_at(self, active: bool, delayed: int) -> None:
        """Whether timers are late, and how many of them wait for runs of their lane."""
        self._catching_up.set(int(active))
        self._delayed.set(delayed)

    # --- attempts

    def started(self, waits: Iterable[float]) -> None:
        """First attempts began, each so many seconds after its run was due."""
        self._start.observe(waits)

    def attempted(self, tenant: object, outcome: str, count: int = 1) -> None:
        """Attempts of a tenant's runs ended with ``outcome``."""
        self._outcomes(outcome).inc(count)
        self._tenants.add(str(tenant), attempts=count)

    def ended(self, tenant: object, count: int = 1) -> None:
        """Runs of a tenant came to their end, well or not."""
        self._tenants.add(str(tenant), runs=count)

    def retried(self, count: int = 1) -> None:
        """Runs wait for another attempt."""
        self._retries.inc(count)

    def dead_lettered(self, reason: str, count: int = 1) -> None:
        """Runs were given up."""
        self._dead_letters(reason).inc(count)

    def replayed(self, outcome: str, count: int = 1) -> None:
        """Replays have ``reopened`` runs, or seen how they came out."""
        self._replayed(outcome).inc(count)

    def replay_stopped(self, reason: str) -> None:
        """A replay has stopped by itself: ``canary``, ``failures`` or ``breaker``."""
        self._replays_stopped(reason).inc()

    def lease_expired(self, count: int = 1) -> None:
        """The reaper took runs back from workers that went silent."""
        self._leases_expired.inc(count)

    def stale_settle(self, count: int = 1) -> None:
        """A worker's result came after its lease was lost and changed nothing."""
        self._stale_settles.inc(count)

    def suspected_duplicate(self, count: int = 1) -> None:
        """An attempt that may have had its effect is followed by another."""
        self._suspected.inc(count)

    def duplicate(self, cause: str, count: int = 1) -> None:
        """A receiver said that it had done this run already. ``cause`` is one of ``CAUSES``."""
        self._duplicates(cause if cause in CAUSES else UNEXPLAINED).inc(count)

    def slots_stand_at(self, pool: str, slots: int, busy: int) -> None:
        """How many slots a pool of this worker has, and in how many an attempt runs."""
        self._slots(pool).set(slots)
        self._busy_slots(pool).set(busy)

    def serves(self, lane: str, slots: int, free: int) -> None:
        """How many slots this worker has that serve a lane, and how many of them are free."""
        work = self._works.of(lane)
        work.slots, work.free = slots, free

    def began(self, lane: str, count: int = 1) -> None:
        """Attempts began, and keep a slot of their lane each."""
        self._works.of(lane).move(count)

    def landed(self, lane: str) -> None:
        """An attempt that began has left its slot."""
        self._works.of(lane).move(-1)

    def works(self) -> dict[str, LaneWork]:
        """What this worker did, by lane."""
        return {lane: work.read() for lane, work in self._works.lanes.items()}

    # --- targets and holds

    def held(self, kind: str, count: int = 1) -> None:
        """Claimed runs were put on hold; nothing was sent."""
        self._held(kind).inc(count)

    def admitted(self, why: str, count: int = 1) -> None:
        """Held runs may be claimed again: to try a target, in a ramp, as strays, or since there is
        a slot; ``slot_found`` are those whom nobody had told of it."""
        if count:
            self._admitted(why).inc(count)

    def dependents(self, result: str, count: int = 1) -> None:
        """Jobs wait for no other any more: ``released``, or ended ``skipped`` or ``cancelled``."""
        if count:
            self._dependents(result).inc(count)

    def target_changed(self, kind: str) -> None:
        """A target's breaker opened, closed, and so on, or its host's rate was halved."""
        self._target_changes(kind).inc()

    def slowed_stand_at(self, hosts: int) -> None:
        """So many hosts are called more slowly than their rates say."""
        self._holds.slowed = hosts

    def held_stand_at(self, runs: Mapping[str, int]) -> None:
        """How many runs are held, by kind; kinds that held some before are at zero."""
        self._holds.runs = {**dict.fromkeys(self._holds.runs, 0), **runs}

    # --- the machinery

    def straggler(self, table: str, count: int = 1) -> None:
        """A sweep found rows below the floor, committed later than anything should be."""
        self._stragglers(table).inc(count)

    def repaired(self, what: str) -> None:
        """A recurring job was ``unarmed``, or its timer stood ``ahead`` of its next occurrence, or
        ``beside`` all of them."""
        self._repaired(what).inc(1)

    def notified(self, direction: str, count: int = 1) -> None:
        """A wake-up was ``sent`` or ``heard``."""
        self._notifications(direction).inc(count)

    def ticked(self, loop: str, took_sec: float, handled: int) -> None:
        """A loop's tick ended well."""
        self._ticks(loop).observe(took_sec)
        self._batches(loop).observe(handled)

    def loop_failed(self, loop: str) -> None:
        """A loop's tick raised an error."""
        self._loop_errors(loop).inc()

    def watch_loops(self, stalled: Callable[[], Mapping[str, bool]]) -> None:
        """``stalled`` says, when the metrics are read, which loops have not ticked well lately."""
        self._standing.stalled = stalled

    def shards_owned(self, count: int) -> None:
        """A scheduler owns ``count`` shards now."""
        self._shards_owned.set(count)

    def told(self, outcome: str) -> None:
        """A notice of alerts was ``sent``, or ``failed`` to be."""
        self._notices(outcome).inc()

    def requested(self, route: str, method: str, status: int, took_sec: float) -> None:
        """A request was answered. ``route`` is its path template, never the path itself."""
        self._requests(route, method if method in _METHODS else OTHER, str(status)).inc()
        self._request_time(route).observe(took_sec)

    def lanes_stand_at(self, depths: Mapping[str, Depth]) -> None:
        """What one query for all lanes has found; shown until the next one, with its age."""
        self._lanes.depths = dict(depths)
        self._lanes.read_at = time.monotonic()

    def wanted_stand_at(self, wanted: Mapping[str, int], there: Mapping[str, int]) -> None:
        """How many slots are wanted in each lane, and how many of living workers serve it."""
        self._wanted.wanted = dict(wanted)
        self._wanted.there = {**dict.fromkeys(wanted, 0), **there}

    def horizon_stands_at(self, age_sec: float, transactions: int) -> None:
        """How old the oldest transaction is that keeps dead rows from being cleaned up."""
        self._horizon.stands_at = (age_sec, transactions)

    def totals(self) -> Totals:
        """What the counters stand at that alerts are made from."""
        errors = {
            sample.labels["loop"]: sample.value for sample in _samples(self._loop_errors.metric)
        }
        successes = (s for s in _samples(self._outcomes.metric) if s.labels["outcome"] == "success")
        unexplained = (
            s for s in _samples(self._duplicates.metric) if s.labels["cause"] == UNEXPLAINED
        )
        return Totals(
            sum(sample.value for sample in _samples(self._leases_expired)),
            sum(sample.value for sample in successes),
            sum(sample.value for sample in unexplained),
            errors,
            [
                (float(sample.labels["le"]), sample.value)
                for sample in _samples(self._ticks.metric)
                if sample.name.endswith("_bucket") and sample.labels["loop"] == "scheduler"
            ],
        )


def _samples(metric: Counter | Histogram) -> list[Sample]:
    return [sample for family in metric.collect() for sample in family.samples]


class _Bound(Generic[_M]):
    """The children of a metric, each made once; beyond ``limit`` of them all are ``other``."""

    def __init__(self, metric: _M, limit: int) -> None:
        self.metric: _M = metric
        self._limit = limit
        self._children: dict[tuple[str, ...], _M] = {}

    def __call__(self, *labels: str) -> _M:
        child = self._children.get(labels)
        if child is None:
            if len(self._children) >= self._limit:
                labels = (OTHER,) * len(labels)
            child = self._children[labels] = self.metric.labels(*labels)
        return child


class _Fixed(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


class _Lanes(Collector):
    def __init__(self) -> None:
        self.depths: dict[str, Depth] = {}
        self.read_at: float | None = None

    def collect(self) -> Iterator[Metric]:
        if self.read_at is None:
            return
        yield self._family("ready", "Runs that may be claimed", "ready")
        yield self._family(
            "oldest_age_seconds", "Longest wait of a claimable run", "oldest_age_sec"
        )
        yield self._family("running", "Runs under a lease", "running")
        yield self._family("past_lease", "Runs whose lease expired unsettled", "past_lease")
        yield self._family(
            "past_lease_seconds", "How long the first of these is over", "past_lease_sec"
        )
        yield self._family("objective_seconds", "How long runs may wait", "objective_sec")
        yield self._family("paused", "1 while a person has paused the lane", "paused")
        yield self._family("shed", "1 while the lane waits for others", "shed")
        # A gauge that stopped moving looks healthy; its age tells.
        age = time.monotonic() - self.read_at
        yield GaugeMetricFamily("noonday_lane_age_seconds", "Age of the lane gauges", value=age)

    def _family(self, name: str, help: str, attribute: str) -> Metric:
        family = GaugeMetricFamily(f"noonday_lane_{name}", help, labels=["lane"])
        for lane, depth in self.depths.items():
            family.add_metric([lane], float(getattr(depth, attribute)))
        return family


class _Standing(Collector):
    """Loops that stand still: 1 for each that has not ticked well lately, else 0."""

    def __init__(self) -> None:
        self.stalled: Callable[[], Mapping[str, bool]] = dict

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "noonday_loop_stalled", "1 when a loop has not ticked well lately", labels=["loop"]
        )
        for loop, stalled in self.stalled().items():
            family.add_metric([loop], int(stalled))
        yield family


class _Holds(Collector):
    def __init__(self) -> None:
        self.runs: dict[str, int] = {}
        self.slowed: int | None = None

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("noonday_held_runs", "Runs on hold, by kind", labels=["kind"])
        for kind, count in self.runs.items():
            family.add_metric([kind], count)
        yield family
        if self.slowed is not None:
            yield GaugeMetricFamily(
                "noonday_slowed_hosts",
                "Hosts that are called more slowly than their rates say",
                value=self.slowed,
            )


class _Work:
    """One lane of a worker: its slots, and what was done in them."""

    __slots__ = ("_busy", "_busy_sec", "_ended", "_moved_at", "_started", "free", "slots")

    def __init__(self) -> None:
        self.slots = self.free = self._busy = self._started = self._ended = 0
        self._busy_sec = 0.0
        self._moved_at = time.monotonic()

    def move(self, by: int) -> None:
        self._pass()
        self._busy += by
        if by > 0:
            self._started += by
        else:
            self._ended -= by

    def read(self) -> LaneWork:
        self._pass()
        return LaneWork(self.slots, self.free, self._started, self._ended, self._busy_sec)

    def _pass(self) -> None:
        now = time.monotonic()
        self._busy_sec += self._busy * (now - self._moved_at)
        self._moved_at = now


class _Waits(Collector):
    """A histogram that takes many seconds at once: a Prometheus client's own locks at each."""

    def __init__(self, name: str, help: str) -> None:
        self._name = f"noonday_{name}"
        self._help = help
        self._counts = [0] * (len(_WAIT_SEC) + 1)
        self._sum = 0.0

    def observe(self, waits: Iterable[float]) -> None:
        for wait in waits:
            self._counts[bisect_left(_WAIT_SEC, wait)] += 1
            self._sum += max(wait, 0.0)

    def collect(self) -> Iterator[Metric]:
        bounds = [*map(floatToGoString, _WAIT_SEC), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._help, buckets=buckets, sum_value=self._sum)


class _Works(Collector):
    """What a worker did, by lane; beyond ``_MOST_LANES`` of them all are ``other``."""

    def __init__(self) -> None:
        self.lanes: dict[str, _Work] = {}

    def of(self, lane: str) -> _Work:
        found = self.lanes.get(lane)
        if found is None:
            lane = lane if len(self.lanes) < _MOST_LANES else OTHER
            found = self.lanes.setdefault(lane, _Work())
        return found

    def collect(self) -> Iterator[Metric]:
        started = CounterMetricFamily(
            "noonday_lane_started", "Attempts that began, by lane", labels=["lane"]
        )
        busy = CounterMetricFamily(
            "noonday_lane_busy_seconds",
            "Seconds of all slots in which an attempt ran, by lane",
            labels=["lane"],
        )
        for lane, work in self.lanes.items():
            read = work.read()
            started.add_metric([lane], read.started)
            busy.add_metric([lane], read.busy_sec)
        yield from (started, busy)


class _Wanted(Collector):
    def __init__(self) -> None:
        self.wanted: dict[str, int] = {}
        self.there: dict[str, int] = {}

    def collect(self) -> Iterator[Metric]:
        wanted = GaugeMetricFamily(
            "noonday_wanted_slots", "Slots that a lane needs in all", labels=["lane"]
        )
        there = GaugeMetricFamily(
            "noonday_lane_slots", "Slots of living workers that serve a lane", labels=["lane"]
        )
        for family, slots in ((wanted, self.wanted), (there, self.there)):
            for lane, count in slots.items():
                family.add_metric([lane], count)
            yield family


class _Horizon(Collector):
    def __init__(self) -> None:
        self.stands_at: tuple[float, int] | None = None

    def collect(self) -> Iterator[Metric]:
        if self.stands_at is None:
            return
        age_sec, transactions = self.stands_at
        yield GaugeMetricFamily(
            "noonday_oldest_transaction_age_seconds",
            "Age of the oldest transaction that keeps dead rows",
            value=age_sec,
        )
        yield GaugeMetricFamily(
            "noonday_oldest_snapshot_age_transactions",
            "Transactions begun since the oldest snapshot that keeps dead rows",
            value=transactions,
        )


class _Count:
    __slots__ = ("attempts", "runs")

    def __init__(self) -> None:
        self.attempts = self.runs = 0

    def add(self, attempts: int, runs: int) -> None:
        self.attempts += attempts
        self.runs += runs


class _Tenants(Collector):
    """Attempts and runs of the busiest tenants by name, of all others together.

    Who is named is decided anew at each collection, by recent volume. A tenant that is promoted
    begins at zero and what it did before stays under ``other``, so that ``other`` never falls.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: dict[str, _Count] = {}
        self._other = _Count()
        self._recent: dict[str, float] = {}

    def add(self, tenant: str, attempts: int = 0, runs: int = 0) -> None:
        if tenant not in self._named and len(self._named) < self._most:
            self._named[tenant] = _Count()
        self._named.get(tenant, self._other).add(attempts, runs)
        self._recent[tenant] = self._recent.get(tenant, 0.0) + attempts + runs

    def collect(self) -> Iterator[Metric]:
        self._choose()
        rows = [*self._named.items(), (OTHER, self._other)]
        for name, help in (
            ("attempts", "Attempts that ended, by tenant"),
            ("runs", "Runs that ended, by tenant"),
        ):
            family = CounterMetricFamily(f"noonday_tenant_{name}", help, labels=["tenant"])
            for tenant, count in rows:
                family.add_metric([tenant], getattr(count, name))
            yield family

    def _choose(self) -> None:
        """Swap in who is more than twice as busy as the least busy that is named."""
        rising = sorted(self._recent.keys() - self._named.keys(), key=self._volume)
        for quiet in sorted(self._named, key=self._volume):
            if not rising or self._volume(rising[-1]) <= 2 * self._volume(quiet):
                break
            del self._named[quiet]
            self._named[rising.pop()] = _Count()
        self._recent = {
            tenant: volume / 2 for tenant, volume in self._recent.items() if volume > 0.01
        }

    def _volume(self, tenant: str) -> float:
        return self._recent.get(tenant, 0.0)
