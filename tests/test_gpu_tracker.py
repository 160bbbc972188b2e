"""The GPU tracker: residency, rolling swap metrics, thresholds."""

from __future__ import annotations

import pytest

from hearth.alerts.rules import Breach
from hearth.config.settings import AlertType, GpuAlertSettings
from hearth.observability.gpu_tracker import GpuTracker
from hearth.types import GpuReading

HOME = "home:32b"
OTHER = "other:14b"


NOTHING_SAID = {
    "device": None,
    "memory_used_mib": None,
    "memory_total_mib": None,
    "foreign_mib": None,
    "utilisation_pct": None,
    "temperature_c": None,
    "power_w": None,
    "power_limit_w": None,
    "throttled": None,
    "throttle_reasons": None,
}


@pytest.fixture
def tracker() -> GpuTracker:
    return GpuTracker(HOME, GpuAlertSettings(swaps_per_hour_warning=4, swap_wait_ms_warning=60_000.0, swap_overhead_pct_warning=25.0))


def swap(tracker: GpuTracker, start: float, end: float, *, to: str = OTHER, origin: str | None = HOME) -> None:
    tracker.record_swap_started(origin, to, start)
    tracker.record_swap_completed(end)


def kinds(tracker: GpuTracker, now: float) -> list[AlertType]:
    return [breach.kind for breach in tracker.check_alerts(now)]


def test_a_new_tracker_knows_of_nothing(tracker: GpuTracker):
    assert tracker.get_metrics(0.0) == {
        "loaded_model": None,
        "resident_models": [],
        "is_home": False,
        "home_model": HOME,
        "swaps_this_hour": 0,
        "swap_failures_1h": 0,
        "current_swap": None,
        "last_swap_ms": None,
        "avg_swap_ms": None,
        "swap_overhead_pct_1h": 0.0,
        "executions_1h": 0,
        "drift_count": 0,
        "offloaded_models": [],
        "readings": "off",
        **NOTHING_SAID,
    }
    assert tracker.check_alerts(0.0) == []


def test_a_completed_swap_replaces_the_model_and_is_measured(tracker: GpuTracker):
    tracker.record_loaded(HOME, 0.0)
    assert tracker.is_home
    swap(tracker, 10.0, 42.5)
    metrics = tracker.get_metrics(43.0)
    assert (tracker.loaded_model, tracker.is_home) == (OTHER, False)
    assert (metrics["resident_models"], metrics["last_swap_ms"], metrics["swaps_this_hour"]) == ([OTHER], 32_500.0, 1)


def test_the_average_covers_the_swaps_that_are_kept(tracker: GpuTracker):
    swap(tracker, 0.0, 10.0)
    swap(tracker, 100.0, 130.0)
    assert tracker.get_metrics(200.0)["avg_swap_ms"] == 20_000.0


def test_a_swap_under_way_is_shown_but_not_counted(tracker: GpuTracker):
    tracker.record_swap_started(HOME, OTHER, 10.0)
    metrics = tracker.get_metrics(12.5)
    assert metrics["current_swap"] == {"from_model": HOME, "to_model": OTHER, "elapsed_ms": 2500.0}
    assert (metrics["swaps_this_hour"], metrics["swap_overhead_pct_1h"]) == (0, 0.0)


def test_a_failed_swap_is_no_swap_and_changes_no_residency(tracker: GpuTracker):
    tracker.record_loaded(HOME, 0.0)
    tracker.record_swap_started(HOME, OTHER, 10.0)
    tracker.record_swap_failed(130.0)
    metrics = tracker.get_metrics(131.0)
    assert (tracker.loaded_model, metrics["current_swap"], metrics["last_swap_ms"]) == (HOME, None, None)
    assert (metrics["swaps_this_hour"], metrics["swap_failures_1h"], metrics["swap_overhead_pct_1h"]) == (0, 1, 0.0)


