"""Which event is which alert: a table, and the sentence of each. Pure.

A new kind of alert is a member of `AlertType`, a title in `alert.TITLES`, a rule here, and a row in docs/alerts.md. Rules that need more
than one event are in `hearth.alerter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hearth.alerts.alert import Alert, Severity
from hearth.alerts.wording import shown
from hearth.config.settings import AlertType
from hearth.events import (
    BackendCameUp,
    BackendWentDown,
    BudgetExhausted,
    BudgetThresholdReached,
    ClockConfirmed,
    ClockDoubted,
    CloudCameUp,
    CloudWentDown,
    ConfigRejected,
    ConfigReloaded,
    ConnectionsCrowded,
    DiskRanLow,
    DiskSpaceReturned,
    Event,
    GpuCooledDown,
    GpuLost,
    GpuOverheated,
    GpuRecovered,
    InternalFault,
    ItemDiverged,
    ItemProtected,
    KeysTried,
    LoopLagged,
    ModelOffloaded,
    ResidencyDrifted,
    StorageFailed,
    StorageRecovered,
    SwapCompleted,
    SwapFailed,
)

SHOWN_PROBLEMS = 3
REASON_CHARS = 300
OWN_TASK = "alerts"
"""Where a defect of the alerter itself is reported; an alert about that would only feed it."""

Rule = Callable[[Any], tuple[Alert, ...]]


def alerts_of(event: Event) -> tuple[Alert, ...]:
    """The alerts that one event raises or ends; most events none."""
    rule = RULES.get(type(event))
    return () if rule is None else rule(event)


def starvation(at: float, caller: str, interrupt_count: int, model: str | None) -> Alert:
    """A request was interrupted so often that it is left alone from now on."""
    asked = f" for {shown(model)}" if model else ""
    text = f"A request of {shown(caller)}{asked} was interrupted {interrupt_count} times; from now on it is left alone until it is done."
    return Alert(type=AlertType.STARVATION, subject=caller, at=at, text=text)


def budget(at: float, spent_usd: float, limit_usd: float) -> Alert:
    """The day's money is nearly gone."""
    text = f"{_usd(spent_usd)} of {_usd(limit_usd)} for cloud models are spent today."
    return Alert(type=AlertType.BUDGET, at=at, text=text)


def _backend_down(event: BackendWentDown) -> tuple[Alert, ...]:
    text = f"The model server does not answer ({shown(event.reason, REASON_CHARS)}). Requests wait for it, then they get 503."
    return (Alert(type=AlertType.BACKEND_DOWN, at=event.at, severity=Severity.ERROR, lasting=True, text=text),)


def _backend_up(event: BackendCameUp) -> tuple[Alert, ...]:
    text = f"The model server answers again after {_duration(event.down_s)}."
    return (Alert(type=AlertType.BACKEND_DOWN, at=event.at, resolved=True, text=text),)


def _protected(event: ItemProtected) -> tuple[Alert, ...]:
    return (starvation(event.at, event.caller, event.interrupt_count, event.model),)


def _diverged(event: ItemDiverged) -> tuple[Alert, ...]:
    text = f"An answer of {shown(event.model or 'a model')} to {shown(event.caller)} could not go on after an interruption;"
    return (Alert(type=AlertType.REPLAY_DIVERGED, subject=event.caller, at=event.at, text=f"{text} the caller got a retryable error."),)


def _swap_completed(event: SwapCompleted) -> tuple[Alert, ...]:
    return _is_loaded(event.to_model, event.at), _fit(event.to_model, event.at, offloaded=event.offloaded)


def _is_loaded(model: str, at: float) -> Alert:
    return Alert(type=AlertType.SWAP_FAILED, subject=model, at=at, resolved=True, text=f"{shown(model)} is loaded.")


def _fit(model: str, at: float, *, offloaded: bool) -> Alert:
    """Whether a model that was just loaded found room on the GPU."""
    alert_type, name = AlertType.MODEL_OFFLOADED, shown(model)
    if not offloaded:
        return Alert(type=alert_type, subject=model, at=at, resolved=True, text=f"{name} is wholly on the GPU.")
    text = f"{name} did not fit on the GPU, and a part of it runs on the CPU, which is many times slower."
    return Alert(type=alert_type, subject=model, at=at, lasting=True, text=text)


def _swap_failed(event: SwapFailed) -> tuple[Alert, ...]:
    if not event.to_model:
        model = ", ".join(event.from_models)
        text = f"{shown(model)} did not leave the GPU ({shown(event.reason)})."
        return (Alert(type=AlertType.SWAP_FAILED, subject=model, at=event.at, severity=Severity.ERROR, text=text),)
    text = f"{shown(event.to_model)} did not load ({shown(event.reason)}, after {_duration(event.swap_s)}); the log has the details."
    return (Alert(type=AlertType.SWAP_FAILED, subject=event.to_model, at=event.at, severity=Severity.ERROR, lasting=True, text=text),)


