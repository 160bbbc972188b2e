"""Lives of a whole gateway, one after the other, with one and the same store and an emulated model server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from hearth.bootstrap import build_gateway
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BackendMode, Settings, StorageSettings
from hearth.gateway import Gateway
from tests.clients.home import KEYS, house_settings, new_emulator
from tests.jobs.house import Moves
from tests.support.patience import WITHIN_S

T = TypeVar("T")


@asynccontextmanager
async def one_life(folder: Path, *, keys: bool = False, store: bool = True, **changed: Any) -> AsyncIterator[tuple[Gateway, Moves]]:
    """A gateway for the time of the block, and what tells that something happened in it; settings `changed`."""
    settings: Settings = house_settings().replace(storage=StorageSettings(path=str(folder / "hearth.db"), reserve_mib=0), **changed)
    config = GatewayConfig(settings=settings.replace(auth=settings.auth.replace(keys=KEYS)) if keys else settings)
    emulator, moves = new_emulator(), Moves()
    url = await emulator.start("127.0.0.1", 0)
    async with await build_gateway(config, backend_mode=BackendMode.OLLAMA, ollama_url=url, store=store, sinks=(moves,)) as gateway:
        yield gateway, moves
        await gateway.stop(0.0)
    await emulator.stop()


async def shown_once(moves: Moves, look: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """What `look` shows once that holds; it looks again after every event, also after one that came while it looked."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            moves.moved.clear()
            if holds(shown := await look()):
                return shown
            await moves.moved.wait()
