"""The demo's receiver: does with each webhook what a customer's receiver should."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from noonday import receiver


class Arrival(NamedTuple):
    """A request, and what it was answered with."""

    at: datetime
    delivery: receiver.Delivery | None
    """None when it could not be verified."""
    status: int
    fault: str = ""


class Inbox(ThreadingHTTPServer):
    """A server on a free port that verifies what comes and keeps it in ``arrivals``."""

    daemon_threads = True

    def __init__(self, secret: str, answers: Mapping[str, Sequence[int]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._secret = secret
        self._answers = answers

    def take(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        """Verify a request; the status to answer with."""
        at = datetime.now(UTC)
        try:
            delivery = receiver.verify(headers, body, self._secret)
        except receiver.InvalidSignature as error:
            self.arrivals.put(Arrival(at, None, 401, f"{path}: {error.reason}"))
            return 401
        answers = self._answers.get(path, (200,))
        status = answers[min(delivery.attempt, len(answers)) - 1]
        self.arrivals.put(Arrival(at, delivery, status))
        return status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Inbox

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(self.server.take(self.path, dict(self.headers.items()), body))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: the demo shows what arrives."""


@contextmanager
def receiving(secret: str, answers: Mapping[str, Sequence[int]]) -> Iterator[Inbox]:
    """Receive until the block ends.

    ``answers`` has, by path, the status for attempt 1, 2 and so on; the last one stays.
    """
    with Inbox(secret, answers) as inbox:
        threading.Thread(target=inbox.serve_forever, daemon=True).start()
        try:
            yield inbox
        finally:
            inbox.shutdown()
