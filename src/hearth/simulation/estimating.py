"""How good are the estimated waits? Every so often an arrival is estimated as the gateway would, and what came of it is noted.

`Estimating` stands between the engine and the scheduler; it changes no decision. Called by `hearth simulate` and tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Protocol

from hearth.scheduling.actions import Action, Dispatch
from hearth.scheduling.forecast import forecast
from hearth.scheduling.inputs import Arrived, Input
from hearth.scheduling.state import State
from hearth.simulation.engine import Brain
from hearth.types import Sequence

WORTH_S = 1.0
"""Waits from here on count for the relative error: a hundredth of a second off a wait of none is no error of any percentage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateError:
    """How far estimated and actual waits for the first start lie apart.

    Attributes:
        sampled: arrivals that were estimated and later started.
        median_error_s: median of |estimated - actual|; None where nothing was sampled.
        median_error_pct: median of the same in percent of the actual wait, over waits of `WORTH_S` and more.
    """

    sampled: int
    median_error_s: float | None
    median_error_pct: float | None


class WatchedBrain(Brain, Protocol):
    """One whose state can be looked at."""

    @property
    def state(self) -> State: ...


class Estimating:
    """Passes facts on to a scheduler and estimates every `every`-th arrival just before it is told of it."""

    def __init__(self, brain: WatchedBrain, *, every: int) -> None:
        self._brain = brain
        self._every = every
        self._open: dict[Sequence, tuple[float, float]] = {}
        self._pairs_s: list[tuple[float, float]] = []

    def handle(self, fact: Input, now: float) -> list[Action]:
        """As `Scheduler.handle`."""
        if isinstance(fact, Arrived) and fact.item.sequence % self._every == 0:
            self._estimate(fact, now)
        actions = self._brain.handle(fact, now)
        if self._open:
            for action in actions:
                if isinstance(action, Dispatch) and action.sequence in self._open:
                    arrived, estimated_s = self._open.pop(action.sequence)
                    self._pairs_s.append((estimated_s, now - arrived))
        return actions

    def _estimate(self, arrived: Arrived, now: float) -> None:
        estimated_s = forecast(self._brain.state, now, arrived.item).get(arrived.item.sequence)
        if estimated_s is not None:
            self._open[arrived.item.sequence] = (now, estimated_s)

    def errors_pct(self) -> list[float]:
        """The error of each estimate in percent of the actual wait, over waits of `WORTH_S` and more."""
        return [100 * abs(estimated - actual) / actual for estimated, actual in self._pairs_s if actual >= WORTH_S]

    def error(self) -> EstimateError:
        """What was found so far."""
        errors_s = [abs(estimated - actual) for estimated, actual in self._pairs_s]
        errors_pct = self.errors_pct()
        return EstimateError(
            sampled=len(errors_s),
            median_error_s=median(errors_s) if errors_s else None,
            median_error_pct=median(errors_pct) if errors_pct else None,
        )
