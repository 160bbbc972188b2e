"""Processes that tests start: none outlives its test, however that ends."""

from __future__ import annotations

import asyncio
import ctypes
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


def die_with_parent() -> None:
    """To be called in the new process: not even a test that is killed leaves it running
    (PR_SET_PDEATHSIG of Linux).
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@asynccontextmanager
async def started(*command: str, **how: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process for the time of the block; what has not ended by then is killed.

    `how`: as for `create_subprocess_exec`.
    """
    process = await asyncio.create_subprocess_exec(*command, preexec_fn=die_with_parent, **how)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
