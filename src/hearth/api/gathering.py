"""A transport that sends what was written within one turn of the event loop in one piece.

Each call of the operating system costs more than all that is done to a chunk here, and an answer is written in many small pieces. Bytes
and their order stay as they are; nothing waits longer than the turn in which it was written. Must never look at the bytes. Put in front
of each connection's own transport by `api.protocol`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

SEND_FROM_BYTES = 64 * 1024
"""So much is sent at once, so that the transport's own limit keeps its meaning."""


class GatheringTransport(asyncio.Transport):
    """Stands in front of another transport."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self.is_closing = transport.is_closing  # type: ignore[method-assign]  # asked four times for each request
        self._gathered: list[bytes] = []
        self._size_bytes = 0
        self.lingers: Callable[[], bool] = lambda: False
        """Asked when it is to be closed: whether only sending ends now."""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send the data soon."""
        if not data:
            return
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append(bytes(data))
        self._size_bytes += len(data)
        if self._size_bytes >= SEND_FROM_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send now."""
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered.clear()
            self._size_bytes = 0
            self._send(data)

    def _send(self, data: bytes) -> None:
        if not self.is_closing():  # uvloop's transports raise where asyncio's take no notice
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written, then close; where it `lingers`, only say that nothing more will be sent."""
        self.flush()
        if not self.lingers():
            self._transport.close()
        elif not self.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._gathered.clear()
        self._size_bytes = 0
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Bytes written and not yet sent."""
        return self._size_bytes + self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> Any:  # noqa: ANN401 - the signature is asyncio's
        """As the other transport says."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """As the other transport does."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As the other transport does."""
        self._transport.resume_reading()
