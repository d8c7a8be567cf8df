"""What a client says to Postgres, message by message (Frontend/Backend Protocol 3)."""

from __future__ import annotations

from typing import Final, NamedTuple

BEGIN: Final = "BEGIN"
COMMIT: Final = "COMMIT"


class Frame(NamedTuple):
    """One message, and what it does if that matters to us."""

    data: bytes
    statement: str | None = None
    """The text of the statement that it runs."""


class Frames:
    """Cuts a stream into messages, and knows which statement each one runs."""

    def __init__(self) -> None:
        self._rest = b""
        self._greeted = False
        self._texts: dict[bytes, str] = {}

    def feed(self, data: bytes) -> list[Frame]:
        """The messages that are whole by now."""
        self._rest += data
        found = []
        while (size := self._size()) is not None and len(self._rest) >= size:
            message, self._rest = self._rest[:size], self._rest[size:]
            found.append(self._read(message))
        return found

    def _size(self) -> int | None:
        """How long the next message is; None before that is known."""
        at = 1 if self._greeted else 0  # the greeting has no letter before its length
        if len(self._rest) < at + 4:
            return None
        return at + int.from_bytes(self._rest[at : at + 4], "big")

    def _read(self, message: bytes) -> Frame:
        if not self._greeted:
            self._greeted = True
            return Frame(message)
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return Frame(message, body.rstrip(b"\0").decode(errors="replace"))
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._texts[name] = text.decode(errors="replace")
        if kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            return Frame(message, self._texts.get(name, ""))
        return Frame(message)
