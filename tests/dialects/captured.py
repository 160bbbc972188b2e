"""Answers of a real Ollama, as recorded in tests/captures: one request and its raw response per
file.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.emulator.captures import CAPTURES, dechunk, read_capture


@dataclass(frozen=True, slots=True)
class Captured:
    """One exchange; `chunks` are the HTTP chunks of the answer's body (one for an answer that is
    not chunked).
    """

    method: str
    path: str
    request_body: bytes
    status: int
    headers: dict[str, str]
    chunks: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


def captured(name: str) -> Captured:
    exchange = read_capture(name)
    request_head, request_body = exchange.request.split(b"\r\n\r\n", 1)
    head, body = exchange.response.split(b"\r\n\r\n", 1)
    status_line, *lines = head.decode().split("\r\n")
    headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
    chunks = dechunk(body) if headers.get("transfer-encoding") == "chunked" else (body,)
    method, path, _ = request_head.decode().split(" ", 2)
    return Captured(method, path, request_body, int(status_line.split(" ")[1]), headers, chunks)


def captured_streams() -> list[str]:
    """Names of all captures whose answer streams."""
    names = sorted(path.stem for path in CAPTURES.glob("*.txt"))
    return [
        name
        for name in names
        if captured(name).headers.get("content-type")
        in ("application/x-ndjson", "text/event-stream")
    ]
