"""``noonday up --demo``: a receiver on this machine, and jobs that show what Noonday does."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from noonday.cli.output import printable
from noonday.client import Client, NoondayClientError

DEADLINE_SEC: Final = 60.0
POLL_SEC: Final = 0.1
FAILURES: Final = 2
TICKS: Final = 3

Say = Callable[[str], None]


def run(url: str, key: str | None, say: Say) -> bool:
    """Create the example jobs and follow them; whether each ended as it should."""
    try:
        with _receiver(say) as receiver, Client(url, key) as noonday:
            return _follow(noonday, receiver, say)
    except (NoondayClientError, OSError) as error:
        say(f"the demo failed: {error}")
        return False


def _follow(noonday: Client, receiver: str, say: Say) -> bool:
    jobs = {job["name"]: job for job in _jobs(receiver)}
    ids = {name: noonday.jobs.create(job)["id"] for name, job in jobs.items()}
    say(f"created {len(ids)} jobs, each with one durable POST: {', '.join(ids)}")
    done: dict[str, Callable[[dict[str, Any]], bool]] = {
        "works at once": lambda job: job["status"] == "COMPLETE",
        "works after a while": lambda job: job["status"] == "COMPLETE",
        "never works": lambda job: _is_dead(noonday, job),
        "every second": lambda job: _fired(noonday, job) >= TICKS,
    }
    until = time.monotonic() + DEADLINE_SEC
    while done and time.monotonic() < until:
        for name in list(done):
            job = noonday.jobs.get(ids[name])
            if done[name](job):
                del done[name]
                say(f"done: {name!r} is {job['status']} after {job['attempts']} attempt(s)")
        time.sleep(POLL_SEC)
    noonday.jobs.delete(ids["every second"])
    for name in done:
        say(f"not done within {DEADLINE_SEC:.0f} s: {name!r}")
    return not done


def _is_dead(noonday: Client, job: dict[str, Any]) -> bool:
    return any(noonday.dlq.list(job_id=job["id"]))


def _fired(noonday: Client, job: dict[str, Any]) -> int:
    return sum(one["outcome"] == "COMPLETE" for one in noonday.jobs.occurrences(job["id"]))


def _jobs(receiver: str) -> Iterator[dict[str, Any]]:
    once = {"type": "once"}
    yield _job("works at once", once, f"{receiver}/well")
    yield _job(
        "works after a while",
        once,
        f"{receiver}/shaky",
        retry_policy={"base_sec": 0.5, "factor": 1},
    )
    yield _job("never works", once, f"{receiver}/refused")
    yield _job("every second", {"type": "interval", "interval_sec": 1}, f"{receiver}/tick")


def _job(name: str, schedule: dict[str, Any], url: str, **more: Any) -> dict[str, Any]:
    target = {"type": "http", "url": url}
    return {"name": name, "schedule": schedule, "target": target, "payload": {"demo": name}, **more}


@contextmanager
def _receiver(say: Say) -> Iterator[str]:
    calls: Counter[str] = Counter()

    class Receiver(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            calls[self.path] += 1
            status = _answer(self.path, calls[self.path])
            attempt, run = self.headers.get("X-Attempt"), self.headers.get("X-Run-Id")
            say(printable(f"receiver: {self.path}, run {run}, attempt {attempt}: {status}"))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Said above."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _answer(path: str, call: int) -> int:
    if path == "/refused":
        return 400
    return 503 if path == "/shaky" and call <= FAILURES else 200
