"""``make oracle``: a million fires and more, each computed in ways that share nothing.

All zones × hand-made and random expressions × the days around each turn of their clocks from 2000
to 2040, against a walk of every minute; then, where its rules are ours, against croner, if there
is an npm to install it with. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import islice

from tests.oracle import croner
from tests.oracle.cases import HAND_MADE, Difference, compare, expressions, turns_of, zones

SHOWN = 20
"""Differences that are printed."""
EACH = 8
"""Expressions compared about a turn in one go."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make oracle", description=__doc__)
    parser.add_argument("--comparisons", type=int, default=1_000_000, help="at least so many")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}; {len(zones())} zones", flush=True)
    differ = _against_a_walk(asked.comparisons, asked.seed)
    differ += croner.compare(random.Random(asked.seed), asked.comparisons // 10, _say)
    for each in differ[:SHOWN]:
        _say(f"DIFFERENT: {each}")
    _say(f"{len(differ)} differences")
    return 1 if differ else 0


def _against_a_walk(wanted: int, seed: int) -> list[Difference]:
    count, turns, texts, round_ = 0, 0, 0, 0
    differ: list[Difference] = []
    with ProcessPoolExecutor() as pool:
        while count < wanted:  # each round goes through all zones, by other turns
            seeds = [f"{seed} {round_} {zone}" for zone in zones()]
            for compared, at_turns, found in pool.map(_about, zones(), seeds, chunksize=4):
                count += compared
                turns += at_turns
                texts += at_turns * EACH
                differ += found
            round_ += 1
            _say(f"{count:,} fires of {texts:,} expressions around {turns:,} turns: "
                 f"{len(differ)} differ")  # fmt: skip
    return differ


def _about(zone: str, seed: str) -> tuple[int, int, list[Difference]]:
    """Compare about up to five turns of a zone: fires compared, turns, what differs."""
    chance = random.Random(seed)
    turns = turns_of(zone)
    count, differ = 0, list[Difference]()
    chosen = chance.sample(turns, min(len(turns), 5))
    for turn in chosen:
        half = EACH // 2
        texts = [*chance.sample(HAND_MADE, half), *islice(expressions(chance), EACH - half)]
        compared, found = compare(turn, texts, chance)
        count += compared
        differ += found
    return count, len(chosen), differ


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
