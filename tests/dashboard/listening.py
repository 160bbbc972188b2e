"""A listener of the dashboard's stream, as the page is one: it keeps a state and patches it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hearth.admission.auth import Identity
from hearth.api.dashboard.feed import DashboardFeed
from hearth.api.status_stream import Listener as Who
from hearth.gateway import Gateway
from hearth.types import Lane, Priority


def guest(caller: str = "owner", *, admin: bool = True) -> Who:
    rights: dict[str, Any] = {"lane": Lane.EXTERNAL, "max_priority": Priority.NORMAL, "models": (), "authenticated": True}
    return Who(identity=Identity(caller=caller, admin=admin, **rights))


def applied(state: Any, patch: Any) -> Any:
    """RFC 7386, section 2, as it stands there."""
    if not isinstance(patch, dict):
        return patch
    result = dict(state) if isinstance(state, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = applied(result.get(key), value)
    return result


class Listener:
    """Reads frames for as long as it is asked to."""

    def __init__(self, frames: AsyncGenerator[bytes]) -> None:
        self._frames = frames
        self.state: Any = None
        self.now = 0.0
        self.said: list[bytes] = []
        self.kinds: list[str] = []
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for frame in self._frames:
            self.said.append(frame)
            self._take(frame.decode())

    def _take(self, frame: str) -> None:
        assert frame.endswith("\n\n")
        if frame.startswith(":"):
            self.kinds.append("heartbeat")
            return
        kind, data = frame.removesuffix("\n\n").split("\n")
        message = json.loads(data.removeprefix("data: "))
        self.now = message["now"]
        self.kinds.append(kind.removeprefix("event: "))
        self.state = message["state"] if "state" in message else applied(self.state, message["patch"])

    @property
    def sizes(self) -> list[int]:
        return [len(frame) for frame in self.said]

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._frames.aclose()


@asynccontextmanager
async def watching(gateway: Gateway, caller: str = "owner", *, admin: bool = True) -> AsyncIterator[Listener]:
    """A page of its own feed, for the time of the block."""
    page = Listener(DashboardFeed(gateway).frames(guest(caller, admin=admin)))
    yield page
    await page.leave()
