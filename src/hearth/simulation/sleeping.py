"""Which models of a simulated card sleep, and how long they take to do so and to wake."""

from __future__ import annotations

from typing import NamedTuple

from hearth.config.choices import MIB_PER_GB
from hearth.scheduling.inputs import Loaded, Unloaded
from hearth.simulation.workloads import Workload
from hearth.types import SleepLevel


class Woken(NamedTuple):
    """How a load goes on: for how long, from which level, and with which report."""

    took_s: float
    level: SleepLevel | None
    fact: Loaded


class Asleep:
    """Those of one simulation."""

    def __init__(self, workload: Workload) -> None:
        self.levels: dict[str, SleepLevel] = {}
        self.since: dict[str, float] = {}
        self._workload = workload
        self._sleeps = 0  # so many were begun
        self._wakes = 0

    @property
    def residual_gb(self) -> float:
        """What they keep of the card."""
        sleeps = self._workload.sleeps
        return sum(sleeps[model][level].residual_gb for model, level in self.levels.items())

    def put_down(self, model: str, level: SleepLevel | None) -> tuple[float, Unloaded]:
        """An unload begins: how long it takes, and how it is reported."""
        gone_s = self._workload.unload_s.get(model, 0.0)
        if level is None:
            return gone_s, Unloaded(model=model)
        costs = self._workload.sleeps[model][level]
        number = self._sleeps
        self._sleeps += 1
        if number in self._workload.failing_sleeps:
            return costs.sleep_s + gone_s, Unloaded(model=model, failed_level=level)
        unloaded = Unloaded(
            model=model,
            level=level,
            residual_mib=costs.residual_gb * MIB_PER_GB,
            host_mib=costs.host_gb * MIB_PER_GB,
        )
        return costs.sleep_s, unloaded

    def settle(self, fact: Unloaded, now: float) -> None:
        """An unload has ended."""
        self.lose(fact.model)
        if fact.level is not None:
            self.levels[fact.model] = fact.level
            self.since[fact.model] = now

    def wake(self, model: str, load_s: float) -> Woken:
        """A load begins, of `load_s` where the model has to be started."""
        level = self.levels.get(model)
        self.lose(model)
        if level is None:
            return Woken(load_s, None, Loaded(model=model))
        wake_s = self._workload.sleeps[model][level].wake_s
        number = self._wakes
        self._wakes += 1
        if number in self._workload.failing_wakes:
            return Woken(wake_s + load_s, level, Loaded(model=model, failed_level=level))
        return Woken(wake_s, level, Loaded(model=model))

    def lose(self, model: str) -> None:
        """It is stopped, or awake."""
        self.levels.pop(model, None)
        self.since.pop(model, None)
