"""How a command that Hearth runs in a session of its own is ended."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress

KILLED_WITHIN_S = 2.0
"""What was killed is waited for, so that nothing of it is left; what may not be killed, no longer
than this.
"""


async def kill_session(leader: Process) -> None:
    """Kill a process, where it has not ended, with all that it has started in its session.

    What runs as another user, as under sudo, may not be killed by us, and runs on.
    """
    if leader.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(KILLED_WITHIN_S):
            await leader.wait()
