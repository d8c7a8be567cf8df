"""Quotas on what a tenant posts: asked before anything is written, given back for what was not.

A rate is kept in the database, by its time, and leased to this process in small blocks: most
requests are judged without a statement, and those of tenants without a quota always. Pending jobs
are judged by what this process knows of them; see ``store/backlogs.py``.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

from noonday.api import rate_headers
from noonday.api.context import AppContext, Caller
from noonday.api.problems import Problem
from noonday.api.rate_headers import Limit
from noonday.domain.errors import StoreUnavailable
from noonday.domain.quotas import CREATES, PENDING, Lease, Quotas
from noonday.store import rates
from noonday.store.rates import Wanted, quota_key

MOST: Final = 10_000
"""Tenants of which leases are remembered."""


_NOTHING: Final[Mapping[Lease, int]] = {}


class _Account:
    """What this process knows of one tenant's quotas, as they are now."""

    def __init__(self, caller: Caller, quotas: Quotas) -> None:
        self.quotas = quotas
        self.payload = caller.max_payload_bytes
        self.tenant_id = caller.tenant_id
        self.leases = [Lease(rate) for rate in quotas.rates(caller.max_payload_bytes)]
        self.taking: asyncio.Future[None] | None = None
        """Resolved when the tokens have come that were asked for."""
        self.queued_jobs = 0
        self.queued_bytes = 0
        """What waits for that."""
        self.ahead: asyncio.Task[None] | None = None
        self.reserved = 0
        """Jobs that are being made, and may not be noted yet."""

    def fits(self, sizes: Sequence[int], now: float, more: Mapping[Lease, int] = _NOTHING) -> int:
        """How many of the first jobs fit into what is held, with ``more`` beside."""
        fits = len(sizes)
        for lease in self.leases:
            fits = min(fits, _fits(lease, sizes, lease.held(now) + more.get(lease, 0)))
        return fits

    def of_use(
        self, sizes: Sequence[int], now: float, came: Mapping[Lease, int], *, whole: bool
    ) -> dict[Lease, int]:
        """Of tokens that came, and are too few, those that are spent at once."""
        used = [] if whole else sizes[: self.fits(sizes, now, came)]
        return {
            lease: max(0, min(number, _cost(lease, used) - lease.held(now)))
            for lease, number in came.items()
        }

    async def wait_for_tokens(self, sizes: Sequence[int]) -> None:
        """Until those have come that were asked for. (Whoever asks next asks for these too.)"""
        if self.taking is None:
            return
        self.queued_jobs += len(sizes)
        self.queued_bytes += sum(sizes)
        try:
            await asyncio.shield(self.taking)
        finally:
            self.queued_jobs -= len(sizes)
            self.queued_bytes -= sum(sizes)

    def need(self, lease: Lease, sizes: Sequence[int]) -> int:
        """Tokens for these jobs and for those that wait."""
        queued = self.queued_jobs if lease.rate.name == CREATES else self.queued_bytes
        return _cost(lease, sizes) + queued

    def spend(self, sizes: Sequence[int]) -> None:
        """Use what is held."""
        for lease in self.leases:
            lease.spend(_cost(lease, sizes))

    def waits(self, sizes: Sequence[int], now: float) -> dict[str, float | None]:
        """The rates into which these jobs do not fit yet, and for how long not."""
        waits = {lease.rate.name: lease.wait_sec(_cost(lease, sizes), now) for lease in self.leases}
        return {name: wait for name, wait in waits.items() if wait > 0}


def _cost(lease: Lease, sizes: Sequence[int]) -> int:
    return len(sizes) if lease.rate.name == CREATES else sum(sizes)


def _fits(lease: Lease, sizes: Sequence[int], tokens: int) -> int:
    if lease.rate.name == CREATES:
        return min(tokens, len(sizes))
    return bisect_right(list(accumulate(sizes)), tokens)


class _Room(NamedTuple):
    """How many more pending jobs there may be, and how many of them end a second."""

    most: int
    jobs: int
    ending_per_sec: float

    def wait_sec(self, number: int) -> float | None:
        """Seconds until there is room for so many, at the rate of late; None if none ended."""
        lacking = number - self.jobs
        return lacking / self.ending_per_sec if self.ending_per_sec > 0 else None


