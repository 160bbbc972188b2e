"""Which event is which alert, and that no alert says what it must not."""

from __future__ import annotations

import typing
from dataclasses import replace

import pytest

from hearth import events
from hearth.alerts.alert import Alert
from hearth.alerts.rules import MAX_CALLERS, OWN_TASK, RULES, Refusals, WaitingItems, alerts_of
from hearth.config.settings import AlertType
from hearth.events import (
    AlertFailed,
    AlertSent,
    BudgetExhausted,
    ConfigRejected,
    Event,
    InternalFault,
    ItemDispatched,
    ItemEnded,
    ItemEvent,
    ItemInterrupted,
    ItemQueued,
    ItemResent,
    ResidencyDrifted,
    StorageRecovered,
    SwapCompleted,
    SwapFailed,
)
from hearth.types import Lane, Sequence
from tests.observability.samples import all_kinds, sample

RAISES: dict[type[Event], AlertType] = {
    events.BackendWentDown: AlertType.BACKEND_DOWN,
    events.ItemProtected: AlertType.STARVATION,
    events.ItemDiverged: AlertType.REPLAY_DIVERGED,
    events.SwapFailed: AlertType.SWAP_FAILED,
    events.ModelOffloaded: AlertType.MODEL_OFFLOADED,
    events.ResidencyDrifted: AlertType.RESIDENCY_DRIFTED,
    events.GpuLost: AlertType.GPU_LOST,
    events.GpuOverheated: AlertType.GPU_HOT,
    events.BudgetThresholdReached: AlertType.BUDGET,
    events.BudgetExhausted: AlertType.BUDGET_EXHAUSTED,
    events.CloudWentDown: AlertType.CLOUD_DOWN,
    events.ConfigRejected: AlertType.CONFIG_REJECTED,
    events.ClockDoubted: AlertType.CLOCK_DOUBTED,
    events.StorageFailed: AlertType.STORAGE_FAILED,
    events.DiskRanLow: AlertType.DISK_LOW,
    events.LoopLagged: AlertType.LOOP_LAG,
    events.KeysTried: AlertType.WRONG_KEYS,
    events.ConnectionsCrowded: AlertType.CONNECTIONS,
    events.InternalFault: AlertType.INTERNAL_FAULT,
}
ENDS: dict[type[Event], AlertType] = {
    events.BackendCameUp: AlertType.BACKEND_DOWN,
    events.GpuRecovered: AlertType.GPU_LOST,
    events.GpuCooledDown: AlertType.GPU_HOT,
    events.CloudCameUp: AlertType.CLOUD_DOWN,
    events.ConfigReloaded: AlertType.CONFIG_REJECTED,
    events.ClockConfirmed: AlertType.CLOCK_DOUBTED,
    events.StorageRecovered: AlertType.STORAGE_FAILED,
    events.DiskSpaceReturned: AlertType.DISK_LOW,
}
OF_SEVERAL_EVENTS = {
    AlertType.RATE_LIMITED,
    AlertType.QUEUE_DEPTH,
    AlertType.QUEUE_FULL,
    AlertType.GPU_SWAP_FREQUENCY,
    AlertType.GPU_SWAP_LATENCY,
    AlertType.GPU_SWAP_OVERHEAD,
    AlertType.TEST,
}


def only(event: Event) -> Alert:
    alert, *others = alerts_of(event)
    assert all(each.resolved for each in others)
    return alert


def test_every_type_of_alert_is_raised_by_something():
    assert set(RAISES.values()) | OF_SEVERAL_EVENTS == set(AlertType)


def test_no_rule_is_without_a_row_in_these_tables():
    assert set(RULES) == {*RAISES, *ENDS, SwapCompleted}


@pytest.mark.parametrize("kind", RAISES, ids=lambda kind: kind.__name__)
def test_an_event_raises_its_alert(kind):
    alert = only(sample(kind, at=7.0))
    assert (alert.type, alert.resolved, alert.at) == (RAISES[kind], False, 7.0)
    assert alert.lasting == (RAISES[kind] in {*ENDS.values(), AlertType.SWAP_FAILED, AlertType.MODEL_OFFLOADED})


@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.__name__)
def test_an_event_ends_its_alert_under_the_same_key(kind):
    alert = only(sample(kind, at=7.0))
    raised = next(of for of, type_ in RAISES.items() if type_ is ENDS[kind])
    assert (alert.key, alert.resolved) == (only(sample(raised)).key, True)


@pytest.mark.parametrize("kind", [kind for kind in all_kinds() if kind not in RULES], ids=lambda kind: kind.__name__)
def test_no_other_event_is_an_alert_by_itself(kind):
    assert alerts_of(sample(kind)) == ()


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_whatever_stands_in_an_event_stays_on_one_short_line_and_details_stay_in_the_log(kind):
    nasty = "\x1b[2J\n@everyone " + "x" * 5000
    event = sample(kind, text=nasty)
    hints = typing.get_type_hints(kind)
    if hints.get("detail") is str and kind is not InternalFault:
        event = replace(event, detail="the prompt was: canary")  # type: ignore[call-arg]
    for alert in alerts_of(event):
        assert alert.text.isprintable()
        assert len(alert.text) < 1500
        assert "canary" not in alert.text


def test_a_swap_that_worked_ends_the_failure_and_the_offload_of_its_model():
    swapped = replace(typing.cast("SwapCompleted", sample(SwapCompleted)), to_model="a", offloaded=False)
    failed, offloaded = alerts_of(swapped)
    assert (failed.key, failed.resolved) == ((AlertType.SWAP_FAILED, "a"), True)
    assert (offloaded.key, offloaded.resolved) == ((AlertType.MODEL_OFFLOADED, "a"), True)


