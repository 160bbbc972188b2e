"""Random workloads on a device with models of several engines, some of which are away for a
while.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import replace
from random import Random

from hearth.config.settings import (
    ModelSettings,
    PolicyName,
    QueueSettings,
    SchedulerSettings,
    SchedulingSettings,
)
from hearth.scheduling.actions import Action, Dispatch, Hold, Load, NoteHold, NoteTurn, Unload
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Arrived, Input, Loaded, ModelsAway, OfAttempt
from hearth.simulation.engine import SimulationRun, simulate
from hearth.simulation.workloads import Outage, Workload, WorkloadJob
from hearth.types import Lane, Priority
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.invariants import DecisionChecker
from tests.support.workloads import Mix, random_workload

V = "v:latest"
FAR = "far:latest"
MIX = Mix(jobs=60, mean_gap_s=2.0, mean_service_s=3.0)
ALONE = replace(MIX, no_model=0.0)
EVERYTHING = replace(
    MIX, streaming=0.6, aliased=0.4, background=0.2, callers=3, conversations=3, cancelled=0.05
)
RULES = SchedulerSettings(
    scheduling=SchedulingSettings(max_swap_wait_s=20.0, residency_factor=1.5),
    queue=QueueSettings(max_external_depth=1000, max_interrupt_count=2),
)
NOT_DECIDED = -1.0
"""Stands in the scheduler's memory of a decision before each, to see which facts take one."""

Decisions = list[tuple[float, str, object]]


def checked(workload: Workload, settings: SchedulerSettings) -> DecisionChecker:
    return DecisionChecker(Scheduler(settings, cuts_loads=workload.cut_s is not None))


# Apart.


def two_engines(seed: int) -> tuple[Workload, Workload]:
    """Models that are loaded beside one that stays: without and with requests for that one, and
    with times in which its engine is away where its room does not change with them.
    """
    rng = Random(seed)
    base = random_workload(rng, ALONE)
    is_far = seed % 3 == 0
    room_gb = rng.uniform(2, 8) if seed % 3 == 2 else None
    staying = ModelSettings(vram_gb=99.0 if is_far else room_gb, parallel=rng.choice((1, 2)))
    base = replace(
        base,
        models={**base.models, V: staying},
        resident=(*base.resident, V),
        staying=frozenset({V}),
        off_card=frozenset({V} if is_far else ()),
        cut_s=rng.choice((None, 0.5)),
    )
    until = max(job.at for job in base.jobs)
    jobs = [
        WorkloadJob(
            id=len(base.jobs) + number,
            model=V,
            at=rng.random() * until,
            caller="beside",
            lane=rng.choice(tuple(Lane)),
            priority=rng.choice(tuple(Priority)),
            service_s=5.0,
            first_byte_s=rng.random(),
            streaming=rng.random() < 0.5,
        )
        for number in range(40)
    ]
    outages = () if room_gb else outages_of(rng, frozenset({V}), until)
    busy = (*base.jobs, *jobs)
    return base, replace(base, jobs=tuple(sorted(busy, key=lambda job: job.at)), outages=outages)


def outages_of(rng: Random, models: frozenset[str], until: float) -> tuple[Outage, ...]:
    at = 0.0
    found = []
    for _ in range(3):
        began_at = at + rng.random() * until / 3
        at = began_at + rng.choice((0.5, 8.0, 25.0))
        found.append(Outage(began_at=began_at, ended_at=at, models=models))
    return tuple(found)


class Watched:
    """A scheduler, and the instants of its decisions upon facts about the model that stays."""

    def __init__(self, workload: Workload, settings: SchedulerSettings) -> None:
        self.instants: list[float] = []
        self._brain = checked(workload, settings)
        self._about_it: set[int] = set()

    def handle(self, fact: Input, now: float) -> list[Action]:
        gateway = self._brain.gateway
        gateway.next_wake_at = NOT_DECIDED
        actions = self._brain.handle(fact, now)
        if self._is_about_it(fact) and gateway.next_wake_at != NOT_DECIDED:
            self.instants.append(now)
        return actions

    def _is_about_it(self, fact: Input) -> bool:
        match fact:
            case Arrived(item=item) if item.model == V:
                self._about_it.add(item.sequence)
                return True
            case OfAttempt(sequence=sequence):
                return sequence in self._about_it
            case Loaded(model=model):
                return model == V
            case _:
                return isinstance(fact, ModelsAway)


