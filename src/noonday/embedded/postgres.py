"""One Postgres server as a child of this process, from start to stop."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from noonday.embedded import account, cluster, configuration, guard, orphans, sockets
from noonday.embedded.binaries import PgBinaries, find_binaries
from noonday.embedded.errors import EmbeddedPostgresError
from noonday.embedded.log import ServerLog
from noonday.embedded.ownership import Ownership, owner_of

# A start that failed for one of these may succeed as soon as the last server is quite gone.
NOT_QUITE_GONE = ('lock file "postmaster.pid" already exists', "pre-existing shared memory block")
RECOVERING = "elapsed time"  # said every 10 s while a crashed server's log is replayed
LAST_RESORT_SEC = 15.0


class EmbeddedPostgres:
    """The server whose data lies in ``state_dir / "postgres"``.

    The process that starts it owns it; other processes of this machine reach it by ``running_dsn``.
    When the owner ends, in whatever way, the server shuts down cleanly. ``settings`` are server
    settings that win over the defaults.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        binaries: PgBinaries | None = None,
        settings: Mapping[str, str] | None = None,
        max_connections: int = 100,
    ) -> None:
        self._home = _home(state_dir)
        self._binaries = binaries
        self._settings = dict(settings or {})
        self._max_connections = max_connections
        self._ownership = Ownership(self._home)
        self._log = ServerLog(self._home / "postgres.log")
        self._process: subprocess.Popen[bytes] | None = None
        self._unwatch: Callable[[], None] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The server, once it was started and until it was stopped."""
        return self._process

    @property
    def pid(self) -> int | None:
        """The server's pid, once it was started and until it was stopped."""
        return None if self._process is None else self._process.pid

    def start(self, *, deadline_sec: float = 60) -> None:
        """Start the server, making its data first if need be, and wait until it takes connections.

        To be called from the main thread. The deadline counts anew while crash recovery goes on.
        Raises ``EmbeddedPostgresError``: another process owns the data, the data is of another
        major version, root has no way to run it, or the server does not come up.
        """
        if threading.current_thread() is not threading.main_thread():
            # The kernel's death signal follows the thread that spawned the child.
            raise EmbeddedPostgresError("Postgres has to be started from the main thread")
        if self._process is not None and self._process.poll() is None:
            raise EmbeddedPostgresError(f"Postgres in {self._home} was started already")
        try:
            _make(self._home)
            self._ownership.acquire()
            self._start_as_owner(deadline_sec)
        except BaseException as error:
            self.stop()
            if isinstance(error, OSError):
                detail = f"cannot run Postgres in {self._home}: {error}"
                raise EmbeddedPostgresError(detail) from error
            raise

    def stop(self, *, deadline_sec: float = 60) -> None:
        """End all sessions, write everything out, and shut down; safe to call at any time."""
        self._end(signal.SIGINT, deadline_sec)

    def stop_immediate(self) -> None:
        """Stop without writing anything out, as a crash would; the next start recovers."""
        self._end(signal.SIGQUIT, LAST_RESORT_SEC)

    def dsn(self, database: str = cluster.DATABASE) -> str:
        """The URL of a database of the running server, with the password; creates nothing."""
        return _dsn(self._home, database)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start_as_owner(self, deadline_sec: float) -> None:
        found = self._binaries or find_binaries()
        run_as, binaries = account.choose(found, self._home)
        orphans.clear(self._home / "data", deadline_sec)
        data = cluster.prepare(self._home, binaries, run_as)
        folder = sockets.provide(self._home, run_as)
        settings = configuration.defaults(binaries, folder, self._max_connections) | self._settings
        argv = [binaries.program("postgres"), "-D", str(data)]
        argv += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        until = time.monotonic() + deadline_sec
        while not self._comes_up(run_as, argv, data, deadline_sec):
            if time.monotonic() > until or not self._said(*NOT_QUITE_GONE):
                raise EmbeddedPostgresError(f"Postgres did not start:\n{self._log.since_start()}")
            time.sleep(0.2)
        self._log.keep_trimmed()

    def _comes_up(
        self, run_as: account.RunAs, argv: list[str], data: Path, deadline_sec: float
    ) -> bool:
        """Spawn the server and wait for it: true if it takes connections, false if it ended."""
        prefix = guard.death_signal()
        self._stop_watching()
        with self._log.open() as log:
            self._process = run_as.spawn([*prefix, *argv], log)
        if not prefix:
            self._unwatch = guard.watch(self._process.pid)
        until, progress = time.monotonic() + deadline_sec, 0
        while not takes_connections(data, self._process.pid):
            if self._process.poll() is not None:
                return False
            if time.monotonic() > until:
                seen = self._log.since_start().count(RECOVERING)
                if seen == progress:
                    raise EmbeddedPostgresError(
                        f"Postgres takes no connections after {deadline_sec:g} s:\n"
                        f"{self._log.since_start()}"
                    )
                until, progress = time.monotonic() + deadline_sec, seen
            time.sleep(0.02)
        return True

    def _said(self, *words: str) -> bool:
        return any(each in self._log.since_start() for each in words)

    def _end(self, number: signal.Signals, deadline_sec: float) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(deadline_sec)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._wait_for_last_resort(self._process)
        self._process = None
        self._stop_watching()
        self._log.release()
        folder = sockets.recorded(self._home)
        if self._ownership.held and folder is not None:
            sockets.remove(folder)
        self._ownership.release()

    def _wait_for_last_resort(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(LAST_RESORT_SEC)
        except subprocess.TimeoutExpired:
            raise EmbeddedPostgresError(f"Postgres, process {process.pid}, does not end") from None

    def _stop_watching(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None


def running_dsn(state_dir: Path, database: str = cluster.DATABASE) -> str:
    """The URL of a database of the server that another local process owns.

    Raises ``EmbeddedPostgresError`` if no process owns one in ``state_dir``.
    """
    home = _home(state_dir)
    if owner_of(home) is None:
        raise EmbeddedPostgresError(f"no process runs the embedded Postgres in {home}")
    return _dsn(home, database)


def _home(state_dir: Path) -> Path:
    return state_dir.resolve() / "postgres"


def _make(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    # Root's lets others pass: the server's account, to the parts that are its own.
    home.chmod(0o711 if home.stat().st_uid == 0 else 0o700)


def _dsn(home: Path, database: str) -> str:
    folder = sockets.recorded(home)
    if folder is None:
        raise EmbeddedPostgresError(f"the embedded Postgres in {home} was never started")
    where = f"host={quote(str(folder), safe='')}&port={sockets.PORT}"
    secret = quote(cluster.password(home), safe="")
    return f"postgresql://{cluster.ROLE}:{secret}@/{quote(database, safe='')}?{where}"


def takes_connections(data: Path, pid: int) -> bool:
    """What pg_ctl looks at: the eighth line of the pid file says ``ready``."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"
