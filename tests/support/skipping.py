"""Time that passes for the timers of a real event loop, so that a test waits for no time limit."""

from __future__ import annotations

import asyncio


def skip(seconds: float) -> None:
    """Have the timers of the running loop, one of Python's own, go off so many seconds earlier."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, asyncio.BaseEventLoop)
    before = loop.time
    vars(loop)["time"] = lambda: before() + seconds
