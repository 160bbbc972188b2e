"""Waiting for the end of a command that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def until_stopped(seconds: float | None = None) -> None:
    """Return at the first SIGINT or SIGTERM, or after `seconds`; None waits for a signal only."""
    with _stop_event() as stop:
        try:
            await asyncio.wait_for(stop.wait(), seconds)
        except TimeoutError:
            return


@contextmanager
def _stop_event() -> Iterator[asyncio.Event]:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
