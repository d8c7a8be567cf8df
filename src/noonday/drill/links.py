"""The wire between one process and Postgres. It understands enough to strike at the moment of a
commit: before it, after it, or in place of its answer."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import parse_qs, quote, urlsplit

from noonday.drill.frames import BEGIN, COMMIT, Frame, Frames
from noonday.drill.wires import CHUNK, Wire, join
from noonday.store import executions, jobs, occurrences, runs, workers

MARKS: Final = {
    "claim": (runs.CLAIM,),
    "settle": (runs.COMPLETE, runs.RETRY, runs.DEAD_LETTER, runs.RELEASE),
    "reap": (runs.EXPIRED,),
    "create": (jobs.INSERT.text,),
    "materialize": (occurrences.MATERIALIZE,),
    "janitor": (workers.FORGET,),
    "look up job": (jobs.EXISTING,),
    "look up settle": (executions.WRITTEN,),
    "look up claim": (runs.HELD_SINCE,),
}
"""What a transaction does, told by the statements that it runs."""
_MARK_OF: Final = {text.strip(): mark for mark, texts in MARKS.items() for text in texts}


@dataclass(eq=False)
class Trap:
    """Waits for the COMMIT of a transaction that does what ``mark`` says, and then

    ``hold before``: keeps it back until ``go_on``, the transaction stays open; ``hold after``: lets
    it pass and keeps the answer back; ``lose``: lets it pass and cuts instead of answering.
    """

    mark: str
    act: Literal["hold before", "hold after", "lose"]
    drop: bool = False
    """What is kept back never passes: the process that said it is to die meanwhile."""
    sprung: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    link: Link | None = None


@dataclass
class Odds:
    """How likely a commit is disturbed: cut before it, or carried out and its answer lost."""

    cut: float
    lost: float
    chance: random.Random


class Link(Wire):
    """Passes on to the Postgres at ``url``, which leads to its socket in the file system."""

    def __init__(self, url: str) -> None:
        super().__init__(self._to_postgres)
        self._url = url
        self._traps: list[Trap] = []
        self.odds: Odds | None = None
        self.seen: Counter[str] = Counter()
        """How often each of ``MARKS`` was run over this link."""
        self.cut_off = 0
        self.lost = 0

    @property
    def url(self) -> str:
        """The URL of the same database, over this link."""
        parts = urlsplit(self._url)
        who = f"{quote(parts.username or '')}:{quote(parts.password or '')}"
        return f"postgresql://{who}@127.0.0.1:{self.port}{parts.path}?sslmode=disable"

    def set(self, trap: Trap) -> None:
        """Set a trap; it springs once."""
        self._traps.append(trap)

    def disarm(self, trap: Trap) -> None:
        """Take a trap away, and let go on what it holds."""
        if trap in self._traps:
            self._traps.remove(trap)
        trap.go_on.set()

    async def _to_postgres(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        given = parse_qs(urlsplit(self._url).query)
        return await asyncio.open_unix_connection(f"{given['host'][0]}/.s.PGSQL.{given['port'][0]}")

    async def _carry(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        session = _Session(self)
        await join(
            asyncio.create_task(self._requests(session, client, to_server)),
            asyncio.create_task(self._answers(session, server, to_client)),
        )

    async def _requests(
        self, session: _Session, client: asyncio.StreamReader, to_server: asyncio.StreamWriter
    ) -> None:
        while data := await client.read(CHUNK):
            for frame in session.frames.feed(data):
                if not await session.lets_pass(frame):
                    return
                await self._pass(frame.data, to_server, answer=False)

    async def _answers(
        self, session: _Session, server: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        while data := await server.read(CHUNK):
            if session.loses_answer:
                return
            if session.kept is not None:
                session.kept.sprung.set()
                await session.kept.go_on.wait()
                session.kept = None
            await self._pass(data, to_client, answer=True)

    def trap_for(self, done: Set[str]) -> Trap | None:
        """The trap that a commit after these statements springs, if any."""
        for trap in self._traps:
            if trap.mark in done:
                self._traps.remove(trap)
                trap.link = self
                return trap
        return None


class _Session:
    """One connection: what its transaction has done so far, and what becomes of its answer."""

    def __init__(self, link: Link) -> None:
        self.frames = Frames()
        self.loses_answer = False
        self.kept: Trap | None = None
        self._link = link
        self._done: set[str] = set()

    async def lets_pass(self, frame: Frame) -> bool:
        """Whether the message may go on to the server; False cuts the connection."""
        if frame.statement is None:
            return True
        if not frame.statement.startswith(COMMIT):
            self._note(frame.statement)
            return True
        trap, self._done = self._link.trap_for(self._done), set()
        if trap is not None:
            return await self._sprung(trap)
        return self._is_lucky()

    def _note(self, statement: str) -> None:
        if statement.startswith(BEGIN):
            self._done = set()
        mark = _MARK_OF.get(statement.strip())
        if mark is not None:
            self._done.add(mark)
            self._link.seen[mark] += 1

    async def _sprung(self, trap: Trap) -> bool:
        if trap.act == "hold before":
            trap.sprung.set()
            await trap.go_on.wait()
            return not trap.drop
        if trap.act == "hold after":
            self.kept = trap
        else:
            self.loses_answer = True
            self._link.lost += 1
            trap.sprung.set()
        return True

    def _is_lucky(self) -> bool:
        odds = self._link.odds
        if odds is None:
            return True
        drawn = odds.chance.random()
        if drawn < odds.cut:
            self._link.cut_off += 1
            return False
        if drawn < odds.cut + odds.lost:
            self._link.lost += 1
            self.loses_answer = True
        return True
