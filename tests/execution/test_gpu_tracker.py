"""The GPU tracker: residency, rolling swap metrics, thresholds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hearth.alerts.rules import Breach
from hearth.config.settings import AlertType, GpuAlertSettings
from hearth.execution.gpu_tracker import CardUse, GpuTracker
from hearth.types import GpuReading, LoggedSwap, ModelUse
from tests.support.cases import for_each
from tests.support.fields import Fields

HOME = "home:32b"
OTHER = "other:14b"
FREQUENCY = AlertType.GPU_SWAP_FREQUENCY
LATENCY = AlertType.GPU_SWAP_LATENCY
OVERHEAD = AlertType.GPU_SWAP_OVERHEAD
CARD = (
    "device",
    "memory_used_mib",
    "memory_total_mib",
    "foreign_mib",
    "utilisation_pct",
    "temperature_c",
    "power_w",
    "power_limit_w",
)
NOTHING_SAID = dict.fromkeys((*CARD, "throttled", "throttle_reasons"))
NEW: Fields = {
    **dict.fromkeys(("loaded_model", "current_swap", "last_swap_ms", "avg_swap_ms")),
    **dict.fromkeys(
        (
            "swaps_this_hour",
            "swap_failures_1h",
            "swap_overhead_pct_1h",
            "executions_1h",
            "drift_count",
        ),
        0,
    ),
    "resident_models": [],
    "offloaded_models": [],
    "is_home": False,
    "home_model": HOME,
    "readings": "off",
    "unified_memory": False,
    **NOTHING_SAID,
}
SAID = GpuReading(
    name="3090",
    total_mib=24576.0,
    used_mib=9000.25,
    temperature_c=61.0,
    power_w=250.55,
    throttle_reasons=("thermal",),
)
SHOWN = {
    **dict(zip(CARD, ("3090", 9000.2, 24576.0, 808.1, None, 61.0, 250.6, None), strict=True)),
    "readings": "ok",
    "throttled": True,
    "throttle_reasons": ["thermal"],
}


def made(*steps: tuple[Any, ...]) -> GpuTracker:
    """A tracker that was told all this, each as the name of a `record_*` method and its
    arguments.
    """
    tracker = GpuTracker(
        HOME,
        GpuAlertSettings(
            swaps_per_hour_warning=4, swap_wait_ms_warning=60_000.0, swap_overhead_pct_warning=25.0
        ),
    )
    for name, *arguments in steps:
        getattr(tracker, f"record_{name}")(*arguments)
    return tracker


def swap(
    start: float, end: float, *, to: str = OTHER, origin: str | None = HOME
) -> tuple[tuple[Any, ...], ...]:
    return ("swap_started", origin, to, start), ("swap_completed", end)


UNDER_WAY = {"from_model": HOME, "to_model": OTHER}
LOADED = ("loaded", HOME, 0.0)
FAILED = (("swap_started", HOME, OTHER, 10.0), ("swap_failed", 130.0))
STATES: dict[str, tuple[tuple[tuple[Any, ...], ...], float, Fields]] = {
    "a new tracker knows of nothing": ((), 0.0, NEW),
    "the home model": ((LOADED,), 1.0, {"is_home": True, "loaded_model": HOME}),
    "a completed swap replaces the model and is measured": (
        (LOADED, *swap(10.0, 42.5)),
        43.0,
        {
            "loaded_model": OTHER,
            "is_home": False,
            "resident_models": [OTHER],
            "last_swap_ms": 32_500.0,
            "swaps_this_hour": 1,
        },
    ),
    "the average covers the swaps that are kept": (
        (*swap(0.0, 10.0), *swap(100.0, 130.0)),
        200.0,
        {"avg_swap_ms": 20_000.0},
    ),
    "two swaps within a second are two": (
        (*swap(0.1, 0.3), *swap(0.4, 0.9)),
        1.0,
        {"last_swap_ms": 500.0, "avg_swap_ms": 350.0},
    ),
    "a swap under way is shown but not counted": (
        (("swap_started", HOME, OTHER, 10.0),),
        12.5,
        {
            "current_swap": UNDER_WAY | {"elapsed_ms": 2500.0},
            "swaps_this_hour": 0,
            "swap_overhead_pct_1h": 0.0,
        },
    ),
    "a swap that began after now has not lasted yet": (
        (("swap_started", HOME, OTHER, 50.0),),
        40.0,
        {"current_swap": UNDER_WAY | {"elapsed_ms": 0.0}},
    ),
    "a failed swap is no swap and changes no residency": (
        (LOADED, *FAILED),
        131.0,
        {
            "loaded_model": HOME,
            "last_swap_ms": None,
            "swaps_this_hour": 0,
            "swap_failures_1h": 1,
            "swap_overhead_pct_1h": 0.0,
        },
    ),
    "a completion after the failure is ignored": (
        (*FAILED, ("swap_completed", 135.0)),
        136.0,
        {"loaded_model": None, "swaps_this_hour": 0},
    ),
    "a failure without a swap is ignored": ((("swap_failed", 1.0),), 2.0, {"swap_failures_1h": 0}),
    "a swap that another one overtakes counts as failed": (
        (("swap_started", HOME, OTHER, 0.0), *swap(20.0, 30.0, to="third:8b")),
        31.0,
        {
            "swaps_this_hour": 1,
            "swap_failures_1h": 1,
            "last_swap_ms": 10_000.0,
            "loaded_model": "third:8b",
        },
    ),
    "a reload of the same model leaves it resident": (
        (LOADED, *swap(1.0, 5.0, to=HOME)),
        6.0,
        {"resident_models": [HOME]},
    ),
    "the one loaded last": (
        (LOADED, *swap(1.0, 5.0, origin=None)),
        6.0,
        {"resident_models": [HOME, OTHER], "loaded_model": OTHER},
    ),
    "the one used last": (
        (LOADED, *swap(1.0, 5.0, origin=None), ("loaded", HOME, 7.0)),
        8.0,
        {"loaded_model": HOME},
    ),
    "the one that is left": (
        (LOADED, ("loaded", OTHER, 1.0), ("unloaded", OTHER), ("unloaded", "ghost")),
        8.0,
        {"loaded_model": HOME},
    ),
    "the later report of the same instant wins": (
        (("loaded", OTHER, 3.0), ("loaded", HOME, 3.0)),
        4.0,
        {"loaded_model": HOME},
    ),
    "the hour": (
        (*swap(0.0, 100.0), ("execution_time", 1.0, 100.0)),
        3699.999,
        {"swaps_this_hour": 1, "executions_1h": 1},
    ),
    "its old end is open": (
        (*swap(0.0, 100.0), ("execution_time", 1.0, 100.0)),
        3700.0,
        {"swaps_this_hour": 0, "executions_1h": 0},
    ),
    "overhead is swap time over busy time": (
        (*swap(0.0, 30.0), ("execution_time", 90.0, 120.0)),
        1000.0,
        {"swap_overhead_pct_1h": 25.0},
    ),
    "only the part of a span in the hour": (
        (*swap(0.0, 100.0), ("execution_time", 30.0, 200.0)),
        3690.0,
        {"swap_overhead_pct_1h": 25.0},
    ),
    "and none after it": (
        (*swap(0.0, 100.0), ("execution_time", 30.0, 200.0)),
        3700.0,
        {"swap_overhead_pct_1h": 0.0},
    ),
    "a negative duration adds no time": (
        (("execution_time", -5.0, 10.0), *swap(10.0, 20.0)),
        30.0,
        {"swap_overhead_pct_1h": 100.0},
    ),
    "an end that is reported before its beginning took no time": (
        (*swap(50.0, 40.0), ("execution_time", 10.0, 60.0)),
        60.0,
        {"last_swap_ms": 0.0, "avg_swap_ms": 0.0, "swap_overhead_pct_1h": 0.0},
    ),
    "a long sleep empties the hour and keeps the models": (
        (*swap(0.0, 30.0), ("execution_time", 30.0, 60.0)),
        1e6,
        {
            "swaps_this_hour": 0,
            "executions_1h": 0,
            "swap_overhead_pct_1h": 0.0,
            "loaded_model": OTHER,
            "last_swap_ms": 30_000.0,
        },
    ),
    "what the card says": ((("reading", SAID, CardUse(foreign_mib=808.08)),), 0.0, SHOWN),
    "a card that says nothing any more": (
        (("reading", SAID, CardUse(foreign_mib=808.08)), ("no_reading",)),
        0.0,
        {"readings": "lost", **NOTHING_SAID, "device": "3090"},
    ),
    "one that never said anything is not lost": (
        (("no_reading",), ("no_reading",)),
        0.0,
        {"readings": "unknown"},
    ),
    "offloaded": (
        (LOADED, ("offloaded", frozenset({HOME, OTHER}))),
        1.0,
        {"offloaded_models": [HOME]},
    ),
    "what is gone is not offloaded": (
        (LOADED, ("offloaded", frozenset({HOME})), ("unloaded", HOME)),
        1.0,
        {"offloaded_models": []},
    ),
    "changes by somebody else are counted": ((("drift",), ("drift",)), 0.0, {"drift_count": 2}),
}


@for_each("name", STATES)
def test_what_is_shown(name):
    steps, now, expected = STATES[name]
    shown = made(*steps).get_metrics(now)
    assert set(shown) == set(NEW)
    assert {key: shown[key] for key in expected} == expected


BUSY = ("execution_time", 1000.0, 1000.0)
FOUR = tuple(step for number in range(4) for step in swap(1000.0 + number, 1000.5 + number))
BREACHES: dict[str, tuple[tuple[tuple[Any, ...], ...], float, list[Any]]] = {
    "as many as the limit": ((BUSY, *FOUR), 1010.0, []),
    "one more": ((BUSY, *FOUR, *swap(1008.0, 1009.0)), 1010.0, [(FREQUENCY, 5.0, 4.0)]),
    "as long as the limit": ((BUSY, *swap(1000.0, 1060.0)), 1060.0, []),
    "longer": ((BUSY, *swap(2000.0, 2060.5)), 2061.0, [(LATENCY, 60_500.0, 60_000.0)]),
    "an hour later": ((BUSY, *swap(2000.0, 2060.5)), 2060.5 + 3600.0, []),
    "a quarter of the time": ((*swap(0.0, 30.0), ("execution_time", 90.0, 120.0)), 1000.0, []),
    "more of it": (
        (*swap(0.0, 30.0), ("execution_time", 70.0, 100.0)),
        100.0,
        [(OVERHEAD, 30.0, 25.0)],
    ),
    "nothing": ((), 0.0, []),
    "no time at all": ((*swap(50.0, 40.0), ("execution_time", 10.0, 60.0)), 60.0, []),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_limit_is_passed_strictly(name):
    steps, now, expected = BREACHES[name]
    assert made(*steps).check_alerts(now) == [
        Breach(kind=kind, measured=measured, threshold=limit) for kind, measured, limit in expected
    ]


def test_without_a_home_model_nothing_is_home():
    tracker = GpuTracker("", GpuAlertSettings())
    assert not tracker.is_home
    tracker.record_loaded(OTHER, 0.0)
    assert not tracker.is_home


def test_an_hour_is_an_hour_of_time_however_much_ends_in_it():
    tracker = made(
        *(step for n in range(300) for step in swap(float(n), n + 0.5)),
        *(("execution_time", 0.5, float(n)) for n in range(700)),
    )
    metrics = tracker.get_metrics(700.0)
    assert (metrics["swaps_this_hour"], metrics["executions_1h"]) == (300, 700)
    assert metrics["swap_overhead_pct_1h"] == pytest.approx(100.0 * 150.0 / 500.0)
    for number in range(10_000):
        tracker.record_execution_time(0.0001, 8_000.0 + number / 10_000)
    assert tracker.get_metrics(8_001.0)["executions_1h"] == 10_000
    assert len(tracker._executions._spans) == 1


def test_the_share_of_swaps_alarms_nobody_before_ten_busy_minutes():
    tracker = made(*swap(0.0, 30.0), ("execution_time", 69.0, 100.0))
    assert ([breach.kind for breach in tracker.check_alerts(100.0)], tracker.alarming(100.0)) == (
        [OVERHEAD],
        [],
    )
    tracker = made(*swap(0.0, 30.0), ("execution_time", 369.0, 400.0), *swap(400.0, 600.0))
    assert [breach.kind for breach in tracker.alarming(600.0)] == [LATENCY]
    tracker.record_execution_time(1.0, 601.0)
    assert [breach.kind for breach in tracker.alarming(601.0)] == [LATENCY, OVERHEAD]


def test_the_first_swaps_of_a_day_alarm_nobody_unless_a_number_is_set():
    seven = [step for n in range(7) for step in swap(6.0 * n, 6.0 * n + 5.0)]
    tracker = GpuTracker(HOME, GpuAlertSettings())
    for name, *arguments in seven:
        getattr(tracker, f"record_{name}")(*arguments)
    assert (tracker.swaps_this_hour(42.0), tracker.alarming(42.0)) == (7, [])
    assert [breach.kind for breach in made(*seven).alarming(42.0)] == [FREQUENCY]


def test_new_settings_apply_at_once_and_keep_the_history():
    tracker = made(("loaded", OTHER, 0.0), *swap(0.0, 30.0), ("execution_time", 970.0, 1000.0))
    assert tracker.check_alerts(1000.0) == []
    tracker.update(
        OTHER,
        GpuAlertSettings(
            swaps_per_hour_warning=0, swap_wait_ms_warning=1.0, swap_overhead_pct_warning=1.0
        ),
    )
    assert (tracker.home_model, tracker.is_home) == (OTHER, True)
    assert [breach.kind for breach in tracker.check_alerts(1000.0)] == [
        FREQUENCY,
        LATENCY,
        OVERHEAD,
    ]


def test_the_hour_of_an_earlier_process_counts_as_its_own():
    tracker = GpuTracker("", GpuAlertSettings())
    done = LoggedSwap(
        ended_wall_s=1000.0,
        from_models=(),
        to_model="a",
        swap_s=30.0,
        vram_mib=None,
        offloaded=None,
        failed=False,
        reason="",
    )
    cut = replace(done, ended_wall_s=1100.0, swap_s=10.0, failed=True, reason="cut")
    failed = replace(cut, ended_wall_s=1200.0, reason="swap_failed")
    stayed = replace(failed, to_model="")
    uses = [
        ModelUse(model="a", items=3, backend_s=40.0, ended_wall_s=1050.0),
        ModelUse(model="b", items=1, backend_s=20.0, ended_wall_s=9000.0),  # a clock was set back
    ]
    tracker.recall([done, cut, failed, stayed], uses, now=500.0, wall_s=1300.0)
    gpu = tracker.get_metrics(500.0)
    assert (gpu["swaps_this_hour"], gpu["swap_failures_1h"], gpu["executions_1h"]) == (2, 1, 4)
    assert (gpu["swap_overhead_pct_1h"], gpu["last_swap_ms"]) == (40.0, 10_000.0)
    assert (gpu["loaded_model"], gpu["current_swap"]) == (None, None)
    assert tracker.get_metrics(500.0 - 300.0 + 3600.0)["swaps_this_hour"] == 1
