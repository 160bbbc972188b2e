"""What a decision costs while 100 to 100,000 items wait, or many models are waited for, and how
fast the simulator is.

A decision here is one fact with its consequences: an arrival at the end of a long queue, or the end
of a run together with the start of the next item. The queue keeps its depth: for each item that
ends another one arrives. Medians of several rounds, garbage collector off.

Among many models the queue has both lanes and all bands, and a decision is any fact; what is
measured is the CPU of all of them together, and the longest one. A forecast is what an estimated
wait costs there.
"""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time

from benchmarks.findings import Finding
from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings, SchedulingSettings
from hearth.scheduling.actions import Action, Dispatch, Load, Unload
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Arrived, Finished, Input, Loaded, Unloaded
from hearth.simulation.engine import simulate
from hearth.simulation.workloads import Workload
from hearth.types import Lane, Priority, QueueItem, RequestId, Sequence, Usage
from tests.scheduling.crowd import Crowd
from tests.support.workloads import Mix, random_workload

DEPTHS = (100, 1_000, 10_000, 100_000)
MODELS = ("a", "b", "c")
ROUNDS = 7
DECISIONS = 400
REQUESTS = 20_000
NOTHING = Usage()
FEW = 3
MANY = 100
STEPS = 100
MOST_TIMES = 4.0
MOST_MS = 20.0
"""That one callback may take of the event loop."""


class Queue:
    """A scheduler with a queue of constant depth."""

    def __init__(self, policy: PolicyName, depth: int) -> None:
        models = {name: ModelSettings(vram_gb=13.0) for name in MODELS}
        self._scheduler = Scheduler(
            SchedulerSettings(scheduling=SchedulingSettings(policy=policy), models=models)
        )
        self._rng = Random(1)
        self._sequence = 0
        self._now = 0.0
        self._running: tuple[Sequence, int] | None = None
        self.tell(Loaded(model="a"))
        for _ in range(depth):
            self.tell(self.arrival())

    def arrival(self) -> Arrived:
        """The next item to come."""
        self._sequence += 1
        return Arrived(
            item=QueueItem(
                sequence=Sequence(self._sequence),
                request_id=RequestId("r"),
                lane=Lane.EXTERNAL,
                priority=Priority.NORMAL,
                caller="bench",
                model=self._rng.choice(MODELS),
                arrived_at=self._now,
            )
        )

    def end(self) -> Finished:
        """The end of what runs, a second later."""
        assert self._running is not None
        self._now += 1.0
        return Finished(sequence=self._running[0], attempt=self._running[1], usage=NOTHING)

    def tell(self, fact: Input) -> float:
        """Report a fact, let swaps succeed.

        Returns the seconds that the decision about the fact itself took.
        """
        began = perf_counter()
        actions = self._scheduler.handle(fact, self._now)
        took_s = perf_counter() - began
        for action in actions:
            self._obey(action)
        return took_s

    def _obey(self, action: Action) -> None:
        match action:
            case Dispatch(sequence=sequence, attempt=attempt):
                self._running = (sequence, attempt)
            case Unload(model=model):
                self.tell(Unloaded(model=model))
            case Load(model=model):
                self._now += 5.0
                self.tell(Loaded(model=model))
            case _:
                pass


def cost_us(policy: PolicyName, depth: int) -> tuple[float, float]:
    """Microseconds of an arrival and of an end, at one depth."""
    queue = Queue(policy, depth)
    rounds = [_round(queue) for _ in range(ROUNDS)]
    return median(arrival for arrival, _ in rounds), median(end for _, end in rounds)


def _round(queue: Queue) -> tuple[float, float]:
    arrivals_s = ends_s = 0.0
    for _ in range(DECISIONS):
        arrivals_s += queue.tell(queue.arrival())
        ends_s += queue.tell(queue.end())
    return arrivals_s / DECISIONS * 1e6, ends_s / DECISIONS * 1e6