def test_a_completion_that_comes_after_the_failure_is_ignored(tracker: GpuTracker):
    tracker.record_swap_started(HOME, OTHER, 10.0)
    tracker.record_swap_failed(130.0)
    tracker.record_swap_completed(135.0)
    assert tracker.loaded_model is None
    assert tracker.swaps_this_hour(136.0) == 0


def test_a_failure_without_a_swap_is_ignored(tracker: GpuTracker):
    tracker.record_swap_failed(1.0)
    assert tracker.get_metrics(2.0)["swap_failures_1h"] == 0


def test_a_swap_that_another_one_overtakes_counts_as_failed(tracker: GpuTracker):
    tracker.record_swap_started(HOME, OTHER, 0.0)
    swap(tracker, 20.0, 30.0, to="third:8b")
    metrics = tracker.get_metrics(31.0)
    assert (metrics["swaps_this_hour"], metrics["swap_failures_1h"], metrics["last_swap_ms"]) == (1, 1, 10_000.0)
    assert tracker.loaded_model == "third:8b"


def test_a_reload_of_the_same_model_leaves_it_resident(tracker: GpuTracker):
    tracker.record_loaded(HOME, 0.0)
    swap(tracker, 1.0, 5.0, to=HOME, origin=HOME)
    assert tracker.get_metrics(6.0)["resident_models"] == [HOME]


def test_the_loaded_model_is_the_one_loaded_or_used_last(tracker: GpuTracker):
    tracker.record_loaded(HOME, 0.0)
    swap(tracker, 1.0, 5.0, origin=None)
    assert tracker.get_metrics(6.0)["resident_models"] == [HOME, OTHER]
    assert tracker.loaded_model == OTHER
    tracker.record_loaded(HOME, 7.0)
    assert tracker.loaded_model == HOME
    tracker.record_unloaded(HOME)
    assert tracker.loaded_model == OTHER
    tracker.record_unloaded(OTHER)
    assert tracker.loaded_model is None


def test_of_two_models_reported_at_the_same_instant_the_later_report_wins(tracker: GpuTracker):
    tracker.record_loaded(OTHER, 3.0)
    tracker.record_loaded(HOME, 3.0)
    assert tracker.loaded_model == HOME


def test_unloading_an_unknown_model_is_ignored(tracker: GpuTracker):
    tracker.record_loaded(HOME, 0.0)
    tracker.record_unloaded("ghost")
    assert tracker.loaded_model == HOME


def test_without_a_home_model_nothing_is_home():
    tracker = GpuTracker("", GpuAlertSettings())
    assert not tracker.is_home
    tracker.record_loaded(OTHER, 0.0)
    assert not tracker.is_home


def test_the_hour_slides_and_its_old_end_is_open(tracker: GpuTracker):
    swap(tracker, 0.0, 100.0)
    tracker.record_execution_time(1.0, 100.0)
    assert tracker.swaps_this_hour(3699.999) == 1
    assert tracker.get_metrics(3699.999)["executions_1h"] == 1
    assert tracker.swaps_this_hour(3700.0) == 0
    assert tracker.get_metrics(3700.0)["executions_1h"] == 0


def test_overhead_is_swap_time_over_busy_time(tracker: GpuTracker):
    swap(tracker, 0.0, 30.0)
    tracker.record_execution_time(90.0, 120.0)
    assert tracker.get_metrics(1000.0)["swap_overhead_pct_1h"] == 25.0
    assert AlertType.GPU_SWAP_OVERHEAD not in kinds(tracker, 1000.0)


def test_overhead_counts_only_the_part_of_a_span_that_lies_in_the_hour(tracker: GpuTracker):
    swap(tracker, 0.0, 100.0)
    tracker.record_execution_time(30.0, 200.0)
    assert tracker.get_metrics(3690.0)["swap_overhead_pct_1h"] == 25.0
    assert tracker.get_metrics(3700.0)["swap_overhead_pct_1h"] == 0.0


