"""Answers of a real Ollama, as recorded in tests/captures: one request and its raw response per file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent.parent / "captures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One exchange; `chunks` are the HTTP chunks of the answer's body (one for an answer that is not chunked)."""

    name: str
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
    raw = (_FOLDER / f"{name}.txt").read_bytes()
    request, rest = raw.removeprefix(b">>> REQUEST\n").split(b"\n<<< RESPONSE (raw, chunked framing kept)\n", 1)
    response = rest.rsplit(b"\n--- recv timings", 1)[0]
    request_head, request_body = request.split(b"\r\n\r\n", 1)
    head, body = response.split(b"\r\n\r\n", 1)
    method, path, _ = request_head.split(b"\r\n")[0].decode().split(" ")
    status_line, *lines = head.decode().split("\r\n")
    headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
    chunks = _unchunked(body) if headers.get("transfer-encoding") == "chunked" else (body,)
    return Captured(
        name=name,
        method=method,
        path=path,
        request_body=request_body,
        status=int(status_line.split(" ")[1]),
        headers=headers,
        chunks=chunks,
    )


def _unchunked(body: bytes) -> tuple[bytes, ...]:
    chunks: list[bytes] = []
    while True:
        size, body = body.split(b"\r\n", 1)
        if int(size, 16) == 0:
            return tuple(chunks)
        chunks.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]


def captured_streams() -> list[str]:
    """Names of all captures whose answer streams."""
    names = sorted(path.stem for path in _FOLDER.glob("*.txt"))
    return [name for name in names if captured(name).headers.get("content-type") in ("application/x-ndjson", "text/event-stream")]
