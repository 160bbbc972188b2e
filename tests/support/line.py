"""A connection of the server's without a network, for tests of its protocol."""

from __future__ import annotations

import asyncio
from typing import Any


class Line(asyncio.Transport):
    """A connection without a network: what is written is kept, and nothing is ever full."""

    def __init__(self, plug: Any) -> None:
        super().__init__(
            {"socket": plug, "sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)}
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
