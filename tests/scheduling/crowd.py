"""Many models that are waited for at once, and what deciding among them costs, counted in calls: no
clock is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random

from hearth.scheduling.inputs import Input
from hearth.types import Lane, Priority
from tests.scheduling.shell import Shell
from tests.scheduling.worked import settings_of

WAITING = 1_000


class Crowd(Shell):
    """So many models on a card of 24 GB, and a thousand items that wait for them, in both lanes and
    all bands.

    Attributes:
        most: candidates that one decision has looked at, at most.
    """

    def __init__(self, models: int, *, policy: str, size_gb: float = 13.0) -> None:
        self.most = 0
        names = [f"m{number}" for number in range(models)]
        sizes = " ".join(f"{name}:{size_gb}" for name in names)
        settings = settings_of(f"policy={policy} vram_gb=24 {sizes}")
        super().__init__(settings, resident=("m0",), judged=False)
        rng = Random(1)
        for number in range(WAITING):
            self.arrive_somehow(names[number % models], rng)

    def arrive_somehow(self, model: str | None, rng: Random) -> None:
        lane = rng.choice(tuple(Lane))
        priority = rng.choice(tuple(Priority))
        self.arrive(model, lane=lane, priority=priority)

    def tell(self, fact: Input) -> list[str]:
        before = self.gateway.looked_at
        said = super().tell(fact)
        self.most = max(self.most, self.gateway.looked_at - before)
        return said

    def live(self, steps: int) -> None:
        """Whatever is open comes to a good end, and with each end somebody else arrives."""
        models = self.gateway.waiting.models()
        rng = Random(2)
        for _ in range(steps):
            self.go_on()
            self.arrive_somehow(rng.choice(models), rng)


def calls_in(action: Callable[[], object]) -> int:
    """How many functions it calls, built-in ones included."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls
