"""The composition root: the one place where parts are built, started and stopped.

``ROLES`` says what each kind of process consists of. A process runs until SIGTERM or SIGINT (or,
when a supervisor started it, until its standard input ends) and then stops its parts in order. A
worker that gets SIGUSR1 claims no more and stops once its last run has ended; SIGUSR2 takes that
back.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID, uuid4

import structlog
import uvloop
from msgspec.structs import replace

from noonday import __version__, listening
from noonday.api import admin_port
from noonday.domain.breaker import pauses
from noonday.domain.errors import NoondayError, NoRoom, SecretUnreadable, StoreUnavailable
from noonday.domain.fair import Ranker
from noonday.domain.model import HttpTarget, Reason
from noonday.domain.pools import Pool
from noonday.domain.roles import Role
from noonday.embedded import EmbeddedPostgres, EmbeddedPostgresError, find_binaries, running_dsn
from noonday.loops import Loop
from noonday.loops.admission import Admission
from noonday.loops.admitting import Admitting
from noonday.loops.alerts import Alerts
from noonday.loops.backfills import Backfills
from noonday.loops.catching_up import CatchingUp
from noonday.loops.costs import TELL_SEC
from noonday.loops.dependents import LOOK_SEC as FAMILIES_SEC
from noonday.loops.dependents import Dependents
from noonday.loops.fairness import REFRESH_SEC, Fairness
from noonday.loops.forecasting import Forecasting
from noonday.loops.gauges import Gauges
from noonday.loops.janitor import Janitor
from noonday.loops.lookout import LOOK_SEC, SLOWLY, Lookout
from noonday.loops.marking import Marking
from noonday.loops.operations import Operations
from noonday.loops.pacing import Pacing
from noonday.loops.pending import Recount
from noonday.loops.reaper import Reaper
from noonday.loops.replays import Replays
from noonday.loops.resuming import Resuming
from noonday.loops.retries import Retries
from noonday.loops.scaling import Scaling
from noonday.loops.scheduler import BATCH, Scheduler
from noonday.loops.vitals import Reporter
from noonday.loops.watchdog import Watchdog
from noonday.settings import Settings
from noonday.store import (
    Row,
    Store,
    Tx,
    api_keys,
    audit,
    dependencies,
    gauges,
    migrate,
    tenants,
    workers,
)
from noonday.store.backlogs import Backlogs
from noonday.store.blobs import LocalBlobs
from noonday.store.connections import host_name
from noonday.store.secretbox import SecretBox, create_key_file, read_key_file
from noonday.store.signing import SigningKeys
from noonday.store.wakeups import RETRIES, RUNS, TIMERS, Wakeups
from noonday.telemetry import Metrics, configure_logs

if TYPE_CHECKING:
    from noonday.loops.worker import Worker

WAIT_FOR_DATABASE_SEC: Final = 30.0
GAUGES_SEC: Final = 5.0
ALERTS_SEC: Final = 5.0
SCALING_SEC: Final = 5.0
REPORT_SEC: Final = 2.0
PENDING_SEC: Final = 1.0
SELDOM_SEC: Final = 10.0
"""How often a loop looks by itself that is told when there is something to do."""
RETIRE_SEC: Final = 0.5
REST_SEC: Final = 0.003
"""What is due, or waits to be claimed, gathers for so long at most."""
SETTLE_SEC: Final = 0.01
"""Outcomes gather a little longer: nobody waits for them, and their slots are free already."""
SPARE_FILES: Final = 128
"""Open files of a worker beside its slots and pool: logs, blobs, connections just left idle."""
BESIDE_POOL: Final = 2
"""Connections of a process beside its pool: for heartbeats, and for wake-ups."""
FIRST_TENANT: Final = "default"

log = structlog.get_logger()


@dataclass
class Node:
    """What every process has, whatever its role."""

    role: str
    settings: Settings
    id: UUID
    name: str
    store: Store
    metrics: Metrics
    wakeups: Wakeups
    backlogs: Backlogs
    unsafe: list[str]
    stack: AsyncExitStack
    api_socket: socket.socket | None
    ranker: Ranker = field(default_factory=Ranker)
    """Where what becomes claimable queues, as far as this process knows."""
    loops: list[Loop] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is to stop."""
    retire: Callable[[bool], None] | None = None
    """Tells it to go once it is idle, or to stay after all; None when it cannot."""
    end: Callable[[], None] = lambda: None
    """Called first of all when it is to stop: begin nothing more."""

    def loop(self, name: str, tick: Callable[[], Awaitable[int]], **how: object) -> Loop:
        """A loop that starts now and, when the process stops, ends after its tick."""
        loop = Loop(name, tick, self.metrics, **how)  # type: ignore[arg-type]
        self.loops.append(loop)
        self.stack.push_async_callback(loop.finish)
        loop.start()
        return loop

    def blobs(self) -> LocalBlobs:
        """The blob store, closed when the process stops."""
        blobs = LocalBlobs(self.settings.blobs_folder)
        self.stack.callback(blobs.close)
        return blobs

    def stalled(self) -> dict[str, bool]:
        """Each loop, and whether it has not ticked well lately."""
        return {loop.name: not loop.is_ticking() for loop in self.loops}

    async def checks(self) -> dict[str, str | None]:
        """What readiness consists of: None is well, text says what is wrong."""
        found: dict[str, str | None] = {"database": None}
        try:
            async with asyncio.timeout(2.0), self.store.transaction() as tx:
                await tx.value("SELECT 1")
        except (StoreUnavailable, TimeoutError) as error:
            found["database"] = str(error) or "no answer"
        for name, stalled in self.stalled().items():
            found[f"loop {name}"] = "has not ticked lately" if stalled else None
        return found


