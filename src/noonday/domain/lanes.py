"""Lanes: the named streams of runs, each with limits of its own; and which of them wait for others.

While the runs of a lane wait longer than its objective, lanes that may be shed are not claimed: the
slots go to those that matter. Nothing of what waits is touched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

READY_MADE: Final = ("critical", "default", "batch", "long")
"""There in any database; they cannot be deleted."""
MOST_LANES: Final = 100
"""Each is a label of metrics, and ten ranges for the reaper to look through."""
NAME: Final = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"
"""What the name of a lane looks like."""
CALM: Final = timedelta(seconds=30)
"""How long no lane may have missed half of its objective until what was shed is claimed again."""


def is_name(text: str) -> bool:
    """Whether a lane may have this name."""
    return re.fullmatch(NAME, text) is not None


class Lane(NamedTuple):
    """A lane as it is set up, and whether it is claimed. Times are in seconds."""

    name: str
    weight: float
    """Its share of slots, relative to that of other lanes which they serve as well."""
    max_running: int | None
    """Never are more of its runs RUNNING; None is no cap."""
    ageing_sec: float
    """What a step of priority is worth."""
    objective_sec: float | None
    """How long its runs may wait; None is what the settings say."""
    sheddable: bool
    """Whether it waits while others miss their objective."""
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    shed_at: datetime | None
    shed_reason: str | None
    version: int
    """Grows with each change that people make."""
    jitter_sec: int | None = None
    """What its recurring jobs have that name no jitter; None is what their tenant says."""

    @property
    def closed(self) -> bool:
        """Whether nothing of it is claimed at present."""
        return self.paused_at is not None or self.shed_at is not None


def usual_jitter(lane: Lane | None, of_tenant: int) -> int:
    """The jitter of a recurring job that names none, in seconds: its lane's, or its tenant's."""
    return of_tenant if lane is None or lane.jitter_sec is None else lane.jitter_sec


# --- shedding ---------------------------------------------------------------------------------


class Standing(NamedTuple):
    """How long the runs of a lane wait, and what that may be due to."""

    lane: Lane
    age_sec: float
    """Of the run that has been claimable for longest."""
    objective_sec: float
    running: int
    served: bool
    """Whether a living worker serves it."""

    @property
    def counts(self) -> bool:
        """Whether more slots would help it: not where it waits for a person, its own cap, or a
        worker that serves it; and what may be shed itself sheds nothing."""
        cap = self.lane.max_running
        full = cap is not None and self.running >= cap
        return not (self.lane.sheddable or self.lane.closed or full) and self.served


class Verdict(NamedTuple):
    """Which lanes to shed, and which to claim again."""

    shed: list[str]
    reason: str
    released: list[str]
    calm_since: datetime | None
    """Since when every lane has been well; to be given back at the next look."""


def judge(standing: Sequence[Standing], calm_since: datetime | None, now: datetime) -> Verdict:
    """Shed all that may be shed while a lane misses its objective; let it go once every lane has
    been below half of its own for ``CALM``, so that it does not flap."""
    counting = [each for each in standing if each.counts]
    late = [each for each in counting if each.age_sec > each.objective_sec]
    shed = {each.lane.name for each in standing if each.lane.shed_at is not None}
    spared = {each.lane.name for each in standing if not each.lane.sheddable} & shed
    if late:
        waiting = [each.lane.name for each in standing if each.lane.sheddable]
        new = sorted(set(waiting) - shed)
        return Verdict(new, _why(late), sorted(spared), None)
    if any(each.age_sec > each.objective_sec / 2 for each in counting):
        return Verdict([], "", sorted(spared), None)
    since = calm_since or now
    released = shed if now - since >= CALM else spared
    return Verdict([], "", sorted(released), since)


def _why(late: Sequence[Standing]) -> str:
    worst = max(late, key=lambda each: each.age_sec / each.objective_sec)
    return (
        f"runs of the lane {worst.lane.name} wait {worst.age_sec:.0f} s, "
        f"and its objective is {worst.objective_sec:g} s"
    )
