"""Whether a request may have left."""

from __future__ import annotations


class Sent:
    """Tells an attempt that may have reached its receiver from one that surely did not."""

    __slots__ = ("maybe",)

    def __init__(self) -> None:
        self.maybe = False
        """Becomes True just before the first byte of a request may leave, and stays so."""
