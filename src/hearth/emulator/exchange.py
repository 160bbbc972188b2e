"""The words in which handlers speak with the HTTP server: a call that came in and a sink for its answer.

Values and one protocol; must never import aiohttp. Used by every handler of the emulator.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from hearth.dialects.gojson import JsonObject, decode, encode, struct_of
from hearth.emulator.engine import Engine
from hearth.emulator.errors import OllamaError, error_body
from hearth.emulator.models import Catalogue
from hearth.errors import BadRequest
from hearth.types import Dialect

JSON_UTF8 = "application/json; charset=utf-8"
JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"

HeaderPairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request.

    Attributes:
        tail: the last part of the path where the route has a variable one.
        received_at: seconds on the monotonic clock, when the request head was complete.
    """

    path: str
    body: bytes
    received_at: float
    dialect: Dialect
    tail: str = ""


class Sink(Protocol):
    """Where the answer goes. Either `whole` once, or `chunk` any number of times."""

    @property
    def started(self) -> bool:
        """Bytes are on the wire; the status can no longer change."""

    def prepare(self, content_type: str, *, status: int = 200) -> None:
        """Decide the head of a streamed answer; nothing is sent before the first chunk."""

    def add_header(self, name: str, value: str) -> None:
        """Add a header to whatever answer follows."""

    async def chunk(self, data: bytes) -> None:
        """Send one HTTP chunk and flush it; waits while the reader is far behind."""

    async def whole(self, body: bytes, content_type: str | None = JSON_UTF8, *, status: int = 200) -> None:
        """Send a complete answer with Content-Length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What every handler may use: the catalogue, the engine and a source of ids and seeds."""

    catalogue: Catalogue
    engine: Engine
    rng: random.Random

    def hex_id(self, prefix: str, digits: int) -> str:
        return f"{prefix}{self.rng.getrandbits(digits * 4):0{digits}x}"


Handler = Callable[[Server, Call, Sink], Awaitable[None]]


def read_struct(call: Call, struct: str) -> JsonObject:
    """The JSON object of the body; raises `OllamaError` 400 with the text that the dialect uses for a body that is none."""
    if not call.body.strip():
        raise OllamaError(400, "missing request body" if call.dialect is Dialect.OLLAMA else "EOF", at_bind=True)
    try:
        return struct_of(decode(call.body), struct)
    except BadRequest as error:
        raise OllamaError(400, error.message, at_bind=True) from error


async def send_json(sink: Sink, value: JsonObject) -> None:
    """A native answer: charset, Content-Length, no newline."""
    await sink.whole(encode(value))


async def break_off(error: OllamaError, sink: Sink) -> None:
    """End a native stream with its error: its last line, or the whole answer where nothing of it has been sent."""
    body = error_body(error, Dialect.OLLAMA, "")
    if sink.started:
        await sink.chunk(body + b"\n")
        return
    sink.prepare(JSON, status=error.status)
    await sink.chunk(body)


async def send_v1(sink: Sink, value: JsonObject) -> None:
    """An answer of a `/v1` route: no charset, a newline at the end."""
    await sink.whole(encode(value) + b"\n", JSON)