# --- what each role consists of ---------------------------------------------------------------

# What only one of them needs and is big is imported there: 3 MB of API, 9 of HTTP client.


async def api(node: Node) -> None:
    """HTTP in."""
    from noonday.api.app import create_app
    from noonday.api.context import AppContext

    settings = node.settings
    node.loop("report", _reporter(node), pause_sec=REPORT_SEC, steady=True)
    _admitting(node)
    context = AppContext(
        store=node.store,
        blobs=node.blobs(),
        secretbox=read_key_file(settings.secret_key_path),
        wakeups=node.wakeups,
        metrics=node.metrics,
        backlogs=node.backlogs,
        ranks=node.ranker.ranks,
        allow_private_targets=settings.allow_private_targets,
        allowed_ports=settings.allowed_ports,
        blobs_shared=settings.blobs_shared,
    )
    listener = node.api_socket or listening.bind(settings.host, settings.port)
    app = create_app(context)
    address = await node.stack.enter_async_context(listening.serving(app, listener))
    log.info("api.listening", address=address)


async def scheduler(node: Node) -> None:
    """Timers become runs; retries, replays, expired leases and old partitions are looked after."""
    store, metrics, backlogs, ranks = node.store, node.metrics, node.backlogs, node.ranker.ranks
    poll_sec = node.wakeups.poll_sec
    settings = node.settings
    late = CatchingUp(metrics, BATCH, settings.catch_up_share, settings.catch_up_limit_sec)
    node.ranker.share_with_late(settings.catch_up_share)
    part = Scheduler(store, node.id, node.name, metrics, node.wakeups, ranks, backlogs, late)
    try:
        await part.keep_shards()
    except StoreUnavailable as error:
        log.warning("shards.put_off", error=str(error))  # its loop tries again
    node.stack.push_async_callback(_leave, part.leave)
    node.loop("shards", part.keep_shards, pause_sec=2.0, steady=True)
    tick = node.loop(
        "scheduler",
        part.tick,
        pause_sec=poll_sec,
        rest_sec=REST_SEC,
        sleep_for=part.sleep_for,
    )
    node.wakeups.on(TIMERS, tick.wake)
    node.loop("scheduler sweep", part.sweep, pause_sec=10.0, steady=True)
    retries = Retries(store, node.wakeups, ranks)
    again = node.loop("retries", retries.tick, pause_sec=poll_sec, sleep_for=retries.sleep_for)
    node.wakeups.on(RETRIES, again.wake)
    reaper = Reaper(store, metrics, node.wakeups, backlogs)
    node.loop("reaper", reaper.tick, pause_sec=1.0, steady=True)
    lookout = Lookout(store)
    _let_go(node, lookout)
    _seldom(node, lookout)
    _lead(node, lookout, leads=lambda: 0 in part.epochs, told=late.lanes_stand_at)
    # (Without wake-ups it finds in time what they would have told.)
    node.loop("lookout", lookout.tick, pause_sec=lambda: min(LOOK_SEC, poll_sec()), steady=True)


