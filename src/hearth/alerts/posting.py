"""What sends a post, and one that is made when the first post is sent.

Importing the HTTP client takes a tenth of a start, and most houses start more often than they write to their owner.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Protocol

from hearth.alerts.answers import Answer
from hearth.alerts.payloads import Post


class Poster(Protocol):
    """Sends posts. Never raises but for cancellation."""

    async def post(self, post: Post) -> Answer: ...

    async def aclose(self) -> None: ...


class LatePoster:
    """A `Poster` that is made by `module`'s `HttpPoster` when it is needed; the import is done in a thread."""

    def __init__(self, module: str = "hearth.alerts.poster") -> None:
        self._module = module
        self._poster: Poster | None = None

    async def post(self, post: Post) -> Answer:
        """As the poster does."""
        if self._poster is None:
            loaded = await asyncio.to_thread(importlib.import_module, self._module)
            self._poster = self._poster or loaded.HttpPoster()
        return await self._poster.post(post)

    async def aclose(self) -> None:
        """Close what was opened."""
        if self._poster is not None:
            await self._poster.aclose()