def test_the_overhead_is_that_of_an_hour_however_many_executions_it_had(tracker: GpuTracker):
    swap(tracker, 0.0, 100.0)
    for number in range(1000):
        tracker.record_execution_time(1.0, 101.0 + number)
    assert tracker.get_metrics(1100.0)["swap_overhead_pct_1h"] == pytest.approx(100.0 * 100.0 / 1100.0, abs=0.01)
    swap(tracker, 1100.0, 1200.0)
    assert tracker.get_metrics(1200.0)["swap_overhead_pct_1h"] == pytest.approx(100.0 * 200.0 / 1200.0, abs=0.01)


def test_an_hour_is_an_hour_of_time_however_much_ends_in_it(tracker: GpuTracker):
    for number in range(300):
        swap(tracker, float(number), number + 0.5)
    for number in range(700):
        tracker.record_execution_time(0.5, float(number))
    metrics = tracker.get_metrics(700.0)
    assert (metrics["swaps_this_hour"], metrics["executions_1h"]) == (300, 700)
    assert metrics["swap_overhead_pct_1h"] == pytest.approx(100.0 * 150.0 / 500.0)
    for number in range(10_000):
        tracker.record_execution_time(0.0001, 8_000.0 + number / 10_000)
    assert tracker.get_metrics(8_001.0)["executions_1h"] == 10_000
    assert len(tracker._executions._spans) == 1


def test_a_negative_duration_adds_no_time(tracker: GpuTracker):
    tracker.record_execution_time(-5.0, 10.0)
    swap(tracker, 10.0, 20.0)
    assert tracker.get_metrics(30.0)["swap_overhead_pct_1h"] == 100.0


def test_one_swap_more_than_the_threshold_is_a_breach(tracker: GpuTracker):
    tracker.record_execution_time(1000.0, 1000.0)
    for number in range(4):
        swap(tracker, 1000.0 + number, 1000.5 + number)
    assert kinds(tracker, 1010.0) == []
    swap(tracker, 1008.0, 1009.0)
    assert tracker.check_alerts(1010.0) == [Breach(kind=AlertType.GPU_SWAP_FREQUENCY, measured=5.0, threshold=4.0)]


def test_a_swap_longer_than_the_threshold_is_a_breach_until_it_is_an_hour_old(tracker: GpuTracker):
    tracker.record_execution_time(1000.0, 1000.0)
    swap(tracker, 1000.0, 1060.0)
    assert kinds(tracker, 1060.0) == []
    swap(tracker, 2000.0, 2060.001)
    assert kinds(tracker, 2061.0) == [AlertType.GPU_SWAP_LATENCY]
    assert kinds(tracker, 2060.001 + 3600.0) == []


def test_too_much_swapping_is_a_breach(tracker: GpuTracker):
    swap(tracker, 0.0, 30.0)
    tracker.record_execution_time(70.0, 100.0)
    assert tracker.check_alerts(100.0) == [Breach(kind=AlertType.GPU_SWAP_OVERHEAD, measured=30.0, threshold=25.0)]


def test_the_share_of_swaps_alarms_nobody_before_the_hour_was_busy_for_ten_minutes(tracker: GpuTracker):
    swap(tracker, 0.0, 30.0)
    tracker.record_execution_time(69.0, 100.0)
    assert (kinds(tracker, 100.0), tracker.alarming(100.0)) == ([AlertType.GPU_SWAP_OVERHEAD], [])
    tracker.record_execution_time(300.0, 400.0)
    swap(tracker, 400.0, 600.0)
    assert kinds(tracker, 601.0) == [AlertType.GPU_SWAP_LATENCY, AlertType.GPU_SWAP_OVERHEAD]
    assert [breach.kind for breach in tracker.alarming(600.0)] == [AlertType.GPU_SWAP_LATENCY]
    tracker.record_execution_time(1.0, 601.0)
    assert tracker.alarming(601.0) == tracker.check_alerts(601.0)