def _let_go(node: Node, lookout: Lookout) -> None:
    """Runs that are held go on: for their targets, their rates, their caps."""
    store, metrics, ranks = node.store, node.metrics, node.ranker.ranks
    pause = pauses(node.settings.breaker_pause_sec)
    admission = Admission(store, metrics, node.wakeups, pause, ranks)
    admit = node.loop("admission", admission.tick, pause_sec=SELDOM_SEC, steady=True)
    lookout.on("held", admit.wake)
    pacing = Pacing(store, metrics, node.wakeups, ranks)
    pace = node.loop(
        "pacing", pacing.tick, pause_sec=SELDOM_SEC, steady=True, sleep_for=pacing.sleep_for
    )
    lookout.on("held", pace.wake)
    admitting = _admitting(node)
    sweep = node.loop("caps sweep", admitting.sweep, pause_sec=SELDOM_SEC, steady=True)
    lookout.on("held", sweep.wake, every=SLOWLY)
    mark = node.loop("caps marking", Marking(store).tick, pause_sec=SELDOM_SEC, steady=True)
    lookout.on("caps_changed", mark.wake, every=SLOWLY)


def _seldom(node: Node, lookout: Lookout) -> None:
    """What is begun by people, and jobs that wait for others."""
    store, metrics, backlogs = node.store, node.metrics, node.backlogs
    dependents = Dependents(store, metrics, node.wakeups, backlogs)
    tell = node.loop("dependents", dependents.tick, pause_sec=SELDOM_SEC)
    node.wakeups.on(dependencies.WAKE, tell.wake)
    lookout.on("ended", tell.wake)
    node.loop("dependents sweep", dependents.look, pause_sec=FAMILIES_SEC, steady=True)
    bulk = node.loop("operations", Operations(store, backlogs).tick, pause_sec=SELDOM_SEC)
    lookout.on("operations", bulk.wake)
    past = Backfills(store, metrics, node.wakeups, node.ranker.ranks)
    fill = node.loop("backfills", past.tick, pause_sec=SELDOM_SEC, sleep_for=past.sleep_for)
    lookout.on("operations", fill.wake)
    resume = node.loop("resuming", Resuming(store).tick, pause_sec=SELDOM_SEC, steady=True)
    lookout.on("pauses", resume.wake)
    replays = Replays(store, metrics, node.wakeups, node.ranker.ranks, backlogs=backlogs)
    move = node.loop("replays", replays.tick, pause_sec=SELDOM_SEC, sleep_for=replays.sleep_for)
    lookout.on("replays", move.wake)


