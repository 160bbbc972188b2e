"""Other programs take the card in the simulated world: nothing is lost, no stream ends in an error,
nothing is started into memory that is theirs, and each gets it in time.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest

from hearth.config.choices import MIB_PER_GB
from hearth.config.scheduler_settings import GpuSettings, SchedulerSettings
from hearth.config.settings import ModelSettings, PolicyName
from hearth.scheduling.actions import Action, Dispatch, Load
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Input, LeaseEnded, LeaseTaken
from hearth.simulation.engine import SimulationRun, simulate
from hearth.simulation.homes import asked_in_turn
from hearth.simulation.workloads import CardLease, Workload, WorkloadJob
from hearth.simulation.yielding import games_evening
from hearth.types import Lane, Priority

SIZES_GB = {"a": 5.0, "b": 8.0, "c": 12.0, "d": 20.0}
CARD_GB = 24.0
LENGTH_S = 4500.0
GRACE_S = 5.0
UNLOAD_S = 0.5
CUT_S = 1.0
PATIENT = GpuSettings.model_validate({"yield": {"grace_s": GRACE_S, "hold_s": 86_400.0}})


class Watched:
    """The scheduler, and what it orders compared with what is leased."""

    def __init__(self, settings: SchedulerSettings, *, cuts: bool) -> None:
        self._scheduler = Scheduler(settings, cuts_loads=cuts)
        self._leased: dict[str, float] = {}
        self.wrong: list[tuple[float, Action]] = []

    def handle(self, fact: Input, now: float) -> list[Action]:
        if isinstance(fact, LeaseTaken):
            self._leased[fact.id] = inf if fact.mib is None else fact.mib / MIB_PER_GB
        if isinstance(fact, LeaseEnded):
            del self._leased[fact.id]
        actions = self._scheduler.handle(fact, now)
        left_gb = CARD_GB - sum(self._leased.values())
        self.wrong += [
            (now, action)
            for action in actions
            if isinstance(action, Load | Dispatch)
            and self._leased
            and SIZES_GB[action.model] > left_gb
        ]
        return actions


def busy_card(rng: Random, *, leases: int, cuts: bool) -> Workload:
    """Six callers on four models, of whom one is the house's own, and leases at any instant."""
    jobs = list[WorkloadJob]()
    for number in range(6):
        model = rng.choice(list(SIZES_GB))
        asked = asked_in_turn(
            rng, len(jobs), f"caller-{number}", model, LENGTH_S, mean_s=6.0, pause_s=6.0
        )
        if number == 0:
            asked = [replace(j, lane=Lane.INTERNAL, priority=Priority.CRITICAL) for j in asked]
        jobs += asked
    return Workload(
        jobs=tuple(jobs),
        models={name: ModelSettings(vram_gb=size) for name, size in SIZES_GB.items()},
        swap_costs={("", name): size / 2 for name, size in SIZES_GB.items()},
        unload_s=dict.fromkeys(SIZES_GB, UNLOAD_S),
        vram_gb=CARD_GB,
        home=rng.choice(["", "a", "c"]),
        cut_s=CUT_S if cuts else None,
        leases=tuple(
            CardLease(
                at=rng.uniform(0.0, LENGTH_S),
                for_s=rng.choice([0.1, 3.0, 20.0, 120.0]),
                gb=rng.choice([None, 2.0, 6.0, 10.0, 16.0, 23.0]),
                is_timed=rng.random() < 0.5,
            )
            for _ in range(leases)
        ),
    )


def run_watched(
    workload: Workload, policy: PolicyName, gpu: GpuSettings
) -> tuple[SimulationRun, Watched]:
    settings = workload.settings(SchedulerSettings(gpu=gpu), policy)
    watched = Watched(settings, cuts=workload.cut_s is not None)
    return simulate(workload, settings, watched.handle, keep_decisions=False), watched


@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize(("seed", "cuts"), [(1, True), (2, False)])
def test_with_leases_at_any_instant_nothing_is_lost(policy: PolicyName, seed: int, cuts: bool):
    rng = Random(seed)
    workload = busy_card(rng, leases=200, cuts=cuts)
    run, watched = run_watched(workload, policy, PATIENT)
    assert len(run.records) == len(workload.jobs) > 2000
    assert [record for record in run.records if record.failed or record.ended is None] == []
    assert watched.wrong == []
    assert len(run.leases) == 200
    assert all(lease.ended is not None for lease in run.leases)


def test_each_gets_its_memory_within_the_grace_and_an_unload():
    rng = Random(3)
    run, _ = run_watched(busy_card(rng, leases=200, cuts=True), PolicyName.ADAPTIVE, PATIENT)
    most_s = GRACE_S + UNLOAD_S + CUT_S
    late = [
        lease
        for lease in run.leases
        if (lease.granted or lease.ended or inf) - lease.taken > most_s + 1e-6
    ]
    assert late == []


def test_who_has_seen_nothing_gets_an_error_when_it_takes_too_long_and_a_stream_goes_on():
    impatient = GpuSettings.model_validate({"yield": {"grace_s": GRACE_S, "hold_s": 10.0}})
    rng = Random(4)
    run, _ = run_watched(busy_card(rng, leases=60, cuts=True), PolicyName.ADAPTIVE, impatient)
    failed = [record for record in run.records if record.failed]
    assert failed
    assert [record for record in failed if record.written_s > 0] == []


def test_the_evening_with_games_keeps_the_assistant_where_there_is_room():
    evening = games_evening()
    settings = evening.settings(SchedulerSettings(), PolicyName.ADAPTIVE)
    run = simulate(evening, settings, keep_decisions=False)
    assert len(run.leases) == 22
    assert all(lease.granted is not None for lease in run.leases)
    first_game = evening.leases[-2]
    asked = [
        record
        for record in run.records
        if record.job.lane is Lane.INTERNAL
        and first_game.at + 60 < record.arrived < first_game.at + first_game.for_s
    ]
    assert len(asked) > 10
    assert [record for record in asked if (record.wait_s or 0.0) > 1.0 or record.failed] == []
