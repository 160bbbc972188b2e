"""HTTP/1.1 on one connection: uvicorn's httptools protocol, with the limits and deadlines that it
does not have.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from typing import Any, Literal

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from hearth.admission.peers import THIS_MACHINE, Admittance, Connections, peer_of
from hearth.api.request import CONNECTION, DATE, DISCONNECTED, App, Message, Send
from hearth.api.turns import TurnLimiter
from hearth.clock import Clock
from hearth.types import frozen

HEAD_LIMIT_BYTES = 64 * 1024
_HEAD_END = b"\r\n\r\n"
_FRAMING_PER_BODY_BYTE = 8
"""Chunks of a single byte take 5; the rest of a chunked body, extensions and trailers, has the
limit of a head.
"""
_DISCARDED_BYTES = 64 * 1024 * 1024
"""Read of a body after its answer, so that the answer arrives; whoever sends more is cut off."""
SLOWEST_BODY_BYTES_S = 64 * 1024
"""A body that comes slower than this for longer than its deadline is cut off: it holds a connection
and memory.
"""
_CHUNKED_PIECE_BYTES = 512
"""Parsed together at least while a chunked body is read: it may be full of what looks like the end
of a head.
"""
_COALESCED_BYTES = 64 * 1024
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_HIDDEN_UPGRADE = b"x-hearth-upgrade"
_STREAMS = (b"application/x-ndjson", b"text/event-stream")


@frozen
class ConnectionDeadlines:
    """How long a peer may keep a connection waiting, in seconds; it is closed then, which the
    application sees as `http.disconnect`.
    """

    write_s: Callable[[], float]
    """While it takes nothing from a full write buffer; asked for each time, since it can change."""
    header_s: float = 10.0
    body_s: float = 30.0
    """Without progress, and for the whole body in addition to what it takes at
    `SLOWEST_BODY_BYTES_S`.
    """


class HttpDate:
    """The Date of an answer (RFC 9110, 6.6.1), written once in a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._written = b""

    def __call__(self) -> bytes:
        second = int(self._clock.wall())
        if second != self._second:
            self._second = second
            self._written = formatdate(second, usegmt=True).encode("ascii")
        return self._written


class ConnectionConfig(uvicorn.Config):
    """uvicorn's configuration, with what each connection needs beside it; `refuse` is the
    application of those that are not admitted.
    """

    date: HttpDate
    deadlines: ConnectionDeadlines
    connections: Connections
    refuse: App
    leaving: TurnLimiter