def test_new_settings_apply_at_once_and_keep_the_history(tracker: GpuTracker):
    tracker.record_loaded(OTHER, 0.0)
    swap(tracker, 0.0, 30.0)
    tracker.record_execution_time(970.0, 1000.0)
    assert kinds(tracker, 1000.0) == []
    tracker.update(OTHER, GpuAlertSettings(swaps_per_hour_warning=0, swap_wait_ms_warning=1.0, swap_overhead_pct_warning=1.0))
    assert (tracker.home_model, tracker.is_home) == (OTHER, True)
    assert kinds(tracker, 1000.0) == [AlertType.GPU_SWAP_FREQUENCY, AlertType.GPU_SWAP_LATENCY, AlertType.GPU_SWAP_OVERHEAD]


def test_a_swap_whose_end_is_reported_before_its_beginning_took_no_time(tracker: GpuTracker):
    swap(tracker, 50.0, 40.0)
    tracker.record_execution_time(10.0, 60.0)
    metrics = tracker.get_metrics(60.0)
    assert (metrics["last_swap_ms"], metrics["avg_swap_ms"], metrics["swap_overhead_pct_1h"]) == (0.0, 0.0, 0.0)
    assert tracker.check_alerts(60.0) == []


def test_a_swap_that_began_after_now_has_not_lasted_yet(tracker: GpuTracker):
    tracker.record_swap_started(HOME, OTHER, 50.0)
    assert tracker.get_metrics(40.0)["current_swap"] == {"from_model": HOME, "to_model": OTHER, "elapsed_ms": 0.0}


def test_a_long_sleep_of_the_machine_empties_the_hour_and_keeps_the_models(tracker: GpuTracker):
    swap(tracker, 0.0, 30.0)
    tracker.record_execution_time(30.0, 60.0)
    metrics = tracker.get_metrics(1_000_000.0)
    assert (metrics["swaps_this_hour"], metrics["executions_1h"], metrics["swap_overhead_pct_1h"]) == (0, 0, 0.0)
    assert (metrics["loaded_model"], metrics["last_swap_ms"]) == (OTHER, 30_000.0)
    assert tracker.check_alerts(1_000_000.0) == []


SAID = GpuReading(name="3090", total_mib=24576.0, used_mib=9000.25, temperature_c=61.0, power_w=250.55, throttle_reasons=("thermal",))


def test_what_the_card_says_is_shown_until_it_says_nothing(tracker: GpuTracker):
    tracker.record_reading(SAID, foreign_mib=808.08)
    shown = tracker.get_metrics(0.0)
    assert {key: shown[key] for key in ("readings", *NOTHING_SAID)} == {
        "readings": "ok",
        "device": "3090",
        "memory_used_mib": 9000.2,
        "memory_total_mib": 24576.0,
        "foreign_mib": 808.1,
        "utilisation_pct": None,
        "temperature_c": 61.0,
        "power_w": 250.6,
        "power_limit_w": None,
        "throttled": True,
        "throttle_reasons": ["thermal"],
    }
    tracker.record_no_reading()
    shown = tracker.get_metrics(0.0)
    assert {key: shown[key] for key in ("readings", *NOTHING_SAID)} == {"readings": "lost", **NOTHING_SAID, "device": "3090"}


def test_a_card_that_never_said_anything_is_unknown_and_not_lost(tracker: GpuTracker):
    tracker.record_no_reading()
    tracker.record_no_reading()
    assert tracker.get_metrics(0.0)["readings"] == "unknown"


def test_a_model_that_is_gone_is_not_offloaded_any_more(tracker: GpuTracker):
    tracker.record_loaded(HOME, 0.0)
    tracker.record_offloaded(frozenset({HOME, OTHER}))
    assert tracker.get_metrics(1.0)["offloaded_models"] == [HOME]
    tracker.record_unloaded(HOME)
    assert tracker.get_metrics(1.0)["offloaded_models"] == []


def test_changes_by_somebody_else_are_counted(tracker: GpuTracker):
    tracker.record_drift()
    tracker.record_drift()
    assert tracker.get_metrics(0.0)["drift_count"] == 2
