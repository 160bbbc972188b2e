"""How long a test waits in real time.

No bound on how fast anything is: it only ends a test that waits for what never comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

WITHIN_S = 600.0


def in_time() -> asyncio.Timeout:
    """For the time of the block, which fails where it takes longer than anything may."""
    return asyncio.timeout(WITHIN_S)


async def within_limit(what: Awaitable[T]) -> T:
    """What it gives; fails where that takes longer than anything may."""
    return await asyncio.wait_for(what, WITHIN_S)


async def for_ever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


async def until(condition: Callable[[], object]) -> None:
    """Return once `condition()` is true of what a real server does on its own time; raises
    `TimeoutError` where it is not in time.
    """
    async with asyncio.timeout(WITHIN_S):
        # the server under test has no event for what a test waits for
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