class CoalescingTransport:
    """Sends what was written within one turn of the event loop in one piece: a system call costs
    more than all else done to a chunk.
    """

    __slots__ = (
        "_loop",
        "_transport",
        "_unsent",
        "body_expected",
        "get_extra_info",
        "is_closing",
        "lingering",
        "pause_reading",
        "resume_reading",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self._loop = loop
        self._unsent = bytearray()
        self.body_expected = False
        """A request is still coming, so `close` ends sending only: a reset would lose the answer on
        its way.
        """
        self.lingering = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send the data soon."""
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent += data
        # so that the transport's own limit keeps its meaning
        if len(self._unsent) >= _COALESCED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send now."""
        data = self._unsent
        self._unsent = bytearray()
        # uvloop's transports raise where asyncio's take no notice
        if data and not self.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written, then close."""
        self.flush()
        if not self.body_expected or self.lingering:
            self._transport.close()
        elif not self.is_closing():
            self.lingering = True
            self._transport.write_eof()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._unsent.clear()
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Bytes written and not yet sent."""
        return len(self._unsent) + self._transport.get_write_buffer_size()


class HttpConnection(HttpToolsProtocol):
    """One connection, counted by its peer.

    What it adds has slots: beyond 30 attributes, the dict of an object takes 1.5 KiB.
    """

    __slots__ = (
        "_body_began_at",
        "_body_bytes",
        "_connections",
        "_date",
        "_deadline",
        "_deadlines",
        "_declared_bytes",
        "_disconnected",
        "_framing_bytes",
        "_leaving",
        "_outgoing",
        "_peer",
        "_place",
        "_reading",
        "_refuse",
        "_unread",
        "_writing",
    )

    def __init__(
        self,
        config: ConnectionConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._date = config.date
        self._deadlines = config.deadlines
        self._connections = config.connections
        self._refuse = config.refuse
        self._leaving = config.leaving
        self._peer = THIS_MACHINE
        self._place: Admittance = "closed"
        self._outgoing: CoalescingTransport
        self._disconnected: asyncio.Future[None] = self.loop.create_future()
        self._unread = bytearray()
        self._reading: Literal["head", "body", "nothing"] = "head"
        """What is expected of the other end."""
        self._declared_bytes: int | None = None
        self._body_bytes = 0
        self._framing_bytes = 0
        self._body_began_at = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    # always a Transport, as in uvicorn
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit it, have it answered that there are too many, or close it; one that says nothing is
        as slow as one that says it slowly.
        """
        name = transport.get_extra_info("peername")
        self._peer = peer_of(name[0] if isinstance(name, tuple) else None)
        self._place = self._connections.enter(self._peer)
        if self._place == "closed":
            transport.abort()
            return
        if self._place == "rejecting":
            self.app = self._refuse
        self._outgoing = CoalescingTransport(transport, self.loop)
        # it has all of a transport that uvicorn uses
        super().connection_made(self._outgoing)  # type: ignore[arg-type]
        self._expect_within(self._deadlines.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._connections.leave(self._peer, self._place)
        if self._place == "closed":
            return
        self._unread.clear()
        self._expect_within(None)
        if self._writing is not None:
            self._writing.cancel()
        self._leaving.call(partial(self._leave, exc))

    def _leave(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._disconnected.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Parse up to the end of one request; what follows it waits unparsed until that one is
        answered, since each takes a few KiB.
        """
        if not self.transport.is_closing():
            self._unread += data
            self._read_on()

    def _read_on(self) -> None:
        while self._unread and not self.transport.is_closing():
            if self._reading == "nothing":
                if not self.cycle.response_complete:
                    break
                self._reading = "head"
                self._unset_keepalive_if_required()
            size = self._next_piece_bytes()
            if not size:
                break
            piece = bytes(self._unread[:size])
            del self._unread[:size]
            self._parse(piece)
        # not a later one with every piece of it
        if self._reading == "head" and self._deadline is None:
            self._expect_within(self._deadlines.header_s)
        elif (
            self._reading == "body"
            and not self._outgoing.lingering
            and not self.transport.is_closing()
        ):
            self._expect_within(min(self._deadlines.body_s, self._body_left_s()))
        if len(self._unread) > HEAD_LIMIT_BYTES:
            # below that it goes on, or nobody would see that the caller leaves
            self.transport.pause_reading()
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def _body_left_s(self) -> float:
        """How long the whole body may take yet, by the length that was declared, else by what has
        come.
        """
        size_bytes = self._body_bytes if self._declared_bytes is None else self._declared_bytes
        allowed_s = self._deadlines.body_s + size_bytes / SLOWEST_BODY_BYTES_S
        return max(0.0, self._body_began_at + allowed_s - self.loop.time())

    def _next_piece_bytes(self) -> int:
        """How much can be parsed without beginning a second request; 0 where more has to come
        first, so that a whole head is bounded.
        """
        if self._reading == "body" and self._declared_bytes is not None:
            return max(1, self._declared_bytes - self._body_bytes)
        end = self._unread.find(_HEAD_END, _CHUNKED_PIECE_BYTES if self._reading == "body" else 0)
        size = len(self._unread) if end < 0 else end + len(_HEAD_END)
        if self._reading == "body":
            return size
        if size > HEAD_LIMIT_BYTES:
            self.send_400_response("The headers are too large.")
            return 0
        # else it is no head, and gets its error at once
        if end < 0 and self._unread[:1].isupper() and b"\n\n" not in self._unread:
            return 0
        return size

    def _parse(self, data: bytes) -> None:
        if self._reading == "head":
            # A wish for another protocol may be ignored (RFC 9110, 7.8), but httptools would take
            # what follows for that protocol. Java's client wishes for HTTP/2 with its first POST,
            # Codex for a WebSocket.
            data = _UPGRADE.sub(b"\r\n%b:" % _HIDDEN_UPGRADE, data)
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > HEAD_LIMIT_BYTES + _FRAMING_PER_BODY_BYTE * self._body_bytes:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._framing_bytes = 0
        self._body_bytes = 0

    def on_headers_complete(self) -> None:
        """The application may begin.

        A request whose Host nobody can tell says nothing about where the next one begins (RFC 9112,
        3.2).
        """
        fields = self.headers
        values = dict(self.headers)
        if _HIDDEN_UPGRADE in values:
            fields = [
                (b"upgrade" if name == _HIDDEN_UPGRADE else name, value) for name, value in fields
            ]
        hosts = [name for name, _ in fields].count(b"host")
        # HTTP/1.0 knows no Host, and the probes of load balancers speak it.
        if hosts != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            raise httptools.HttpParserError("send exactly one Host header")
        # `http://another/host` would go past the check of Host.
        if not self.url.startswith(b"/") or b"#" in self.url or self.parser.should_upgrade():
            raise httptools.HttpParserError("the request target must be a path")
        self._reading = "body"
        self._body_began_at = self.loop.time()
        self._outgoing.body_expected = True
        length = values.get(b"content-length")
        self._declared_bytes = None if length is None else int(length)
        self.scope["headers"] = fields
        # keys of Hearth's own beside those of ASGI
        self.scope[DISCONNECTED] = self._disconnected  # type: ignore[literal-required]
        self.scope[CONNECTION] = self.transport  # type: ignore[literal-required]
        self.scope[DATE] = self._date  # type: ignore[literal-required]
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            # uvicorn would close the connection, whatever its caller has asked for
            self.cycle.keep_alive = self.parser.should_keep_alive()
        self.headers = []  # trailers come too late to be fields of the request

    def on_body(self, body: bytes) -> None:
        """A piece of the body; after the answer it is only read so that the answer arrives."""
        self._body_bytes += len(body)
        self._framing_bytes -= len(body)
        super().on_body(body)
        if self.cycle.response_complete and self._body_bytes > _DISCARDED_BYTES:
            self.transport.abort()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._reading = "nothing"
        self._outgoing.body_expected = False
        self._expect_within(None)
        super().on_message_complete()
        self.flow.resume_reading()  # else nobody would see that the caller leaves
        if self._outgoing.lingering:
            self.transport.close()

    def on_response_complete(self) -> None:
        """After an answer the keep-alive timeout of uvicorn takes over."""
        super().on_response_complete()
        if self._unread:
            # one request of a connection in one turn of the loop
            self.loop.call_soon(self._read_on)

    def send_400_response(self, msg: str) -> None:
        """Say in JSON that this is not HTTP, if nothing was said yet; then close.

        A body that breaks off is the end of the connection.
        """
        if self.cycle is None or self.cycle.response_complete:
            self._refuse_with(b"400 Bad Request", msg.rstrip("."))
        else:
            self.transport.abort()

    def _refuse_with(self, status: bytes, error: str) -> None:
        """Answer in place of the application, in JSON, and close."""
        if self._outgoing.lingering:
            self.transport.abort()
            return
        body = json.dumps({"error": error}).encode()
        head = (
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"date: %b\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % (status, len(body), self._date()) + body)
        self._outgoing.body_expected = False
        self.transport.close()

    def _expect_within(self, seconds: float | None) -> None:
        """End the connection unless this is called again within so many seconds; None is for
        ever.
        """
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._read_late)

    def _read_late(self) -> None:
        if self._reading == "body" and self.flow.read_paused and not self._outgoing.lingering:
            # it is the application that does not read
            self._body_began_at += self._deadlines.body_s
            self._expect_within(self._deadlines.body_s)
        elif self._reading == "body" and not self.cycle.response_started:
            self._refuse_with(b"408 Request Timeout", "the body of the request came too slowly")
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """The write buffer is full: from now on the other end has to take something."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """The write buffer has room again."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def _expect_reading(self, more_than_bytes: int | None = None) -> None:
        """Look again and again whether the other end has taken anything, until the write buffer has
        room.
        """
        unsent_bytes = self.transport.get_write_buffer_size()
        if more_than_bytes is not None and unsent_bytes >= more_than_bytes:
            self.transport.abort()
        else:
            self._writing = self.loop.call_later(
                self._deadlines.write_s(), self._expect_reading, unsent_bytes
            )


def unchunked(send: Send) -> Send:
    """What sends an answer to a caller of HTTP/1.0, who cannot read chunks; nginx asks like that
    unless it is configured otherwise.

    A stream ends with the connection. Any other answer without a declared length is sent as a
    whole: half of it would look like all. The connection is kept for a caller who asks for that,
    and is told so.
    """
    cycle: RequestResponseCycle = send.__self__  # type: ignore[attr-defined]  # a bound method
    kept_head: Message | None = None
    parts: list[bytes] = []
    streams = False

    async def send_unchunked(message: Message) -> None:
        nonlocal kept_head, streams
        if message["type"] == "http.response.start":
            fields = dict(message["headers"])
            has_length = b"content-length" in fields
            streams = not has_length and fields.get(b"content-type", b"").startswith(_STREAMS)
            if streams:
                # else uvicorn announces chunks where no length is declared
                cycle.chunked_encoding = False
                cycle.keep_alive = False
            elif cycle.keep_alive and b"connection" not in fields:
                message = _with_header(message, b"connection", b"keep-alive")
            # which have no body to measure
            if not has_length and not streams and message["status"] not in (204, 304):
                kept_head = message
                return
            await send(message)
            return
        if streams:
            # uvicorn refuses a body that is longer or shorter than this. No length was declared:
            # the connection ends where the stream does.
            cycle.expected_content_length = len(message.get("body", b""))
        if kept_head is None:
            await send(message)
            return
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            body = b"".join(parts)
            await send(_with_header(kept_head, b"content-length", b"%d" % len(body)))
            await send({**message, "body": body})

    return send_unchunked


def _with_header(head: Message, name: bytes, value: bytes) -> Message:
    return {**head, "headers": [*head["headers"], (name, value)]}
