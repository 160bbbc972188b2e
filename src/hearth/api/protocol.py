"""HTTP/1.1 on one connection: uvicorn's httptools protocol, with the limits and deadlines that it does not have.

A connection is closed when a request's headers take longer than `header_s`, when its body makes no progress for `body_s`, or when the other
end takes nothing from a full write buffer for `write_s`. A closed connection reaches the application as `http.disconnect`, like a caller
who leaves: there is no second path for slow ones. Must never read a request.

uvicorn has no such deadlines (encode/uvicorn issue 157 asks for them). httptools, a third of the cost of h11, puts no limit on headers,
takes trailers for headers, lets a repeated Host pass, and after a wish for another protocol takes the request's body for that protocol; all
of them are cured here.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from hearth.admission.http_checks import LOWER
from hearth.api.asgi import App, DisconnectWatch, GatheringTransport, without_chunks

if TYPE_CHECKING:
    from array import array

HEADER_LIMIT_BYTES = 64 * 1024
HEAD_END = b"\r\n\r\n"
_FRAMING_PER_BODY_BYTE = 8
"""What chunks of a single byte take beside it is 5; the rest of a chunked body, extensions and trailers, has the limit of a head."""
_UNWANTED_BYTES = 64 * 1024 * 1024
"""Read of a body after its answer; whoever sends more hears nothing any more."""
_UNWANTED_BYTES_PER_S = 64 * 1024 * 1024
Buffer: TypeAlias = "bytes | bytearray | memoryview[int] | array[int]"
"""What httptools reads."""
_CHUNKED_PIECE_BYTES = 512
"""Parsed together at least while a chunked body is read: it may be full of what looks like the end of a head."""


class Reading(Enum):
    """What is expected of the other end."""

    HEADERS = auto()
    BODY = auto()
    NOTHING = auto()


@dataclass(slots=True)
class Pace:
    """How fast what nobody wants is read, on all connections together: sent as fast as they can, it would be all that the loop does."""

    _free_at: float = 0.0

    def wait_s(self, size_bytes: int, now: float) -> float:
        """Seconds until the next bytes may be read, after so many."""
        self._free_at = max(now, self._free_at) + size_bytes / _UNWANTED_BYTES_PER_S
        return self._free_at - now


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long a peer may keep a connection waiting, in seconds; `write_s` is asked for each time, since it can change."""

    write_s: Callable[[], float]
    header_s: float = 10.0
    body_s: float = 30.0
    unwanted: Pace = field(default_factory=Pace)


class _Parser(httptools.HttpRequestParser):
    """Hands what follows a wish for another protocol back to its owner, who ignores the wish (RFC 9110, 7.8)."""

    __slots__ = ("_owner",)

    def __init__(self, owner: DeadlineProtocol) -> None:
        super().__init__(owner)
        self._owner = owner
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn

    def feed_data(self, data: Buffer) -> None:
        """Raises HttpParserError."""
        parser, rest = self, data
        while (head_bytes := parser._up_to_a_wish(rest)) is not None:
            parser, rest = self._owner.read_again(), memoryview(rest)[head_bytes:]

    def _up_to_a_wish(self, data: Buffer) -> int | None:
        """Where in `data` the head ends that has a wish; None where it was read to its end."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as wish:
            return int(wish.args[0])
        return None


class _Pipeline(list[tuple[RequestResponseCycle, App]]):
    """Requests that came before the answer to the one before them. In a list: a deque has 760 bytes while it is empty, as nearly always."""

    def appendleft(self, request: tuple[RequestResponseCycle, App]) -> None:
        """The latest one."""
        self.insert(0, request)


class DeadlineConfig(uvicorn.Config):
    """uvicorn's configuration, carrying the deadlines to each connection."""

    deadlines: Deadlines


