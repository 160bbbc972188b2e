"""The home of an assistant: what docs/scheduling/assistant.md promises of it, on the homes that
ship and on others.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.scheduling.sharing import CUT_S, Trip
from hearth.simulation.engine import Record, simulate
from hearth.simulation.homes import (
    DEAR_LOADS,
    HOMES,
    RETURNS,
    HomeFigures,
    figures,
    home,
    homes,
    mean_figures,
)
from hearth.types import JsonDict, Lane, Priority

BASE = SchedulerSettings()
EPSILON_S = 1e-6


def over(**drawn: Any) -> HomeFigures:
    return mean_figures(figures(build(), BASE) for build in homes(**drawn).values())


def test_the_assistant_hardly_waits_and_streams_of_others_get_their_share():
    found = over()
    assert found.mean_loads <= 0.85
    assert found.p95_loads <= 3.5
    assert found.swap_share <= 0.25
    assert found.others_share >= 0.44


def test_beside_whole_answers_it_waits_longer_because_they_start_over():
    found = over(whole=True)
    assert found.mean_loads <= 1.5
    assert found.p95_loads <= 7.5
    assert found.swap_share <= 0.27


@pytest.mark.parametrize("drawn", [{"priority": Priority.NORMAL}, {"loads_s": DEAR_LOADS}])
def test_an_assistant_and_dear_loads_cost_no_more_than_one_and_a_half_loads(
    drawn: JsonDict,
):
    assert over(**drawn).mean_loads <= 1.5


def waited_s(record: Record, now: float) -> float:
    return (now if record.started is None else record.started) - record.arrived


@pytest.mark.parametrize("seed", range(12))
def test_critical_requests_wait_for_streams_no_longer_than_trip_and_turn(seed: int):
    rng = Random(seed)
    loads_s = (rng.uniform(1.0, 30.0), rng.uniform(1.0, 60.0))
    workload = home(rng.choice(tuple(RETURNS.values())), loads_s, rng.choice((1, 2, 3)), seed=seed)
    settings = workload.settings(BASE, rng.choice(tuple(PolicyName)))
    run = simulate(workload, settings, keep_decisions=False)
    longest_s = max(
        waited_s(each, 3600.0) for each in run.records if each.job.lane is Lane.INTERNAL
    )
    trip = Trip(back_s=loads_s[0], there_s=loads_s[1])
    remaining_s = BASE.scheduling.preempt_min_remaining_s
    assert longest_s <= trip.whole_s + trip.turn_s + CUT_S + remaining_s + EPSILON_S


def test_with_at_once_it_waits_for_no_turn():
    workload = HOMES["home_2s_3_12_3"]()
    at_once = replace(BASE, scheduling=BASE.scheduling.replace(preemption="at_once"))
    run = simulate(workload, workload.settings(at_once, PolicyName.ADAPTIVE))
    assert not any(
        type(action).__name__ in {"NoteTurn", "NoteHold", "Cut"} for _, action in run.decisions
    )


def test_a_share_of_a_half_gives_others_more_than_a_share_of_a_tenth():
    shares = []
    for share in (0.1, 0.5):
        base = replace(BASE, scheduling=BASE.scheduling.replace(others_share=share))
        shares.append(figures(HOMES["home_8s_3_12_1"](), base).others_share)
    assert shares[1] > 2 * shares[0]
