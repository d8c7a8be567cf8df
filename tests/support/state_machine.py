"""``docs/state-machine.md``, drawn from the table that the code goes by.

``python -m tests.support.state_machine --write`` brings the page up to date; a test checks it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from noonday.domain.lifecycle import MAX_INTERRUPTIONS, TRANSITIONS, Event, Source
from noonday.domain.model import RunState

PAGE = Path(__file__).parents[2] / "docs" / "state-machine.md"

HEAD = f"""\
# The state machine of a run

<!-- Drawn from TRANSITIONS in src/noonday/domain/lifecycle.py; do not edit. To bring it up to date:
     python -m tests.support.state_machine --write -->

A run is READY (claimable, or held), RUNNING under a lease, or RETRYING until a time comes. It ends
in the ledger as COMPLETE, FAILED (then there is a dead letter) or CANCELLED. Every event is one
statement in `store/runs.py` (`materialize` in `store/occurrences.py`, those of caps in
`store/caps.py`), guarded by the state; those
of a lease's holder also by the `lease_version`. What is not in the table changes nothing. The
{MAX_INTERRUPTIONS}th time that a worker's shutdown interrupts a run, it becomes a dead letter.

That other jobs wait for its end (`awaited`) is noted on a run in whatever state, and changes
nothing else. What waits itself has no run yet: it is materialized when all that it waits for has
ended, or is SKIPPED or CANCELLED in the ledger without ever having been a run.
"""

WHAT_HAPPENS = {
    Event.MATERIALIZE: "its time has come: a timer fired, or it was posted due",
    Event.CLAIM: "a worker takes it under a lease; `lease_version` and attempt number grow",
    Event.HEARTBEAT: "its worker extends the lease, which has not run out",
    Event.COMPLETE: "the attempt succeeded",
    Event.RETRY: "the attempt failed in a way that may pass; one failure of the budget is used",
    Event.DEAD_LETTER: "it failed for good: budget, age, or an answer that will not change",
    Event.INTERRUPT: "we stopped the attempt, which may have been seen; no failure is counted",
    Event.HAND_BACK: "nothing was sent; the attempt number is free again",
    Event.EXPIRE: "the lease ran out; the reaper counts a failure and offers the run again",
    Event.RETRY_DUE: "the time it waited for has come",
    Event.REQUEST_CANCEL: "its job was cancelled: this attempt goes on, but is the last one",
    Event.CANCEL: "it was cancelled, also while the attempt that failed just now ran",
    Event.KILL: "a person made a dead letter of it",
    Event.STOP: "it was to be stopped, and its worker has cut the attempt off",
    Event.HOLD: "claimed while something holds it back: nothing was sent, no attempt is used",
    Event.ADMIT: "what held it back lets it go; one with a cap waits for its slot then",
    Event.GIVE_SLOT: "each of its caps has a slot for it",
    Event.REKEY: "it waits for a slot of another of its caps",
    Event.PUT_BACK: "a cap was set or lowered: it waits for a slot again",
    Event.REPLAY: "its dead letter is replayed: the same run, with a fresh budget",
}
SHOWN = {
    Source.NONE: "no run yet",
    Source.HELD: "READY, held",
    Source.WAITING: "READY, held for a slot",
    Source.LAPSED: "RUNNING, its lease run out",
    Source.DEAD: "FAILED, its dead letter lies there",
}
NODES: dict[Source, str] = {
    Source.NONE: "[*]",
    Source.LAPSED: "RUNNING",
    Source.HELD: "HELD",
    Source.WAITING: "WAITING",
    Source.DEAD: "FAILED",
}


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, "```mermaid", *_drawing(), "```", "", *_table(), ""])


def _drawing() -> Iterator[str]:
    yield "stateDiagram-v2"
    yield '    state "READY, held" as HELD'
    yield '    state "READY, held for a slot" as WAITING'
    drawn: dict[tuple[str, str], list[str]] = {}
    for event, rule in TRANSITIONS.items():
        for source in _sorted(rule.sources):
            names = drawn.setdefault((NODES.get(source, source.value), rule.target.value), [])
            if event.value not in names:
                names.append(event.value)
    for (start, target), events in drawn.items():
        yield f"    {start} --> {target}: {', '.join(events)}"
    for target in dict.fromkeys(rule.target.value for rule in TRANSITIONS.values()):
        if target not in set(RunState):
            yield f"    {target} --> [*]"


def _table() -> Iterator[str]:
    yield "| event | what happens | from | to |"
    yield "|---|---|---|---|"
    for event, rule in TRANSITIONS.items():
        sources = "; ".join(SHOWN.get(source, source.value) for source in _sorted(rule.sources))
        yield f"| `{event.value}` | {WHAT_HAPPENS[event]} | {sources} | {rule.target.value} |"


def _sorted(sources: frozenset[Source]) -> list[Source]:
    return [source for source in Source if source in sources]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page())
    else:
        sys.stdout.write(page())