class DeadlineProtocol(HttpToolsProtocol):
    """One connection.

    What it adds has slots: Python gives an object with more than 30 attributes in its dict a dict of its own, here of 1.5 KiB.
    """

    __slots__ = (
        "_began",
        "_beside_bytes",
        "_body_bytes",
        "_deadline",
        "_deadline_for",
        "_deadlines",
        "_declared_bytes",
        "_disconnect",
        "_header_bytes",
        "_lingering",
        "_outgoing",
        "_phase",
        "_served",
        "_unread",
        "_wished",
        "_wishes_another",
        "_writing",
    )

    def __init__(
        self,
        config: DeadlineConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = _Parser(self)
        self.pipeline = _Pipeline()  # type: ignore[assignment]  # all that uvicorn does with it
        self._wishes_another = False
        self._wished: bytes | None = None
        self._deadlines = config.deadlines
        self._phase = Reading.HEADERS
        self._header_bytes = 0
        self._began = False
        self._body_bytes = self._beside_bytes = 0
        self._declared_bytes = -1
        self._unread = bytearray()
        self._lingering = False
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_for = Reading.NOTHING
        self._writing: asyncio.TimerHandle | None = None
        self._outgoing: GatheringTransport
        self._served = self.app
        self._disconnect = DisconnectWatch()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn: always a Transport
        """A connection that says nothing is as slow as one that says it slowly."""
        self._outgoing = GatheringTransport(transport, self.loop)
        self._outgoing.lingers = self._lingers
        super().connection_made(self._outgoing)
        self.server = None  # an address for each connection, and nobody asks
        _slim(self.flow._is_writable_event)  # noqa: SLF001 - as below
        _send_without_delay(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._phase = Reading.NOTHING
        self._unread.clear()
        self._expect()
        self._stop_writing_deadline()
        super().connection_lost(exc)
        self._disconnect.happened()
        self._outgoing.lingers = bool  # for ever False: this connection would be kept by its own transport

    def data_received(self, data: bytes) -> None:
        """Parse up to the end of one request; what follows it waits unparsed until that one is answered.

        uvicorn parses all that has come, at the cost of a few KiB and some 30 us for each request of 33 bytes.
        """
        if not self.transport.is_closing():
            self._unread += data
            self._read_on()

    def _read_on(self) -> None:
        while self._unread and not self._is_answering() and not self.transport.is_closing():
            piece = bytes(self._unread[: self._piece_bytes()])
            del self._unread[: len(piece)]
            self._parse(piece)
        if len(self._unread) > HEADER_LIMIT_BYTES:
            self.transport.pause_reading()  # below that it goes on, or nobody would see that the caller leaves
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def _is_answering(self) -> bool:
        return self._phase is Reading.NOTHING and self.cycle is not None and not self.cycle.response_complete

    def _piece_bytes(self) -> int:
        """How much can be parsed without beginning more than one request: a head ends with an empty line, a body where it said."""
        if self._phase is Reading.BODY and self._declared_bytes >= 0:
            return max(1, self._declared_bytes - self._body_bytes)
        end = self._unread.find(HEAD_END, _CHUNKED_PIECE_BYTES if self._phase is Reading.BODY else 0)
        return len(self._unread) if end < 0 else end + len(HEAD_END)

    def _parse(self, data: bytes) -> None:
        body_bytes, self._began = self._body_bytes, False
        super().data_received(data)
        if not self._began:
            self._beside_bytes += len(data) - (self._body_bytes - body_bytes)
        if self._phase is not Reading.NOTHING and self._beside_bytes > HEADER_LIMIT_BYTES + _FRAMING_PER_BODY_BYTE * self._body_bytes:
            self.transport.abort()
        if not self.transport.is_closing():
            self._expect()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self.scope["extensions"] = {DisconnectWatch.EXTENSION: self._disconnect}  # type: ignore[dict-item]  # no plain data, but nobody else reads it
        self._phase = Reading.HEADERS
        self._header_bytes = self._beside_bytes = self._body_bytes = 0
        self._began = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; a trailer comes too late to be one."""
        if self._phase is Reading.HEADERS:
            self._header_bytes += len(name) + len(value)
            if self._header_bytes > HEADER_LIMIT_BYTES:
                raise httptools.HttpParserError("the headers are too large")
            name = LOWER.get(name) or name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The application may begin. A request whose Host nobody can tell says nothing about where the next one begins (RFC 9112, 3.2)."""
        if [name for name, _ in self.headers].count(b"host") != 1:
            raise httptools.HttpParserError("send exactly one Host header")
        if not self.url.startswith(b"/") or b"#" in self.url:  # `http://another/host` would go past the check of Host
            raise httptools.HttpParserError("the target of a request is a path")
        self._wishes_another = self.parser.should_upgrade()
        if self._wishes_another:
            return
        self._phase = Reading.BODY
        if self._wished is not None:
            self.headers.append((b"upgrade", self._wished))
            self._wished = None
        declared = [value for name, value in self.headers if name == b"content-length"]
        self._declared_bytes = int(declared[0]) if declared else -1
        self.app = self._served if self.parser.get_http_version() != "1.0" else without_chunks(self._served)
        super().on_headers_complete()
        self.headers = []
        _slim(self.cycle.message_event)

    def on_body(self, body: bytes) -> None:
        """A piece of the body; after the answer it is only read so that the answer arrives."""
        self._body_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete:
            if self._body_bytes > _UNWANTED_BYTES:
                self.transport.abort()
            self.flow.pause_reading()
            self.loop.call_later(self._deadlines.unwanted.wait_s(len(body), self.loop.time()), self.flow.resume_reading)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if not self._wishes_another:
            self._phase = Reading.NOTHING
            super().on_message_complete()
            if self._lingering:
                self.transport.close()

    def read_again(self) -> _Parser:
        """Read the head that has just ended again, without its wish for another protocol. Returns what reads the bytes after it.

        Java's HTTP client wishes for HTTP/2 with its first POST on a connection, Codex for a WebSocket with a GET of `/v1/responses`. The
        application sees the wish as a field like others. Raises HttpParserError for a tunnel, which is no request at all.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("there are no tunnels here")
        version = self.parser.get_http_version().encode("ascii")
        self._wished = next((value for name, value in self.headers if name == b"upgrade"), None)
        fields = (b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade")
        self.parser = parser = _Parser(self)
        parser.feed_data(b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(fields)))
        return parser

    def on_response_complete(self) -> None:
        """After an answer the keep-alive timeout of uvicorn takes over."""
        super().on_response_complete()
        self._outgoing.flush()
        if not self.transport.is_closing():
            self._expect()
        if self._unread:
            self.loop.call_soon(self._read_on)  # one request of a connection in one turn of the loop

    def _lingers(self) -> bool:
        """A request that still comes is read on for a while: closing would reset the connection, and the answer would be lost with it."""
        self._lingering = not self._lingering and self._phase is Reading.BODY and self.cycle.response_complete
        return self._lingering

    def send_400_response(self, msg: str) -> None:
        """Say in JSON that this is not HTTP, if nothing was said yet; then close. A body that breaks off is the end of the connection."""
        if (self.cycle is None or self.cycle.response_complete) and not self._lingering:
            body = json.dumps({"error": msg.rstrip(".")}).encode()
            head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % len(body) + body)
            self.transport.close()
        else:
            self.transport.abort()

    def _expect(self) -> None:
        """Set the deadline of the present phase. That for headers is for all of them together: more bytes do not move it."""
        waited_for = self._phase
        if waited_for is self._deadline_for and (waited_for is not Reading.BODY or self._lingering):
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._deadline_for = waited_for
        if waited_for is not Reading.NOTHING:
            within_s = self._deadlines.body_s if waited_for is Reading.BODY else self._deadlines.header_s
            self._deadline = self.loop.call_later(within_s, self._read_late)

    def _read_late(self) -> None:
        self._deadline, self._deadline_for = None, Reading.NOTHING
        if self._phase is Reading.BODY and self.flow.read_paused and not self._lingering:
            self._expect()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """The write buffer is full: from now on the other end has to take something."""
        super().pause_writing()
        self._start_writing_deadline()

    def resume_writing(self) -> None:
        """The write buffer has room again."""
        super().resume_writing()
        self._stop_writing_deadline()

    def _start_writing_deadline(self) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        self._writing = self.loop.call_later(self._deadlines.write_s(), self._write_late, unsent_bytes)

    def _stop_writing_deadline(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _write_late(self, unsent_bytes: int) -> None:
        if self.transport.get_write_buffer_size() < unsent_bytes:
            self._start_writing_deadline()
        else:
            self.transport.abort()


def _slim(event: asyncio.Event) -> None:
    """Have the waiters of an event in a list: asyncio's deque has 760 bytes while there are none, and a connection has two events."""
    event._waiters = []  # type: ignore[assignment]  # noqa: SLF001 - no other way is as short, and `append` and `remove` are all it needs


def _send_without_delay(transport: asyncio.Transport) -> None:
    """Turn Nagle's algorithm off: it holds each small chunk back until the last one is acknowledged, up to 40 ms.

    asyncio does so only for sockets that were made with the protocol number of TCP, and `socket.create_server` makes them without.
    """
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