class Share:
    """What of a request the quotas allow: the first ``allowed`` of its jobs. For those that come
    after, ``refusal`` says why not. To be closed, whatever comes of the request."""

    def __init__(
        self,
        allowed: int,
        refusal: Problem | None = None,
        headers: dict[str, str] | None = None,
        give_back: Callable[[set[int]], Awaitable[None]] | None = None,
    ) -> None:
        self.allowed = allowed
        self.refusal = refusal
        self.headers = headers or {}
        """What the answer says of the quotas."""
        self._give_back = give_back
        self._made: set[int] = set()

    def refusal_of(self, number: int) -> Problem | None:
        """Why a job of the request is refused; None if it is not."""
        return self.refusal if number >= self.allowed else None

    def made(self, *numbers: int) -> None:
        """These jobs of the request are there now. The others cost nothing."""
        self._made.update(numbers)

    async def close(self) -> None:
        """Give back what was not needed after all: for jobs at fault, or made before."""
        if self._give_back is not None:
            await self._give_back(self._made)


class QuotaKeeper:
    """Judges the requests of one process. ``clock``, in seconds, is for the leases alone."""

    def __init__(self, context: AppContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = context.store
        self._backlogs = context.backlogs
        self._metrics = context.metrics
        self._clock = clock
        self._accounts: dict[int, _Account] = {}

    async def ask(
        self, caller: Caller, sizes: Sequence[int], *, whole: bool = False, makes: bool = True
    ) -> Share:
        """Take from the quotas for each of ``sizes``, payloads of jobs in bytes.

        ``whole``: for all of them or for none. ``makes``: whether these are new jobs, rather than
        runs of one that is there. Raises ``StoreUnavailable``.
        """
        if caller.quotas is None:
            return Share(len(sizes))
        account = self._account(caller, caller.quotas)
        if whole and (problem := _too_many(account, sizes, makes=makes)) is not None:
            return Share(0, problem)
        room = await self._room(account) if makes else None
        wanted = len(sizes) if room is None else max(0, min(room.jobs, len(sizes)))
        if whole and wanted < len(sizes):
            wanted = 0
        reserved = wanted if room is not None else 0
        account.reserved += reserved  # before any other request is looked at
        try:
            allowed = await self._spend(account, sizes[:wanted], whole=whole)
        except BaseException:
            account.reserved -= reserved
            raise
        account.reserved -= reserved - min(reserved, allowed)
        return self._share(account, sizes, allowed, wanted, room, whole=whole)

    def _account(self, caller: Caller, quotas: Quotas) -> _Account:
        account = self._accounts.get(caller.tenant_id)
        if account is None or (account.quotas, account.payload) != (
            quotas,
            caller.max_payload_bytes,
        ):
            if len(self._accounts) >= MOST:
                self._accounts.clear()
            account = self._accounts[caller.tenant_id] = _Account(caller, quotas)
        return account

    async def _room(self, account: _Account) -> _Room | None:
        """None where there is no such quota, or as long as it is not counted."""
        most = account.quotas.max_pending_jobs
        if most is None:
            return None
        found = await self._backlogs.standing(account.tenant_id)
        if found is None:
            return None
        return _Room(most, most - found.pending - account.reserved, found.ending_per_sec)

    # --- rates

    async def _spend(self, account: _Account, sizes: Sequence[int], *, whole: bool) -> int:
        """Spend for as many of the first jobs as there is for; how many."""
        while (fits := account.fits(sizes, now := self._clock())) < len(sizes):
            if account.taking is not None:
                await account.wait_for_tokens(sizes)
                continue
            # What nobody can have yet, as far as is known here, is not asked for.
            if not account.waits(sizes if whole else sizes[: fits + 1], now):
                await self._take(account, sizes, whole=whole)
                fits = account.fits(sizes, self._clock())
            if fits < len(sizes):
                fits = 0 if whole else fits
                break
        account.spend(sizes[:fits])
        busy = account.taking is not None or not (account.ahead is None or account.ahead.done())
        low = any(lease.is_low(now) for lease in account.leases)
        if fits == len(sizes) and low and not busy:
            account.ahead = asyncio.create_task(self._take_ahead(account))
        return fits

    async def _take_ahead(self, account: _Account) -> None:
        """Take tokens before anybody has to wait for them."""
        if account.taking is None:
            with suppress(StoreUnavailable):  # who needs them will find out
                await self._take(account, [], whole=False)

    async def _take(self, account: _Account, sizes: Sequence[int], *, whole: bool) -> None:
        """Lease tokens: those that are needed here and by who waits, and a few more; or as many
        as there are and are of use. Who comes meanwhile waits for the end of this."""
        account.taking = asyncio.get_running_loop().create_future()
        try:
            await self._lease(account, sizes, whole=whole)
        finally:
            account.taking.set_result(None)
            account.taking = None

    async def _lease(self, account: _Account, sizes: Sequence[int], *, whole: bool) -> None:
        now = self._clock()
        wanted: dict[Lease, Wanted] = {}
        for lease in account.leases:
            if (number := lease.wanted(account.need(lease, sizes), now)) > 0:
                key = quota_key(lease.rate.name, account.tenant_id)
                rate = lease.rate
                wanted[lease] = Wanted(key, rate.per_sec, float(rate.burst), 0.0, number)
        if not wanted:
            return
        async with self._store.transaction() as tx:
            blocks = await rates.take(tx, list(wanted.values()))
            came = {lease: blocks[each.key].number for lease, each in wanted.items()}
            kept = came
            if account.fits(sizes, now, came) < len(sizes):
                kept = account.of_use(sizes, now, came, whole=whole)
            unused = [
                (each.key, (came[lease] - kept[lease]) / each.per_sec)
                for lease, each in wanted.items()
                if kept[lease] < came[lease]
            ]
            await rates.give_back(tx, unused)
        for lease, each in wanted.items():
            block = blocks[each.key]
            begins = now + (block.first_at - block.now).total_seconds()
            lease.taken(kept[lease], begins + kept[lease] / each.per_sec, now)

    # --- what is said of it

    def _share(
        self, account: _Account, sizes: Sequence[int], allowed: int, wanted: int,
        room: _Room | None, *, whole: bool,
    ) -> Share:  # fmt: skip
        now = self._clock()
        limits = [rate_headers.of_lease(lease, now) for lease in account.leases]
        if room is not None:
            limits.append(_of_room(room, allowed))
        refusal = None
        if allowed < len(sizes):
            first = sizes if whole else sizes[allowed : allowed + 1]
            if room is None or allowed < wanted:
                waits = account.waits(first, now) or {account.leases[0].rate.name: 0.0}
            else:
                waits = {PENDING: room.wait_sec(allowed + len(first))}
            refusal = rate_headers.refused(limits, waits, _why(waits, room))
            for name in waits:
                self._metrics.quota_exceeded(name, len(sizes) - allowed)
        return Share(
            allowed,
            refusal,
            rate_headers.headers(limits),
            partial(self._give_back, account, sizes[:allowed], room is not None),
        )

    async def _give_back(
        self, account: _Account, sizes: Sequence[int], counted: bool, made: set[int]
    ) -> None:
        if counted:
            account.reserved -= len(sizes)
        now, unused = self._clock(), [size for n, size in enumerate(sizes) if n not in made]
        if not unused:
            return
        left = [
            (lease.rate, lease.give_back(_cost(lease, unused), now)) for lease in account.leases
        ]
        surplus = [
            (quota_key(rate.name, account.tenant_id), number / rate.per_sec)
            for rate, number in left
            if number
        ]
        if surplus:
            with suppress(StoreUnavailable):  # then it is lost
                async with self._store.transaction() as tx:
                    await rates.give_back(tx, surplus)


def _too_many(account: _Account, sizes: Sequence[int], *, makes: bool) -> Problem | None:
    for lease in account.leases:
        if (cost := _cost(lease, sizes)) > lease.rate.burst:
            return rate_headers.too_many_at_once(lease.rate.name, cost, lease.rate.burst)
    most = account.quotas.max_pending_jobs
    if makes and most is not None and len(sizes) > max(most, 1):
        return rate_headers.too_many_at_once(PENDING, len(sizes), most)
    return None


def _of_room(room: _Room, allowed: int) -> Limit:
    return Limit(PENDING, room.most, None, None, max(0, room.jobs - allowed), None)


def _why(waits: dict[str, float | None], room: _Room | None) -> str:
    if PENDING not in waits or room is None:
        return f"The tenant's quota is used up for now: {', '.join(waits)}."
    pending = room.most - room.jobs
    text = f"{pending} jobs of the tenant have not ended; {room.most} may be pending."
    if room.ending_per_sec > 0:
        drained = pending / room.ending_per_sec
        text += f" At {room.ending_per_sec:.3g} a second all would have ended in {drained:.0f} s."
    return text
