"""What the drill's clients asked for and what they were told: the other witness."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from noonday.drill.checks.evidence import Answered


@dataclass
class Request:
    """One thing asked for, under one key, in as many tries as it took."""

    what: str
    """create, trigger, cancel or cancel run."""
    key: str
    asked_at: float
    tries: int = 0
    answered_at: float | None = None
    status: int | None = None
    faults: list[str] = field(default_factory=list)
    """What came instead of a final answer."""


class ClientLog:
    """Kept in memory and, line by line, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a")
        self.requests: list[Request] = []
        self.asked: set[str] = set()
        self.acknowledged: dict[UUID, str] = {}
        self.answers: list[Answered] = []
        self.triggered: set[str] = set()
        self.cancelled: dict[UUID, datetime] = {}
        self.cancelled_runs: dict[str, datetime] = {}
        self.replayed = 0
        """Answers that said that they were given before."""
        self.troubles: Counter[str] = Counter()

    def ask(self, what: str, key: str) -> Request:
        """Somebody is about to ask."""
        if what == "create":
            self.asked.add(key)
        request = Request(what, key, time.time())
        self.requests.append(request)
        return request

    def trouble(self, request: Request, fault: str) -> None:
        """A try came to nothing that is known."""
        request.faults.append(fault)
        self.troubles[fault] += 1
        self._write(request, fault=fault)

    def answered(self, request: Request, status: int, body: bytes, *, replayed: bool) -> None:
        """A final answer came."""
        now = time.time()
        request.answered_at, request.status = now, status
        self._write(request, status=status, replayed=replayed)
        if status >= 300:
            return
        self.replayed += replayed
        document: dict[str, Any] = json.loads(body)
        if request.what == "cancel":
            if document["status"] == "CANCELLED":
                self.cancelled[UUID(document["id"])] = datetime.fromtimestamp(now, UTC)
            return
        if request.what == "cancel run":
            if document["state"] == "CANCELLED":
                self.cancelled_runs[request.key] = datetime.fromtimestamp(now, UTC)
            return
        self.answers.append(Answered(request.key, status, hashlib.sha256(body).hexdigest()))
        if request.what == "create":
            self.acknowledged[UUID(document["id"])] = request.key
        else:
            self.triggered.add(document["id"])

    @property
    def indeterminate(self) -> list[Request]:
        """What its client gave up on: it may have happened."""
        return [request for request in self.requests if request.answered_at is None]

    def close(self) -> None:
        """No more is written."""
        self._file.close()

    def _write(self, request: Request, **more: object) -> None:
        line = {
            "at": time.time(), "what": request.what, "key": request.key, "try": request.tries,
            **more,
        }  # fmt: skip
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
