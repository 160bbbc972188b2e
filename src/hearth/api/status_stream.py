"""The queue's status as server-sent events: the whole status on every change, at most ten times a second, a heartbeat when nothing moves.

Must never hold up a shutdown or the queue: changes are coalesced, and nothing is kept for a slow reader. Called by `api.control`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from hearth.changes import next_of
from hearth.errors import CapacityError
from hearth.queue import LLMQueueWorker

MIN_INTERVAL_S = 0.1
HEARTBEAT_S = 15.0
MAX_SUBSCRIBERS = 64
_HEARTBEAT = b": still here\n\n"


class StatusStream:
    """Feeds every subscriber from the worker's own change counter."""

    def __init__(self, worker: LLMQueueWorker) -> None:
        self._worker = worker
        self._ended = asyncio.Event()
        self._subscribers = 0

    def end(self) -> None:
        """End all streams, now and in the future."""
        self._ended.set()

    def check_room(self) -> None:
        """Raises CapacityError when `MAX_SUBSCRIBERS` are listening."""
        if self._subscribers >= MAX_SUBSCRIBERS:
            raise CapacityError(f"{MAX_SUBSCRIBERS} status streams are open already")

    async def frames(self) -> AsyncGenerator[bytes]:
        """SSE frames: `event: status` with `get_status()` as JSON, first the present one; comments as heartbeats."""
        self._subscribers += 1
        changes = aiter(self._worker.changes())
        ended = asyncio.ensure_future(self._ended.wait())
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
            self._subscribers -= 1
            change.cancel()
            ended.cancel()

    def _status(self) -> bytes:
        text = json.dumps(self._worker.get_status(), separators=(",", ":"), ensure_ascii=False)
        return b"event: status\ndata: " + text.encode() + b"\n\n"