def _decisions(policy: PolicyName) -> Finding:
    """The deepest queue is the finding; the others stand beside it."""
    by_depth = {depth: sum(cost_us(policy, depth)) / 2 for depth in DEPTHS}
    deepest = by_depth.pop(DEPTHS[-1])
    growth = deepest / by_depth[1_000]
    return Finding(
        subject="a decision",
        name=f"{policy.value}, {DEPTHS[-1]:,} waiting",
        unit="µs",
        measured=deepest,
        beside={f"{depth:,}": took_us for depth, took_us in by_depth.items()},
        note=f"{1e6 / deepest:,.0f} a second; {growth:.2f} times a depth of 1,000",
    )


class _TimedCrowd(Crowd):
    """Many models, and the most CPU that a decision among them took."""

    longest_s = 0.0

    def tell(self, fact: Input) -> list[str]:
        began = process_time()
        said = super().tell(fact)
        self.longest_s = max(self.longest_s, process_time() - began)
        return said


def _among_models(policy: PolicyName) -> list[Finding]:
    few = _TimedCrowd(FEW, policy=policy.value)
    many = _TimedCrowd(MANY, policy=policy.value)
    few_us, many_us = [median(_live_us(crowd) for _ in range(ROUNDS)) for crowd in (few, many)]
    decision = Finding(
        subject="many models",
        name=f"{policy.value}, a decision among {MANY}",
        unit="µs CPU",
        measured=many_us,
        target=MOST_TIMES * few_us,
        beside={f"{FEW} models": few_us},
    )
    longest_ms = min(_longest_ms(many) for _ in range(ROUNDS))
    forecast_ms = min(_forecast_ms(many) for _ in range(ROUNDS))
    callback = Finding(
        subject="many models",
        name=f"{policy.value}, longest callback",
        unit="ms CPU",
        measured=max(longest_ms, forecast_ms),
        target=MOST_MS,
        note=f"decision {longest_ms:.1f}, forecast {forecast_ms:.1f}",
    )
    return [decision, callback]


def _live_us(crowd: Crowd) -> float:
    """CPU of a step, in which something ends and something arrives."""
    began = process_time()
    crowd.live(STEPS)
    return (process_time() - began) / STEPS * 1e6


def _longest_ms(crowd: _TimedCrowd) -> float:
    crowd.longest_s = 0.0
    crowd.live(STEPS)
    return crowd.longest_s * 1e3


def _forecast_ms(crowd: Crowd) -> float:
    began = process_time()
    crowd.forecasts.forecast(crowd.now)
    return (process_time() - began) * 1e3


def _simulation(policy: PolicyName) -> Finding:
    """A quiet house is one request every 3 s, an overloaded one ten a second."""
    quiet, overloaded = (_requests_per_s(policy, gap_s) for gap_s in (3.0, 0.1))
    return Finding(
        subject="simulator",
        name=f"{policy.value}, overloaded house",
        unit="requests/s",
        measured=overloaded,
        beside={"quiet house": quiet},
    )


def _requests_per_s(policy: PolicyName, mean_gap_s: float) -> float:
    workload = _day(mean_gap_s)
    began = perf_counter()
    simulate(workload, workload.settings(SchedulerSettings(), policy))
    return REQUESTS / (perf_counter() - began)


def _day(mean_gap_s: float) -> Workload:
    mix = Mix(
        jobs=REQUESTS,
        mean_gap_s=mean_gap_s,
        internal=0.0,
        no_model=0.0,
        cancelled=0.0,
        closed_loop=0.0,
        quiet_hours=0.0,
    )
    return random_workload(Random(4), mix)


def measure(rounds: int, place: Path) -> list[Finding]:
    """Every policy at every depth, then in the simulator."""
    gc.disable()
    try:
        found = [_decisions(policy) for policy in PolicyName]
        found += [finding for policy in PolicyName for finding in _among_models(policy)]
        return found + [_simulation(policy) for policy in PolicyName]
    finally:
        gc.enable()
