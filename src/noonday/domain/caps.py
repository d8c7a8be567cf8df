"""Caps: how many runs of a tenant, a target host or a concurrency key go on at a time.

A cap is named by its key, which begins with its kind and its tenant: all caps of a run belong to
one tenant. What waits for a slot is held under the key of the cap that it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

HOLDS: Final = ("cap", "overlap")
"""The kinds of hold that a run is under while it waits for a slot, or for its job's other run."""
KINDS: Final = ("host", "job", "key", "tenant")
"""In the order of their keys. Runs of one job wait for each other as under a cap of 1."""


def tenant_cap(tenant_id: int) -> str:
    """The cap on all runs of a tenant."""
    return f"tenant:{tenant_id}"


def host_cap(tenant_id: int, host: str) -> str:
    """The cap on a tenant's runs that call one host."""
    return f"host:{tenant_id}:{host}"


def key_cap(tenant_id: int, key: str) -> str:
    """The cap on a tenant's runs of one concurrency key."""
    return f"key:{tenant_id}:{key}"


def is_key(cap: str) -> bool:
    """Whether it is the cap of a concurrency key."""
    return cap.startswith("key:")


def is_tenant(cap: str) -> bool:
    """Whether it is the cap on all runs of a tenant."""
    return cap.startswith("tenant:")


def is_job(cap: str) -> bool:
    """Whether it is the key under which runs of a job wait that is not to overlap itself."""
    return cap.startswith("job:")


def tenant_of(cap: str) -> int:
    """Whose cap it is."""
    return int(cap.split(":", 2)[1])


def in_words(cap: str) -> str:
    """What a run waits for, for people."""
    if is_job(cap):
        return "waits for the end of another run of its job"
    kind, _, *name = cap.split(":", 2)
    what = {"host": "the host", "key": "the concurrency key"}.get(kind, "the tenant")
    return " ".join(("waits for a slot of", what, *name))


class Room(NamedTuple):
    """What a cap has room for."""

    free: int
    """Slots that nobody has."""
    idle: int
    """How many more of those that have a slot may be carried out; not less than ``free``."""


class Candidate(NamedTuple):
    """A run that waits: the caps of its key, its host and its tenant, of those that it has."""

    caps: tuple[str, ...]
    slot: str | None = None
    """Its key's cap, when it has a slot of that already."""


def admit(rooms: Mapping[str, Room], candidates: Sequence[Candidate]) -> list[str | None]:
    """For each candidate, in their order: None when it may go, else the cap it waits for now.

    ``rooms`` has every cap of theirs. One goes when all its caps have room for it. Who waits for
    another cap than its key's has a slot of its key: those behind it do not overtake it.
    """
    left = dict(rooms)
    return [_admit(left, candidate) for candidate in candidates]


def _admit(left: dict[str, Room], candidate: Candidate) -> str | None:
    caps, slot = candidate
    waits_for = next((cap for cap in caps if _room(left[cap], has_slot=cap == slot) <= 0), None)
    for cap in caps:
        free, idle = left[cap]
        if waits_for is None:
            left[cap] = Room(free - (cap != slot), idle - 1)
        elif is_key(cap) and cap not in (slot, waits_for):
            left[cap] = Room(free - 1, idle)
    return waits_for


def _room(room: Room, *, has_slot: bool) -> int:
    return room.idle if has_slot else room.free
