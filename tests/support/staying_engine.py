"""Engines whose models are there for as long as they listen: nothing is loaded or unloaded."""

from __future__ import annotations

from hearth.errors import BackendUnreachable, LoadError
from hearth.types import BackendCall, InstalledModel, LoadOptions, ResidentModel
from tests.support.echo_engine import Echo, EchoEngine
from tests.support.fake_ollama import FakeOllama

SIZE_MIB = 2048.0


class StayingEngine(EchoEngine):
    """Has its models until it goes down. `asked`: the bodies of its calls."""

    title = "Staying"
    loads_on_request = False
    ignores_case = False

    def __init__(self, *models: str, slots: int | None = None, on_card: bool = True) -> None:
        super().__init__(*models)
        self.on_card = on_card
        self.is_down = False
        self.asked: list[bytes] = []
        self.set_models(*models, slots=slots)

    def set_models(self, *models: str, slots: int | None = None) -> None:
        self._installed = tuple(
            InstalledModel(name=name, digest=name, slots=slots) for name in models
        )
        self._resident = dict.fromkeys(models, LoadOptions())

    def canonical(self, name: str) -> str:
        return name

    async def open(self, call: BackendCall) -> Echo:
        self.asked.append(call.body)
        return await super().open(call)

    async def resident(self) -> tuple[ResidentModel, ...]:
        self._reach()
        return tuple(
            ResidentModel(name=each.name, size_mib=SIZE_MIB, vram_mib=SIZE_MIB)
            for each in self._installed
        )

    async def load(self, model: str, options: LoadOptions) -> None:
        raise AssertionError(f"{model} was to be loaded")

    async def unload(self, model: str) -> None:
        raise LoadError(f"{model} was to be unloaded")

    def _reach(self) -> None:
        if self.is_down:
            raise BackendUnreachable
        super()._reach()


class StayingOllama(FakeOllama):
    """The same with the answers, the outages and the log of calls of the fake Ollama."""

    loads_on_request = False

    def come_up(self) -> None:
        super().come_up()
        for model in self.gpu.models:
            self.appear(model)
