"""A listener of the dashboard's stream, as the page is one: it keeps a state and patches it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from hearth.admission.auth import Identity
from hearth.api.status_stream import Listener as Who
from hearth.types import Lane, Priority


def someone(caller: str = "owner", *, admin: bool = True) -> Identity:
    return Identity(caller=caller, lane=Lane.EXTERNAL, max_priority=Priority.NORMAL, models=(), admin=admin, authenticated=True)


def guest(caller: str = "owner", *, admin: bool = True) -> Who:
    return Who(identity=someone(caller, admin=admin))


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
