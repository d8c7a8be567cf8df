"""``noonday up``: everything in one supervised process tree.

The supervisor starts an embedded Postgres (unless a database is given), migrates, and keeps one
process per part running: one that ends is started again, after a growing pause. It hands each
child its settings on standard input and keeps that pipe open, so a child notices when the
supervisor is gone, however it went. Listening sockets belong to the supervisor: a child that is
restarted comes back at the same address, and requests wait for it meanwhile. How many workers
there are may follow how many slots are wanted; see ``crew``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from noonday import listening
from noonday.crew import Crew, Wishes
from noonday.embedded import EmbeddedPostgres, EmbeddedPostgresError, find_binaries
from noonday.server import BESIDE_POOL, InitResult, init, run_role
from noonday.settings import Settings, write_client_file
from noonday.telemetry import configure_logs

USUAL_PORT: Final = 8321
"""Where the API is found when no port is asked for and this one is free."""
SHORTEST_PAUSE_SEC: Final = 0.2
LONGEST_PAUSE_SEC: Final = 10.0
STEADY_SEC: Final = 30.0
"""A child that ran so long has not failed to start: its next pause is the shortest."""
SPARE_SEC: Final = 15.0
"""What a child gets beyond its grace period before it is killed."""
LEAST_CONNECTIONS: Final = 100
SPARE_CONNECTIONS: Final = 10
"""Connections of the embedded Postgres for others than our processes."""

log = structlog.get_logger()


class Orders(msgspec.Struct, frozen=True):
    """What a child is told on the first line of its standard input."""

    role: str
    settings: Settings
    admin_socket: int
    api_socket: int | None = None


@dataclass
class Child:
    """One supervised process."""

    role: str
    settings: Settings
    admin: socket.socket
    api: socket.socket | None
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_again_at: float = 0.0
    failures: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it gets beside ours."""
    errors: int | None = None
    """The descriptor that its log goes to; None means ours."""

    def start(self) -> None:
        """Spawn it; in a session of its own, so that Ctrl-C reaches the supervisor alone."""
        inherited = [each.fileno() for each in (self.admin, self.api) if each is not None]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "noonday.supervisor"],
            stdin=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, **self.environment},
            pass_fds=inherited,
            start_new_session=True,
        )
        api = self.api.fileno() if self.api is not None else None
        orders = Orders(self.role, self.settings, self.admin.fileno(), api)
        assert self.process.stdin is not None  # noqa: S101 - asked for above
        self.process.stdin.write(msgspec.json.encode(orders, enc_hook=str) + b"\n")
        self.process.stdin.flush()
        self.started_at = time.monotonic()

    def look_after(self) -> None:
        """Start it again if it has ended."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is not None:
            code = self.process.returncode
            self._let_go()
            self.failures = 0 if now - self.started_at > STEADY_SEC else self.failures + 1
            self._pause(now)
            log.error(
                "child.ended", role=self.role, status=code, wait_sec=self.start_again_at - now
            )
        if self.process is None and now >= self.start_again_at:
            try:
                self.start()
            except OSError as error:
                # No memory or no process to be had just now, or it died before it was told.
                if self.process is not None:
                    self.process.kill()
                    self.process.wait()
                self._let_go()
                self.failures += 1
                self._pause(now)
                log.error("child.not_started", role=self.role, error=str(error))

    def _pause(self, now: float) -> None:
        pause = min(SHORTEST_PAUSE_SEC * 2 ** min(self.failures, 16), LONGEST_PAUSE_SEC)
        self.start_again_at = now + pause

    def tell_to_stop(self) -> None:
        """SIGTERM: it stops in order."""
        self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def close(self) -> None:
        """Give up its address, once it has ended."""
        self._let_go()
        self.admin.close()

    def wait(self, until: float) -> None:
        """Wait for its end; kill it when it takes too long."""
        if self.process is None:
            return
        try:
            self.process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            log.error("child.killed", role=self.role, pid=self.process.pid)
            self.process.kill()
            self.process.wait()
        self._let_go()

    def _let_go(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            with suppress(OSError):  # what it was not told any more
                self.process.stdin.close()
        self.process = None


@dataclass(frozen=True)
class Running:
    """What ``up`` has brought up, for whoever shows it."""

    address: str
    admin_addresses: dict[str, str]
    settings: Settings
    init: InitResult


def up(
    settings: Settings,
    *,
    schedulers: int = 1,
    apis: int = 1,
    say: Callable[[str], None] = print,
    show: Callable[[Running], int] | None = None,
) -> int:
    """Bring everything up and keep it so until SIGINT or SIGTERM; the exit code.

    ``show`` runs beside, in a thread of its own; when it returns a code of zero or more,
    everything is stopped and that code is the answer. A negative code leaves things running.
    """
    configure_logs(settings.log_level, settings.log_format, role="supervisor")
    stop = threading.Event()
    codes: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with ExitStack() as stack:
        settings.home.mkdir(parents=True, exist_ok=True)
        roles = ["api"] * apis + ["scheduler"] * schedulers
        # Before a first key is made, which is shown only once.
        api = _api_socket(settings)
        stack.callback(api.close)
        postgres = _postgres(settings, len(roles), stack, say)
        if postgres is not None:
            settings = msgspec.structs.replace(settings, database_url=postgres.dsn())
        database = Database(postgres) if postgres is not None else None
        say("migrating the database")
        children = _children(roles, settings, api, stack)
        made = init(settings)
        _show_once(made, say)
        write_client_file(settings, url=listening.address_of(api), key=made.token)
        crew = _crew(settings, len(children), api)
        stack.callback(_stop, children, crew, settings.worker_grace_sec, say)
        for child in children:
            child.look_after()
        crew.begin()
        wishes = _wishes(children, settings, stop)
        running = _running([*children, *_workers(crew)], settings, made)
        if show is not None:
            threading.Thread(target=_show, args=(show, running, codes, stop), daemon=True).start()
        while not stop.wait(0.1):
            if database is not None:
                database.look_after()
            for child in children:
                child.look_after()
            crew.look_after(wishes.slots)
    return codes[0] if codes else 0


def _postgres(
    settings: Settings, others: int, stack: ExitStack, say: Callable[[str], None]
) -> EmbeddedPostgres | None:
    """The embedded Postgres, started; None when a database is given."""
    if settings.database_url is not None:
        return None
    say(f"starting an embedded Postgres in {settings.home / 'postgres'}")
    processes = others + settings.worker_bounds[1]
    postgres = EmbeddedPostgres(
        settings.home,
        binaries=find_binaries(settings.postgres_bin),
        max_connections=max(
            LEAST_CONNECTIONS, processes * (settings.pool_size + BESIDE_POOL) + SPARE_CONNECTIONS
        ),
    )
    stack.callback(postgres.stop)
    postgres.start()
    return postgres


@dataclass
class Database:
    """The embedded Postgres, looked after like a child."""

    postgres: EmbeddedPostgres
    start_again_at: float = 0.0

    def look_after(self) -> None:
        """Start it again if it has ended; its address and its data are the same."""
        process, now = self.postgres.process, time.monotonic()
        if (process is not None and process.poll() is None) or now < self.start_again_at:
            return
        self.start_again_at = now + LONGEST_PAUSE_SEC
        log.error("postgres.ended", status=process.returncode if process else None)
        try:
            self.postgres.stop()
            self.postgres.start()
        except EmbeddedPostgresError as error:
            log.error("postgres.not_started", error=str(error))


def _show_once(made: InitResult, say: Callable[[str], None]) -> None:
    if made.token is not None:
        say(f"admin key, shown once: {made.token}")
    if made.signing_secret is not None:
        say(f"signing secret of the tenant {made.tenant}, shown once: {made.signing_secret}")


def _children(
    roles: Sequence[str], settings: Settings, api: socket.socket, stack: ExitStack
) -> list[Child]:
    children = []
    for n, role in enumerate(roles):
        admin = listening.bind(settings.host, _admin_port(settings, n, api))
        stack.callback(admin.close)
        children.append(Child(role, settings, admin, api if role == "api" else None))
    return children


def _admin_port(settings: Settings, n: int, api: socket.socket) -> int:
    """The first child's is the port asked for, if any; the others' follow it, past the API's."""
    port = settings.admin_port and settings.admin_port + n
    passes: int = api.getsockname()[1]
    return port + 1 if port and settings.admin_port <= passes <= port else port