def _lead(
    node: Node,
    lookout: Lookout,
    leads: Callable[[], bool],
    told: Callable[[Sequence[Row]], None],
) -> None:
    """What one scheduler at a time does, or does for all."""
    settings, store, metrics = node.settings, node.store, node.metrics
    janitor = Janitor(store, node.blobs(), settings.retention, metrics, leads=leads)
    node.loop("janitor", janitor.tick, pause_sec=60.0, steady=True, sleep_for=janitor.sleep_for)
    objective = settings.objective_of
    counts = Gauges(store, metrics, node.wakeups, objective=objective, leads=leads, told=told)
    node.loop("gauges", counts.tick, pause_sec=GAUGES_SEC, steady=True)
    recount = Recount(store, metrics, leads=leads)
    count = node.loop("recount", recount.tick, pause_sec=SELDOM_SEC, steady=True)
    lookout.on("counted", count.wake, every=SLOWLY)
    forecasting = Forecasting(store, every_sec=settings.forecast_every_sec, leads=leads)
    node.loop("forecast", forecasting.tick, pause_sec=SELDOM_SEC)
    dog = Watchdog(store, metrics, leads=leads)
    node.loop("watchdog", dog.tick, pause_sec=SELDOM_SEC, steady=True, sleep_for=dog.sleep_for)
    _alerts(node, leads)
    scales = Scaling(
        store,
        objective=objective,
        ahead_sec=settings.scale_ahead_sec,
        keep_sec=settings.scale_down_sec,
        leads=leads,
    )
    node.loop("scaling", scales.tick, pause_sec=SCALING_SEC, steady=True)


def _admitting(node: Node) -> Admitting:
    """Slots are given by every process that frees one, or has runs wait for one."""
    admitting = Admitting(node.store, node.metrics, node.wakeups, node.ranker.let_in)
    admitting.wake = node.loop("caps", admitting.tick, pause_sec=SELDOM_SEC).wake
    return admitting


def _alerts(node: Node, leads: Callable[[], bool]) -> None:
    settings = node.settings
    poster = None
    if settings.alert_url is not None:
        from noonday.executors.posting import Poster

        poster = Poster(settings.alert_url, settings.alert_authorization)
    alerts = Alerts(
        node.store,
        node.metrics,
        poster,
        objective=settings.objective_of,
        repeat=timedelta(seconds=settings.alert_repeat_sec),
        leads=leads,
    )
    tell = node.loop("alert notices", alerts.tell, pause_sec=ALERTS_SEC, steady=True)
    alerts.wake_tell = tell.wake
    node.loop("alerts", alerts.tick, pause_sec=ALERTS_SEC, steady=True)


async def worker(node: Node) -> None:
    """Runs are claimed, carried out and settled."""
    from noonday.executors.http import HttpExecutor
    from noonday.loops.flight import BEAT_SEC
    from noonday.loops.rates import READ_SEC
    from noonday.loops.worker import Worker

    settings = node.settings
    plan = [Pool(*pool) for pool in settings.pools]
    slots = sum(pool.slots for pool in plan)
    _allow_files(slots + settings.pool_size + SPARE_FILES)
    blobs = node.blobs()
    executor = HttpExecutor(
        allow_private=settings.allow_private_targets,
        ports=settings.allowed_ports or None,
        limit=slots,
    )
    await executor.open()
    node.stack.push_async_callback(executor.close)
    beats = await _open_store(node.settings, size=1, name="noonday heartbeats")
    node.stack.push_async_callback(beats.close)
    part = Worker(
        node.store,
        beats,
        node.id,
        node.name,
        executors={HttpTarget: executor},
        blobs=blobs,
        keys=SigningKeys(node.store, read_key_file(settings.secret_key_path)),
        metrics=node.metrics,
        plan=plan,
        pauses=pauses(settings.breaker_pause_sec),
        backlogs=node.backlogs,
        ranker=node.ranker,
    )
    # Stopped from the last to the first: nothing is claimed any more, what runs ends, what came
    # of it is written, and only then do the heartbeats cease.
    await part.beats.tick()  # has the connection that leases rest on before anything is claimed
    node.loop("heartbeat", part.beats.tick, pause_sec=BEAT_SEC, steady=True)
    node.stack.push_async_callback(_leave, part.leave)
    settle = node.loop("settle", part.settling.tick, pause_sec=SELDOM_SEC, rest_sec=SETTLE_SEC)
    part.settling.wake = settle.wake
    breakers = node.loop("breakers", part.breakers.tick, pause_sec=1.0, steady=True)
    part.breakers.wake = breakers.wake
    part.rates.wake = node.loop("rates", part.rates.tick, pause_sec=READ_SEC, steady=True).wake
    claims = {}
    for name, pool in part.pools.items():
        tick = partial(part.tick, name)
        claims[name] = node.loop(
            f"claim {name}",
            tick,
            pause_sec=node.wakeups.poll_sec,
            rest_sec=REST_SEC,
            sleep_for=pool.sleep_for,
        )
        node.wakeups.on(RUNS, claims[name].wake)
    part.wake_claim = lambda name: claims[name].wake()
    part.settling.made_room = node.wakeups.runs
    node.loop("costs", part.costs.tick, pause_sec=TELL_SEC, steady=True)
    admitting = _admitting(node)

    def admitted() -> None:
        node.wakeups.runs()
        for claim in claims.values():  # no need to hear it from ourselves
            claim.wake()

    admitting.admitted = admitted
    node.loop("claim sweep", part.sweep, pause_sec=10.0, steady=True)
    node.stack.push_async_callback(part.stop, settings.worker_grace_sec)
    node.loop("retire", _retiring(node, part), pause_sec=RETIRE_SEC, steady=True)
    node.retire, node.end = part.retire, part.end


