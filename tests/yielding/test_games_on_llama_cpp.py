"""A game beside real llama.cpp servers that Hearth starts and that keep their conversations: it
starts while one is saved, loaded or restored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hearth.config.settings import GatewayConfig
from hearth.events import (
    ConversationRestored,
    ConversationsSaved,
    ConversationUnsaved,
    GpuLeaseGranted,
    SwapCompleted,
    SwapStarted,
)
from hearth.yielding.processes import ProcessScan
from hearth.yielding.watch import ProgramWatch
from tests.engines.llamacpp.gguf import LETTERS, write_model
from tests.engines.processes.house import left
from tests.engines.processes.test_conversations import (
    ONE,
    TURNS,
    TWO,
    Door,
    long,
    open_door,
    run_with,
)
from tests.support.patience import until
from tests.yielding.machine import Machine

REAPER = ("/steam/reaper", "SteamLaunch", "AppId=440", "--", "/steam/game")


def watching(door: Door, machine: Machine) -> ProgramWatch:
    """A watch that looks when it is told to; that of the gateway itself finds no game here."""
    config = door.gateway.config
    under_yield = config.settings.gpu.yielding.model_copy(update={"watch": "games", "grace_s": 0.2})
    gpu = config.settings.gpu.model_copy(update={"yield": under_yield})
    door.gateway.reload(GatewayConfig(settings=config.settings.replace(gpu=gpu)))
    runtime = door.gateway.worker.runtime
    scan = ProcessScan(door.gateway.engines.processes, machine.proc)
    return ProgramWatch(runtime, door.gateway.leases, scan, hidden="")


MOMENTS: dict[str, Callable[[Door], bool]] = {
    "while a conversation is saved": lambda door: len(door.events.of(SwapStarted)) > 1,
    "when it is saved": lambda door: bool(door.events.of(ConversationsSaved)),
    "while a model is loaded": lambda door: len(door.events.of(SwapStarted)) > 2,
    "before a conversation is restored": lambda door: len(door.events.of(SwapCompleted)) > 2,
    "when it is restored": lambda door: bool(door.events.of(ConversationRestored)),
}


@pytest.mark.parametrize("is_moment", MOMENTS.values(), ids=MOMENTS)
async def test_a_game_at_any_moment_of_a_swap_loses_nothing(tmp_path: Path, is_moment):
    file = tmp_path / "letters.gguf"
    write_model(file, tuple(LETTERS))
    machine = Machine(tmp_path / "proc")
    async with open_door(tmp_path, run_with(file)) as door:
        watch = watching(door, machine)
        await door.ask(ONE, long(1))

        async def talk() -> int:
            await door.ask(TWO, long(2))
            _, cached_tokens = await door.ask(ONE, [*long(1), *TURNS])
            return cached_tokens

        talking = asyncio.ensure_future(talk())
        await door.events.until(lambda: is_moment(door))
        machine.start(50, *REAPER)
        await watch.look()
        await door.events.first(GpuLeaseGranted)
        assert left() == set()
        machine.end(50)
        await watch.look()
        cached_tokens = await talking
        await until(lambda: not door.gateway.leases.leases)
        assert cached_tokens > 700
        assert not door.events.of(ConversationUnsaved)
