"""Part of the benchmark about several hosts: network namespaces, one with the database and two with
an API, a scheduler and a worker each, and what is left when one of them is cut off.

The namespaces are of our own making and go at the end; it takes root and ``ip`` (iproute2).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from bench.figures import Figures, Rows, spread
from bench.filling import job
from bench.options import Options
from bench.progress import say
from bench.wire import Caller, SinkConnection, request
from noonday.embedded import EmbeddedPostgres
from noonday.server import prepare
from noonday.settings import Settings

NET: Final = "10.77.0"
BRIDGE: Final = "noonday-bench"
DATABASE: Final = "noonday-db"
HOSTS: Final = ("noonday-a", "noonday-b")
ADDRESSES: Final = {DATABASE: f"{NET}.1", HOSTS[0]: f"{NET}.2", HOSTS[1]: f"{NET}.3"}
GENERATOR: Final = f"{NET}.254"
RECEIVER: Final = 8080
ROLES: Final = ("api", "scheduler", "worker")
RATE: Final = 200
"""Jobs per second, due at once."""
ANSWER_SEC: Final = 2.0
"""An API that has not answered by then is taken to be cut off: the other is asked."""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def _network() -> Iterator[None]:
    """A bridge with one leg into each namespace."""
    with ExitStack() as stack:
        _ip("link", "add", BRIDGE, "type", "bridge")
        stack.callback(_ip, "link", "del", BRIDGE)
        _ip("addr", "add", f"{GENERATOR}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for name, address in ADDRESSES.items():
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", name, "master", BRIDGE, "up")
            for words in (
                ("addr", "add", f"{address}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", name, *words)
        yield


class Hosts:
    """The processes in the namespaces."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self._home = home
        self._stack = stack
        self.settings = Settings(home=home)
        self.token = ""

    async def start(self) -> None:
        """The database, with its schema and a key."""
        database = self._run(DATABASE, "-m", "bench.parts.hosts", str(self._home), piped=True)
        assert database.stdout is not None
        self.settings = Settings(home=self._home, database_url=database.stdout.readline().strip())
        self.token = (await prepare(self.settings)).token or ""

    async def add(self, host: str) -> None:
        """The processes of one host, up to where its API takes requests."""
        for role in ROLES:
            listens = ["--host", ADDRESSES[host]] + (["--port", "8000"] if role == "api" else [])
            self._run(host, "-m", "noonday", role, *listens)
        async with asyncio.timeout(20):
            while not await _answers(ADDRESSES[host]):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def _run(self, host: str, *words: str, piped: bool = False) -> subprocess.Popen[str]:
        environment = os.environ | {
            "NOONDAY_DATABASE_URL": self.settings.database_url or "",
            "NOONDAY_HOME": str(self._home),
            "NOONDAY_BLOBS_SHARED": "true",
            "NOONDAY_ALLOW_PRIVATE_TARGETS": "true",
            "NOONDAY_ALLOWED_PORTS": str(RECEIVER),
            "NOONDAY_LOG_LEVEL": "error",
        }
        process = subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, *words],
            env=environment, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if piped else None,
            stderr=None if piped else subprocess.DEVNULL,  # a host that is cut off complains
        )  # fmt: skip
        self._stack.callback(_end, process)
        return process


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _answers(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, 8000)
    except OSError:
        return False
    writer.close()
    return True


