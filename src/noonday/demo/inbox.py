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
        self._receiver = receiver.Receiver(secret, receiver.MemoryStore())
        self._answers = answers

    def take(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str]]:
        """Verify a request and judge it; the status and the headers to answer with."""
        at = datetime.now(UTC)
        try:
            accepted = self._receiver.accept(headers, body)
        except receiver.InvalidSignature as error:
            self.arrivals.put(Arrival(at, None, 401, f"{path}: {error.reason}"))
            return 401, {}
        status = accepted.status
        if accepted.verdict is receiver.Verdict.NEW:
            status = self._work(path, accepted.delivery)
        self.arrivals.put(Arrival(at, accepted.delivery, status))
        return status, accepted.headers

    def _work(self, path: str, delivery: receiver.Delivery) -> int:
        answers = self._answers.get(path, (200,))
        status = answers[min(delivery.attempt, len(answers)) - 1]
        if status < 300 and not self._receiver.done(delivery):
            return receiver.Verdict.STALE.status
        return status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Inbox

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status, headers = self.server.take(self.path, dict(self.headers.items()), body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
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
