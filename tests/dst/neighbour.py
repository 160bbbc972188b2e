"""A model server that somebody else uses too: models come and go behind the gateway's back, and the server makes room as Ollama does.

Ollama loads what a request needs and drops idle models for it. For the gateway's own loads and calls that is a broken rule (it has to
unload first, and to load before it asks), except where it cannot know yet: until it has looked.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from hearth.types import BackendCall, LoadOptions, canonical_model
from tests.support.fake_exchange import CallRecord
from tests.support.fake_gpu import FakeModel, Occupant, Place
from tests.support.fake_ollama import FakeOllama, LoadFault, Service, service_asked_for


class SharedOllama(FakeOllama):
    """`FakeOllama` with a neighbour.

    Attributes:
        believed: what the gateway takes to be in memory, or on its way in.
        came, went: how often the neighbour has had his way.
    """

    def __init__(
        self,
        *models: FakeModel,
        capacity_mib: float | None = None,
        service: Callable[[BackendCall], Service] = service_asked_for,
    ) -> None:
        super().__init__(*models, capacity_mib=capacity_mib, service=service)
        self.came = self.went = 0
        self.believed: Callable[[], frozenset[str]] = frozenset
        self._capacity_mib = capacity_mib

    def bring(self, model: str) -> None:
        """The neighbour asks for a model; where nothing that is busy is in the way, it is there at once."""
        name = canonical_model(model)
        if self._down or self.gpu.place(name) is not None or not self._make_room(name, spare=lambda _: False):
            return
        self.came += 1
        self.appear(name)

    def take_away(self, model: str) -> None:
        """The neighbour unloads a model that nobody computes on."""
        name = canonical_model(model)
        if self.gpu.place(name) is Place.LOADED and not self.gpu.in_flight[name]:
            self.went += 1
            self.vanish(name)

    def _begin_load(self, model: str, options: LoadOptions, timeout_s: float, fault: LoadFault | None) -> asyncio.Future[None]:
        if self.gpu.place(model) is None:
            self._make_room(model, spare=lambda other: other in self.believed())
        return super()._begin_load(model, options, timeout_s, fault)

    def _occupy(self, record: CallRecord, model: str) -> Callable[[], None]:
        taken_away = self.gpu.place(model) is None and model in self.believed()
        if taken_away and self._make_room(model, spare=lambda _: False):
            self.appear(model)
        elif taken_away:
            return self._beside(record, model)
        return super()._occupy(record, model)

    def _read(self, model: str, at: float) -> None:
        """Ollama loads a model also for a question, where the gateway cannot know yet that it is gone."""
        if self.gpu.place(model) is None and model in self.believed():
            if self._make_room(model, spare=lambda _: False):
                self.appear(model)
            return
        super()._read(model, at)

    def _beside(self, record: CallRecord, model: str) -> Callable[[], None]:
        """Ollama has the call wait until there is room; here it takes none, and its model is gone when it ends."""
        self.gpu._occupants[model] = Occupant(place=Place.LOADED, context_tokens=self.gpu.models[model].context_tokens)
        free = super()._occupy(record, model)

        def end() -> None:
            free()
            if not self.gpu.in_flight[model]:
                self.vanish(model)

        return end

    def _make_room(self, model: str, *, spare: Callable[[str], bool]) -> bool:
        """Drop idle models until one more fits, none of those to `spare`; False where it does not."""
        idle = [name for name in self.gpu.models if self.gpu.place(name) is Place.LOADED and not self.gpu.in_flight[name]]
        for name in idle:
            if self._fits(model):
                break
            if not spare(name):
                self.vanish(name)
        return self._fits(model)

    def _fits(self, model: str) -> bool:
        there = [other for name, other in self.gpu.models.items() if self.gpu.place(name) is not None]
        if self._capacity_mib is None:
            return not there
        return math.fsum(other.vram_mib for other in (*there, self.gpu.models[model])) <= self._capacity_mib
