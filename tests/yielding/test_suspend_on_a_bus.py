"""A whole gateway over sockets on a machine whose logind is a stand-in on a private bus: a stream
outlives a sleep.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
import uvloop

from hearth.backends.logind import ADDRESS_VARIABLE
from hearth.config.scheduler_settings import YieldSettings
from hearth.events import ItemYielded, MachineWoke, SuspendPrepared
from tests.support.fake_logind import FakeLogind, needs_bus, private_bus
from tests.support.home import (
    LONG,
    SLOW,
    WIDE,
    Home,
    SkippingClock,
    house_settings,
    new_emulator,
    open_home,
)
from tests.support.patience import in_time, until

pytestmark = needs_bus

ASKED = {**LONG, "seed": 7}
AT_ONCE = WIDE.model_copy(update={"yield": YieldSettings(grace_s=0.0)})


async def streamed(home: Home, heard: asyncio.Event) -> str:
    """The text of an answer; `heard` once its first words are there."""
    asked = {"model": SLOW, "prompt": "Say much.", "options": ASKED}
    text = ""
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(f"{home.url}/api/generate", json=asked) as got,
    ):
        async for line in got.content:
            text += json.loads(line)["response"]
            heard.set()
    return text


async def ended(stream: asyncio.Task[str], clock: SkippingClock) -> str:
    """What the model server writes at once, whenever it begins to."""

    def is_done() -> bool:
        clock.skip(3600.0)
        return stream.done()

    await until(is_done)
    return await stream


async def sleep_within_a_stream(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_time(), private_bus(folder) as address:
        monkeypatch.setenv(ADDRESS_VARIABLE, address)
        logind = FakeLogind(address, delay_s=60.0)
        await logind.start()
        clock = SkippingClock()
        async with open_home(house_settings(gpu=AT_ONCE), new_emulator(clock)) as home:
            await logind.until_held()
            alone = asyncio.create_task(streamed(home, asyncio.Event()))
            expected = await ended(alone, clock)
            heard = asyncio.Event()
            stream = asyncio.create_task(streamed(home, heard))
            await heard.wait()
            logind.announce(sleep=True)
            await logind.until_let_go()
            assert len(home.events.of(ItemYielded)) == 1
            assert home.gateway.worker.runtime.view.residents == {}
            logind.announce(sleep=False)
            assert await ended(stream, clock) == expected
            await logind.until_held(2)
            assert [event.freed for event in home.events.of(SuspendPrepared)] == [True]
            assert len(home.events.of(MachineWoke)) == 1
        await logind.until_let_go()
        await logind.stop()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_stream_outlives_a_sleep_that_logind_announces(
    tmp_path, monkeypatch, new_loop: Callable[[], asyncio.AbstractEventLoop]
):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(sleep_within_a_stream(tmp_path, monkeypatch))
