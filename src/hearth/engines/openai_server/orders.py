"""What a server is told to do beside its work.

Each order is carried in a task of its own and ends by itself, answered or timed out, whether or not
anybody still waits: what was begun is not taken back by whoever has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hearth.dialects.gojson import JsonObject, encode
from hearth.engines.openai_server.questions import Questions, Said
from hearth.errors import BackendGone
from hearth.types import JSON_BODY, BackendCall

T = TypeVar("T")


class Orders:
    """The orders to the server that `questions` are asked of; closed before these."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._tasks: set[asyncio.Task[Any]] = set()

    async def send(self, method: str, path: str, fields: JsonObject | None = None) -> Said:
        """What is answered. Raises BackendUnreachable, BackendGone, BackendTimeout."""
        body = b"" if fields is None else encode(fields)
        headers = () if fields is None else JSON_BODY
        call = BackendCall(method=method, path=path, headers=headers, body=body)
        return await self.settled(self.begin(self._questions.whole(call)))

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have something run in a task of its own."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def settled(self, task: asyncio.Task[T]) -> T:
        """Wait for a task, which goes on where whoever waits is cancelled.

        Raises what it raises, and BackendGone where `aclose` has ended it.
        """
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or caller.cancelling():
                raise
            raise BackendGone("The connection to the model server was closed.") from None

    async def aclose(self) -> None:
        """End what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # looked at, so that asyncio does not report it when nobody awaits it any more
            task.exception()
