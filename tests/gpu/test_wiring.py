"""The assembled gateway reads the card of its machine, through the real binding, unless its answers are made up or its owner says no."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hearth.bootstrap import build_gateway
from hearth.clock import SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BackendMode, GpuSettings, Settings
from hearth.emulator import Emulator
from hearth.emulator.models import default_profiles
from hearth.events import GpuFound
from tests.gpu.stub_driver import UUID, StubDriver
from tests.support.patience import WITHIN_S
from tests.support.recorder import Recorder


@asynccontextmanager
async def gateway_status(gpu: GpuSettings, mode: BackendMode, events: Recorder) -> AsyncIterator[dict[str, Any]]:
    """The `gpu` part of the status once the first reading is in, where there is one to wait for."""
    emulator = Emulator(default_profiles(), clock=SystemClock())
    url = await emulator.start("127.0.0.1", 0)
    try:
        config = GatewayConfig(settings=Settings(gpu=gpu))
        async with await build_gateway(config, backend_mode=mode, ollama_url=url, sinks=(events,)) as gateway:
            async with asyncio.timeout(WITHIN_S):
                async for _ in gateway.worker.changes():
                    shown: Any = gateway.worker.get_status()["gpu"]
                    if shown["readings"] != "unknown":
                        break
            yield shown
    finally:
        await emulator.stop()
        give_back_the_driver()


def give_back_the_driver() -> None:
    """Its thread does so when it comes to it, and must not come to it in the next test."""
    for thread in threading.enumerate():
        if thread.name == "gpu reader":
            thread.join(30.0)


async def test_a_gateway_before_an_ollama_shows_the_card_of_its_machine(driver: StubDriver):
    events = Recorder()
    async with gateway_status(GpuSettings(home_model="", device=UUID), BackendMode.OLLAMA, events) as shown:
        assert (shown["readings"], shown["device"], shown["memory_used_mib"]) == ("ok", "NVIDIA GeForce RTX 3090", 9000.0)
        assert shown["foreign_mib"] == 808.0
        assert [event.total_mib for event in events.of(GpuFound)] == [24576.0]
        assert driver.sessions == 1


async def test_an_emulator_computes_on_no_card_of_this_machine(driver: StubDriver):
    async with gateway_status(GpuSettings(home_model=""), BackendMode.EMULATOR, Recorder()) as shown:
        assert (shown["readings"], shown["device"], shown["memory_total_mib"]) == ("off", None, None)
    assert driver.calls == []


async def test_an_owner_can_keep_hearth_off_the_card(driver: StubDriver):
    async with gateway_status(GpuSettings(home_model="", nvml=False), BackendMode.OLLAMA, Recorder()) as shown:
        assert (shown["readings"], shown["device"]) == ("off", None)
    assert driver.calls == []
