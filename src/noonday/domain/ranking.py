"""Who runs next: ranks in two bands, the order of READY runs, and where a claim starts to look.

A rank is an instant. In *front* it is the real one at which a run became claimable; in the *queue*
it is a virtual one, a start tag, moved a thousand years on, so that both stand in one index. See
``fair`` for who queues, and ``lane_clock`` for how a claim merges the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from noonday.domain.model import EPOCH, PRIORITIES

AGEING_SEC: Final = 6.0
"""A priority step is worth this much waiting, unless the lane says otherwise: a lower priority is a
constant behind, so it overtakes newer urgent work once it has waited long enough."""

LATE_COMMIT: Final = timedelta(seconds=5)
"""A floor in front stays this far below the clock: no transaction that makes a run READY takes
longer."""

LATE_TAG_SEC: Final = 2.0
"""A floor of the queue rises so much later: by what was known of the lane that long ago, tags may
still be given."""

QUEUE: Final = EPOCH + timedelta(days=365_250)
"""The first rank of the queue: virtual time zero."""
END: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""Above every rank."""


def is_queued(rank: datetime) -> bool:
    """Whether a rank lies in the queue, not in front."""
    return rank >= QUEUE


def queued(tag: float) -> datetime:
    """The rank in the queue of a start tag, in seconds of virtual time."""
    return QUEUE + timedelta(seconds=tag)


def tag_of(rank: datetime) -> float:
    """The start tag of a rank in the queue."""
    return (rank - QUEUE).total_seconds()


def seconds(instant: datetime) -> float:
    """An instant as seconds since the epoch, in which virtual time is counted as well."""
    return (instant - EPOCH).total_seconds()


class Work(NamedTuple):
    """What the rank of a run is made of: whose it is, where it queues, and whom it calls."""

    tenant_id: int
    lane: str
    priority: int
    target_host: str
    concurrency_key: str | None = None
    late: bool = False
    """Whether its time is long past: it is caught up on, beside what the tenant has now."""


class Caps(NamedTuple):
    """What of all tenants is capped: the tenants, their hosts, and which keys are not."""

    tenants: Collection[int] = ()
    hosts: Collection[tuple[int, str]] = ()
    free_keys: Collection[tuple[int, str]] = ()

    def hold(self, work: Work) -> bool:
        """Whether a run that is made now has to wait for a slot first."""
        tenant_id, key = work.tenant_id, work.concurrency_key
        if key is not None and (tenant_id, key) not in self.free_keys:
            return True
        return tenant_id in self.tenants or (tenant_id, work.target_host) in self.hosts


Ranks = Callable[[Sequence[Work], datetime], Sequence[datetime]]
"""Gives each of some runs that become claimable at an instant its rank, in their order."""


def by_time(works: Sequence[Work], now: datetime) -> list[datetime]:
    """Ranks as if nobody queued: whoever comes first goes first."""
    return [now] * len(works)


class Span(NamedTuple):
    """A part of the claim index to look at: ranks of a priority in one band."""

    priority: int
    floor: datetime
    until: datetime
    """Where it ends, exclusively: the band does."""

    @property
    def band(self) -> Band:
        """Which priority and band it is of."""
        return Band(self.priority, is_queued(self.floor))


class Band(NamedTuple):
    """A priority in front, or in the queue."""

    priority: int
    queued: bool


class Range(NamedTuple):
    """A span, and how its ranks compare with others: lowest ``shift + scale * (rank - base)``
    first, in seconds; without a base it is the time of the claim."""

    priority: int
    floor: datetime
    until: datetime
    base: datetime | None
    scale: float
    shift: float


class Floors:
    """For each priority of a lane, in each band, the rank below which nothing is claimable.

    Entries below a floor are RUNNING or dead, and cost a claim nothing. What a commit later than
    ``LATE_COMMIT`` leaves below is found by a sweep from the very beginning, see :meth:`lower`.
    """

    def __init__(self) -> None:
        self._floors = {Band(each, False): EPOCH for each in PRIORITIES}
        self._floors |= {Band(each, True): QUEUE for each in PRIORITIES}
        self._later: dict[Band, deque[tuple[datetime, datetime]]] = {}

    def each(self) -> list[Span]:
        """What there is to look at from the floors on."""
        return [
            Span(band.priority, floor, END if band.queued else QUEUE)
            for band, floor in self._floors.items()
        ]

    def claimed(
        self,
        used: Sequence[Span],
        lowest: Mapping[Band, datetime],
        clock: datetime,
        *,
        everything: bool,
        tags: Callable[[int], float] | None = None,
    ) -> None:
        """Raise floors after a claim that looked at ``used``.

        ``lowest`` has the lowest READY rank it saw of each priority and band, taken or not;
        ``everything`` says that it was not cut off by its limit, so that a priority without any
        has nothing below the clock. ``tags`` gives the lowest start tag that is given to a run of
        a priority from now on.
        A floor that was lowered while the claim was under way stays: the claim did not look there.
        """
        ceiling = clock - LATE_COMMIT
        for span in used:
            band, floor = span.band, span.floor
            if self._floors[band] != floor:
                continue
            if band.queued:
                given = None if tags is None else queued(tags(band.priority))
                seen = lowest.get(band, given if everything else None)
                self._floors[band] = self._queue_floor(band, floor, seen, given, clock)
            else:
                rank = lowest.get(band, ceiling if everything else floor)
                self._floors[band] = max(floor, min(rank, ceiling))

    def _queue_floor(
        self,
        band: Band,
        floor: datetime,
        seen: datetime | None,
        given: datetime | None,
        clock: datetime,
    ) -> datetime:
        if given is None or seen is None:
            self._later.pop(band, None)  # what has come meanwhile was not looked for
            return floor
        seen, moments = min(seen, given), self._later.get(band, ())
        later = deque((at, min(lowest, seen)) for at, lowest in moments)
        if not later or clock - later[-1][0] >= timedelta(seconds=LATE_TAG_SEC / 8):
            later.append((clock, seen))
        while clock - later[0][0] >= timedelta(seconds=LATE_TAG_SEC):
            floor = max(floor, later.popleft()[1])
        self._later[band] = later
        # Where tags are given below the floor again, it was raised too far.
        return max(min(floor, given), QUEUE)

    def lower(self, band: Band, rank: datetime) -> bool:
        """Take note of a READY run of this rank; True when it stood below the floor."""
        below = rank < self._floors[band]
        if below:
            self._floors[band] = rank
        if later := self._later.get(band):
            self._later[band] = deque((at, min(each, rank)) for at, each in later)
        return below
