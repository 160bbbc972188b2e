"""HTTP/1.1 on one connection: uvicorn's h11 protocol, with the deadlines that uvicorn does not have.

A connection is closed when a request's headers take longer than `header_s`, when its body makes no progress for `body_s`, or when the
other end takes nothing from a full write buffer for `write_s`. A closed connection reaches the application as `http.disconnect`, like a
caller who leaves: there is no second path for slow ones. Must never read a request. Used by `api.server`.

uvicorn has no such deadlines (encode/uvicorn issue 157 asks for them); h11 refuses a repeated Host, header blocks above its limit, and
conflicting lengths.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from hearth.api.gathering import GatheringTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long a peer may keep a connection waiting, in seconds; `write_s` is asked for each time, since it can change."""

    write_s: Callable[[], float]
    header_s: float = 10.0
    body_s: float = 30.0


class DeadlineConfig(uvicorn.Config):
    """uvicorn's configuration, carrying the deadlines to each connection."""

    deadlines: Deadlines


class DeadlineProtocol(H11Protocol):
    """One connection."""

    def __init__(
        self,
        config: DeadlineConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._deadlines = config.deadlines
        self._reading: asyncio.TimerHandle | None = None
        self._in_body = False
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn: always a Transport
        """A connection that says nothing is as slow as one that says it slowly."""
        super().connection_made(GatheringTransport(transport, self.loop))
        _send_at_once(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._expect_nothing()
        self._stop_writing_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Progress, or the end of what was waited for."""
        super().data_received(data)
        if not self.transport.is_closing():
            self._expect_more()

    def handle_events(self) -> None:
        """A request broken in the middle of its body is the end of the connection, whatever was answered already."""
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """After an answer the keep-alive timeout of uvicorn takes over."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_more()

    def send_400_response(self, msg: str) -> None:
        """Say in JSON that this is not HTTP, if nothing was said yet; then close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": msg.rstrip(".")}).encode()
            headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect_more(self) -> None:
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._expect_nothing()
            self._in_body = True
            self._reading = self.loop.call_later(self._deadlines.body_s, self._read_late)
        elif state is h11.IDLE and self.timeout_keep_alive_task is None:
            self._expect_headers()
        else:
            self._expect_nothing()

    def _expect_headers(self) -> None:
        """The deadline is for all of them together: more bytes do not move it."""
        if self._in_body or self._reading is None:
            self._expect_nothing()
            self._reading = self.loop.call_later(self._deadlines.header_s, self._read_late)

    def _expect_nothing(self) -> None:
        self._in_body = False
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _read_late(self) -> None:
        self._reading = None
        if self._in_body and self.flow.read_paused:
            self._expect_more()
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


def _send_at_once(transport: asyncio.Transport) -> None:
    """Turn Nagle's algorithm off: it holds each small chunk back until the last one is acknowledged, up to 40 ms.

    asyncio does so only for sockets that were made with the protocol number of TCP, and `socket.create_server` makes them without.
    """
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
