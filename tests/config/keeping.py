"""A configuration that is kept up to date with a real file, without the rest of a gateway: what the tests of reloading share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from hearth.clock import Clock, SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.loading import load_gateway_config
from hearth.events import ConfigRejected, ConfigReloaded, Event
from hearth.reloading import ConfigInForce, MakeWatch, Reloader

WITHIN_S = 30.0
"""No test takes this long; it only ends one that waits for what never comes."""


def depth(number: int) -> str:
    """A small file that is known by its queue depth."""
    return f"queue:\n  max_external_depth: {number}\n"


class Kept:
    """The configuration in force, and everything that was said about it."""

    def __init__(self, path: Path | None, *, clock: Clock, watching: MakeWatch | None) -> None:
        self.seen: list[Event] = []
        self._changed = asyncio.Event()
        config = GatewayConfig() if path is None else load_gateway_config(path, {})
        self.in_force = ConfigInForce(config, clock=clock, events=self)
        self.reloader = Reloader(in_force=self.in_force, clock=clock, watching=watching)

    def emit(self, event: Event) -> None:
        self.seen.append(event)
        self._changed.set()

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.seen if type(event) is kind]

    @property
    def depth(self) -> int:
        return self.in_force.config.settings.queue.max_external_depth

    async def until(self, condition: Callable[[], object]) -> None:
        """Return as soon as what was said makes the condition true."""
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def rejected(self, count: int = 1) -> tuple[str, ...]:
        """The problems of the file that was refused as number `count`."""
        await self.until(lambda: len(self.of(ConfigRejected)) >= count)
        problems: tuple[str, ...] = self.of(ConfigRejected)[count - 1].problems
        return problems

    async def reloaded(self, number: int) -> None:
        """Return when the depth is in force."""
        await self.until(lambda: self.depth == number and self.of(ConfigReloaded))


@asynccontextmanager
async def keeping(path: Path | None, *, clock: Clock | None = None, watching: MakeWatch | None = None) -> AsyncIterator[Kept]:
    """A configuration that is kept for the time of the block."""
    kept = Kept(path, clock=clock or SystemClock(), watching=watching)
    running = asyncio.create_task(kept.reloader.run())
    try:
        yield kept
    finally:
        kept.reloader.end()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await kept.reloader.close()
