"""One soak: traffic, faults and looks at the gateway, side by side in real time."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import aiohttp

from tests.soak.callers import Callers, End
from tests.soak.faults import FAULTS, House, rehearsal
from tests.soak.gateway import Gateway
from tests.soak.verdict import Sample
from tests.soak.wire import ModelServer

RATE_PER_S = 20.0
LOOK_EVERY_S = 1.0
REST_WITHIN_S = 300.0
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long, and how often something goes wrong; all in seconds.

    First the warm-up, so often a second and with every fault once; then nobody asks for `idle_s`; then the traffic that is judged, with
    faults that last `fault_s` and must be healed `healed_s` after that.
    """

    warm_up_s: float
    warm_up_per_s: float
    rehearsed_s: float
    idle_s: float
    seconds: float
    fault_every_s: float
    fault_s: float
    healed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """One fault, in seconds of the monotonic clock."""

    name: str
    began_at: float
    ended_at: float


class Soak:
    """One run, and what was seen of it.

    Attributes:
        idle: a look every second while nobody asked; samples: the same under traffic; before, after: the looks at rest.
    """

    def __init__(self, plan: Plan, gateway: Gateway, server: ModelServer, session: aiohttp.ClientSession, *, seed: int) -> None:
        self.gateway = gateway
        self.callers = Callers(gateway.url, session, random.Random(seed))
        self.idle: list[Sample] = []
        self.samples: list[Sample] = []
        self.faults: list[Bad] = []
        self.before: Sample
        self.after: Sample
        self._house = House(server=server, session=session, config=gateway.config, lasts_s=plan.fault_s)
        self._plan = plan
        self._first_fault = seed % len(FAULTS)
        self._began_at = time.monotonic()

    async def run(self) -> None:
        plan = self._plan
        async with asyncio.TaskGroup() as group:
            group.create_task(self.callers.call(plan.warm_up_per_s, plan.warm_up_s))
            group.create_task(rehearsal(self._house, plan.rehearsed_s))
        self.before = await self._rest()
        async with _beside(self._watch(self.idle)):
            await asyncio.sleep(plan.idle_s)
        self._began_at = time.monotonic()
        async with _beside(self._watch(self.samples)), asyncio.TaskGroup() as group:
            group.create_task(self.callers.call(RATE_PER_S, plan.seconds))
            group.create_task(self._misfortunes())
        self.after = await self._rest()

    async def _misfortunes(self) -> None:
        plan = self._plan
        count = int(plan.seconds / plan.fault_every_s)
        for number, (name, fault) in enumerate(islice(cycle(FAULTS.items()), self._first_fault, self._first_fault + count)):
            await asyncio.sleep(max(0.0, self._began_at + number * plan.fault_every_s - time.monotonic()))
            began_at = time.monotonic()
            await fault(self._house)
            self.faults.append(Bad(name=name, began_at=began_at, ended_at=time.monotonic()))

    async def _watch(self, samples: list[Sample]) -> None:
        while True:
            samples.append(await self._look())
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> Sample:
        return await self.gateway.look(at=time.monotonic() - self._began_at, asked=self.callers.asked)

    async def _rest(self) -> Sample:
        """Nobody asks, nothing runs, no connection to the model server is open: what is left is the gateway's own."""
        await self.callers.answered()
        await self.gateway.idle(within_s=REST_WITHIN_S)
        self._house.server.hang_up()
        await asyncio.sleep(SETTLE_S)
        return await self._look()

    def unhealed(self) -> list[str]:
        """Requests that failed though the last fault was long over and the next had not begun, and faults after which nothing went."""
        found = []
        beginnings = [*(bad.began_at for bad in self.faults[1:]), time.monotonic()]
        for bad, next_at in zip(self.faults, beginnings, strict=True):
            calm_at = bad.ended_at + self._plan.healed_s
            calm = [ended for ended in self.callers.ends if calm_at <= ended.asked_at and ended.ended_at < next_at]
            found += [f"after '{bad.name}': {ended}" for ended in calm if ended.end not in (End.WHOLE, End.LEFT)]
            if not any(ended.end is End.WHOLE for ended in calm):
                found.append(f"nothing was answered after '{bad.name}'")
        return found

    def broken(self) -> list[str]:
        """What no caller must ever see."""
        return [str(ended) for ended in self.callers.ends if ended.end is End.BROKEN]

    async def jobs(self) -> Counter[str]:
        """How the jobs that were accepted have ended."""
        return Counter([(await self.gateway.told(f"/llm/jobs/{job}"))["state"] for job in self.callers.jobs])


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While the block lasts; what breaks beside it breaks the test."""
    task = asyncio.ensure_future(work)
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
