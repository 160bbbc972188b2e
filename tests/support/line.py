"""A connection of the server's without a network, for tests of its protocol."""

from __future__ import annotations

import asyncio

from uvicorn.server import ServerState

from hearth.api.protocol import ConnectionConfig, HttpConnection
from hearth.api.server import HearthServer


class Line(asyncio.Transport):
    """A connection without a network: what is written is kept, and nothing is ever full."""

    def __init__(self, peer: str = "127.0.0.1") -> None:
        super().__init__(
            {"socket": Plug(), "sockname": ("127.0.0.1", 1), "peername": (peer, 50000)}
        )
        self.sent = bytearray()
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    abort = close

    def write_eof(self) -> None:
        """Nothing more is sent; what is read until the client leaves is of no interest."""

    def pause_reading(self) -> None:
        """All is read at once here."""

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0


class Plug:
    """A socket that takes every option."""

    def setsockopt(self, *_: object) -> None:
        """Nothing to set."""

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    getpeername = getsockname


def config_of(server: HearthServer) -> ConnectionConfig:
    """What the connections of a server share."""
    config = server._config()
    config.load()
    return config


class Connected:
    """The server's protocol on a line; `peer` is the address of the other end."""

    def __init__(self, config: ConnectionConfig, peer: str = "127.0.0.1") -> None:
        self.line = Line(peer)
        self.protocol = HttpConnection(config, ServerState(), {})
        self.protocol.connection_made(self.line)
