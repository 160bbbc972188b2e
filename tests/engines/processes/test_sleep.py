"""Servers that commands of the owner put to sleep and wake."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from hearth.config.engines import RunSettings
from hearth.errors import LoadError, ModelGone
from hearth.types import LoadOptions
from tests.engines.openai_server.scripted import post
from tests.engines.processes.house import House, house, odd

MODEL = "odd"
UNPINNED = LoadOptions()
NOTE = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + chr(10)); print('noted')"


def hooked(folder: Path, **settings: object) -> RunSettings:
    """Each command notes its name, the model and the port in a file."""
    noting = [sys.executable, "-I", "-S", "-c", NOTE, str(folder / "notes")]
    hooks = {name: [*noting, f"{name} ${{MODEL}}"] for name in ("sleep_command", "wake_command")}
    return odd(**{**hooks, **settings})


async def resident(home: House) -> list[str]:
    return [model.name for model in await home.engine.resident()]


async def test_a_model_sleeps_and_wakes_by_commands(tmp_path: Path):
    async with house({MODEL: hooked(tmp_path)}) as home:
        engine = home.engine
        assert engine.sleeps(MODEL) == ("offload",)
        with pytest.raises(LoadError, match="does not run"):
            await engine.sleep(MODEL, "offload")
        await engine.load(MODEL, UNPINNED)
        run = engine.servers[MODEL].ready
        await engine.sleep(MODEL, "offload")
        assert (await resident(home), dict(engine.asleep())) == ([], {MODEL: "offload"})
        with pytest.raises(ModelGone):
            await engine.open(post("/v1/completions", MODEL, prompt="a", stream=True))
        await engine.load(MODEL, UNPINNED)
        assert (await resident(home), dict(engine.asleep())) == ([MODEL], {})
        assert engine.servers[MODEL].ready is run
        notes = (tmp_path / "notes").read_text().splitlines()
        assert notes == [f"sleep_command {MODEL}", f"wake_command {MODEL}"]
        assert "noted" in engine.log_after(MODEL, 0)[0]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["/no/such/program"], "program could not be started: No such file"),
        ([sys.executable, "-c", "raise SystemExit(3)"], "ended with exit code 3"),
        ([sys.executable, "-c", "import time; time.sleep(600)"], "did not end within 0.5 s"),
    ],
)
async def test_a_command_that_fails_says_how(tmp_path: Path, command: list[str], says: str):
    run = hooked(tmp_path, wake_command=command, sleep_timeout_s=0.5)
    async with house({MODEL: run}) as home:
        await home.engine.load(MODEL, UNPINNED)
        await home.engine.sleep(MODEL, "offload")
        with pytest.raises(LoadError, match=says):
            await home.engine.load(MODEL, UNPINNED)
        await home.engine.unload(MODEL)
        assert dict(home.engine.asleep()) == {}
        await home.engine.load(MODEL, UNPINNED)
        assert await resident(home) == [MODEL]


async def test_a_wake_that_is_given_up_leaves_no_process(tmp_path: Path):
    says = "import os, time; print('waking by', os.getpid(), flush=True); time.sleep(600)"
    command = [sys.executable, "-c", says]
    async with house({MODEL: hooked(tmp_path, wake_command=command)}) as home:
        await home.engine.load(MODEL, UNPINNED)
        await home.engine.sleep(MODEL, "offload")
        waking = asyncio.ensure_future(home.engine.load(MODEL, UNPINNED))
        said: list[str] = []
        while not said:
            await asyncio.sleep(0.01)
            said = re.findall(r"waking by (\d+)", " ".join(home.engine.log_after(MODEL, 0)[0]))
        waking.cancel()
        await asyncio.gather(waking, return_exceptions=True)
        with pytest.raises(ProcessLookupError):
            os.kill(int(said[0]), 0)


async def test_one_that_ends_asleep_sleeps_no_more_and_is_started_anew(tmp_path: Path):
    async with house({MODEL: hooked(tmp_path)}) as home:
        await home.engine.load(MODEL, UNPINNED)
        await home.engine.sleep(MODEL, "offload")
        await home.ask(MODEL, "/exit")
        while home.engine.asleep():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await home.engine.load(MODEL, UNPINNED)
        assert await resident(home) == [MODEL]
