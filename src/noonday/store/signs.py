"""Signs of what is seldom there: one look for all the loops that would else each ask."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from noonday.store import Tx

CHANGED_LATELY: Final = timedelta(seconds=10)
"""So long after a cap has changed somebody may still insert who did not see it."""

# Each the first entry of an index. (With the table's size as it is now, since a plan that was made
# for an empty one would read all of a full one: that is what the first parameter is for.)
LOOK: Final = """
SELECT (SELECT hold_key FROM runs WHERE hold_key > $1 ORDER BY hold_key LIMIT 1)
           IS NOT NULL AS held,
       (SELECT id FROM endings ORDER BY id LIMIT 1) IS NOT NULL AS ended,
       (SELECT id FROM operations WHERE state = 'RUNNING' ORDER BY id LIMIT 1)
           IS NOT NULL AS operations,
       (SELECT id FROM replays WHERE active ORDER BY id LIMIT 1) IS NOT NULL AS replays,
       (SELECT job_id FROM pauses WHERE until_at <= coalesce($2, now()) ORDER BY until_at LIMIT 1)
           IS NOT NULL AS pauses,
       EXISTS (SELECT FROM tenants WHERE caps_changed_at >= coalesce($2, now()) - $3::interval)
           AS caps_changed,
       EXISTS (SELECT FROM pending_bases) AS counted
"""


async def look(tx: Tx) -> set[str]:
    """Of what there is any: runs that are ``held``; jobs that have ``ended`` and others wait for;
    ``operations`` and ``replays`` under way; ``pauses`` that are over; ``caps_changed`` lately;
    tenants whose pending jobs are ``counted``."""
    row = await tx.one(LOOK, "", tx.now, CHANGED_LATELY)
    return {str(sign) for sign, is_there in row.items() if is_there}
