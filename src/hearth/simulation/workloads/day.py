"""A day of a house, from midnight to midnight: its own work by priority and hour, people in the evening, bulk work at night."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hearth.config.settings import ModelSettings
from hearth.simulation.workloads.jobs import Job, SwapCosts, Workload
from hearth.types import Lane, Priority

HOUR_S = 3600.0
ACTIVE = (6 * HOUR_S, 22 * HOUR_S)
ASSISTANT, CODER, SMALL = "assistant", "coder", "small"
LOAD_S = {ASSISTANT: 20.0, CODER: 8.0, SMALL: 3.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """One kind of work: so many an hour between two hours of the day, on one model; external without a priority."""

    caller: str
    model: str
    per_hour: float
    from_hour: float
    to_hour: float
    service_s: float
    priority: Priority | None = None
    streaming: bool = False


HABITS = (
    Habit(caller="voice", model=ASSISTANT, per_hour=8, from_hour=6, to_hour=22, service_s=3, priority=Priority.CRITICAL),
    Habit(caller="digest", model=ASSISTANT, per_hour=4, from_hour=6, to_hour=22, service_s=12, priority=Priority.NORMAL),
    Habit(caller="nudge", model=SMALL, per_hour=6, from_hour=6, to_hour=22, service_s=2, priority=Priority.BACKGROUND),
    Habit(caller="chat", model=ASSISTANT, per_hour=10, from_hour=17, to_hour=23, service_s=15, streaming=True),
    Habit(caller="editor", model=CODER, per_hour=30, from_hour=9, to_hour=18, service_s=6, streaming=True),
    Habit(caller="automations", model=SMALL, per_hour=4, from_hour=0, to_hour=24, service_s=1),
    Habit(caller="bulk", model=CODER, per_hour=150, from_hour=0, to_hour=4, service_s=12),
)


def house_day(*, seed: int = 7) -> Workload:
    """About 1,350 requests; the house's own work comes in active hours, from 6 to 22."""
    rng = Random(seed)  # noqa: S311 - made-up work, no secret
    drawn = sorted((at, number, habit) for number, habit in enumerate(HABITS) for at in _instants(rng, habit))
    return Workload(
        jobs=tuple(_job(rng, habit, index, at) for index, (at, _, habit) in enumerate(drawn)),
        models={name: ModelSettings(vram_gb=16.0, parallel=1) for name in LOAD_S},
        swap_costs=SwapCosts(by_pair={("", name): load_s for name, load_s in LOAD_S.items()}),
        vram_gb=24.0,
        resident=(ASSISTANT,),
        home=ASSISTANT,
        modes=((0.0, False), (ACTIVE[0], True), (ACTIVE[1], False)),
    )


def _instants(rng: Random, habit: Habit) -> list[float]:
    at, found = habit.from_hour * HOUR_S, list[float]()
    while (at := at + rng.expovariate(habit.per_hour / HOUR_S)) < habit.to_hour * HOUR_S:
        found.append(at)
    return found


def _job(rng: Random, habit: Habit, index: int, at: float) -> Job:
    service_s = rng.expovariate(1 / habit.service_s)
    return Job(
        id=index,
        model=habit.model,
        at=at,
        lane=Lane.EXTERNAL if habit.priority is None else Lane.INTERNAL,
        priority=Priority.NORMAL if habit.priority is None else habit.priority,
        caller=habit.caller,
        service_s=service_s,
        first_byte_s=0.1 * service_s if habit.streaming else service_s,
        streaming=habit.streaming,
    )
