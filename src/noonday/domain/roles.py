"""Who may do what: four roles, each with all that the one before it may do."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """VIEWER reads, SUBMITTER creates and cancels its own, OPERATOR triggers, ADMIN may do all."""

    VIEWER = 0
    SUBMITTER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """The role as the API and the database write it."""
        return self.name.lower()


def role_named(word: str) -> Role | None:
    """The role of that name."""
    return next((role for role in Role if role.word == word), None)