def _retiring(node: Node, part: Worker) -> Callable[[], Awaitable[int]]:
    async def look() -> int:
        if part.idle:
            node.stop.set()
        return 0

    return look


ROLES: Final[dict[str, Callable[[Node], Awaitable[None]]]] = {
    "api": api,
    "scheduler": scheduler,
    "worker": worker,
}


# --- running one ------------------------------------------------------------------------------


def run_role(
    role: str,
    settings: Settings,
    *,
    supervised: bool = False,
    admin_socket: socket.socket | None = None,
    api_socket: socket.socket | None = None,
) -> int:
    """Run one process of ``role`` until it is told to stop; its exit code.

    A supervisor hands it the sockets to listen on; else they are made as the settings say.
    """
    configure_logs(settings.log_level, settings.log_format, role=role)
    try:
        return uvloop.run(_run(role, settings, supervised, admin_socket, api_socket))
    except (NoondayError, EmbeddedPostgresError, OSError) as error:
        log.error("process.failed", error=str(error))
        return 1


async def _run(
    role: str,
    settings: Settings,
    supervised: bool,
    admin_socket: socket.socket | None,
    api_socket: socket.socket | None,
) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if supervised:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _on_input, stop)
    async with AsyncExitStack() as stack:
        admin = admin_socket or listening.bind(settings.host, settings.admin_port)
        node = await _node(role, settings, stack, admin, api_socket, stop)
        # What is noted up to the very end is written last.
        stack.push_async_callback(_leave, node.backlogs.write)
        node.loop("pending", node.backlogs.tick, pause_sec=PENDING_SEC, steady=True)
        fairness = Fairness(node.store, node.id, node.ranker)
        node.loop("fairness", fairness.tick, pause_sec=REFRESH_SEC, steady=True)
        await ROLES[role](node)
        if node.retire is not None:
            for number, wanted in ((signal.SIGUSR1, True), (signal.SIGUSR2, False)):
                asyncio.get_running_loop().add_signal_handler(number, node.retire, wanted)
        _watch(node)
        collect_seldom()
        sender = asyncio.create_task(node.wakeups.run())
        stack.callback(sender.cancel)
        log.info("process.started", worker=str(node.id), version=__version__)
        await stop.wait()
        node.end()  # the loops stop one after the other, and a claim might come between
        log.info("process.stopping")
    log.info("process.stopped")
    return 0