def _drifted(event: ResidencyDrifted) -> tuple[Alert, ...]:
    drift = Alert(type=AlertType.RESIDENCY_DRIFTED, at=event.at, severity=Severity.INFO, text=_changes(event))
    return drift, *(_is_loaded(model, event.at) for model in event.appeared)


def _changes(event: ResidencyDrifted) -> str:
    """What only vanished may have gone down with a model server that was back before it was missed."""
    if event.reloaded:
        anew = shown(", ".join(event.reloaded))
        return (
            f"Ollama loaded anew, with another context: {anew}. Give the model itself its num_ctx (docs/clients/index.md), or this repeats."
        )
    gone = shown(", ".join(event.vanished))
    if not event.appeared:
        return f"{gone} left the memory, and not by Hearth: the model server was restarted, or another program unloads models."
    unloaded = f" and unloaded {gone}" if gone else ""
    return f"Somebody else loaded {shown(', '.join(event.appeared))}{unloaded}. Let every program go through Hearth, or it cannot plan."


def _gpu_lost(event: GpuLost) -> tuple[Alert, ...]:
    text = f"The GPU no longer says how it is ({shown(event.reason)}). If models fail too, the machine may need a restart."
    return (Alert(type=AlertType.GPU_LOST, at=event.at, severity=Severity.ERROR, lasting=True, text=text),)


def _gpu_recovered(event: GpuRecovered) -> tuple[Alert, ...]:
    return (Alert(type=AlertType.GPU_LOST, at=event.at, resolved=True, text=f"The GPU is back after {_duration(event.lost_s)}."),)


def _gpu_hot(event: GpuOverheated) -> tuple[Alert, ...]:
    text = f"The GPU is at {event.temperature_c:.0f} °C; the limit set is {event.limit_c:.0f} °C."
    return (Alert(type=AlertType.GPU_HOT, at=event.at, lasting=True, text=text),)


def _gpu_cool(event: GpuCooledDown) -> tuple[Alert, ...]:
    text = f"The GPU is down to {event.temperature_c:.0f} °C after {_duration(event.hot_s)}."
    return (Alert(type=AlertType.GPU_HOT, at=event.at, resolved=True, text=text),)


def _budget(event: BudgetThresholdReached) -> tuple[Alert, ...]:
    return (budget(event.at, event.spent_usd, event.limit_usd),)


def _exhausted(event: BudgetExhausted) -> tuple[Alert, ...]:
    text = f"A call of {shown(event.caller)} was refused: it could cost {_usd(event.wanted_usd)}, and"
    spent = f"{_usd(event.spent_usd)} of {'its own ' if event.own else ''}{_usd(event.limit_usd)} for today are taken."
    return (Alert(type=AlertType.BUDGET_EXHAUSTED, subject=event.caller, at=event.at, text=f"{text} {spent}"),)


def _cloud_down(event: CloudWentDown) -> tuple[Alert, ...]:
    text = f"Claude takes no work ({shown(event.reason)}); it is tried again in {_duration(event.retry_s)}, or after a reload."
    return (Alert(type=AlertType.CLOUD_DOWN, at=event.at, severity=Severity.ERROR, lasting=True, text=text),)


def _cloud_up(event: CloudCameUp) -> tuple[Alert, ...]:
    return (Alert(type=AlertType.CLOUD_DOWN, at=event.at, resolved=True, text=f"Claude answers again after {_duration(event.down_s)}."),)


def _config_rejected(event: ConfigRejected) -> tuple[Alert, ...]:
    """The problems are written to be shown: they quote no secret."""
    first = "; ".join(shown(each, REASON_CHARS) for each in event.problems[:SHOWN_PROBLEMS])
    more = len(event.problems) - SHOWN_PROBLEMS
    text = f"The configuration in force stays. {first}{f'; and {more} more' if more > 0 else ''}."
    return (Alert(type=AlertType.CONFIG_REJECTED, at=event.at, severity=Severity.ERROR, lasting=True, text=text),)


def _config_reloaded(event: ConfigReloaded) -> tuple[Alert, ...]:
    return (Alert(type=AlertType.CONFIG_REJECTED, at=event.at, resolved=True, text="A good configuration is in force."),)


def _storage_failed(event: StorageFailed) -> tuple[Alert, ...]:
    text = f"The log of requests cannot be written ({shown(event.reason)}). Requests go on."
    return (Alert(type=AlertType.STORAGE_FAILED, at=event.at, severity=Severity.ERROR, lasting=True, text=text),)