def _crew(settings: Settings, others: int, api: socket.socket) -> Crew:
    def hire(number: int) -> Child:
        port = _admin_port(settings, others + number, api)
        return Child("worker", settings, listening.bind(settings.host, port), None)

    return Crew(hire, settings.pools, *settings.worker_bounds)


def _workers(crew: Crew) -> list[Child]:
    return [member for member in crew.members if isinstance(member, Child)]


def _wishes(children: Sequence[Child], settings: Settings, stop: threading.Event) -> Wishes:
    """What the crew follows; nothing when its number is fixed."""
    schedulers = [child for child in children if child.role == "scheduler"]
    wishes = Wishes([listening.address_of(child.admin) for child in schedulers])
    least, most = settings.worker_bounds
    if least < most:
        threading.Thread(target=wishes.run, args=(stop,), daemon=True).start()
    return wishes


def _api_socket(settings: Settings) -> socket.socket:
    if settings.port:
        return listening.bind(settings.host, settings.port)
    try:
        return listening.bind(settings.host, USUAL_PORT)
    except OSError:
        return listening.bind(settings.host, 0)


def _running(children: Sequence[Child], settings: Settings, made: InitResult) -> Running:
    api = next(child.api for child in children if child.api is not None)
    admin = {
        f"{child.role} {n}": listening.address_of(child.admin) for n, child in enumerate(children)
    }
    return Running(listening.address_of(api), admin, settings, made)


def _show(
    show: Callable[[Running], int], running: Running, codes: list[int], stop: threading.Event
) -> None:
    code = show(running)
    if code >= 0:
        codes.append(code)
        stop.set()


def _stop(
    children: Sequence[Child], crew: Crew, grace_sec: float, say: Callable[[str], None]
) -> None:
    say("stopping")
    until = time.monotonic() + grace_sec + SPARE_SEC
    workers = _workers(crew)
    for child in (*children, *workers):
        child.tell_to_stop()
    for child in (*children, *workers):
        child.wait(until)
    for worker in workers:
        worker.close()


def _path(wanted: type, value: Any) -> Any:
    return Path(value) if wanted is Path else value


def main() -> int:
    """A child: read the orders, then be that role until told to stop or left alone."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders, dec_hook=_path)
    return run_role(
        orders.role,
        orders.settings,
        supervised=True,
        admin_socket=socket.socket(fileno=orders.admin_socket),
        api_socket=socket.socket(fileno=orders.api_socket) if orders.api_socket else None,
    )


if __name__ == "__main__":
    sys.exit(main())