def collect_seldom() -> None:
    """Look for garbage in cycles less often than the interpreter would, and not in what is there
    by now. What is made later lives for a request or a batch and has few cycles: the search for
    them took a fifth of a busy worker's time, and more of an API's."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _watch(node: Node) -> None:
    """What the process says of itself: to Prometheus, and to whoever evaluates the alerts."""
    node.metrics.watch_loops(node.stalled)

    def stalled() -> list[str]:
        return [name for name, is_stalled in node.stalled().items() if is_stalled]

    reporter = Reporter(node.store, node.id, node.metrics, stalled)
    node.loop("vitals", reporter.tick, pause_sec=ALERTS_SEC, steady=True)


def _on_input(stop: asyncio.Event) -> None:
    """The supervisor never writes: readable means that it is gone."""
    if not os.read(sys.stdin.fileno(), 4_096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


async def _node(
    role: str,
    settings: Settings,
    stack: AsyncExitStack,
    admin_socket: socket.socket,
    api_socket: socket.socket | None,
    stop: asyncio.Event,
) -> Node:
    store = await _open_store(settings, size=settings.pool_size, name=f"noonday {role}")
    stack.push_async_callback(store.close)
    allowed = settings.unsafe_database == "allow"

    async def check() -> list[str]:
        found = await migrate.check(store, allow_unsafe=allowed)
        if not settings.pgbouncer:
            await _allow_connections(store, settings.pool_size + BESIDE_POOL)
        return found

    unsafe = await _until_there(check, stop)
    for warning in unsafe:
        log.warning("database.unsafe", setting=warning)
    metrics = Metrics(__version__, role)
    for reason in Reason:  # a series that begins above zero has not increased for Prometheus
        metrics.dead_lettered(reason, 0)
    name = settings.worker_name or f"{host_name()}-{os.getpid()}"
    process_id = uuid4()
    node = Node(
        role,
        settings,
        process_id,
        name,
        store,
        metrics,
        Wakeups(store, metrics.notified),
        Backlogs(store, process_id),
        unsafe,
        stack,
        api_socket,
        stop=stop,
    )
    store.wake = node.wakeups.of
    app = admin_port.create_admin_app(node.checks, metrics.render, unsafe)
    address = await stack.enter_async_context(listening.serving(app, admin_socket))
    log.info("admin.listening", address=address)
    return node


async def _allow_connections(store: Store, wanted: int) -> None:
    async with store.transaction() as tx:
        most = await gauges.connections(tx)
    if most < wanted:
        raise NoRoom(
            f"pool_size needs {wanted} connections for this process alone, and the database gives "
            f"{most}: raise max_connections or lower pool_size"
        )


def _allow_files(wanted: int) -> None:
    """See to it that so many files and connections may be open at once. With fewer, attempts
    would fail for lack of a socket, and customers' runs pay for it."""
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < wanted:
        raise NoRoom(
            f"worker_pools needs {wanted} open files, and this process may have "
            f"{most}: raise the limit (ulimit -n, LimitNOFILE) or give it fewer slots"
        )
    if least != resource.RLIM_INFINITY and least < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def _until_there(check: Callable[[], Awaitable[list[str]]], stop: asyncio.Event) -> list[str]:
    """Give a database that is just starting some time, unless we are told to stop meanwhile."""
    until = asyncio.get_running_loop().time() + WAIT_FOR_DATABASE_SEC
    while True:
        try:
            return await check()
        except StoreUnavailable as error:
            if stop.is_set() or asyncio.get_running_loop().time() > until:
                raise
            log.warning("database.unavailable", error=str(error))
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.5)


async def _leave(leave: Callable[[], Awaitable[None]]) -> None:
    """Go in order if the database is there; leases run out by themselves if it is not."""
    try:
        await leave()
    except StoreUnavailable as error:
        log.warning("leave.failed", error=str(error))


def _reporter(node: Node) -> Callable[[], Awaitable[int]]:
    async def report() -> int:
        async with node.store.in_turn() as tx:
            await workers.report(tx, node.id, node.role, node.name)
        return 0

    node.stack.push_async_callback(_leave, lambda: _forget(node))
    return report


async def _forget(node: Node) -> None:
    async with node.store.transaction() as tx:
        await workers.gone(tx, node.id)


