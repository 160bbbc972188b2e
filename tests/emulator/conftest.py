from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from hearth.clock import SystemClock
from hearth.emulator import EmulatedModel, Emulator, load_profiles
from tests.emulator.callers import Caller
from tests.emulator.captures import CAPTURES

StartEmulator = Callable[..., Awaitable[tuple[Emulator, str]]]
Emulated = Callable[..., Awaitable[tuple[Emulator, Caller]]]


def toys(*names: str) -> list[EmulatedModel]:
    models = load_profiles((CAPTURES / "models.yaml").read_text())
    return [model for model in models if not names or model.name in names]


@pytest.fixture
async def start_emulator() -> AsyncIterator[StartEmulator]:
    """Starts emulators on free ports; all of them are stopped after the test."""
    async with AsyncExitStack() as stack:

        async def start(profiles: Any, **settings: Any) -> tuple[Emulator, str]:
            emulator = Emulator(profiles, clock=SystemClock(), seed=1, **settings)
            stack.push_async_callback(emulator.stop)
            return emulator, await emulator.start()

        yield start


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
def emulated(start_emulator: StartEmulator, session: aiohttp.ClientSession) -> Emulated:
    """Starts emulators of models, and gives a caller of each."""

    async def start(*models: EmulatedModel, **settings: Any) -> tuple[Emulator, Caller]:
        emulator, url = await start_emulator(models, **settings)
        return emulator, Caller(session, url)

    return start
