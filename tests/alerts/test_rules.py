"""Which event is which alert, and that no alert says what it must not."""

from __future__ import annotations

import typing
from dataclasses import replace

import pytest

from hearth import events
from hearth.alerts.rules import OWN_TASK, RULES, Alert, Severity
from hearth.config.settings import AlertType
from hearth.events import ConfigRejected, Event, InternalFault, ResidencyDrifted, SwapCompleted, SwapFailed
from tests.observability.samples import all_kinds, sample
from tests.support.cases import for_each

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
    *(AlertType.RATE_LIMITED, AlertType.QUEUE_DEPTH, AlertType.QUEUE_FULL, AlertType.TEST),
    *(AlertType.GPU_SWAP_FREQUENCY, AlertType.GPU_SWAP_LATENCY, AlertType.GPU_SWAP_OVERHEAD),
}
ERRORS = {
    *(AlertType.BACKEND_DOWN, AlertType.SWAP_FAILED, AlertType.GPU_LOST, AlertType.CLOUD_DOWN, AlertType.CONFIG_REJECTED),
    *(AlertType.STORAGE_FAILED, AlertType.INTERNAL_FAULT),
}
LASTING = {*ENDS.values(), AlertType.SWAP_FAILED, AlertType.MODEL_OFFLOADED}
REFUSED = events.BudgetExhausted(at=1.0, caller="n8n", own=True, wanted_usd=0.2, spent_usd=0.1, limit_usd=0.25)
TEXTS: tuple[tuple[Event, str], ...] = (
    (ResidencyDrifted(at=1.0, appeared=("a", "b"), vanished=("c",)), "Another program loaded a, b and unloaded c."),
    (
        ResidencyDrifted(at=1.0, appeared=(), vanished=("a", "b")),
        "Another program unloaded a, b, or the model server was restarted.",
    ),
    (
        ResidencyDrifted(at=1.0, appeared=(), vanished=(), reloaded=("a (8192 -> 4096 tokens)",)),
        "Ollama reloaded a (8192 -> 4096 tokens)",
    ),
    (
        ConfigRejected(at=1.0, problems=("f:1: no", "f:2: no", "f:3: no", "f:4: no")),
        "The previous configuration stays in force. f:1: no; f:2: no; f:3: no; and 1 more.",
    ),
    (events.StorageRecovered(at=1.0, dropped=4), "The request log can be written again. 4 entries were lost."),
    (events.BackendCameUp(at=1.0, version="1", down_s=90), "The model server answers again after 90 s."),
    (events.BackendCameUp(at=1.0, version="1", down_s=600), "The model server answers again after 10 min."),
    (events.BackendCameUp(at=1.0, version="1", down_s=9000), "The model server answers again after 2.5 h."),
    (
        SwapFailed(at=1.0, from_models=("a:8b",), to_model="", swap_s=0.0, reason="swap_failed", detail="x"),
        "a:8b could not be unloaded (swap_failed).",
    ),
    (REFUSED, "A request of n8n was refused: it could cost 0.20 USD, and 0.10 USD of its own 0.25 USD for today is spent or reserved."),
    (
        replace(REFUSED, own=False, limit_usd=5.0),
        "A request of n8n was refused: it could cost 0.20 USD, and 0.10 USD of 5.00 USD for today",
    ),
    (
        replace(REFUSED, wanted_usd=0.0123, spent_usd=0.0, limit_usd=0.001),
        "A request of n8n was refused: it could cost 0.0123 USD, and 0.00 USD of its own 0.0010 USD",
    ),
)


def alerts_of(event: Event) -> tuple[Alert, ...]:
    return RULES[type(event)](event) if type(event) in RULES else ()


def only(event: Event) -> Alert:
    alert, *others = alerts_of(event)
    assert all(each.resolved for each in others)
    return alert


def test_every_type_of_alert_has_a_title_that_a_header_can_carry_and_something_that_raises_it():
    assert set(RAISES.values()) | OF_SEVERAL_EVENTS == set(AlertType)
    assert all(kind.words.isascii() and kind.words.isprintable() for kind in AlertType)


def test_an_event_raises_or_ends_its_alert_or_is_none_by_itself():
    assert set(RULES) == {*RAISES, *ENDS, SwapCompleted}
    for kind, raised in RAISES.items():
        alert = only(sample(kind, at=7.0))
        assert (alert.type, alert.resolved, alert.at, alert.lasting) == (raised, False, 7.0, raised in LASTING)
        assert (alert.severity is Severity.ERROR) == (raised in ERRORS)
    for kind, ended in ENDS.items():
        begun = next(of for of, type_ in RAISES.items() if type_ is ended)
        alert = only(sample(kind, at=7.0))
        assert (alert.key, alert.resolved) == (only(sample(begun)).key, True)
    assert not any(alerts_of(sample(kind)) for kind in all_kinds() if kind not in RULES)


@for_each("kind", RULES)
def test_whatever_stands_in_an_event_stays_on_one_short_line_and_details_stay_in_the_log(kind):
    event = sample(kind, text="\x1b[2J\n@everyone " + "x" * 5000)
    if typing.get_type_hints(kind).get("detail") is str and kind is not InternalFault:
        event = replace(event, detail="the prompt was: canary")
    for alert in alerts_of(event):
        assert alert.text.isprintable()
        assert len(alert.text) < 1500
        assert "canary" not in alert.text


@pytest.mark.parametrize("offloaded", [True, False])
def test_a_swap_that_worked_ends_the_failure_of_its_model_and_says_whether_it_found_room(offloaded):
    failed, fit = alerts_of(sample(SwapCompleted, to_model="a", offloaded=offloaded))
    assert (failed.key, failed.resolved) == ((AlertType.SWAP_FAILED, "a"), True)
    assert (fit.key, fit.resolved, fit.lasting) == ((AlertType.MODEL_OFFLOADED, "a"), not offloaded, offloaded)


@for_each(("event", "text"), TEXTS)
def test_texts_say_what_an_owner_needs(event, text):
    assert only(event).text.startswith(text)


def test_a_model_that_did_not_leave_is_no_condition_that_goes_on():
    assert [only(sample(SwapFailed, to_model=to_model)).lasting for to_model in ("", "b")] == [False, True]


def test_there_is_no_alert_about_alerts():
    assert alerts_of(InternalFault(at=1.0, where=OWN_TASK, detail="ExceptionGroup")) == ()
    assert not {events.AlertSent, events.AlertFailed} & set(RULES)