def looked_at(workload: Workload, instants: list[float]) -> Workload:
    """The same, with a decision upon nothing new at each of these instants: when a hold is looked
    at again is not what is compared.
    """
    modes = list(workload.modes)
    for at in instants:
        is_active = all(since > at for since, _ in workload.modes)
        insort(modes, (at, is_active))
    return replace(workload, modes=tuple(modes))


def of_the_others(run: SimulationRun) -> Decisions:
    """What was decided for all but the model that stays, by job."""
    found: Decisions = []
    for at, action in run.decisions:
        if isinstance(action, Hold | NoteHold | NoteTurn):
            continue
        sequence = getattr(action, "sequence", None)
        job = None if sequence is None else run.records[sequence - 1].job
        if job is None or job.model != V:
            told = action if job is None else replace(action, sequence=job.id)
            found.append((round(at, 6), type(action).__name__, told))
    return sorted(found, key=str)


@for_each(
    ("policy", "seed"), [(policy, seed) for policy in PolicyName for seed in range(EXAMPLES * 9)]
)
def test_others_are_served_as_if_the_model_that_stays_were_not_there(policy: PolicyName, seed: int):
    alone, beside = two_engines(seed)
    settings = alone.settings(RULES, policy)
    watched = Watched(beside, settings)
    run = simulate(beside, settings, watched.handle)
    assert all(record.ended is not None for record in run.records)
    alone = looked_at(alone, watched.instants)
    assert of_the_others(run) == of_the_others(
        simulate(alone, settings, checked(alone, settings).handle)
    )


# Together.


def three_engines(seed: int) -> tuple[Workload, SchedulerSettings]:
    """Requests for models that are loaded, that stay, and that are elsewhere, by name, by aliases
    and for any; all three engines are away at times.
    """
    rng = Random(seed)
    base = random_workload(rng, EVERYTHING)
    loaded = frozenset(base.models)
    engines = (loaded, frozenset({V}), frozenset({FAR}))
    jobs = [_asked_of(rng, job) for job in base.jobs]
    until = max(job.at for job in jobs)
    outages = outages_of(rng, rng.choice(engines), until)
    settings = replace(
        RULES,
        wait_when_down_s=1000.0,
        queue=RULES.queue.replace(sharing=rng.choice(("fifo", "fair"))),
    )
    workload = replace(
        base,
        jobs=tuple(replace(job, continues=job.streaming) for job in jobs),
        models={
            **base.models,
            V: ModelSettings(vram_gb=rng.choice((None, 6.0)), parallel=2),
            FAR: ModelSettings(parallel=2),
        },
        resident=(*base.resident, V, FAR),
        staying=frozenset({V, FAR}),
        off_card=frozenset({FAR}),
        whole_loads=frozenset(rng.sample(sorted(loaded), 1)),
        outages=outages,
        cut_s=0.5,
    )
    return workload, settings


def _asked_of(rng: Random, job: WorkloadJob) -> WorkloadJob:
    other = rng.choice((V, FAR))
    if job.choices:
        return replace(job, choices=(*job.choices, other)) if rng.random() < 0.7 else job
    return replace(job, model=other) if job.model and rng.random() < 0.5 else job


@for_each(
    ("policy", "seed"), [(policy, seed) for policy in PolicyName for seed in range(EXAMPLES * 9)]
)
def test_with_three_engines_nothing_is_lost_and_nothing_that_stays_moves(
    policy: PolicyName, seed: int
):
    workload, rules = three_engines(seed)
    settings = workload.settings(rules, policy)
    run = simulate(workload, settings, checked(workload, settings).handle)
    assert len(run.records) == len(workload.jobs)
    assert all(record.ended is not None for record in run.records)
    for record in run.records:
        left = record.job.cancel_after_s is not None
        # a stream that has broken off more often than it may
        assert not record.failed or left or record.job.streaming
    moved = {action.model for _, action in run.decisions if isinstance(action, Load | Unload)}
    assert not moved & workload.staying


def test_requests_with_a_choice_go_elsewhere_while_an_engine_is_away():
    served = set[str]()
    loads = 0
    for seed in range(9):
        workload, rules = three_engines(seed)
        settings = workload.settings(rules, PolicyName.ADAPTIVE)
        run = simulate(workload, settings, checked(workload, settings).handle)
        away = [each for each in workload.outages if V in each.models]
        for at, action in run.decisions:
            loads += isinstance(action, Load)
            if isinstance(action, Dispatch):
                choices = run.records[action.sequence - 1].job.choices
                is_away = any(each.began_at < at < each.ended_at for each in away)
                assert not (is_away and action.model == V)
                if is_away and V in choices:
                    served.add(action.model)
    assert served
    assert loads > 9
