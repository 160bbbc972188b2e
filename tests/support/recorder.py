"""The event sink of the tests: keeps everything, and can be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from hearth.events import Event

E = TypeVar("E", bound=Event)


class Recorder:
    """`all` that happened, in order; `moved` is set with every event."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self.moved = asyncio.Event()

    def emit(self, event: Event) -> None:
        self.all.append(event)
        self.moved.set()

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.all if isinstance(event, kind)]

    async def until(self, holds: Callable[[], object]) -> None:
        """Return as soon as it holds; looked at after every event."""
        while not holds():
            self.moved.clear()
            await self.moved.wait()

    async def first(self, kind: type[E]) -> E:
        await self.until(lambda: self.of(kind))
        return self.of(kind)[0]
