"""A house with a card: the gateway over a fake Ollama in virtual time, and a card whose memory is what that Ollama's models take."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hearth.config.settings import ModelSettings, Settings
from hearth.errors import GpuFault, GpuUnavailable
from hearth.execution.gpu_watch import GpuWatch
from hearth.scheduling.inputs import GpuSampled, Input
from hearth.types import GpuProcess, GpuReading
from tests.support.fake_ollama import FakeModel
from tests.worker.house import House, settings_with

GIB = 1024.0
TOTAL_MIB = 24 * GIB


class FakeCard:
    """A `GpuReader` over the memory of a fake Ollama.

    Attributes:
        gpu: whose memory it is.
        foreign_mib: what other programs hold.
        names: whether the driver names processes; else only sums are known, as in a container.
        reserved_mib: what the driver keeps for itself.
        overhead_mib: what each model takes beside what Ollama says.
        fault: while set, there is no reading.
        hangs: while set, a reading never ends.
        reads: the instants of all readings.
    """

    def __init__(self, house: House) -> None:
        self.gpu = house.ollama.gpu
        self.names = True
        self.total_mib: float | None = TOTAL_MIB
        self.reserved_mib = 0.0
        self.overhead_mib = 0.0
        self.foreign_mib = 0.0
        self.temperature_c: float | None = 50.0
        self.fault: GpuFault | None = None
        self.hangs = False
        self.reads: list[float] = []

    async def read(self) -> GpuReading:
        self.reads.append(asyncio.get_running_loop().time())
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
        if self.fault is not None:
            raise GpuUnavailable(self.fault, "it is gone")
        own = [self.gpu.models[name].vram_mib + self.overhead_mib for name in self.gpu._occupants]
        return GpuReading(
            name="Fake 3090",
            total_mib=self.total_mib,
            used_mib=sum(own) + self.foreign_mib,
            reserved_mib=self.reserved_mib,
            processes=self._processes(own) if self.names else None,
            utilisation_pct=3.14159,
            temperature_c=self.temperature_c,
            throttle_reasons=(),
        )

    def _processes(self, own: list[float]) -> tuple[GpuProcess, ...]:
        models = [GpuProcess(pid=100 + n, name="/usr/lib/ollama/llama-server", used_mib=mib) for n, mib in enumerate(own)]
        return (*models, GpuProcess(pid=7, name="/usr/bin/game", used_mib=self.foreign_mib))


class CardHouse(House):
    """As `House`; `card` is read from the start, `told` is what the scheduler was told of it.

    Args:
        card: attributes of the card, from before the first reading.
    """

    def __init__(self, *models: str | FakeModel, card: dict[str, Any] | None = None, **wanted: Any) -> None:
        super().__init__(*models, **{"capacity_mib": TOTAL_MIB} | wanted)
        self.card = FakeCard(self)
        for name, value in (card or {}).items():
            setattr(self.card, name, value)
        self.told: list[GpuSampled] = []
        gateway = self.gateway
        watch = GpuWatch(replace(gateway.worker.runtime, post=self._post), self.card, self.ollama)
        gateway.accompany("gpu watch", watch.run)

    def _post(self, fact: Input) -> None:
        assert isinstance(fact, GpuSampled)
        self.told.append(fact)
        self.gateway.worker.post(fact)

    def orders(self) -> list[str]:
        """What Ollama was told to do with models."""
        return [f"{call.kind} {call.model}" for call in self.ollama.control]


def model(name: str, gib: float) -> FakeModel:
    return FakeModel(name=name, vram_mib=gib * GIB)


def sized(**gib: float) -> Settings:
    """Settings that know the sizes of models and nothing of the card."""
    return settings_with().replace(models={name: ModelSettings(vram_gb=size) for name, size in gib.items()})
