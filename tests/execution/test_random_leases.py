"""Leases at random beside requests at random, over a card that is lost now and then: programs take
their memory as soon as it is granted, and it has to be there.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from hearth.errors import CardTaken
from hearth.events import GpuLeaseEnded, GpuLeaseLate, GpuLeaseTaken
from hearth.types import GpuReading
from tests.execution.test_gpu_watch import GIB, TOTAL_MIB, CardHouse, FakeCard, model
from tests.support.house import heard, settings_with, text_of
from tests.support.virtual_time import run_virtual, sleep_until

MODELS = {"a": 9.0, "b": 6.0, "c": 4.0, "d": 14.0}
PLAY_S = 600.0
DESKTOP_MIB = 600.0
WORDS = 12


class LostCard(FakeCard):
    """Lost for a while now and then."""

    random = Random()

    async def read(self) -> GpuReading:
        reading = await super().read()
        self.fault = self.random.choice([None] * 40 + ["gpu_lost"])
        return reading


class Play(CardHouse):
    """One game of chance. `broken`: what should not have happened."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        card = {"names": seed % 3 > 0, "foreign_mib": DESKTOP_MIB, "random": self.random}
        super().__init__(
            *[replace(model(name, gib), parallel=2) for name, gib in MODELS.items()],
            resident="a",
            settings=settings_with(
                queue={"max_external_depth": 500},
                gpu={"parallel": 2, "sample_interval_s": self.random.choice([1.0, 5.0])},
            ),
            card_type=LostCard,
            card=card,
        )
        self.held_mib: dict[str, float] = {}
        self.broken: list[str] = []

    async def play(self) -> None:
        others = asyncio.gather(self._take_leases(), self._look())
        asks = []
        while self.now < PLAY_S:
            await asyncio.sleep(self.random.expovariate(0.3))
            asks.append(asyncio.ensure_future(self._ask()))
        await others
        await asyncio.gather(*asks)

    async def _ask(self) -> None:
        ticket = self.submit(
            self.random.choice([*MODELS]),
            stream=True,
            ways=("replayed",),
            service_s=self.random.uniform(0.2, 8.0),
            chunks=WORDS,
        )
        said, error = await heard(ticket)
        is_whole = len(text_of(said).split()) == WORDS
        if error is None and not is_whole:
            self.broken.append(f"{ticket.sequence} is not whole")
        if error is not None and (said or not isinstance(error, CardTaken)):
            self.broken.append(f"{ticket.sequence}: {error!r} after {said!r}")

    async def _take_leases(self) -> None:
        uses = []
        while self.now < PLAY_S:
            await asyncio.sleep(self.random.expovariate(0.05))
            uses.append(asyncio.ensure_future(self._use_card()))
        await asyncio.gather(*uses)

    async def _use_card(self) -> None:
        """One program: asks, takes what it is granted, and gives it back."""
        leases = self.gateway.leases
        mib = self.random.choice([None, 2.0, 6.0, 11.0, 18.0])
        lease = leases.take(
            reason="?",
            source="api",
            mib=mib and mib * GIB,
            for_s=self.random.choice([None, 200.0]),
        )
        is_granted = await leases.wait_granted(lease.id, self.random.uniform(0.0, 40.0))
        if is_granted:
            left_mib = TOTAL_MIB - DESKTOP_MIB - sum(self.held_mib.values())
            self.held_mib[lease.id] = min(left_mib, (mib or 24.0) * GIB)
            self.card.foreign_mib = DESKTOP_MIB + sum(self.held_mib.values())
            await asyncio.sleep(self.random.uniform(0.0, 60.0))
            del self.held_mib[lease.id]
            self.card.foreign_mib = DESKTOP_MIB + sum(self.held_mib.values())
        leases.end(lease.id, "released")

    async def _look(self) -> None:
        """Do models and other programs fit, at each instant?"""
        while self.now < PLAY_S:
            await asyncio.sleep(0.1)
            models_mib = sum(self.ollama.gpu.taken_mib(self.now))
            if models_mib + self.card.foreign_mib > TOTAL_MIB + 1.0:
                self.broken.append(f"at {self.now:.1f} s: {models_mib:.0f} MiB of models")


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_memory_that_is_granted_is_there(seed: int):
    async def scenario() -> None:
        async with Play(seed) as house:
            await house.play()
            await sleep_until(house.now + 120.0)
            assert house.broken == []
            assert house.events.of(GpuLeaseLate) == []
            taken = [event.lease_id for event in house.events.of(GpuLeaseTaken)]
            ended = [event.lease_id for event in house.events.of(GpuLeaseEnded)]
            assert sorted(taken) == sorted(ended)

    run_virtual(scenario, seed=seed)