def test_a_swap_that_left_a_part_on_the_cpu_is_an_alert():
    swapped = replace(typing.cast("SwapCompleted", sample(SwapCompleted)), to_model="a", offloaded=True)
    _, offloaded = alerts_of(swapped)
    assert (offloaded.key, offloaded.resolved, offloaded.lasting) == ((AlertType.MODEL_OFFLOADED, "a"), False, True)


def test_a_model_that_would_not_leave_is_about_that_model():
    failed = only(SwapFailed(at=1.0, from_models=("a:8b",), to_model="", swap_s=0.0, reason="swap_failed", detail="x"))
    assert (failed.subject, failed.lasting) == ("a:8b", False)
    assert failed.text == "a:8b did not leave the GPU (swap_failed)."


def test_a_call_that_was_refused_for_money_says_whose_budget_it_was():
    told = BudgetExhausted(at=1.0, caller="n8n", own=True, wanted_usd=0.2, spent_usd=0.1, limit_usd=0.25)
    assert only(told).text == "A call of n8n was refused: it could cost 0.20 USD, and 0.10 USD of its own 0.25 USD for today are taken."
    assert only(replace(told, own=False, limit_usd=5.0)).text.endswith("and 0.10 USD of 5.00 USD for today are taken.")
    small = only(replace(told, wanted_usd=0.0123, spent_usd=0.0, limit_usd=0.001))
    assert small.text.endswith("it could cost 0.0123 USD, and 0.00 USD of its own 0.0010 USD for today are taken.")


def test_texts_say_what_an_owner_needs():
    assert only(ResidencyDrifted(at=1.0, appeared=("a", "b"), vanished=("c",))).text.startswith("Somebody else loaded a, b and unloaded c.")
    gone = only(ResidencyDrifted(at=1.0, appeared=(), vanished=("a", "b")))
    assert gone.text == "a, b left the memory, and not by Hearth: the model server was restarted, or another program unloads models."
    anew = only(ResidencyDrifted(at=1.0, appeared=(), vanished=(), reloaded=("a (8192 -> 4096 tokens)",)))
    assert anew.text.startswith("Ollama loaded anew, with another context: a (8192 -> 4096 tokens). Give the model itself its num_ctx")
    assert gone.title == "Models changed without Hearth"
    problems = ConfigRejected(at=1.0, problems=("f:1: a: no", "f:2: b: no", "f:3: c: no", "f:4: d: no"))
    assert only(problems).text.endswith("f:1: a: no; f:2: b: no; f:3: c: no; and 1 more.")
    assert only(StorageRecovered(at=1.0, dropped=4)).text == "The log of requests is written again. 4 entries are lost."
    assert only(events.BackendCameUp(at=1.0, version="1", down_s=90)).text == "The model server answers again after 90 s."
    assert only(events.BackendCameUp(at=1.0, version="1", down_s=600)).text == "The model server answers again after 10 min."
    assert only(events.BackendCameUp(at=1.0, version="1", down_s=9000)).text == "The model server answers again after 2.5 h."


def test_a_defect_of_the_alerter_is_no_alert():
    assert alerts_of(InternalFault(at=1.0, where=OWN_TASK, detail="ExceptionGroup")) == ()


@pytest.mark.parametrize("kind", [AlertSent, AlertFailed])
def test_there_is_no_alert_about_alerts(kind):
    assert alerts_of(sample(kind)) == ()


def test_a_caller_is_over_the_threshold_with_that_many_refusals_within_five_minutes():
    refusals = Refusals()
    assert [refusals.add("a", at, 3) for at in (0.0, 100.0, 299.0)] == [False, False, True]
    assert [refusals.add("a", at, 3) for at in (400.0, 401.0, 702.0)] == [False, True, False]
    assert [refusals.add("b", 702.0, 3) for _ in range(2)] == [False, False]
    assert refusals.add("b", 702.0, 1)


def test_a_threshold_that_changes_holds_for_the_next_refusal():
    refusals = Refusals()
    for at in range(5):
        refusals.add("a", float(at), 10)
    assert refusals.add("a", 6.0, 6)
    assert not refusals.add("a", 7.0, 9)


def test_callers_are_remembered_in_bounds():
    refusals = Refusals()
    for number in range(3 * MAX_CALLERS):
        refusals.add(f"c{number}", 1.0, 2)
    assert len(refusals._recent) == MAX_CALLERS


def step(kind: type[ItemEvent], sequence: int, lane: Lane = Lane.EXTERNAL) -> ItemEvent:
    return replace(typing.cast("ItemEvent", sample(kind)), sequence=Sequence(sequence), lane=lane)


def test_the_depth_follows_every_way_of_an_item():
    waiting = WaitingItems()
    history: list[tuple[type[ItemEvent], int, int]] = [
        (ItemQueued, 1, 1),
        (ItemQueued, 2, 2),
        (ItemDispatched, 1, 1),
        (ItemInterrupted, 1, 2),
        (ItemDispatched, 1, 1),
        (ItemResent, 1, 2),
        (ItemDispatched, 1, 1),
        (ItemEnded, 1, 1),
        (ItemEnded, 2, 0),
        (ItemEnded, 2, 0),
    ]
    for kind, sequence, depth in history:
        waiting.note(step(kind, sequence))
        assert waiting.depth == depth
    waiting.note(step(ItemQueued, 3, Lane.INTERNAL))
    assert waiting.depth == 0
