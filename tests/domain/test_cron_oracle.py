"""A sample of what ``make oracle`` compares: another one in each run."""

from __future__ import annotations

import random
from itertools import islice

from tests.oracle.cases import HAND_MADE, compare, expressions, turns_of, zones


def test_around_turns_of_any_clock_fires_are_those_that_a_walk_of_every_minute_finds() -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    with_turns = [turns for zone in chance.sample(zones(), 30) if (turns := turns_of(zone))]
    assert with_turns
    count = 0
    for turns in with_turns:
        texts = [*chance.sample(HAND_MADE, 6), *islice(expressions(chance), 8)]
        compared, differ = compare(chance.choice(turns), texts, chance)
        assert not differ, f"seed {seed}: {differ[0]}"
        count += compared
    assert count > 1_000
