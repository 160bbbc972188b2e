"""What estimates cost while many models are waited for, and what they are where nothing more may be
spent.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from hearth.queue.forecaster import FRESH_S, WORK_PER_S, Forecaster
from hearth.scheduling.forecast import MAX_WORK
from hearth.types import Lane, Priority, QueueItem, RequestId, Sequence
from tests.scheduling.crowd import Crowd, calls_in
from tests.scheduling.shell import Shell
from tests.scheduling.worked import settings_of

MODELS = 100
FORECAST_CALLS = 2_000  # any forecast among so many models has more, and nothing else does


def newcomers(crowd: Shell) -> list[QueueItem]:
    """One for each model and band in which an item can arrive."""
    known = {"request_id": RequestId("r"), "caller": "test", "arrived_at": crowd.now}
    first = QueueItem(
        sequence=Sequence(9999),
        lane=Lane.EXTERNAL,
        priority=Priority.NORMAL,
        model="m0",
        **known,  # type: ignore[arg-type]
    )
    models = [f"m{number}" for number in range(MODELS)]
    lanes = [(Lane.EXTERNAL, Priority.NORMAL), *[(Lane.INTERNAL, each) for each in Priority]]
    return [
        replace(first, model=model, lane=lane, priority=priority)
        for lane, priority in lanes
        for model in models
    ]


def looks(forecaster: Forecaster, items: list[QueueItem], now: float) -> int:
    """For how many of these the scheduler is run forward."""
    calls = [calls_in(partial(forecaster.wait_s, item, 0, now)) for item in items]
    return sum(count > FORECAST_CALLS for count in calls)


def asked_at_once() -> tuple[Crowd, list[QueueItem], Forecaster]:
    """A crowd, newcomers to it, and who has just been asked for the wait of each of them."""
    crowd = Crowd(MODELS, policy="adaptive")
    items = newcomers(crowd)
    forecaster = Forecaster(crowd.forecasts)
    looks(forecaster, items, crowd.now)
    return crowd, items, forecaster


def test_four_hundred_lines_asked_for_at_once_are_not_looked_at_singly():
    crowd = Crowd(MODELS, policy="adaptive")
    items = newcomers(crowd)
    forecaster = Forecaster(crowd.forecasts)
    most = WORK_PER_S / MAX_WORK + 1
    assert 1 <= looks(forecaster, items, crowd.now) <= most
    assert looks(forecaster, items, crowd.now) == 0, "nothing is left for this second"
    assert 1 <= looks(forecaster, items, crowd.now + 0.5) <= most / 2 + 1
    assert 1 <= looks(forecaster, items, crowd.now + 100.0) <= most, (
        "what was left over is not saved up"
    )


def test_advice_on_when_to_come_back_costs_no_more_than_estimates_may_cost():
    crowd = Crowd(MODELS, policy="adaptive")
    forecaster = Forecaster(crowd.forecasts)
    later = crowd.now + FRESH_S
    known = forecaster.starts(crowd.now)
    looks(forecaster, newcomers(crowd), later)
    assert calls_in(partial(forecaster.first_start_s, Lane.EXTERNAL, later)) < FORECAST_CALLS
    assert forecaster.starts(later) == {
        sequence: max(0.0, wait_s - FRESH_S) for sequence, wait_s in known.items()
    }
    assert (
        calls_in(partial(forecaster.first_start_s, Lane.EXTERNAL, later + FRESH_S)) > FORECAST_CALLS
    )


def test_advice_where_nothing_was_ever_found_out_is_the_mean_pace():
    crowd, items, forecaster = asked_at_once()
    ahead = crowd.gateway.waiting.ahead_of(items[-1].band)
    pace_s = (forecaster.wait_s(items[-1], 0, crowd.now) or 0.0) / ahead
    assert forecaster.starts(crowd.now) == {}
    assert forecaster.first_start_s(Lane.EXTERNAL, crowd.now) == pytest.approx(max(1.0, pace_s))
    assert pace_s > 1.0


def test_without_more_to_spend_a_newcomer_gets_the_mean_pace():
    crowd, items, forecaster = asked_at_once()
    ahead = crowd.gateway.waiting.ahead_of(items[-1].band)
    looked_at = crowd.forecasts.forecast(crowd.now, items[0]).starts[Sequence(9999)]
    estimate_s = forecaster.wait_s(items[-1], 0, crowd.now)
    assert estimate_s == pytest.approx(looked_at * ahead / len(crowd.gateway.waiting), rel=0.5)


def test_between_two_looks_the_estimate_follows_time_and_arrivals():
    crowd = Crowd(3, policy="adaptive")
    item = newcomers(crowd)[0]
    forecaster = Forecaster(crowd.forecasts)
    first_s = forecaster.wait_s(item, 0, crowd.now)
    assert first_s is not None
    assert forecaster.wait_s(item, 0, crowd.now) == first_s, "it was not accepted"
    forecaster.accepted(item)
    later_s = forecaster.wait_s(item, 0, crowd.now + FRESH_S / 2)
    service_s = crowd.device.estimates.service_s(item, "m0")
    assert later_s == pytest.approx(first_s - FRESH_S / 2 + service_s)


def test_a_wait_for_a_load_longer_than_ever_grows_with_the_time_passed():
    """As `cloud.when_wait_over_s` sees it: the load was expected to take 5 s."""
    shell = Shell(settings_of("swap_cost_prior_s=5"))
    shell.arrive("a")
    (item, *_), forecaster = newcomers(shell), Forecaster(shell.forecasts)
    estimates_s = [
        forecaster.wait_s(replace(item, model="a"), 0, now) for now in (1.0, 10.0, 60.0, 300.0)
    ]
    first_s, *later_s = [estimate or 0.0 for estimate in estimates_s]
    behind_s = first_s - 4.0
    assert later_s == pytest.approx([5.0 + behind_s, 55.0 + behind_s, 295.0 + behind_s])
