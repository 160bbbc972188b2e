"""What a router tells of one load while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus

from hearth.dialects.frames import at, object_in
from hearth.engines.port import Exchange
from hearth.errors import BackendError
from hearth.types import BackendCall

EVENTS = "/models/sse"
MOST_HELD_BYTES = 1024**2
"""Of an event that has not ended yet."""


class LoadEvents:
    """Events about one model, from which the stage of its load is read. They are a help, no more:
    where there are none, the router's list says the same later.

    Attributes:
        stage: what it was loading when it last said so, empty for nothing.
    """

    def __init__(self, model: str) -> None:
        self.stage = ""
        self._model = model
        self._changed = asyncio.Event()

    async def follow(self, open_: Callable[[BackendCall], Awaitable[Exchange]]) -> None:
        """Read the router's events until they end."""
        with suppress(BackendError):
            exchange = await open_(BackendCall(method="GET", path=EVENTS))
            try:
                rest = b""
                while exchange.status == HTTPStatus.OK and (chunks := await exchange.take()):
                    *lines, rest = b"".join((rest, *chunks)).split(b"\n")
                    rest = rest[:MOST_HELD_BYTES]
                    for line in lines:
                        self.take(line)
            finally:
                exchange.close()

    def take(self, line: bytes) -> None:
        """One line of the stream."""
        event = object_in(line.removeprefix(b"data:"))
        if event.get("model") != self._model:
            return
        progress = at(event, ("data", "progress"))
        stage = at(progress, ("current",))
        done = at(progress, ("value",))
        if isinstance(stage, str):
            percent = f" ({done:.0%})" if isinstance(done, float) and 0 <= done <= 1 else ""
            self.stage = f"{stage[:100]}{percent}"
        elif at(event, ("data", "status")) != "loading":
            self._changed.set()

    async def wait(self, at_most_s: float) -> None:
        """Returns when the model's status has changed, or after this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._changed.wait()
        self._changed.clear()
