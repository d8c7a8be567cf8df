"""Who gets a slot: never too many, nobody passed over for nothing, in order within a key."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noonday.domain.caps import (
    Candidate,
    Room,
    admit,
    host_cap,
    in_words,
    is_key,
    key_cap,
    tenant_cap,
    tenant_of,
)

KEYS = [key_cap(1, name) for name in "abc"]
HOSTS = [host_cap(1, name) for name in "xy"]
OWN = tenant_cap(1)


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    key = draw(st.sampled_from([*KEYS, None]))
    host = draw(st.sampled_from([*HOSTS, None]))
    caps = tuple(cap for cap in (key, host, OWN) if cap is not None)
    return Candidate(caps, key if key is not None and draw(st.booleans()) else None)


def rooms() -> st.SearchStrategy[dict[str, Room]]:
    """After a cap was lowered there may be less than nothing."""
    room = st.tuples(st.integers(-2, 4), st.integers(0, 2)).map(
        lambda pair: Room(pair[0], pair[0] + pair[1])
    )
    return st.fixed_dictionaries(dict.fromkeys([*KEYS, *HOSTS, OWN], room))


def one_slot_each(found: list[Candidate], left: dict[str, Room]) -> bool:
    """Whether the slots of keys that are told of can be there: idle ones less free ones."""
    held = Counter(each.slot for each in found if each.slot)
    return all(left[key].idle - left[key].free >= count for key, count in held.items())


SITUATIONS = (
    st.tuples(st.lists(candidates(), max_size=12), rooms())
    .map(lambda pair: (pair[0], {**pair[1], **_with_slots(*pair)}))
    .filter(lambda pair: one_slot_each(*pair))
)


def _with_slots(found: list[Candidate], left: dict[str, Room]) -> dict[str, Room]:
    held = Counter(each.slot for each in found if each.slot)
    return {
        key: Room(left[key].free, max(left[key].idle, left[key].free + held[key])) for key in held
    }


@given(SITUATIONS)
def test_no_cap_has_more_than_it_has_room_for(
    situation: tuple[list[Candidate], dict[str, Room]],
) -> None:
    found, left = situation
    verdicts = admit(left, found)
    going = [each for each, waits_for in zip(found, verdicts, strict=True) if waits_for is None]
    for cap, room in left.items():
        runs = [each for each in going if cap in each.caps]
        assert len(runs) <= max(room.idle, 0)
        assert sum(each.slot != cap for each in runs) <= max(room.free, 0)


@given(SITUATIONS)
def test_who_waits_does_so_for_a_cap_of_its_own_that_has_no_room_left(
    situation: tuple[list[Candidate], dict[str, Room]],
) -> None:
    found, left = situation
    verdicts = admit(left, found)
    free, idle = Counter[str](), Counter[str]()
    for cap, room in left.items():
        free[cap], idle[cap] = room
    for each, waits_for in zip(found, verdicts, strict=True):
        for cap in each.caps:
            took_slot = waits_for is None or (is_key(cap) and cap != waits_for)
            free[cap] -= took_slot and cap != each.slot
            idle[cap] -= waits_for is None
    for each, waits_for in zip(found, verdicts, strict=True):
        if waits_for is not None:
            assert waits_for in each.caps
            assert (idle if waits_for == each.slot else free)[waits_for] <= 0


@given(SITUATIONS)
def test_within_a_key_nobody_overtakes(
    situation: tuple[list[Candidate], dict[str, Room]],
) -> None:
    found, left = situation
    for key in KEYS:
        new = [
            waits_for
            for each, waits_for in zip(found, admit(left, found), strict=True)
            if key in each.caps and each.slot != key
        ]
        has_slot = [waits_for != key for waits_for in new]
        assert has_slot == sorted(has_slot, reverse=True)


def test_who_waits_for_another_cap_keeps_its_place_in_its_key() -> None:
    first = Candidate((KEYS[0], HOSTS[0]))
    second = Candidate((KEYS[0], HOSTS[1]))
    left = {KEYS[0]: Room(1, 1), HOSTS[0]: Room(0, 0), HOSTS[1]: Room(1, 1)}
    assert admit(left, [first, second]) == [HOSTS[0], KEYS[0]]


def test_who_has_a_slot_of_its_key_needs_no_other() -> None:
    again, new = Candidate((KEYS[0],), KEYS[0]), Candidate((KEYS[0],))
    assert admit({KEYS[0]: Room(0, 1)}, [new, again]) == [KEYS[0], None]


@pytest.mark.parametrize(
    ("cap", "words"),
    [
        (tenant_cap(7), "waits for a slot of the tenant"),
        (host_cap(7, "a.example"), "waits for a slot of the host a.example"),
        (key_cap(7, "a:b c"), "waits for a slot of the concurrency key a:b c"),
    ],
)
def test_a_cap_names_its_tenant_and_says_what_it_is(cap: str, words: str) -> None:
    assert (tenant_of(cap), in_words(cap)) == (7, words)
