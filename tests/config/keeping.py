"""A configuration that is kept up to date with a real file, without the rest of a gateway: what the
tests of reloading share.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from hearth.clock import Clock, SystemClock
from hearth.config.loading import load_gateway_config
from hearth.config.reload import ConfigInForce, MakeWatch, Reloader
from hearth.config.settings import GatewayConfig
from hearth.events import ConfigReloaded
from tests.support.recorder import Recorder


def depth(number: int) -> str:
    """A small file that is known by its queue depth."""
    return f"queue:\n  max_external_depth: {number}\n"


class Kept(Recorder):
    """The configuration in force, and everything that was said about it."""

    def __init__(self, path: Path | None, *, clock: Clock, watching: MakeWatch | None) -> None:
        super().__init__()
        config = GatewayConfig() if path is None else load_gateway_config(path, {})
        self.in_force = ConfigInForce(config, clock=clock, events=self)
        self.reloader = Reloader(in_force=self.in_force, clock=clock, watching=watching)

    @property
    def depth(self) -> int:
        return self.in_force.config.settings.queue.max_external_depth

    async def reloaded(self, number: int) -> None:
        """Return when the depth is in force."""
        await self.until(lambda: self.depth == number and self.of(ConfigReloaded))


@asynccontextmanager
async def keeping(
    path: Path | None, *, clock: Clock | None = None, watching: MakeWatch | None = None
) -> AsyncIterator[Kept]:
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