class Receiver:
    """What was delivered, by job."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.came_at: dict[str, float] = {}
        """When the first delivery of a job came."""
        self.url = ""

    async def open(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: SinkConnection(self._note, answers=True), GENERATOR, RECEIVER
        )
        self.url = f"http://{GENERATOR}:{RECEIVER}/hook"
        return server

    def _note(self, head: bytes) -> None:
        at = head.find(b"X-Job-Id: ") + 10
        job_id = head[at : at + 36].decode()
        self.seen[job_id] += 1
        self.came_at.setdefault(job_id, time.time())


class Load:
    """Open loop: a job due at once each ``1 / RATE`` seconds, to each API in turn; one that does
    not answer is asked no more, and the job goes to the other under the same idempotency key."""

    def __init__(self, token: str, url: str, hosts: list[str]) -> None:
        self._token = token
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._body = json.dumps(job(url, {"type": "once"})).encode()
        self.alive = list(hosts)
        self.asked: dict[str, float] = {}
        """By job id, when it was due to be sent."""

    async def run(self, seconds: float, cut: Callable[[], None] | None = None) -> None:
        began, sends = time.time(), list[asyncio.Task[None]]()
        for number in range(int(seconds * RATE)):
            due = began + number / RATE
            await asyncio.sleep(max(due - time.time(), 0.0))
            if cut is not None and number == int(seconds * RATE) // 2:
                cut()
            sends.append(asyncio.create_task(self._send(number, due)))
        await asyncio.gather(*sends)

    async def _send(self, number: int, due: float) -> None:
        key = {"Idempotency-Key": str(uuid4())}
        raw = request("POST", "/v1/jobs", self._body, self._headers | key)
        while True:
            host = self.alive[number % len(self.alive)]
            caller = Caller(f"http://{ADDRESSES[host]}:8000", self._token)
            try:
                async with asyncio.timeout(ANSWER_SEC):
                    answer = await caller.ask(raw)
            except (OSError, TimeoutError):
                if host in self.alive and len(self.alive) > 1:
                    self.alive.remove(host)
                await asyncio.sleep(0.2)
                continue
            finally:
                caller.close()
            self.asked[json.loads(answer)["id"]] = due
            return


async def hosts(options: Options) -> Rows:
    """The same load on one host, on two, and on two of which one is cut off in the middle."""
    seconds, found = options.pick(30.0, 6.0), dict[str, Figures]()
    if os.geteuid() or shutil.which("ip") is None:
        say("hosts: not here, it takes root and ip (iproute2)")
        return found
    for name, count, cuts in (
        ("one", 1, False),
        ("two", 2, False),
        ("one of two cut off", 2, True),
    ):
        with (
            tempfile.TemporaryDirectory(prefix=".noonday-bench-", dir=Path.cwd()) as folder,
            ExitStack() as stack,
        ):
            Path(folder).chmod(0o755)
            stack.enter_context(_network())
            found[name] = await _measure(
                Hosts(Path(folder), stack), HOSTS[:count], seconds, cuts=cuts
            )
    return found


async def _measure(
    running: Hosts, names: tuple[str, ...], seconds: float, *, cuts: bool
) -> Figures:
    await running.start()
    for name in names:
        await running.add(name)
    receiver = Receiver()
    server = await receiver.open()
    load = Load(running.token, receiver.url, list(names))
    await load.run(2)  # to be warm
    load.asked.clear()

    def cut() -> None:
        _ip("link", "set", names[-1], "down")

    began = time.time()
    await load.run(seconds, cut if cuts else None)
    async with asyncio.timeout(120):
        while load.asked.keys() - receiver.seen.keys():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    took = time.time() - began
    late = [receiver.came_at[each] - due for each, due in load.asked.items()]
    server.close()
    return {
        "count": float(len(late)),
        "seconds": took,
        "per_sec": len(late) / took,
        "delivered_twice": float(sum(receiver.seen[each] > 1 for each in load.asked)),
        "worst_ms": max(late) * 1e3,
    } | spread(late)


def _database(home: Path) -> None:
    """Run the database until the standard input ends; says its address on the first line."""
    address = ADDRESSES[DATABASE]
    settings = {"listen_addresses": address, "port": "5432"}
    with EmbeddedPostgres(home, settings=settings) as postgres:
        with (home / "postgres" / "data" / "pg_hba.conf").open("a") as access:
            access.write(f"host all all {NET}.0/24 scram-sha-256\n")
        os.kill(postgres.pid or 0, signal.SIGHUP)
        secret = postgres.dsn().partition("://")[2].partition("@")[0]
        print(f"postgresql://{secret}@{address}:5432/noonday", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _database(Path(sys.argv[1]))