def _storage_recovered(event: StorageRecovered) -> tuple[Alert, ...]:
    lost = f" {event.dropped} entries are lost." if event.dropped else ""
    return (Alert(type=AlertType.STORAGE_FAILED, at=event.at, resolved=True, text=f"The log of requests is written again.{lost}"),)


def _clock_doubted(event: ClockDoubted) -> tuple[Alert, ...]:
    text = f"The clock has jumped ahead by {event.ahead_s / 86_400:.0f} days. Nothing old is deleted until it is confirmed, or for a day."
    text = f"{text} If the time is right: hearth admin confirm-clock."
    return (Alert(type=AlertType.CLOCK_DOUBTED, at=event.at, lasting=True, text=text),)


def _clock_confirmed(event: ClockConfirmed) -> tuple[Alert, ...]:
    return (Alert(type=AlertType.CLOCK_DOUBTED, at=event.at, resolved=True, text="The clock is believed again; what is old is deleted."),)


def _disk_low(event: DiskRanLow) -> tuple[Alert, ...]:
    text = f"The disk of the log has {event.free_mib:.0f} MiB left; {event.limit_mib:.0f} MiB is the limit set."
    return (Alert(type=AlertType.DISK_LOW, at=event.at, lasting=True, text=text),)


def _disk_back(event: DiskSpaceReturned) -> tuple[Alert, ...]:
    return (Alert(type=AlertType.DISK_LOW, at=event.at, resolved=True, text=f"The disk of the log has {event.free_mib:.0f} MiB again."),)


def _lagged(event: LoopLagged) -> tuple[Alert, ...]:
    text = f"Hearth did nothing for {event.lag_s:.1f} s: the machine is overloaded, or there is a defect. Everybody waited."
    return (Alert(type=AlertType.LOOP_LAG, at=event.at, text=text),)


def _keys_tried(event: KeysTried) -> tuple[Alert, ...]:
    text = f"{event.wrong} requests with a wrong key came from {shown(event.peer)}: a program there has an old key, or somebody tries keys."
    return (Alert(type=AlertType.WRONG_KEYS, subject=event.peer, at=event.at, text=f"{text} Right keys are let in as ever."),)


def _crowded(event: ConnectionsCrowded) -> tuple[Alert, ...]:
    bound = shown(event.bound.replace("_", " "))
    text = f"{shown(event.peer)} holds {event.open} connections, and {event.refused} more were refused: {bound} may have no more."
    return (Alert(type=AlertType.CONNECTIONS, subject=event.peer, at=event.at, text=text),)


def _fault(event: InternalFault) -> tuple[Alert, ...]:
    if event.where == OWN_TASK:
        return ()
    text = f"A defect was caught in {shown(event.where)} ({shown(event.detail)}); Hearth goes on. Please report it."
    return (Alert(type=AlertType.INTERNAL_FAULT, subject=event.where, at=event.at, severity=Severity.ERROR, text=text),)


RULES: Mapping[type[Event], Rule] = MappingProxyType(
    {
        BackendWentDown: _backend_down,
        BackendCameUp: _backend_up,
        ItemProtected: _protected,
        ItemDiverged: _diverged,
        SwapCompleted: _swap_completed,
        SwapFailed: _swap_failed,
        ModelOffloaded: lambda event: (_fit(event.model, event.at, offloaded=True),),
        ResidencyDrifted: _drifted,
        GpuLost: _gpu_lost,
        GpuRecovered: _gpu_recovered,
        GpuOverheated: _gpu_hot,
        GpuCooledDown: _gpu_cool,
        BudgetThresholdReached: _budget,
        BudgetExhausted: _exhausted,
        CloudWentDown: _cloud_down,
        CloudCameUp: _cloud_up,
        ConfigRejected: _config_rejected,
        ConfigReloaded: _config_reloaded,
        StorageFailed: _storage_failed,
        StorageRecovered: _storage_recovered,
        ClockDoubted: _clock_doubted,
        ClockConfirmed: _clock_confirmed,
        DiskRanLow: _disk_low,
        DiskSpaceReturned: _disk_back,
        LoopLagged: _lagged,
        KeysTried: _keys_tried,
        ConnectionsCrowded: _crowded,
        InternalFault: _fault,
    }
)


def _usd(amount: float) -> str:
    """To the cent; less than ten cents with what is behind it, where one call may cost a tenth of a cent."""
    return f"{amount:.4f} USD" if 0 < amount < 0.1 else f"{amount:.2f} USD"


def _duration(seconds: float) -> str:
    """Rounded to what people say: 8 s, 4 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
