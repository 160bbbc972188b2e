"""A listener of the dashboard's stream, as the page is one: it keeps a state and patches it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hearth.admission.auth import Identity
from hearth.api.dashboard.feed import DashboardFeed
from hearth.api.status_stream import Listener
from hearth.gateway import Gateway
from hearth.types import Lane, Priority
from tests.support.fields import Fields


def guest(caller: str = "owner", *, admin: bool = True) -> Listener:
    rights: Fields = {
        "lane": Lane.EXTERNAL,
        "max_priority": Priority.NORMAL,
        "models": (),
        "authenticated": True,
    }
    return Listener(identity=Identity(caller=caller, admin=admin, **rights))


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


class Page:
    """Reads frames for as long as it is asked to."""

    def __init__(self, feed: DashboardFeed, who: Listener) -> None:
        self._frames = feed.frames(who)
        self.state: Any = None
        self.now = 0.0
        self.frames: list[bytes] = []
        self.kinds: list[str] = []
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for frame in self._frames:
            self.frames.append(frame)
            assert frame.endswith(b"\n\n")
            if frame.startswith(b":"):
                self.kinds.append("heartbeat")
                continue
            kind, data = frame.decode().removesuffix("\n\n").split("\n")
            message = json.loads(data.removeprefix("data: "))
            self.now = message["now"]
            self.kinds.append(kind.removeprefix("event: "))
            self.state = (
                message["state"] if "state" in message else applied(self.state, message["patch"])
            )


@asynccontextmanager
async def watching(
    gateway: Gateway,
    caller: str = "owner",
    *,
    admin: bool = True,
    feed: DashboardFeed | None = None,
) -> AsyncIterator[Page]:
    """A page for the time of the block, of its own feed where none is given."""
    page = Page(feed or DashboardFeed(gateway), guest(caller, admin=admin))
    yield page
    page.reading.cancel()
    await asyncio.wait({page.reading})
    await page._frames.aclose()