async def _open_store(settings: Settings, *, size: int, name: str) -> Store:
    return await Store.open(
        settings.database_url or _embedded_dsn(settings),
        size=size,
        pgbouncer=settings.pgbouncer,
        direct_dsn=settings.database_direct_url,
        name=name,
    )


def _embedded_dsn(settings: Settings) -> str:
    """The database of a `noonday up` that runs on this machine, with the same ``home``."""
    try:
        return running_dsn(settings.home)
    except EmbeddedPostgresError as error:
        raise StoreUnavailable(f"database_url is not set, and {error}") from error


# --- once, before the first start -------------------------------------------------------------


class InitResult(NamedTuple):
    """What ``init`` made. What was there already is None: it is shown only once."""

    token: str | None
    tenant: str
    key_file: str
    signing_secret: str | None


@contextmanager
def _database(settings: Settings) -> Iterator[Settings]:
    """Settings with a database: the one named, else the embedded one of ``home``, which is started
    for as long as it is needed unless it runs already."""
    if settings.database_url is not None:
        yield settings
        return
    with ExitStack() as stack:
        try:
            url = running_dsn(settings.home)
        except EmbeddedPostgresError:
            settings.home.mkdir(parents=True, exist_ok=True)
            postgres = EmbeddedPostgres(
                settings.home, binaries=find_binaries(settings.postgres_bin)
            )
            url = stack.enter_context(postgres).dsn()
        yield replace(settings, database_url=url)


def migrate_database(settings: Settings) -> list[str]:
    """Bring the database to this release; the names of the migrations that were applied."""
    with _database(settings) as found:
        return uvloop.run(_migrate(found))


async def _migrate(settings: Settings) -> list[str]:
    store = await _open_store(settings, size=1, name="noonday migrate")
    try:
        applied = await migrate.migrate(store)
    finally:
        await store.close()
    return [f"{migration.number:04}_{migration.name}" for migration in applied]


def init(settings: Settings, *, new_key: bool = False) -> InitResult:
    """Migrate, make the key that seals secrets, a first tenant and a first admin key.

    May be run again: what is there is left as it is. ``new_key`` makes one more admin key, for
    when the last one was lost.
    """
    with _database(settings) as found:
        return uvloop.run(prepare(found, new_key=new_key))


async def prepare(settings: Settings, *, new_key: bool = False) -> InitResult:
    """What :func:`init` does, inside a running event loop."""
    await _migrate(settings)
    path = settings.secret_key_path
    path.parent.mkdir(parents=True, exist_ok=True)
    store = await _open_store(settings, size=1, name="noonday init")
    try:
        async with store.transaction() as tx:
            if not path.exists():
                if await tenants.page(tx, 0, 1):
                    raise SecretUnreadable(
                        f"{path} is missing, and the database holds secrets that only the key in "
                        "it opens: bring that file here (secret_key_file)"
                    )
                create_key_file(path)
            return await _first_tenant(tx, read_key_file(path), str(path), new_key)
    finally:
        await store.close()


async def _first_tenant(tx: Tx, box: SecretBox, key_file: str, new_key: bool) -> InitResult:
    made = await tenants.create(tx, box, FIRST_TENANT)
    secret = token = None
    if made is not None:
        tenant_id, secret = made[0], tenants.written(made[1])
        await _note(tx, tenant_id, "tenant.create", "tenant", FIRST_TENANT)
    else:
        tenant_id = (await tx.one(tenants.ONE, FIRST_TENANT))["id"]
    if made is not None or new_key:
        token = await api_keys.create(tx, tenant_id, Role.ADMIN, "made by noonday init")
        await _note(tx, tenant_id, "api_key.create", "api_key", api_keys.id_of(token))
    return InitResult(token, FIRST_TENANT, key_file, secret)


async def _note(tx: Tx, tenant_id: int, action: str, kind: str, name: str) -> None:
    await audit.write(tx, [audit.Entry(tenant_id, "noonday init", action, kind, name)])
