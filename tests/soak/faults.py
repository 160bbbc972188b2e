"""What happens to the model server, one bad minute after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from hearth.errors import HearthError
from tests.soak.wire import HOME, SECOND, ModelServer, Weather

STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What a fault may touch, and how long it lasts."""

    server: ModelServer
    session: aiohttp.ClientSession
    config: Path
    lasts_s: float


Fault = Callable[[House], Awaitable[None]]


async def dies(house: House) -> None:
    """Gone, connections and memory with it; comes back empty."""
    await house.server.die()
    await asyncio.sleep(house.lasts_s)
    await house.server.come_back()


async def crashes(house: House) -> None:
    """The process of the loaded model dies, again and again."""
    for _ in range(STEPS):
        for model in house.server.emulator.resident:
            house.server.emulator.kill_runner(model)
        await asyncio.sleep(house.lasts_s / STEPS)


async def is_used_by_another(house: House) -> None:
    """Somebody takes models out and loads others, behind the gateway's back."""
    for step in range(STEPS):
        for model, keep in ((HOME, 0), (SECOND, 0), ((HOME, SECOND)[step % 2], -1)):
            body = {"model": model, "keep_alive": keep, "stream": False}
            with suppress(aiohttp.ClientError, TimeoutError, HearthError):
                async with asyncio.timeout(house.lasts_s), house.session.post(f"{house.server.url}/api/generate", json=body) as answer:
                    await answer.read()
        await asyncio.sleep(house.lasts_s / STEPS)


async def gets_a_bad_owner(house: House) -> None:
    """The configuration is saved with mistakes in it, then restored, again and again."""
    good = house.config.read_text()
    for step in range(STEPS):
        house.config.write_text(good + "nonsense: [" if step % 2 else good.replace("parallel: 4", "parallel: 3"))
        await asyncio.sleep(house.lasts_s / STEPS)
    house.config.write_text(good)


def turns(weather: Weather) -> Fault:
    """Bad weather on the wire for a while."""

    async def fault(house: House) -> None:
        house.server.become(weather)
        await asyncio.sleep(house.lasts_s)
        house.server.become(Weather.FINE)

    return fault


FAULTS: dict[str, Fault] = {
    "dies": dies,
    "hangs": turns(Weather.HUNG),
    "refuses": turns(Weather.BUSY),
    "breaks off": turns(Weather.BREAKING),
    "garbles": turns(Weather.GARBLED),
    "crawls": turns(Weather.CRAWLING),
    "crashes": crashes,
    "is used by another": is_used_by_another,
    "gets a bad owner": gets_a_bad_owner,
}


async def rehearsal(house: House, lasts_s: float) -> None:
    """Every fault once: what the gateway needs for each of them only once is there afterwards."""
    for fault in FAULTS.values():
        await fault(replace(house, lasts_s=lasts_s))
        await asyncio.sleep(lasts_s)
