"""One answer on its way from a running attempt to its caller: a head once, then chunks, then an end or an error.

One producer (the executor), one consumer (the HTTP route or an in-process caller), both on the same event loop. The producer never
waits while less than `limit_bytes` are unread, so a model's slot is not held by a slow reader until that much has piled up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hearth.errors import CallerGone, HearthError
from hearth.types import Headers, value


@value
class ReplyHead:
    """Status and end-to-end headers of an answer."""

    status: int
    headers: Headers


class Reply:
    """The pipe. Everything but the three `async` methods is immediate and may be called from callbacks."""

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._head: ReplyHead | None = None
        self._chunks: list[bytes] = []
        self._unread_bytes = 0
        self._error: HearthError | None = None
        self._ended = False
        self._abandoned = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self.cost_usd = 0.0
        """What the answer has cost in money, known when it is complete."""

    @property
    def started(self) -> bool:
        """The head has been handed over: the attempt can no longer be redone without the caller noticing."""
        return self._head is not None

    @property
    def ended(self) -> bool:
        """The answer is complete, failed, or its caller has gone."""
        return self._ended or self._abandoned

    @property
    def complete(self) -> bool:
        """The whole answer has been handed over."""
        return self._ended and self._error is None

    @property
    def unread_bytes(self) -> int:
        """Bytes pushed and not yet taken."""
        return self._unread_bytes

    @property
    def full(self) -> bool:
        """The limit is unread: time to wait for the reader."""
        return self._unread_bytes >= self._limit_bytes

    def start(self, head: ReplyHead) -> None:
        """Hand over the head; the first one counts."""
        if self._head is None:
            self._head = head
            _wake(self._reader)

    def push(self, chunk: bytes) -> None:
        """Add a chunk, keeping its boundaries. Ignored once the answer has ended."""
        if chunk:
            self.push_all((chunk,))

    def push_all(self, chunks: tuple[bytes, ...]) -> None:
        """Add chunks, none of them empty."""
        if self._ended or self._abandoned:
            return
        self._chunks.extend(chunks)
        self._unread_bytes += sum(map(len, chunks))
        _wake(self._reader)

    def finish(self) -> None:
        """The answer is complete."""
        self._ended = True
        _wake(self._reader)
        _wake(self._writer)

    def fail(self, error: HearthError) -> None:
        """The answer ends with an error, delivered after what was pushed. The first ending counts."""
        if not self._ended:
            self._error = error
            self.finish()

    def abandon(self) -> None:
        """The caller has gone: drop what is unread and let the producer run on into nothing until it is stopped."""
        self._abandoned = True
        self._chunks.clear()
        self._unread_bytes = 0
        _wake(self._writer)
        _wake(self._reader)

    async def writable(self) -> None:
        """Wait until less than the limit is unread."""
        while self.full and not self.ended:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def head(self) -> ReplyHead:
        """The head, as soon as there is one.

        Raises:
            HearthError: the answer failed before it began.
        """
        while self._head is None:
            if self.ended:
                raise self._broken()
            await self._news()
        return self._head

    async def take(self) -> tuple[bytes, ...]:
        """All unread chunks, at least one; empty at the end of a complete answer.

        Raises:
            HearthError: the answer broke off after the chunks taken so far.
        """
        while not self._chunks:
            if self.ended:
                if self._error is not None or self._abandoned:
                    raise self._broken()
                return ()
            await self._news()
        chunks = tuple(self._chunks)
        self._chunks.clear()
        self._unread_bytes = 0
        _wake(self._writer)
        return chunks

    async def body(self) -> bytes:
        """The whole rest of the answer. Raises HearthError as `take` does."""
        parts: list[bytes] = []
        while chunks := await self.take():
            parts.extend(chunks)
        return b"".join(parts)

    def whole(self) -> tuple[ReplyHead, bytes]:
        """Head and unread body of an answer that has ended.

        Raises:
            HearthError: as it ended.
        """
        if self._head is None or self._error is not None:
            raise self._broken()
        return self._head, b"".join(self._chunks)

    def _broken(self) -> HearthError:
        """What to raise; each time another, since one that is raised comes to know this reply."""
        return CallerGone() if self._error is None else self._error.again()

    def _news(self) -> asyncio.Future[None]:
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader


class WatchedReply(Reply):
    """A reply that tells when its caller has gone, so that whoever serves callers need not know who serves this one."""

    def __init__(self, *, limit_bytes: int, on_abandon: Callable[[], object]) -> None:
        super().__init__(limit_bytes=limit_bytes)
        self._on_abandon = on_abandon

    def abandon(self) -> None:
        """The caller has gone."""
        super().abandon()
        self._on_abandon()


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
