"""The server's protocol in virtual time, on a line without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from uvicorn.server import ServerState

from hearth.api.protocol import Deadlines, HttpConnection
from hearth.api.server import HearthServer
from hearth.config.settings import ServerSettings
from tests.api.house import FakeGateway, Serve, hello
from tests.support.line import Line, Plug
from tests.support.virtual_time import sleep_until

HEADER_S, BODY_S, WRITE_S = 10.0, 30.0, 7.0
A_MOMENT_S = 0.001


class Clogged(Line):
    """A line whose other end takes what the test says."""

    unsent_bytes = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    gateway: FakeGateway
    protocol: HttpConnection
    line: Clogged

    async def open_until(self, instant: float) -> bool:
        """Whether the connection ends at this instant and not before."""
        await sleep_until(instant - A_MOMENT_S)
        open_before = not self.line.ended
        await sleep_until(instant + A_MOMENT_S)
        return open_before and self.line.ended

    def clog(self, unsent_bytes: int = 1000) -> None:
        """The other end takes nothing any more."""
        self.line.unsent_bytes = unsent_bytes
        self.protocol.pause_writing()


@asynccontextmanager
async def connection(serve: Serve = hello, sent: bytes = b"") -> AsyncIterator[Connection]:
    """One that was made at time 0, and on which this came at once."""
    gateway, line = FakeGateway(), Clogged(Plug())
    gateway.worker.serve = serve
    deadlines = Deadlines(header_s=HEADER_S, body_s=BODY_S, write_s=lambda: WRITE_S)
    config = HearthServer(gateway.app(), ServerSettings, deadlines=deadlines)._config()
    config.load()
    protocol = HttpConnection(config, ServerState(), {})
    protocol.connection_made(line)
    protocol.data_received(sent)
    yield Connection(gateway=gateway, protocol=protocol, line=line)
    protocol.connection_lost(None)
    await gateway.worker.aclose()
