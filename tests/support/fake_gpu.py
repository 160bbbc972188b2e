"""The one GPU that a fake Ollama computes on: what is in its memory, what runs on it, and every
rule that was broken.

It never decides and never waits; `fake_ollama` tells it what happens and when. Broken rules are
recorded, not raised, so that a scenario goes on as it would in a house; `check` raises at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from hearth.types import ResidentModel, frozen


@frozen
class FakeModel:
    """A model on the fake's disk.

    Attributes:
        load_s: from the request to load it until it serves. unload_s: from the request to drop it
        until its memory is free. vram_mib: what it takes of the GPU; smaller than `size_mib` means
        that the rest is on the CPU. parallel: generations at a time. embedding_only: it knows no
        `/api/generate` and no `/api/chat`. capabilities: what the server says that it can do; None
        where it does not say. file_mib: what its weights take on the disk; None where the list does
        not say. max_context_tokens: the longest context it was made for; None where the list does
        not say. digest: what it is listed with in place of one of its own.
        remote_host: where it runs, if not here.
    """

    name: str
    load_s: float = 2.0
    unload_s: float = 0.5
    vram_mib: float = 8192.0
    size_mib: float | None = None
    parallel: int = 1
    context_tokens: int = 4096
    embedding_only: bool = False
    capabilities: frozenset[str] | None = None
    file_mib: float | None = None
    max_context_tokens: int | None = None
    digest: str = ""
    remote_host: str = ""


class Place(StrEnum):
    """Where a model is between disk and GPU."""

    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


@dataclass(slots=True, kw_only=True)
class Occupant:
    place: Place
    context_tokens: int
    came_at: float = 0.0


class FakeGpu:
    """Memory and slots of one GPU.

    Args:
        capacity_mib: None is room for one model at a time, `math.inf` is no limit; what is called
        says how much models may take at that moment.
    """

    def __init__(
        self,
        models: Iterable[FakeModel],
        *,
        capacity_mib: float | Callable[[], float] | None = None,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.violations: list[str] = []
        self.in_flight: Counter[str] = Counter()
        self.peak_in_flight: Counter[str] = Counter()
        self._capacity_mib = capacity_mib
        self._occupants: dict[str, Occupant] = {}

    def check(self) -> None:
        assert not self.violations, "\n".join(self.violations)

    def place(self, name: str) -> Place | None:
        """None: not in memory."""
        occupant = self._occupants.get(name)
        return None if occupant is None else occupant.place

    def known_as(self, name: str) -> str:
        """The name by which a model of this digest is in memory, where one is."""
        digest = self.models[name].digest
        same = (
            other for other in self._occupants if digest and self.models[other].digest == digest
        )
        return next(same, name)

    def has(self, name: str, context_tokens: int | None) -> bool:
        """Is it loaded, and with that context (None: whichever)?"""
        occupant = self._occupants.get(name)
        if occupant is None or occupant.place is not Place.LOADED:
            return False
        return context_tokens in {None, occupant.context_tokens}

    def resident(self) -> tuple[ResidentModel, ...]:
        """As `/api/ps` lists them: a model is absent while it loads and present until it is
        gone.
        """
        return tuple(
            self._listed(name)
            for name, occupant in self._occupants.items()
            if occupant.place is not Place.LOADING
        )

    def _listed(self, name: str) -> ResidentModel:
        model = self.models[name]
        size_mib = model.vram_mib if model.size_mib is None else model.size_mib
        context_tokens = self._occupants[name].context_tokens
        return ResidentModel(
            name=name, size_mib=size_mib, vram_mib=model.vram_mib, context_tokens=context_tokens
        )

    def taken_mib(self, at: float) -> list[float]:
        """What each model takes of the card: in a load, a part that grows with the time."""
        return [
            self._taken_mib(self.models[name], occupant, at)
            for name, occupant in self._occupants.items()
        ]

    def _taken_mib(self, model: FakeModel, occupant: Occupant, at: float) -> float:
        is_part = occupant.place is Place.LOADING and model.load_s > 0
        return (
            model.vram_mib * min(1.0, (at - occupant.came_at) / model.load_s)
            if is_part
            else model.vram_mib
        )

    def begin(self, name: str, at: float) -> None:
        self.in_flight[name] += 1
        self.peak_in_flight[name] = max(self.peak_in_flight[name], self.in_flight[name])
        if self.place(name) is not Place.LOADED:
            self._broken(at, f"a generation on {name}, which is {self.place(name) or 'not loaded'}")
        if self.in_flight[name] > self.models[name].parallel:
            self._broken(
                at,
                (
                    f"{self.in_flight[name]} generations on {name}, which serves "
                    f"{self.models[name].parallel}"
                ),
            )

    def read(self, name: str, at: float) -> None:
        if self.place(name) is not Place.LOADED:
            self._broken(at, f"a question to {name}, which is {self.place(name) or 'not loaded'}")

    def end(self, name: str) -> None:
        self.in_flight[name] -= 1

    def start_load(self, name: str, context_tokens: int | None, at: float) -> None:
        if self.in_flight[name]:
            self._broken(at, f"{name} is reloaded while a generation runs on it")
        if self.place(name) in {Place.LOADING, Place.UNLOADING}:
            self._broken(at, f"a load of {name}, which is {self.place(name)}")
        chosen = context_tokens or self.models[name].context_tokens
        self._occupants[name] = Occupant(place=Place.LOADING, context_tokens=chosen, came_at=at)
        self._check_room(name, at)

    def finish_load(self, name: str) -> None:
        self._occupants[name].place = Place.LOADED

    def start_unload(self, name: str, at: float) -> None:
        """It goes; its memory is taken until `drop`."""
        if self.in_flight[name]:
            self._broken(at, f"{name} is unloaded while a generation runs on it")
        self._occupants[name].place = Place.UNLOADING

    def drop(self, name: str) -> None:
        self._occupants.pop(name, None)

    def clear(self) -> None:
        self._occupants.clear()

    def _check_room(self, name: str, at: float) -> None:
        capacity_mib = self._capacity_mib
        if capacity_mib is None:
            fits = len(self._occupants) == 1
        else:
            limit_mib = capacity_mib() if callable(capacity_mib) else capacity_mib
            fits = math.fsum(self.models[other].vram_mib for other in self._occupants) <= limit_mib
        if not fits:
            beside = ", ".join(
                f"{other} ({occupant.place})"
                for other, occupant in self._occupants.items()
                if other != name
            )
            self._broken(at, f"{name} is loaded beside {beside}: no room")

    def _broken(self, at: float, rule: str) -> None:
        self.violations.append(f"at {at:g} s: {rule}")
