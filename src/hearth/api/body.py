"""The body of a request, which is read only once nothing else speaks against it: within its limits
of bytes and time, and in a thread where it is long.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from io import BytesIO
from typing import Self, TypeVar

from hearth.admission.admit import Admission
from hearth.admission.limits import BodyRoom
from hearth.api.request import Request
from hearth.dialects.gojson import LARGE_BYTES, check_structure
from hearth.errors import BadRequest, BodyTooLarge, CallerGone, HearthError
from hearth.gateway import Gateway
from hearth.types import MIB, Lane

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

_SMALL_BYTES = 16 * 1024
"""However it is made up, such a body is parsed in a few milliseconds."""
_LONG_BYTES = 64 * 1024
"""Such a body is parsed in a thread, however it is made up."""
_FEW_VALUES = 5_000
"""What the event loop can parse at once: some 5 ms."""
_MAX_DECODED_MIB = 20
"""The model server's own limit of a body that came with `Content-Encoding: zstd`."""
_WINDOW_LOG_MAX = 25
"""A window of 32 MiB: no encoder needs more for so much, and the header of a body says how much
memory is to be taken for it.
"""


class Bodies:
    """The bodies of all requests: how much is held of them, and whose turn it is to be parsed where
    they are large, in each lane.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.room = BodyRoom()
        self.turns = {lane: asyncio.Lock() for lane in Lane}


class RequestBody:
    """The body of one request, as a context that ends when nobody holds the body any more."""

    __slots__ = (
        "_bodies",
        "_cpu_s",
        "_held_bytes",
        "_request",
        "admission",
        "is_large",
        "is_long",
    )

    def __init__(self, bodies: Bodies, request: Request, admission: Admission) -> None:
        self._bodies = bodies
        self._request = request
        self.admission = admission
        self._held_bytes = 0
        self._cpu_s = 0.0
        """What its reading took and is not counted yet."""
        self.is_long = False
        """What is made of it takes so long that it is made in a thread; known once it is parsed."""
        self.is_large = False
        """It is written and hashed in pieces; known then, too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hold(0)
        self.admission.end_turn()

    async def read(self, *, limit_bytes: int = 0) -> bytes:
        """The whole body, decoded; at most `limit_bytes`, 0 for `server.max_body_mib`.

        Raises HearthError.
        """
        max_bytes = int(self._bodies.gateway.settings.server.max_body_mib * MIB)
        too_large = BodyTooLarge(
            f"The request body is larger than {max_bytes / MIB:g} MiB, which is the limit here.",
            remedy="server.max_body_mib",
        )
        if limit_bytes:
            too_large = BodyTooLarge(
                f"The request body is larger than {limit_bytes // 1024} KiB, which is the limit"
                " here."
            )
        body = await self._received(limit_bytes or max_bytes, too_large)
        self.hold(len(body))
        if self._request.headers.text(b"content-encoding").lower() == "zstd":
            body = await self._decoded(body, min(max_bytes, _MAX_DECODED_MIB * MIB))
            self.hold(len(body))
        return body

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, of any length; nothing of it is held."""
        more = True
        while more:
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise CallerGone
            if piece := message.get("body", b""):
                yield piece
            more = message.get("more_body", False)

    async def _received(self, limit_bytes: int, too_large: BodyTooLarge) -> bytes:
        """The declared length may refuse a body before it is read, but is never believed to be
        true.
        """
        declared = self._request.headers.values.get(b"content-length", b"")
        body = BytesIO()  # whose value is no copy, as joined parts would be
        size = int(declared[:20]) if declared.isdigit() else 0
        more = True
        while more and size <= limit_bytes:
            if size > self._held_bytes:
                self.hold(size)
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise CallerGone
            body.write(message.get("body", b""))
            size = body.tell()
            more = message.get("more_body", False)
        if size > limit_bytes:
            raise too_large
        return body.getvalue()

    async def parsed(self, read: Callable[[bytes], T], body: bytes) -> T:
        """What `read` makes of the body: in a thread where it is long.

        Raises what `read` does, BadRequest for JSON of too many values.
        """
        self.is_large = len(body) > LARGE_BYTES
        self.is_long = len(body) > _SMALL_BYTES and (
            len(body) > _LONG_BYTES or check_structure(body) > _FEW_VALUES
        )
        return await self.run(
            partial(_checked, read, body) if self.is_long else partial(read, body)
        )

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` makes of a parsed body; in a thread, one at a time, where that takes long."""
        if self.is_long:
            async with self._bodies.turns[self.admission.lane]:
                self.admission.check_ahead()  # many may have come while it was read and waited
                return await self._in_thread(work)
        try:
            return self._timed(work)
        finally:
            self._count_reading()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(self._timed, work)
        except HearthError:
            self.admission.count_refused()
            raise
        finally:
            self._count_reading()

    def _timed(self, work: Callable[[], T]) -> T:
        """What `work` makes of a body; what it takes counts, whatever comes of it."""
        cpu = self._bodies.gateway.clock.thread_cpu
        began_at = cpu()
        try:
            return work()
        finally:
            self._cpu_s += cpu() - began_at

    def _count_reading(self) -> None:
        self.admission.count_reading(self._cpu_s)
        self._cpu_s = 0.0

    def hold(self, size_bytes: int) -> None:
        """So many bytes are held from now on. Raises NoRoomForBodies."""
        if size_bytes != self._held_bytes:
            server = self._bodies.gateway.settings.server
            # a caller's share is three eighths
            limit_bytes = int(max(server.max_bodies_mib, 3 * server.max_body_mib) * MIB)
            lane = self.admission.lane
            caller = self.admission.identity.caller
            self._bodies.room.take(lane, caller, size_bytes - self._held_bytes, limit_bytes)
            self._held_bytes = size_bytes

    async def _decoded(self, body: bytes, limit_bytes: int) -> bytes:
        """A piece at a time: a few bytes may stand for gigabytes."""
        decompressor = zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
        )
        decoded = BytesIO()
        try:
            while not decompressor.eof:
                piece = await asyncio.to_thread(
                    self._timed, partial(decompressor.decompress, body, MIB)
                )
                body = b""
                self.hold(self._held_bytes + len(piece))
                decoded.write(piece)
                if decoded.tell() > limit_bytes:
                    raise BodyTooLarge(
                        f"the body is longer than {limit_bytes // MIB} MiB after decompression"
                    )
                if not piece and decompressor.needs_input:
                    raise BadRequest("the zstd body is truncated")
        except zstd.ZstdError as error:
            raise BadRequest("the body is not valid zstd") from error
        finally:
            self._count_reading()
        return decoded.getvalue()


def _checked(read: Callable[[bytes], T], body: bytes) -> T:
    check_structure(body)
    return read(body)
