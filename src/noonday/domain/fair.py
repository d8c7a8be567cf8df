"""Who queues: start-time fair queueing between the tenants of a lane.

Each tenant has a *finish* per lane and priority: the virtual time at which what it has asked for so
far is done, at its share of the lane. A new run starts there, or where the lane stands if that is
past. Whoever is within his share starts there, and goes in front, by real time; whoever is above it
queues behind his own work, and nobody else's. A run is charged its expected seconds, over weight
and slots, to its priority and to all less urgent ones of its tenant. What a tenant is late with is
charged to an account beside, so that what it has to do now does not queue behind an outage.

Several processes rank at the same time. Once a second each reads how the workers stand and what the
others have charged; what that leaves them apart is measured, see docs/fairness.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Final, NamedTuple

from noonday.domain.lane_clock import LaneReport
from noonday.domain.model import PRIORITIES
from noonday.domain.ranking import AGEING_SEC, Caps, Work, queued, seconds

WITHIN_SHARE_SEC: Final = 0.1
"""Who is ahead of a lane in which others wait by no more than passes in this time goes in front,
and by no more than one of his runs in each slot: what a flood brings before its cost and the pace
of the lane are known would be in front altogether."""
UNKNOWN_SEC: Final = 0.2
"""What a run is expected to take while nothing is known of any."""
UNKNOWN_SLOTS: Final = 16
"""Slots of a lane that no worker has told of."""
FRESH_SEC: Final = 1.0
"""How old the news of a lane may be, before those who may be within their share by now are taken
to be."""
MOST_STALE_SEC: Final = 5.0
"""How much older news is made allowance for."""
TOLD_SEC: Final = 0.75
"""Workers tell within this time that a lane is no longer empty."""
COMMITTED_SEC: Final = 0.25
"""What was charged so long before a lane was seen empty has been seen, and is claimed."""
BUCKETS: Final = 4
"""Refreshes of which is known what was charged in each."""
MOST_TOLD: Final = 500
"""Tenants of a lane, those furthest ahead, of which processes tell each other."""
MOST_COSTS: Final = 100_000
"""Costs that are remembered."""

Told = dict[int, list[tuple[int, float, float]]]
"""By account, for each priority: what one process has charged, and where it takes the finish to be,
in seconds of virtual time."""


class Standing(NamedTuple):
    """How the virtual time of a lane stands, by priority.

    It is taken to stand still until the next news of it: to be behind makes a run start no later,
    and who believed it to pass too fast would send everybody to the front.
    """

    starts: tuple[float, ...]
    open: bool = False
    """Slots are free, and nobody waits."""
    waiting: bool = False
    """Others wait."""
    rate: float = 0.0
    emptied_at: float | None = None
    """When it was last known that nothing queues."""


def standing(reports: Sequence[LaneReport], now: float, before: tuple[float, ...]) -> Standing:
    """What the reports of living workers come to. Without any report it stands where it stood
    ``before``, since nothing is carried out."""
    if not reports:
        return Standing(before)
    reached = _furthest(reports)
    if any(report.open for report in reports):
        return Standing(reached, open=True, rate=1.0, emptied_at=now - TOLD_SEC)
    emptied = max(report.emptied for report in reports)
    waiting = [each for each in reports if each.waiting and each.clock > emptied]
    if not waiting:
        return Standing(reached, emptied_at=emptied)
    # Who has seen that nothing queued any more knows best what queues since.
    latest = [each for each in waiting if each.emptied > emptied - TOLD_SEC] or waiting
    last = max(latest, key=lambda report: report.clock)
    return Standing(_furthest(latest), waiting=True, rate=last.rate, emptied_at=emptied)


def _furthest(reports: Sequence[LaneReport]) -> tuple[float, ...]:
    """Where the virtual time stands of who has come furthest, by priority."""
    alike = (each.v * len(PRIORITIES) if len(each.v) == 1 else each.v for each in reports if each.v)
    return tuple(map(max, zip(*alike, strict=True))) or _NOWHERE


_NOWHERE: Final = (0.0,) * len(PRIORITIES)


class _Account:
    """What one tenant has asked of a lane."""

    __slots__ = ("charged", "finish", "recent")

    def __init__(self) -> None:
        self.finish = [0.0] * len(PRIORITIES)
        self.recent = [0.0] * BUCKETS
        """Charged since the last refresh, between that and the one before, and so on."""
        self.charged: dict[int, float] = {}
        """By us, since the tenant was first told of to others."""

    def charge(self, priority: int, starts: Sequence[float], amount: float) -> None:
        finish = self.finish
        for each in range(priority, len(finish)):
            start = starts[each]
            finish[each] = (finish[each] if finish[each] > start else start) + amount
        self.recent[0] += amount

    def lead(self, starts: Sequence[float]) -> float:
        """How far it is ahead of the lane, at most."""
        return max(map(float.__sub__, self.finish, starts))


class _Lane:
    def __init__(self, now: float) -> None:
        self.ageing_sec = AGEING_SEC
        self.slots = UNKNOWN_SLOTS
        self.standing = Standing(_NOWHERE)
        self.known = False
        """Whether it has been heard of how the lane stands."""
        self.accounts: dict[int, _Account] = {}
        self.refreshed = [now] * BUCKETS
        """When it was refreshed last, the time before, and so on."""
        self.heard: dict[str, Told] = {}

    def account(self, tenant_id: int) -> _Account:
        account = self.accounts.get(tenant_id)
        if account is None:
            account = self.accounts[tenant_id] = _Account()
        return account

    def refresh(self, reports: Sequence[LaneReport], now: float) -> None:
        stood = self.standing.starts
        found = self.standing = standing(reports, now, stood)
        self.known = True
        self.slots = sum(report.slots for report in reports) or self.slots
        self._follow(stood, found.starts)
        self._forget(found.starts, found.emptied_at)
        for account in self.accounts.values():
            account.recent = [0.0, *account.recent[:-1]]
        self.refreshed = [now, *self.refreshed[:-1]]

    def _follow(self, before: Sequence[float], starts: Sequence[float]) -> None:
        """Nobody is to wait for virtual time that was believed to have passed, and had not; where
        somebody queues anyway, that is of no account."""
        falls = [was - start for was, start in zip(before, starts, strict=True)]
        if max(falls) <= 0.0:
            return
        for account in self.accounts.values():
            account.finish = [
                finish - fall if fall > 0.0 and finish - was <= fall else finish
                for finish, was, fall in zip(account.finish, before, falls, strict=True)
            ]

    def _forget(self, starts: Sequence[float], emptied_at: float | None) -> None:
        """Nobody owes for what was charged before the lane was seen empty."""
        known = 0
        if emptied_at is not None:
            known = 1 + sum(each > emptied_at - COMMITTED_SEC for each in self.refreshed)
        for tenant_id, account in list(self.accounts.items()):
            if 0 < known <= BUCKETS:
                since = sum(account.recent[:known])
                account.finish = [
                    min(finish, start + since)
                    for finish, start in zip(account.finish, starts, strict=True)
                ]
            if account.lead(starts) <= 0.0:
                del self.accounts[tenant_id]

    def margin(self, now: float, expected: float) -> float:
        """By how much a tenant may be ahead that still goes in front."""
        if not self.known:
            return inf
        stale = min(now - self.refreshed[0] - FRESH_SEC, MOST_STALE_SEC)
        least = min(WITHIN_SHARE_SEC, expected) if self.standing.waiting else 0.0
        return self.standing.rate * max(least, stale)

    # --- between processes ----------------------------------------------------------------

    def tell(self) -> Told:
        starts = self.standing.starts
        leads = {tenant: account.lead(starts) for tenant, account in self.accounts.items()}
        ahead = [tenant for tenant, lead in leads.items() if lead > 0.0]
        ahead.sort(key=leads.__getitem__, reverse=True)
        told = ahead[:MOST_TOLD]
        for tenant in self.accounts.keys() - set(told):
            self.accounts[tenant].charged.clear()
        return {tenant: _told(self.accounts[tenant], starts) for tenant in told}

    def hear(self, process: str, told: Told, *, newcomer: bool) -> None:
        """Take over what another process has charged since it was last heard.

        A ``newcomer`` has counted none of it, and takes over where it stands.
        """
        known = self.heard.get(process, {})
        starts = self.standing.starts
        for tenant_id, each in told.items():
            account = self.account(tenant_id)
            charged = {priority: amount for priority, amount, _ in known.get(tenant_id, ())}
            for priority, amount, finish in each:
                before = charged.get(priority, 0.0)
                delta = amount - before if amount >= before else amount
                if newcomer:
                    for less in range(priority, len(PRIORITIES)):
                        account.finish[less] = max(account.finish[less], finish)
                elif delta > 0.0:
                    account.charge(priority, starts, delta)
        self.heard[process] = told


def _told(account: _Account, starts: Sequence[float]) -> list[tuple[int, float, float]]:
    """The priorities that we have charged, and those from which a finish is further off."""
    told, furthest = [], 0.0
    for priority, (finish, start) in enumerate(zip(account.finish, starts, strict=True)):
        charged = account.charged.get(priority, 0.0)
        further = finish > furthest + 1e-6 and finish > start
        if charged or further:
            told.append((priority, round(charged, 4), round(finish, 4)))
            furthest = max(furthest, finish)
    return told


def late_account(tenant_id: int) -> int:
    """The number of the account of what a tenant is late with; those of tenants are above 0."""
    return -tenant_id


class Ranker:
    """Ranks what becomes claimable in one process. Its times are of the database."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._weights: Mapping[int, float] = {}
        self._caps = Caps()
        self._costs: dict[tuple[int, str], float] = {}
        self._usual_sec = UNKNOWN_SEC
        self._late_weight = 1.0
        self._new = True

    def ranks(self, works: Sequence[Work], now: datetime) -> list[datetime]:
        """A rank for each of ``works``, all of which become claimable at ``now``; each is charged,
        but for those that wait for a slot first: :meth:`let_in` charges them when they have it."""
        at, hold = seconds(now), self._caps.hold
        return [now if hold(work) else self._rank(work, at, now) for work in works]

    def let_in(self, works: Sequence[Work], now: datetime) -> list[datetime]:
        """The same for runs that were given a slot of each of their caps."""
        at = seconds(now)
        return [self._rank(work, at, now) for work in works]

    def _rank(self, work: Work, at: float, now: datetime) -> datetime:
        tenant_id, name, priority, host, _, late = work
        lane = self._lane(name, at)
        starts = lane.standing.starts
        account = lane.account(late_account(tenant_id) if late else tenant_id)
        start, finish = starts[priority], account.finish[priority]
        expected = self._costs.get((tenant_id, host), self._usual_sec)
        weight = self._weights.get(tenant_id, 1.0) * (self._late_weight if late else 1.0)
        amount = expected / lane.slots / weight
        account.charge(priority, starts, amount)
        account.charged[priority] = account.charged.get(priority, 0.0) + amount
        return now if finish <= start + lane.margin(at, expected) else queued(finish)

    def _lane(self, name: str, at: float) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(at)
        return lane

    def cost(self, tenant_id: int, target_host: str) -> float | None:
        """What a run of a tenant that calls a host is expected to take, in seconds, if known."""
        return self._costs.get((tenant_id, target_host))

    def ageing_sec(self, lane: str) -> float:
        """How far priorities of a lane lie apart."""
        known = self._lanes.get(lane)
        return AGEING_SEC if known is None else known.ageing_sec

    # --- what is read once a second -------------------------------------------------------

    def refresh(
        self,
        now: datetime,
        ageing: Mapping[str, float],
        reports: Iterable[Mapping[str, LaneReport]],
    ) -> None:
        """Take note of the lanes that there are, and of what each living worker reports of them."""
        at = seconds(now)
        by_lane: dict[str, list[LaneReport]] = {}
        for report in reports:
            for name, each in report.items():
                by_lane.setdefault(name, []).append(each)
        for name in {*ageing, *by_lane, *self._lanes}:
            lane = self._lane(name, at)
            lane.ageing_sec = ageing.get(name, AGEING_SEC)
            lane.refresh(by_lane.get(name, ()), at)

    def weigh(self, weights: Mapping[int, float]) -> None:
        """The weights of tenants, where they are not 1."""
        self._weights = weights

    def share_with_late(self, share: float) -> None:
        """What a tenant is late with gets this share, below 1, of what it gets in all while it has
        other work."""
        self._late_weight = share / (1.0 - share)

    def heed(self, caps: Caps) -> None:
        """What is capped."""
        self._caps = caps

    def learn(self, costs: Iterable[tuple[int, str, float]]) -> None:
        """Expected seconds by tenant and host that have changed."""
        for tenant_id, host, expected in costs:
            self._costs.pop((tenant_id, host), None)
            self._costs[tenant_id, host] = expected
        while len(self._costs) > MOST_COSTS:
            del self._costs[next(iter(self._costs))]
        if self._costs:
            self._usual_sec = sum(self._costs.values()) / len(self._costs)

    def tell(self) -> dict[str, Told]:
        """What others have to know of us, by lane."""
        return {name: lane.tell() for name, lane in self._lanes.items()}

    def hear(self, told: Iterable[tuple[str, str, Told]]) -> None:
        """What other processes have told, each by its id and lane, since we last heard."""
        for process, name, each in told:
            if name in self._lanes:
                self._lanes[name].hear(process, each, newcomer=self._new)
        self._new = False

    def forget(self, processes: set[str]) -> None:
        """Remember no others than these processes."""
        for lane in self._lanes.values():
            lane.heard = {each: told for each, told in lane.heard.items() if each in processes}
