"""The event loop of a process that serves: uvloop's where it can be had, which takes less time for each turn than Python's own.

Everything else runs on either. uvloop tells the time in whole milliseconds. In debug mode (`python -X dev`, PYTHONASYNCIODEBUG) the loop is
Python's own: uvloop's asks for the running frame when that may be half made (cpython issue 96975, in Python 3.11); the stack is a ring
then, and whoever follows it never ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

if sys.platform == "win32":  # uvloop is not made for it
    from asyncio import new_event_loop as new_fast_loop
else:
    from uvloop import new_event_loop as new_fast_loop

T = TypeVar("T")
SWITCH_S = 0.0005
"""A thread that computes has the interpreter for so long. With Python's 5 ms, each of the loop's calls waits that long while one does."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop of its own, as `asyncio.run` does."""
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = new_fast_loop()
    if not loop.get_debug():
        return loop
    loop.close()
    return asyncio.new_event_loop()
