"""The queue's status as server-sent events: the whole status on every change, at most ten times a second, a heartbeat when nothing moves.

Changes are coalesced, and nothing is kept for a slow reader.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from hearth.admission.auth import Identity, Keyring
from hearth.api.request import Request
from hearth.config.settings import AuthSettings
from hearth.errors import CapacityError, HearthError
from hearth.execution.runtime import next_of
from hearth.queue.worker import LLMQueueWorker

MIN_INTERVAL_S = 0.1
HEARTBEAT_S = 15.0
MAX_SUBSCRIBERS = 64
MAX_OF_ONE = 16
"""Streams that one caller may have, or one peer where there are no keys."""
ADMIN_ROOM = 8
"""So many are left for admins."""
_HEARTBEAT = b": still here\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who listens; `may_stay` says whether the key still lets it in, with the same rights, under other settings."""

    identity: Identity
    peer: str | None = None
    may_stay: Callable[[AuthSettings], bool] = lambda _: True

    @property
    def share(self) -> tuple[str, str | None]:
        """Whose share of the streams this one counts against."""
        return self.identity.caller, None if self.identity.authenticated else self.peer


def listener_of(request: Request, identity: Identity) -> Listener:
    """Whoever has sent a request."""

    def may_stay(auth: AuthSettings) -> bool:
        try:
            return Keyring(auth).identify(request.headers, request.peer) == identity
        except HearthError:
            return False

    return Listener(identity=identity, peer=request.peer, may_stay=may_stay)


class Listeners:
    """The open streams of one kind: each listener has a share, and each stream an event that ends it."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Event, Listener] = {}
        self._ended = False

    def __len__(self) -> int:
        return len(self._open)

    def check_room(self, listener: Listener) -> None:
        """Raises CapacityError where this listener may not have one more."""
        if Counter(each.share for each in self._open.values())[listener.share] >= MAX_OF_ONE:
            raise CapacityError(f"this caller has {MAX_OF_ONE} such streams open already; close one")
        if len(self._open) >= MAX_SUBSCRIBERS - (0 if listener.identity.admin else ADMIN_ROOM):
            raise CapacityError(f"{len(self._open)} such streams are open already; try again later")

    def add(self, listener: Listener) -> asyncio.Event:
        """A stream that begins; it ends when the event is set, at once where many have come since `check_room`."""
        ended = asyncio.Event()
        try:
            self.check_room(listener)
        except CapacityError:
            ended.set()
        if self._ended:
            ended.set()
        self._open[ended] = listener
        return ended

    def remove(self, ended: asyncio.Event) -> None:
        """A stream has ended."""
        self._open.pop(ended, None)

    def reconsider(self, auth: AuthSettings) -> None:
        """Other keys are in force: end the streams of those that were removed, or have other rights now."""
        for ended, listener in self._open.items():
            if not listener.may_stay(auth):
                ended.set()

    def end(self) -> None:
        """End all streams, now and in the future."""
        self._ended = True
        for ended in self._open:
            ended.set()


class StatusStream:
    """Feeds every subscriber from the worker's own change counter."""

    def __init__(self, worker: LLMQueueWorker) -> None:
        self._worker = worker
        self.listeners = Listeners()

    async def frames(self, listener: Listener) -> AsyncGenerator[bytes]:
        """SSE frames for `EventSource.onmessage`: `get_status()` as JSON, first the present one; comments as heartbeats."""
        over = self.listeners.add(listener)
        changes = aiter(self._worker.changes())
        ended = asyncio.ensure_future(over.wait())
        change = asyncio.ensure_future(next_of(changes))
        try:
            while True:
                await asyncio.wait({ended, change}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return
                if not change.done():
                    yield _HEARTBEAT
                    continue
                if not change.result():
                    return
                yield self._status()
                await asyncio.wait({ended}, timeout=MIN_INTERVAL_S)
                change = asyncio.ensure_future(next_of(changes))
        finally:
            self.listeners.remove(over)
            change.cancel()
            ended.cancel()

    def _status(self) -> bytes:
        text = json.dumps(self._worker.get_status(), separators=(",", ":"), ensure_ascii=False)
        return b"data: " + text.encode() + b"\n\n"
