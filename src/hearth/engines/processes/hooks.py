"""The commands that put a running server to sleep and wake it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from hearth.engines.processes.log import ProcessLog
from hearth.engines.processes.tree import exit_words
from hearth.errors import LoadError
from hearth.subprocesses import kill_session

MOST_OUTPUT_BYTES = 64 * 1024


async def run_hook(
    words: Sequence[str], env: Mapping[str, str], *, timeout_s: float, log: ProcessLog
) -> None:
    """Returns once the command has ended with exit code 0. Cancelling it kills the command, with
    all that it has started in its session. Raises LoadError.
    """
    name = words[0].rpartition("/")[2]
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise LoadError(f"{name} could not be started: {error.strerror}: {words[0]}") from error
    try:
        async with asyncio.timeout(timeout_s):
            await _read(process, log)
            code = await process.wait()
    except TimeoutError as error:
        raise LoadError(f"{name} did not end within {timeout_s:g} s") from error
    finally:
        await kill_session(process)
    if code:
        raise LoadError(f"{name} {exit_words(code)}")


async def _read(process: asyncio.subprocess.Process, log: ProcessLog) -> None:
    """What it writes belongs to the log of its server."""
    output = process.stdout
    while output is not None and (data := await output.read(MOST_OUTPUT_BYTES)):
        log.feed(data)
