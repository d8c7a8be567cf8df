"""A real HTTP server on loopback that gives the answers it was told to, and keeps what it got."""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


HANG_UP = Answer(status=0)
"""Read the request, then close the connection without a word."""


class ScriptedServer:
    def __init__(self, url: str) -> None:
        self.url = url
        self.script: deque[Answer] = deque()
        self.received: list[Received] = []

    def will(self, *answers: Answer) -> None:
        """Answer the next requests so, in this order; 500 when there is nothing left to say."""
        self.script.extend(answers)


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            scripted.received.append(Received(self.command, self.path, dict(self.headers), body))
            answer = scripted.script.popleft() if scripted.script else Answer(500)
            if answer is HANG_UP:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            content = (
                answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            )
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(content)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - named by the library

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        scripted = ScriptedServer(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield scripted
        finally:
            server.shutdown()
            thread.join()
