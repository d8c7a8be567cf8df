"""One fault that struck: what, where, when, and by what it was seen to have struck."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from noonday.drill.checks.evidence import Evidence

Later = Callable[[Evidence], str | None]


@dataclass(eq=False)
class Mark:
    """All times are of the wall clock, in seconds since 1970."""

    number: str
    """As in docs/drill.md: F1 to F19."""
    name: str
    where: list[str] = field(default_factory=list)
    """The lanes of the picture that it belongs to."""
    detail: str = ""
    effect: str | None = None
    """What showed that it struck; None is nothing."""
    later: Later | None = None
    """Looks for the effect in what is there at the end."""
    started_at: float = field(default_factory=time.time)
    ended_at: float = 0.0
    error: str | None = None

    def at(self, *where: str, detail: str = "") -> None:
        """It strikes here, and now: until then a victim was waited for."""
        if not self.where:
            self.started_at = time.time()
        self.where += where
        self.detail = detail or self.detail

    @property
    def struck(self) -> bool:
        """Whether it came to that; the moment for which it waited may never have come."""
        return bool(self.where) and self.error is None

    def look_back(self, evidence: Evidence) -> None:
        """Find the effect that only the end can show."""
        if self.effect is None and self.later is not None:
            self.effect = self.later(evidence)

    def as_document(self) -> dict[str, Any]:
        """For the report."""
        return {
            "fault": self.number, "name": self.name, "where": self.where, "detail": self.detail,
            "started_at": self.started_at, "ended_at": self.ended_at, "effect": self.effect,
            "error": self.error,
        }  # fmt: skip
