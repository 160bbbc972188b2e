"""Which event loop a process that serves runs on: uvloop, and asyncio's own in debug mode (decision
14).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from tests.support.patience import WITHIN_S

PROGRAM = (
    "import asyncio; from hearth.bootstrap.process import run; from "
    "tests.bootstrap.test_loop import shown; print(run(shown()))"
)


async def shown() -> str:
    """The package of the loop, and whether it is in debug mode."""
    loop = asyncio.get_running_loop()
    return f"{type(loop).__module__.partition('.')[0]} {loop.get_debug()}"


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not made for it")
@pytest.mark.parametrize(
    ("flags", "debug", "loop"),
    [
        ((), "", "uvloop False"),
        ((), "1", "asyncio True"),
        (("-E",), "1", "uvloop False"),
        (("-X", "dev"), "", "asyncio True"),
    ],
)
def test_the_environment_and_pythons_own_flags_decide(
    flags: tuple[str, ...], debug: str, loop: str
):
    command = [sys.executable, *flags, "-c", PROGRAM]
    environ = {**os.environ, "PYTHONASYNCIODEBUG": debug}
    assert (
        subprocess.run(
            command, env=environ, capture_output=True, text=True, check=True, timeout=WITHIN_S
        ).stdout.strip()
        == loop
    )
