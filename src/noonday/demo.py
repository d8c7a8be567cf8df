"""``noonday up --demo``: example jobs, and a receiver that shows each delivery as it comes.

It acts as a customer would: jobs are made through the API, and each webhook is verified with the
receiver library before it is answered.
"""

from __future__ import annotations

import os
import queue
import secrets
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from noonday import __version__, receiver
from noonday.client import Client, Document, NoondayApiError, NoondayClientError
from noonday.settings import Settings, SettingsError, read_client_file
from noonday.supervisor import Running

DEADLINE_SEC: Final = 30.0
"""How long all that is expected of the examples may take."""
POLL_SEC: Final = 0.2
PATIENCE_SEC: Final = 30.0
"""How long the API may take to come up."""

_SOON: Final[Document] = {"base_sec": 1, "factor": 1, "cap_sec": 1}


class Example(NamedTuple):
    """A job, and what is expected of it."""

    name: str
    schedule: Document
    deliveries: int = 1
    """Attempts until it ends; runs to see if it recurs."""
    status: str | None = "COMPLETE"
    """How it ends; None for a job that recurs."""
    answers: tuple[int, ...] = (200,)
    """What the receiver answers to attempt 1, 2 and so on; the last one stays."""
    retry_policy: Document | None = None


_ALL: Final = (
    Example("now", {"type": "once"}),
    Example("in-3-seconds", {"type": "once", "delay": "PT3S"}),
    Example("every-2-seconds", {"type": "interval", "interval_sec": 2}, 3, None),
    Example("cron-and-jitter", {"type": "cron", "cron": "*/4 * * * * *", "jitter_sec": 2}, 1, None),
    Example("fails-twice", {"type": "once"}, 3, answers=(500, 500, 200), retry_policy=_SOON),
    Example("never-works", {"type": "once"}, 2, "FAILED", (503,), _SOON | {"max_attempts": 2}),
)
EXAMPLES: Final = {example.name: example for example in _ALL}


def permissive(settings: Settings) -> Settings:
    """The settings, but webhooks may call this machine on any port."""
    return msgspec.structs.replace(settings, allow_private_targets=True, allowed_ports=())


def show(running: Running, *, once: bool) -> int:
    """Make the examples and print what arrives; the exit code, for ``supervisor.up``.

    ``once``: end when all that is expected has arrived, or has not within ``DEADLINE_SEC``.
    Otherwise go on showing for as long as the process lives; a negative code leaves it alone.
    """
    try:
        access = _access(running)
        with _receiving(access.signing_secret) as inbox, Client(running.address, access.key) as api:
            _cancel(api)  # what the last demo has left
            _say(f"Noonday {__version__} is at {running.address}, its reference at /docs there")
            _say("private targets (loopback) and all ports are allowed here: to try things out")
            demo = _Demo(api, inbox)
            faults = demo.run()
            if once:
                _cancel(api)
                return 1 if faults else 0
            _say(_invitation(running.address, access.key, inbox.url))
            demo.go_on()
    except (NoondayClientError, SettingsError, OSError) as error:
        print(f"the demo failed: {error}", file=sys.stderr, flush=True)
    return 1 if once else -1


# --- The tenant -------------------------------------------------------------------------------


class _Access(msgspec.Struct, frozen=True):
    """The demo's tenant. Kept beside the data, so that the next start finds its jobs."""

    key: str
    signing_secret: str


def _access(running: Running) -> _Access:
    """The tenant of the last demo if it is still there, else a new one."""
    file = running.settings.home / "demo.json"
    with Client(running.address, _admin_key(running), timeout_sec=PATIENCE_SEC) as admin:
        next(admin.tenants.list(), None)  # returns when the API is up
        kept = _kept(file)
        if kept is not None and _opens(running.address, kept.key):
            return kept
        tenant = admin.tenants.create(f"demo-{secrets.token_hex(4)}")
        key = admin.api_keys.create(tenant=tenant["name"], role="operator", name="demo")
    access = _Access(key["key"], tenant["signing_secret"])
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as kept_in:
        kept_in.write(msgspec.json.encode(access))
    return access


def _admin_key(running: Running) -> str:
    settings = running.settings
    key = running.init.token or settings.api_key or read_client_file(settings).key
    if key is None:
        raise SettingsError([f"no admin key is known: {settings.cli_file} holds none"])
    return key


def _kept(file: Path) -> _Access | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Access)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _opens(address: str, key: str) -> bool:
    with Client(address, key) as api:
        try:
            next(api.jobs.list(limit=1), None)
        except NoondayApiError as error:
            if error.status != 401:
                raise
            return False
    return True


def _cancel(api: Client) -> None:
    for status in ("PENDING", "RUNNING"):
        for job in list(api.jobs.list(status=status)):
            api.jobs.delete(job["id"])


# --- The receiver -----------------------------------------------------------------------------


class _Arrival(NamedTuple):
    """A request, and what it was answered with."""

    at: datetime
    delivery: receiver.Delivery | None
    """None when it could not be verified."""
    status: int
    fault: str = ""


