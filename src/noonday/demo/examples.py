"""The example jobs, what is expected of each, and whether it has come."""

from __future__ import annotations

import queue
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Final, NamedTuple

from noonday import receiver
from noonday.client import Client, Document
from noonday.demo.inbox import Inbox
from noonday.demo.output import clock, say

DEADLINE_SEC: Final = 30.0
"""How long all that is expected of the examples may take."""
POLL_SEC: Final = 0.2
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
ANSWERS: Final = {f"/{example.name}": example.answers for example in _ALL}


class Examples:
    """Makes the example jobs, shows what arrives, and knows what is still missing."""

    def __init__(self, api: Client, inbox: Inbox) -> None:
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
        say(f"\n{'arrived':<13} {'job':<16} {'occurrence':<13} attempt   late  answer  signature")
        until = time.monotonic() + DEADLINE_SEC
        missing = set(EXAMPLES)
        while missing and time.monotonic() < until:
            self._take(POLL_SEC)
            missing -= {name for name in missing if self._is_done(EXAMPLES[name])}
        faults = self._faults + [self._lack(EXAMPLES[name]) for name in sorted(missing)]
        for fault in faults:
            say(f"not as expected: {fault}")
        if not faults:
            count = sum(map(len, self._seen.values()))
            say(f"\nall {len(EXAMPLES)} jobs did as expected: {count} deliveries, all verified")
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
            say(f"{clock(at)}  {arrival.fault}")
            return
        name = self._name_of(delivery.job_id)
        self._seen[name].append(delivery)
        recurs = name in EXAMPLES and EXAMPLES[name].status is None
        say(
            f"{clock(at):<13} {name:<16} {clock(delivery.occurrence):<13} "
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
            say(
                f"{clock(datetime.now(UTC)):<13} {example.name:<16} is a dead letter now: "
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
