"""When Python collects its garbage: fully, only while nobody waits.

A full collection looks at every object there is. With ten thousand callers held that stops the event loop for 0.1 to 0.6 s, and Python
starts one whenever it pleases, most likely while callers pour in. Here the young generations are collected as ever; the old one when the
house is idle, or when it has not been idle for very long. Concerns the whole process, so only `hearth serve` does it.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

LOOK_EVERY_S = 10.0
AT_LEAST_EVERY_S = 3600.0
"""Without an idle moment for so long, callers have to wait for a collection once."""
_NEVER = 1_000_000_000


@asynccontextmanager
async def housekeeping(busy: Callable[[], bool]) -> AsyncIterator[None]:
    """Within the block Python starts no full collection by itself, and does not look again at what exists now.

    Args:
        busy: is anybody waiting or being served?
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds[:2], _NEVER)
    collecting = asyncio.create_task(collect_when_idle(busy, gc.collect), name="housekeeping")
    try:
        yield
    finally:
        collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def collect_when_idle(busy: Callable[[], bool], collect: Callable[[], object]) -> None:
    """Look now and then until cancelled; one collection after work is enough."""
    loop = asyncio.get_running_loop()
    collected_at, worked = loop.time(), True
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        worked = worked or busy()
        overdue = loop.time() - collected_at >= AT_LEAST_EVERY_S
        if worked and (overdue or not busy()):
            collect()
            collected_at, worked = loop.time(), busy()
