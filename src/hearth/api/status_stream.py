"""Status as server-sent events: a frame when something has changed, at most so often, and a
heartbeat when nothing moves.

Changes are coalesced, and nothing is kept for a slow reader.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import field
from typing import Any, Protocol

from fastapi.responses import StreamingResponse

from hearth.admission.auth import Identity, Keyring
from hearth.admission.http_checks import RequestHeaders
from hearth.api.request import Request
from hearth.config.settings import AuthSettings
from hearth.errors import CapacityError, HearthError
from hearth.execution.tasks import next_of
from hearth.queue.worker import LLMQueueWorker
from hearth.types import frozen

MIN_INTERVAL_S = 0.1
HEARTBEAT_S = 15.0
MAX_SUBSCRIBERS = 64
MAX_OF_ONE = 16
"""Streams that one caller may have, or one peer where there are no keys."""
ADMIN_ROOM = 8
"""So many are left for admins."""
_HEARTBEAT = b": still here\n\n"

_SSE_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

Look = Callable[[bool], Awaitable[tuple[bytes | None, bool]]]
"""Takes whether something has changed; gives a frame, where there is one to send, and whether to
look again soon.
"""


@frozen
class Listener:
    """Who listens."""

    identity: Identity
    peer: str | None = None
    headers: RequestHeaders = field(default_factory=lambda: RequestHeaders.of(()))

    @property
    def share(self) -> tuple[str, str | None]:
        """Whose share of the streams this one counts against."""
        return self.identity.caller, None if self.identity.authenticated else self.peer

    def may_stay(self, keyring: Keyring) -> bool:
        """Whether these keys still let it in, with the same rights."""
        try:
            return keyring.identify(self.headers, self.peer) == self.identity
        except HearthError:
            return False


class Listeners:
    """The open streams of one kind: each listener has a share, and each stream an event that ends
    it.
    """

    def __init__(self) -> None:
        self._open: dict[asyncio.Event, Listener] = {}
        self.ended = False
        """The gateway stops."""

    def __len__(self) -> int:
        return len(self._open)

    def check_room(self, listener: Listener) -> None:
        """Raises CapacityError where this listener may not have one more."""
        if Counter(each.share for each in self._open.values())[listener.share] >= MAX_OF_ONE:
            raise CapacityError(f"this caller has {MAX_OF_ONE} such streams open; close one")
        if len(self._open) >= MAX_SUBSCRIBERS - (0 if listener.identity.admin else ADMIN_ROOM):
            raise CapacityError(f"{len(self._open)} such streams are open; try again later")

    async def frames(
        self,
        listener: Listener,
        streams: Sequence[AsyncIterator[int]],
        look: Look,
        interval_s: Callable[[], float],
        look_every_s: float,
    ) -> AsyncGenerator[bytes]:
        """What is sent to one listener: `look` at every change of these streams, the present state
        first, and now and then without one.
        """
        over = self.add(listener)
        signs: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(next_of(stream)) for stream in streams
        ]
        ended = asyncio.ensure_future(over.wait())
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        again = False
        try:
            while True:
                await asyncio.wait(
                    {ended, *signs},
                    timeout=0 if again else look_every_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                changed = [index for index, sign in enumerate(signs) if sign.done()]
                if ended.done() or not all(signs[index].result() for index in changed):
                    return
                for index in changed:
                    signs[index] = asyncio.ensure_future(next_of(streams[index]))
                frame, again = await look(bool(changed))
                if frame is None and loop.time() - sent_at >= HEARTBEAT_S:
                    frame = _HEARTBEAT
                if frame is not None:
                    yield frame
                    sent_at = loop.time()
                await asyncio.wait({ended}, timeout=interval_s())
        finally:
            self._open.pop(over, None)
            for waiting in (ended, *signs):
                waiting.cancel()

    def add(self, listener: Listener) -> asyncio.Event:
        """A stream that begins; it ends when the event is set, at once where many have come since
        `check_room`.
        """
        over = asyncio.Event()
        try:
            self.check_room(listener)
            if self.ended:
                over.set()
        except CapacityError:
            over.set()
        self._open[over] = listener
        return over

    def reconsider(self, auth: AuthSettings) -> None:
        """Other keys are in force: end the streams of those that were removed, or have other rights
        now.
        """
        keyring = Keyring(auth)
        for over, listener in self._open.items():
            if not listener.may_stay(keyring):
                over.set()

    def end(self) -> None:
        """End all streams, now and in the future."""
        self.ended = True
        for over in self._open:
            over.set()


class Feed(Protocol):
    """What sends events to each that listens."""

    listeners: Listeners

    def frames(self, listener: Listener) -> AsyncGenerator[bytes]: ...


def event_stream(feed: Feed, request: Request, identity: Identity) -> StreamingResponse:
    """The answer that sends them. Raises CapacityError when too many listen."""
    listener = Listener(identity=identity, peer=request.peer, headers=request.headers)
    feed.listeners.check_room(listener)
    return StreamingResponse(
        feed.frames(listener), media_type="text/event-stream", headers=_SSE_HEADERS
    )


class StatusStream:
    """The whole status of the queue, for `EventSource.onmessage`."""

    def __init__(self, worker: LLMQueueWorker) -> None:
        self._worker = worker
        self.listeners = Listeners()

    def frames(self, listener: Listener) -> AsyncGenerator[bytes]:
        """`get_status()` as JSON, first the present one; comments as heartbeats."""
        return self.listeners.frames(
            listener, [self._worker.changes()], self._look, lambda: MIN_INTERVAL_S, HEARTBEAT_S
        )

    async def _look(self, changed: bool) -> tuple[bytes | None, bool]:  # noqa: FBT001
        if not changed:
            return None, False
        text = json.dumps(self._worker.get_status(), separators=(",", ":"), ensure_ascii=False)
        return b"data: " + text.encode() + b"\n\n", False
