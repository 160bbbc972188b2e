"""Runs a command of the owner's: without a shell, in a session of its own, for a bounded time."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL
from collections.abc import Sequence

from hearth.subprocesses import kill_session


async def run_command(command: Sequence[str], timeout_s: float) -> str:
    """How it failed, empty where it did not. What it writes is dropped, since that may be secret;
    what it has started ends with it where it takes too long, as far as we may end it.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
        )
    except (OSError, ValueError) as error:
        return f"could not be started ({getattr(error, 'strerror', None) or 'invalid argument'})"
    try:
        async with asyncio.timeout(timeout_s):
            code = await process.wait()
    except TimeoutError:
        return f"took longer than {timeout_s:g} s"
    finally:
        await kill_session(process)
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended with {code}" if code else ""
