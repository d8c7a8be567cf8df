"""The workers of ``noonday up``: how many there are follows how many slots are wanted.

That is read from the metrics of a scheduler, as an autoscaler would read it: no connection to the
database, no second way for the same figure. While nobody tells it, the number stays as it is.
"""

from __future__ import annotations

import http.client
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

import structlog
from prometheus_client.parser import text_string_to_metric_families

from noonday.domain.pools import EVERY_OTHER

ASK_SEC: Final = 2.0
ANSWER_SEC: Final = 2.0
OLD_SEC: Final = 30.0
"""Gauges that are older say nothing."""
TRY_AGAIN_SEC: Final = 10.0
"""After a worker could not be had."""

Pool: TypeAlias = tuple[tuple[str, ...], int]

log = structlog.get_logger()


class Wishes:
    """How many slots are wanted of each lane, asked for in a thread of its own."""

    def __init__(self, schedulers: Sequence[str]) -> None:
        """``schedulers``: the addresses of their admin ports. Each of them knows."""
        self._schedulers = schedulers
        self.slots: Mapping[str, int] | None = None
        """The last that was told; None before anybody did."""

    def run(self, stop: threading.Event) -> None:
        """Ask until told to stop."""
        while not stop.wait(ASK_SEC):
            self.ask()

    def ask(self) -> None:
        """Ask once: the first one that knows, if any."""
        for address in self._schedulers:
            try:
                told = wanted_slots(_get(address, "/metrics"))
            except (OSError, http.client.HTTPException, ValueError):
                continue  # it is starting, say
            if told is not None:
                self.slots = told
                return


def wanted_slots(text: str) -> dict[str, int] | None:
    """What metrics say of wanted slots, by lane; None when they do not say it, or not of now."""
    found = {family.name: family for family in text_string_to_metric_families(text)}
    age, wanted = found.get("noonday_lane_age_seconds"), found.get("noonday_wanted_slots")
    if age is None or wanted is None or any(each.value > OLD_SEC for each in age.samples):
        return None
    return {each.labels["lane"]: int(each.value) for each in wanted.samples} or None


def _get(address: str, path: str) -> str:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=ANSWER_SEC)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise ValueError(answer.status)
        return answer.read().decode()
    finally:
        connection.close()


def workers_for(wanted: Mapping[str, int], pools: Sequence[Pool]) -> int:
    """How many workers with these pools it takes, each of them lanes and slots; lanes that they do
    not serve are for others."""
    named = {lane for lanes, _ in pools for lane in lanes}
    most = 0
    for lanes, slots in pools:
        others = wanted.keys() - named if EVERY_OTHER in lanes else ()
        slots_wanted = sum(wanted.get(lane, 0) for lane in (*lanes, *others))
        most = max(most, ceil(slots_wanted / slots) if slots else 0)
    return most


class Member(Protocol):
    """A worker process; see :class:`noonday.supervisor.Child`."""

    process: Any

    def look_after(self) -> None:
        """Start it, also again when it has ended."""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""

    def close(self) -> None:
        """Give up its place once it has ended."""


class Crew:
    """Workers, from ``least`` to ``most`` of them. One that is not needed any more ends its runs
    before it goes, however long they take; one that is on its way out stays when it is needed."""

    def __init__(
        self, hire: Callable[[int], Member], pools: Sequence[Pool], least: int, most: int
    ) -> None:
        """``hire`` makes the worker of a number from 0 on, or raises ``OSError``; ``pools`` are
        those of one worker."""
        self._hire = hire
        self._pools = pools
        self._least = least
        self._most = most
        self._members: dict[int, Member] = {}
        self._leaving: set[int] = set()
        self._hire_again_at = 0.0

    @property
    def members(self) -> list[Member]:
        """All of them, those on their way out too."""
        return list(self._members.values())

    def begin(self) -> None:
        """Start the least there are; raises ``OSError`` when one cannot be had."""
        while len(self._members) < self._least:
            self._add(self._least)

    def look_after(self, wanted: Mapping[str, int] | None) -> None:
        """Start and let go as ``wanted`` slots say, and keep running those that stay."""
        for number, member in list(self._members.items()):
            if number not in self._leaving:
                member.look_after()
            elif member.process is None or member.process.poll() is not None:
                self._gone(number, member)
        self._follow(wanted)

    def _follow(self, wanted: Mapping[str, int] | None) -> None:
        staying = len(self._members) - len(self._leaving)
        needed = staying if wanted is None else workers_for(wanted, self._pools)
        needed = min(max(needed, self._least), self._most)
        for _ in range(staying, needed):
            self._more(needed)
        for number in sorted(self._members.keys() - self._leaving)[needed:]:
            self._members[number].signal(signal.SIGUSR1)
            self._leaving.add(number)
            log.info("worker.leaves", role="worker", count=needed)

    def _more(self, needed: int) -> None:
        if self._leaving:
            number = min(self._leaving)
            self._leaving.remove(number)
            self._members[number].signal(signal.SIGUSR2)
            log.info("worker.stays", role="worker", count=needed)
            return
        now = time.monotonic()
        if now < self._hire_again_at:
            return
        try:
            self._add(needed)
        except OSError as error:
            self._hire_again_at = now + TRY_AGAIN_SEC
            log.error("worker.not_added", role="worker", error=str(error))

    def _add(self, needed: int) -> None:
        number = min(set(range(self._most)) - self._members.keys())
        self._members[number] = member = self._hire(number)
        member.look_after()
        log.info("worker.added", role="worker", count=needed)

    def _gone(self, number: int, member: Member) -> None:
        del self._members[number]
        self._leaving.remove(number)
        status = member.process.returncode if member.process is not None else None
        member.close()
        write = log.info if status in (0, None, -signal.SIGUSR1) else log.error
        write("worker.left", role="worker", status=status, count=len(self._members))
