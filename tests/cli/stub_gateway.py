"""A gateway that answers recorded JSON over real HTTP: what the status command sees, without what makes it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> dict[str, Any]:
    """A fresh copy of an answer in `recorded/`."""
    answer: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return answer


@dataclass
class StubGateway:
    """Answers by path: (status, content type, body). Remembers the headers of every request, and the bodies of those that have one.

    A stream promises one byte more than it has: its reader waits for it while `after_stream` runs.
    """

    answers: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    seen: list[dict[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    answer_headers: dict[str, str] = field(default_factory=dict)
    url: str = ""
    after_stream: Callable[[], None] | None = None

    def put(self, path: str, value: object, status: int = 200) -> None:
        self.answers[path] = (status, "application/json", json.dumps(value).encode())

    @contextmanager
    def listening(self) -> Iterator[StubGateway]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _handler(stub: StubGateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stub.seen.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path, "method": self.command})
            status, content_type, body = stub.answers.get(self.path, (404, "text/plain", b"404 page not found"))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            for name, value in stub.answer_headers.items():
                self.send_header(name, value)
            if status in {301, 302, 307}:
                self.send_header("Location", body.decode())
            after = stub.after_stream if content_type == "text/event-stream" else None
            self.send_header("Content-Length", str(len(body) + (after is not None)))
            self.end_headers()
            self.wfile.write(body)
            if after is not None:
                after()
                self.rfile.read(1)

        def do_POST(self) -> None:
            if (length := int(self.headers.get("Content-Length", "0"))) > 0:
                stub.bodies.append(json.loads(self.rfile.read(length)))
            self.do_GET()

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Nothing: pytest's output is not this server's log."""

    return Handler
