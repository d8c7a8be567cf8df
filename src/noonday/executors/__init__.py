"""How a run is carried out: an executor turns an attempt into an outcome and knows no states."""

from __future__ import annotations

from typing import Final, Protocol

from noonday.domain.model import Attempt, HttpTarget, Outcome
from noonday.executors.http import HttpExecutor
from noonday.executors.sending import Sent


class Executor(Protocol):
    """Carries out attempts at one kind of target, many at a time.

    ``execute`` answers with an outcome whatever happens and raises nothing but
    ``CancelledError``: the worker cancels it when the lease is lost or at shutdown, and it then
    lets go of its connection at once. A cancelled attempt whose ``sent.maybe`` is still False
    reached nobody, so it can be handed back without using up a number.
    """

    async def open(self) -> None:
        """Take what is needed to execute; once, on the event loop that will execute."""

    async def execute(self, attempt: Attempt, sent: Sent) -> Outcome:
        """Carry out ``attempt`` within its target's ``timeout_sec``."""
        ...

    async def cancel(self, attempt: Attempt, url: str, reason: str = "") -> Outcome:
        """Tell ``url`` that ``attempt`` was cut off, since its run was cancelled.

        ``reason`` is for people. Within 10 s; the outcome says how that went, and raises nothing
        but ``CancelledError``, as ``execute`` does.
        """
        ...

    async def close(self) -> None:
        """Let everything go. Attempts under way are cut off."""


EXECUTORS: Final = {HttpTarget: HttpExecutor}
"""The executor of each kind of target."""

__all__ = ["EXECUTORS", "Executor", "Sent"]
