"""Estimated waits and their bounds, compared with what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from hearth.scheduling.actions import Action, Dispatch
from hearth.scheduling.core import Scheduler
from hearth.scheduling.forecast import ForecastView
from hearth.scheduling.inputs import Arrived, Input
from hearth.types import QueueItem, Sequence, frozen

EstimateError = Mapping[str, float | None]
"""How far estimated and actual waits for the first start lie apart: how many were `sampled`,
`median_error_s` and `median_error_pct`.
"""
# waits from here on count for the relative error: a hundredth of a second off a wait of none is no
# error of any percentage
WORTH_S = 1.0


@frozen
class EstimatedWait:
    """`actual_s` until the first start, beside what was expected, and within which 90 % were to
    start.
    """

    expected_s: float
    bound_s: float
    actual_s: float


class Estimating:
    """Passes facts on to a scheduler and estimates the wait of every `every`-th arrival just before
    it is reported.
    """

    def __init__(self, scheduler: Scheduler, *, every: int) -> None:
        self._scheduler = scheduler
        self._view = ForecastView(scheduler)
        self._every = every
        self._open: dict[Sequence, tuple[QueueItem, float, float]] = {}
        self._waits: list[EstimatedWait] = []

    def handle(self, fact: Input, now: float) -> list[Action]:
        if isinstance(fact, Arrived) and fact.item.sequence % self._every == 0:
            estimated_s = self._view.forecast(now, fact.item).starts.get(fact.item.sequence)
            if estimated_s is not None:
                bound_s = self._view.wait_bound_s(fact.item, estimated_s, now)
                self._open[fact.item.sequence] = fact.item, estimated_s, bound_s
        actions = self._scheduler.handle(fact, now)
        for action in actions if self._open else ():
            if isinstance(action, Dispatch) and action.sequence in self._open:
                self._started(*self._open.pop(action.sequence), now)
        return actions

    def _started(self, item: QueueItem, expected_s: float, bound_s: float, now: float) -> None:
        waited_s = now - item.arrived_at
        self._waits.append(EstimatedWait(expected_s=expected_s, bound_s=bound_s, actual_s=waited_s))
        if bound_s:
            self._view.learn_wait(item.band, expected_s, waited_s)

    @property
    def bounded(self) -> list[EstimatedWait]:
        """Those that were expected to wait."""
        return [wait for wait in self._waits if wait.bound_s]

    def errors_pct(self) -> list[float]:
        """The error of each estimate in percent of the actual wait, over waits of `WORTH_S` and
        more.
        """
        return [
            100 * abs(wait.expected_s - wait.actual_s) / wait.actual_s
            for wait in self._waits
            if wait.actual_s >= WORTH_S
        ]

    def error(self) -> EstimateError:
        """What was found so far; no median where nothing was sampled."""
        errors_s = [abs(wait.expected_s - wait.actual_s) for wait in self._waits]
        errors_pct = self.errors_pct()
        return {
            "sampled": len(errors_s),
            "median_error_s": median(errors_s) if errors_s else None,
            "median_error_pct": median(errors_pct) if errors_pct else None,
        }
