"""Which event loop a process that serves runs on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.patience import WITHIN_S

PROGRAM = """
import asyncio
from hearth.bootstrap.serving import run

async def main():
    loop = asyncio.get_running_loop()
    print(type(loop).__module__.partition(".")[0], loop.get_debug())

run(main())
"""


def loop_of(*flags: str, **environ: str) -> str:
    """The package of the loop, and whether it is in debug mode."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") or name == "PYTHONPATH"}
    command = [sys.executable, *flags, "-c", PROGRAM]
    return subprocess.run(command, env={**plain, **environ}, capture_output=True, text=True, check=True, timeout=WITHIN_S).stdout.strip()


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not made for it")
def test_a_process_that_serves_runs_on_uvloop() -> None:
    assert loop_of() == "uvloop False"
    assert loop_of(PYTHONASYNCIODEBUG="") == "uvloop False"
    assert loop_of("-E", PYTHONASYNCIODEBUG="1") == "uvloop False"


def test_debug_mode_is_asyncios_own() -> None:
    """On uvloop's, a stack trace may run in circles until the memory is full (decision 14)."""
    assert loop_of("-X", "dev") == "asyncio True"
    assert loop_of(PYTHONASYNCIODEBUG="1") == "asyncio True"
    assert loop_of(PYTHONDEVMODE="1") == "asyncio True"
