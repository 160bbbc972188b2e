"""A gateway that answers recorded JSON over real HTTP: what the commands see, without what makes
it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.fields import Fields


def recorded(name: str) -> Fields:
    """A fresh copy of an answer in `recorded/`."""
    answer: Fields = json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text())
    return answer


@dataclass
class StubGateway:
    """Answers by path, or `otherwise`: (status, content type, body). Remembers the headers and
    bodies of requests.

    A stream promises one byte more than it has: its reader waits for it while `after_stream` runs.
    """

    answers: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    seen: list[dict[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    answer_headers: dict[str, str] = field(default_factory=dict)
    otherwise: tuple[int, str, bytes] = (404, "text/plain", b"404 page not found")
    url: str = ""
    after_stream: Callable[[], None] | None = None

    def put(self, path: str, value: object, status: int = 200) -> None:
        self.answers[path] = (status, "application/json", json.dumps(value).encode())

    @contextmanager
    def listening(self) -> Iterator[StubGateway]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"stub": self}))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    stub: StubGateway

    def do_GET(self) -> None:
        self.stub.seen.append(
            {name.lower(): value for name, value in self.headers.items()}
            | {"path": self.path, "method": self.command}
        )
        if (length := int(self.headers.get("Content-Length", "0"))) > 0:
            self.stub.bodies.append(json.loads(self.rfile.read(length)))
        status, content_type, body = self.stub.answers.get(self.path, self.stub.otherwise)
        after = self.stub.after_stream if content_type == "text/event-stream" else None
        own = {"Content-Type": content_type, "Content-Length": str(len(body) + (after is not None))}
        self.send_response(status)
        for name, value in {
            **own,
            **self.stub.answer_headers,
            **({"Location": body.decode()} if status == 307 else {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if after is not None:
            after()
            self.rfile.read(1)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing: pytest's output is not this server's log."""
