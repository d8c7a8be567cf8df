"""Which one-off jobs have ended with the settlements of a batch, for who counts them."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final
from uuid import UUID

from noonday.domain.lifecycle import Event
from noonday.domain.model import Kind, Once, Schedule
from noonday.store import Tx, pending
from noonday.store.backlogs import Backlogs
from noonday.store.settlements import GOES_ON, Settlement

ENDS: Final = frozenset((Event.COMPLETE, Event.DEAD_LETTER, Event.STOP))


class Endings:
    """Gathered in the transaction of the settlements, and noted once that is committed.

    Of jobs of tenants whose pending jobs are not counted nothing is looked at.
    """

    def __init__(self, backlogs: Backlogs | None) -> None:
        self._backlogs = backlogs
        self._ended: Counter[int] = Counter()
        self._doubtful: dict[UUID, int] = {}
        self._at: datetime | None = None

    def add(self, tenant_id: int, item: Settlement, schedule: Schedule) -> None:
        """An attempt was settled. Only the run of a one-off job's nominal time ends the job."""
        if self._backlogs is None or not self._backlogs.watches(tenant_id):
            return
        if item.held.kind != Kind.SCHEDULE or not isinstance(schedule, Once):
            return
        if item.transition.event in ENDS:
            self._ended[tenant_id] += 1
        elif item.transition.event in GOES_ON:  # unless its job was cancelled meanwhile
            self._doubtful[item.held.job_id] = tenant_id

    async def look(self, tx: Tx) -> None:
        """Find out the time, and what became of those that may have been cancelled."""
        if self._doubtful:
            going_on = await pending.still(tx, list(self._doubtful))
            self._ended.update(
                tenant for job, tenant in self._doubtful.items() if job not in going_on
            )
        if self._ended:
            self._at = await tx.clock()

    def note(self) -> None:
        """It is committed."""
        if self._backlogs is not None and self._at is not None:
            for tenant_id, ended in self._ended.items():
                self._backlogs.note(tenant_id, self._at, ended=ended)
