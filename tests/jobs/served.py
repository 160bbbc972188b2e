"""Lives of a whole gateway over HTTP, one after the other, with one and the same store and an
emulated model server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hearth.config.settings import Settings, StorageSettings
from tests.support.home import FRIEND_KEY, KEYS, Home, house_settings, open_home
from tests.support.http import Got
from tests.support.patience import in_time

T = TypeVar("T")


@dataclass(kw_only=True)
class Life(Home):
    """One process's time with the file; `key` is that of who asks, where a question names none."""

    key: str | None

    async def ask(
        self, method: str, path: str, body: Any = b"", key: str | None = None, **more: Any
    ) -> Got:
        asked = {"key": key or self.key, "content_type": "application/json"} | more
        return await super().ask(method, path, body, **asked)

    async def get(self, path: str, key: str | None = None) -> Got:
        return await self.ask("GET", path, key=key)

    async def shown(self, look: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
        """What `look` shows once that holds; it looks again after every event, also after one that
        came while it looked.
        """
        async with in_time():
            while True:
                self.events.moved.clear()
                if holds(shown := await look()):
                    return shown
                await self.events.moved.wait()

    async def at_work(self) -> None:
        """Returns when the model server has work."""
        async with in_time():
            await self.events.until(lambda: bool(self.gateway.worker.scheduler.gateway.running))


Live = Callable[..., AbstractAsyncContextManager[Life]]


@asynccontextmanager
async def one_life(
    folder: Path, *, keys: bool = False, store: bool = True, **changed: Any
) -> AsyncIterator[Life]:
    """A gateway for the time of the block; settings `changed`."""
    settings: Settings = house_settings().replace(
        storage=StorageSettings(path=str(folder / "hearth.db"), reserve_mib=0), **changed
    )
    settings = settings.replace(auth=settings.auth.replace(keys=KEYS)) if keys else settings
    async with open_home(settings, store=store) as home:
        yield Life(**vars(home), key=FRIEND_KEY if keys else None)


@pytest.fixture
def live(tmp_path: Path) -> Live:
    return partial(one_life, tmp_path)