class _Inbox(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, secret: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.arrivals: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        self._secret = secret

    def take(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        """Verify a request; the status to answer with."""
        at = datetime.now(UTC)
        try:
            delivery = receiver.verify(headers, body, self._secret)
        except receiver.InvalidSignature as error:
            self.arrivals.put(_Arrival(at, None, 401, f"{path}: {error.reason}"))
            return 401
        example = EXAMPLES.get(path.strip("/"))
        answers = example.answers if example else (200,)
        status = answers[min(delivery.attempt, len(answers)) - 1]
        self.arrivals.put(_Arrival(at, delivery, status))
        return status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Inbox

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(self.server.take(self.path, dict(self.headers.items()), body))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: the demo shows what arrives."""


@contextmanager
def _receiving(secret: str) -> Iterator[_Inbox]:
    with _Inbox(secret) as inbox:
        threading.Thread(target=inbox.serve_forever, daemon=True).start()
        try:
            yield inbox
        finally:
            inbox.shutdown()


# --- The examples -----------------------------------------------------------------------------


class _Demo:
    """Makes the examples, shows what arrives, and knows what is still missing."""

    def __init__(self, api: Client, inbox: _Inbox) -> None:
        self._api = api
        self._inbox = inbox
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._seen: defaultdict[str, list[receiver.Delivery]] = defaultdict(list)
        self._faults: list[str] = []

    def run(self) -> list[str]:
        """What was not as expected, when all has arrived or the time is over."""
        for example in EXAMPLES.values():
            self._create(example)
        _say(f"\n{'arrived':<13} {'job':<16} {'occurrence':<13} attempt   late  answer  signature")
        until = time.monotonic() + DEADLINE_SEC
        missing = set(EXAMPLES)
        while missing and time.monotonic() < until:
            self._take(POLL_SEC)
            missing -= {name for name in missing if self._is_done(EXAMPLES[name])}
        faults = self._faults + [self._lack(EXAMPLES[name]) for name in sorted(missing)]
        for fault in faults:
            _say(f"not as expected: {fault}")
        if not faults:
            count = sum(map(len, self._seen.values()))
            _say(f"\nall {len(EXAMPLES)} jobs did as expected: {count} deliveries, all verified")
        return faults

    def go_on(self) -> None:
        """Show what arrives, without end; what recurs stays on one line of a terminal."""
        while True:
            self._take(None)

    def _create(self, example: Example) -> None:
        job = self._api.jobs.create(
            {
                "name": example.name,
                "schedule": example.schedule,
                "target": {"type": "http", "url": f"{self._inbox.url}/{example.name}"},
                "payload": {"from": "the demo"},
                "retry_policy": example.retry_policy or {},
            }
        )
        self._names[job["id"]] = example.name
        self._ids[example.name] = job["id"]

    def _take(self, timeout_sec: float | None) -> None:
        try:
            arrival = self._inbox.arrivals.get(timeout=timeout_sec)
        except queue.Empty:
            return
        at, delivery = arrival.at, arrival.delivery
        if delivery is None:
            self._faults.append(f"a delivery was not verified: {arrival.fault}")
            _say(f"{_clock(at)}  {arrival.fault}")
            return
        name = self._name_of(delivery.job_id)
        self._seen[name].append(delivery)
        recurs = name in EXAMPLES and EXAMPLES[name].status is None
        _say(
            f"{_clock(at):<13} {name:<16} {_clock(delivery.occurrence):<13} "
            f"{delivery.attempt:>7} {self._late(at, delivery):>6}  {arrival.status:>6}  verified",
            passing=recurs and timeout_sec is None,
        )

    def _name_of(self, job_id: str) -> str:
        if job_id not in self._names:
            self._names[job_id] = self._api.jobs.get(job_id)["name"] or "(no name)"
        return self._names[job_id]

    def _late(self, at: datetime, delivery: receiver.Delivery) -> str:
        """From when it was due, jitter included, until it arrived; a retry is not late."""
        if delivery.attempt > 1:
            return "retry"
        due_at = datetime.fromisoformat(self._api.runs.get(delivery.run_id)["due_at"])
        return f"{(at - due_at).total_seconds() * 1000:.0f} ms"

    def _is_done(self, example: Example) -> bool:
        seen = self._seen[example.name]
        if example.status is None:
            return len({delivery.run_id for delivery in seen}) >= example.deliveries
        if [delivery.attempt for delivery in seen] != [*range(1, example.deliveries + 1)]:
            return False
        job_id = self._ids[example.name]
        if self._api.jobs.get(job_id)["status"] != example.status:
            return False
        if example.status == "COMPLETE":
            return True
        letter = next(self._api.dlq.list(job_id=job_id), None)
        if letter is not None:
            _say(
                f"{_clock(datetime.now(UTC)):<13} {example.name:<16} is a dead letter now: "
                f"{letter['reason']} after {letter['attempts']} attempts"
            )
        return letter is not None

    def _lack(self, example: Example) -> str:
        job = self._api.jobs.get(self._ids[example.name])
        attempts = ", ".join(str(delivery.attempt) for delivery in self._seen[example.name])
        return (
            f"{example.name} is {job['status']} after {DEADLINE_SEC:.0f} s, with the attempts "
            f"[{attempts}] where {example.deliveries} were to come; last error: {job['last_error']}"
        )


# --- What is printed --------------------------------------------------------------------------


def _say(line: str, *, passing: bool = False) -> None:
    """Print; on a terminal the next line takes the place of one that is ``passing``."""
    if sys.stdout.isatty():
        print(f"\r\033[K{line}", end="" if passing else "\n", flush=True)
    else:
        print(line, flush=True)


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _invitation(address: str, key: str, receiver_url: str) -> str:
    job = (
        '{"name": "mine", "schedule": {"type": "once", "delay": "PT2S"}, '
        f'"target": {{"type": "http", "url": "{receiver_url}/mine"}}, '
        '"payload": {"hello": "world"}}'
    )
    return f"""
Your turn, in another terminal:

  curl -sS -w '\\n' '{address}/v1/jobs' -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' -d '{job}'

  curl -sS -w '\\n' '{address}/v1/jobs?name_prefix=mine' -H 'Authorization: Bearer {key}'

  NOONDAY_URL={address} NOONDAY_API_KEY={key} \\
    {sys.argv[0]} jobs list

The delivery of your job is shown here, below those of the jobs that recur. Ctrl-C stops all.
"""
