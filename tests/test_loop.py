"""Which event loop a process that serves runs on: uvloop, and asyncio's own in debug mode (decision 14)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from hearth.bootstrap.serving import run
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S

PROGRAM = "import asyncio; from hearth.bootstrap.serving import run; from tests.test_loop import shown; print(run(shown()))"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not made for it")


async def shown() -> str:
    """The package of the loop, and whether it is in debug mode."""
    loop = asyncio.get_running_loop()
    return f"{type(loop).__module__.partition('.')[0]} {loop.get_debug()}"


@for_each(("debug", "loop"), [("", "uvloop False"), ("1", "asyncio True")])
def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch, debug: str, loop: str) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", debug)
    interval_s = sys.getswitchinterval()
    try:
        assert run(shown()) == loop
    finally:
        sys.setswitchinterval(interval_s)


@for_each(("flags", "loop"), [(("-E",), "uvloop False"), (("-X", "dev"), "asyncio True")])
def test_so_do_pythons_own_flags(flags: tuple[str, ...], loop: str) -> None:
    environ = {**os.environ, "PYTHONASYNCIODEBUG": "1"} if "-E" in flags else {**os.environ, "PYTHONASYNCIODEBUG": ""}
    command = [sys.executable, *flags, "-c", PROGRAM]
    said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=WITHIN_S).stdout
    assert said.strip() == loop
