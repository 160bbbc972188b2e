"""A bounded wait for something that a real socket server does on its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.patience import WITHIN_S


async def until(condition: Callable[[], object], *, within_s: float = WITHIN_S) -> None:
    """Return once `condition()` is true; raises `TimeoutError` after `within_s`."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the server under test has no event for what a test waits for
            await asyncio.sleep(0.001)
