"""Lives of a whole gateway over HTTP, one after the other, with one and the same store and an emulated model server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import openai
import pytest

from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.bootstrap import build_gateway
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BackendMode, Settings, StorageSettings
from hearth.gateway import Gateway
from tests.api.house import Got, ask
from tests.clients.home import FRIEND_KEY, KEYS, house_settings, new_emulator
from tests.support.patience import WITHIN_S
from tests.support.recorder import Recorder

T = TypeVar("T")


@dataclass(kw_only=True)
class Life:
    """One process's time with the file; `key` is that of who asks, where a question names none."""

    app: HearthApp
    gateway: Gateway
    events: Recorder
    url: str
    key: str | None

    async def ask(self, method: str, path: str, body: Any = b"", key: str | None = None, **headers: str) -> Got:
        return await ask(self.app, method, path, body, key=key or self.key, **{"content_type": "application/json"} | headers)

    async def get(self, path: str, key: str | None = None) -> Got:
        return await self.ask("GET", path, key=key)

    def client(self, key: str = "x") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    async def shown(self, look: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
        """What `look` shows once that holds; it looks again after every event, also after one that came while it looked."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                self.events.moved.clear()
                if holds(shown := await look()):
                    return shown
                await self.events.moved.wait()

    async def running(self) -> None:
        """Returns when the model server has work."""
        async with asyncio.timeout(WITHIN_S):
            await self.events.until(lambda: bool(self.gateway.worker.scheduler.state.running))


Live = Callable[..., AbstractAsyncContextManager[Life]]


@asynccontextmanager
async def one_life(folder: Path, *, keys: bool = False, store: bool = True, **changed: Any) -> AsyncIterator[Life]:
    """A gateway for the time of the block; settings `changed`."""
    settings: Settings = house_settings().replace(storage=StorageSettings(path=str(folder / "hearth.db"), reserve_mib=0), **changed)
    config = GatewayConfig(settings=settings.replace(auth=settings.auth.replace(keys=KEYS)) if keys else settings)
    emulator, events = new_emulator(), Recorder()
    url = await emulator.start("127.0.0.1", 0)
    async with await build_gateway(config, backend_mode=BackendMode.OLLAMA, ollama_url=url, store=store, sinks=(events,)) as gateway:
        app = HearthApp(gateway)
        server = HearthServer(app, lambda: gateway.config.settings.server)
        url = await server.start("127.0.0.1", 0)
        yield Life(app=app, gateway=gateway, events=events, url=url, key=FRIEND_KEY if keys else None)
        await gateway.stop(0.0)
        await server.stop(0.1)
    await emulator.stop()


@pytest.fixture
def live(tmp_path: Path) -> Live:
    return partial(one_life, tmp_path)
