"""Which event is which alert: a table, and the sentence of each. Pure.

A new kind of alert is a member of `AlertType`, a title in `alert.TITLES`, a rule here, and a row in docs/alerts.md. Rules that need more
than one event are in `hearth.alerts.alerter`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hearth.alerts.alert import Alert, Severity, shown
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
    ItemEvent,
    ItemInterrupted,
    ItemProtected,
    ItemQueued,
    ItemResent,
    KeysTried,
    LoopLagged,
    ModelOffloaded,
    ResidencyDrifted,
    StorageFailed,
    StorageRecovered,
    SwapCompleted,
    SwapFailed,
)
from hearth.types import Lane, Sequence

WINDOW_S = 300.0
MAX_CALLERS = 1000
_WAITS = (ItemQueued, ItemInterrupted, ItemResent)
"""With these an item waits; with `ItemDispatched` and `ItemEnded`, the others that are noted, it does not any more."""


class Refusals:
    """The recent refusals of each caller, no more of them than matter."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[float]] = {}

    def add(self, caller: str, at: float, threshold: int) -> bool:
        """Note a refusal; whether it is the `threshold`-th within 5 minutes, or one beyond."""
        recent = deque((*self._recent.pop(caller, ()), at), maxlen=threshold)
        self._recent[caller] = recent
        if len(self._recent) > MAX_CALLERS:
            del self._recent[next(iter(self._recent))]
        return len(recent) == threshold and recent[0] > at - WINDOW_S


class WaitingItems:
    """The external items that wait, as the events of items tell it."""

    def __init__(self) -> None:
        self._waiting: set[Sequence] = set()

    @property
    def depth(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def note(self, event: ItemEvent) -> int:
        """An item waits from now on, or no longer; internal ones change nothing. Returns by how much the depth has changed."""
        waits = isinstance(event, _WAITS)
        if event.lane is not Lane.EXTERNAL or waits is (event.sequence in self._waiting):
            return 0
        if waits:
            self._waiting.add(event.sequence)
            return 1
        self._waiting.discard(event.sequence)
        return -1


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


def _begins(kind: AlertType, said: Callable[[Any], str], severity: Severity = Severity.WARNING) -> Rule:
    """A condition that goes on until another rule ends it."""
    return lambda event: (Alert(type=kind, at=event.at, severity=severity, lasting=True, text=said(event)),)


def _ends(kind: AlertType, said: Callable[[Any], str]) -> Rule:
    return lambda event: (Alert(type=kind, at=event.at, resolved=True, text=said(event)),)


def _happens(kind: AlertType, said: Callable[[Any], str], subject: Callable[[Any], str] = lambda _: "") -> Rule:
    return lambda event: (Alert(type=kind, subject=subject(event), at=event.at, text=said(event)),)


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


def _exhausted(event: BudgetExhausted) -> str:
    text = f"A call of {shown(event.caller)} was refused: it could cost {_usd(event.wanted_usd)}, and"
    return f"{text} {_usd(event.spent_usd)} of {'its own ' if event.own else ''}{_usd(event.limit_usd)} for today are taken."


def _config_rejected(event: ConfigRejected) -> str:
    """The problems are written to be shown: they quote no secret."""
    first = "; ".join(shown(each, REASON_CHARS) for each in event.problems[:SHOWN_PROBLEMS])
    more = len(event.problems) - SHOWN_PROBLEMS
    return f"The configuration in force stays. {first}{f'; and {more} more' if more > 0 else ''}."


def _crowded(event: ConnectionsCrowded) -> str:
    bound = shown(event.bound.replace("_", " "))
    return f"{shown(event.peer)} holds {event.open} connections, and {event.refused} more were refused: {bound} may have no more."


def _fault(event: InternalFault) -> tuple[Alert, ...]:
    if event.where == OWN_TASK:
        return ()
    text = f"A defect was caught in {shown(event.where)} ({shown(event.detail)}); Hearth goes on. Please report it."
    return (Alert(type=AlertType.INTERNAL_FAULT, subject=event.where, at=event.at, severity=Severity.ERROR, text=text),)


RULES: Mapping[type[Event], Rule] = MappingProxyType(
    {
        BackendWentDown: _begins(
            AlertType.BACKEND_DOWN,
            lambda it: f"The model server does not answer ({shown(it.reason, REASON_CHARS)}). Requests wait for it, then they get 503.",
            Severity.ERROR,
        ),
        BackendCameUp: _ends(AlertType.BACKEND_DOWN, lambda it: f"The model server answers again after {_duration(it.down_s)}."),
        ItemProtected: lambda it: (starvation(it.at, it.caller, it.interrupt_count, it.model),),
        ItemDiverged: _happens(
            AlertType.REPLAY_DIVERGED,
            lambda it: (
                f"An answer of {shown(it.model or 'a model')} to {shown(it.caller)} could not go on after an interruption; "
                "the caller got a retryable error."
            ),
            lambda it: str(it.caller),
        ),
        SwapCompleted: lambda it: (_is_loaded(it.to_model, it.at), _fit(it.to_model, it.at, offloaded=it.offloaded)),
        SwapFailed: _swap_failed,
        ModelOffloaded: lambda it: (_fit(it.model, it.at, offloaded=True),),
        ResidencyDrifted: _drifted,
        GpuLost: _begins(
            AlertType.GPU_LOST,
            lambda it: f"The GPU no longer says how it is ({shown(it.reason)}). If models fail too, the machine may need a restart.",
            Severity.ERROR,
        ),
        GpuRecovered: _ends(AlertType.GPU_LOST, lambda it: f"The GPU is back after {_duration(it.lost_s)}."),
        GpuOverheated: _begins(
            AlertType.GPU_HOT, lambda it: f"The GPU is at {it.temperature_c:.0f} °C; the limit set is {it.limit_c:.0f} °C."
        ),
        GpuCooledDown: _ends(AlertType.GPU_HOT, lambda it: f"The GPU is down to {it.temperature_c:.0f} °C after {_duration(it.hot_s)}."),
        BudgetThresholdReached: lambda it: (budget(it.at, it.spent_usd, it.limit_usd),),
        BudgetExhausted: _happens(AlertType.BUDGET_EXHAUSTED, _exhausted, lambda it: str(it.caller)),
        CloudWentDown: _begins(
            AlertType.CLOUD_DOWN,
            lambda it: f"Claude takes no work ({shown(it.reason)}); it is tried again in {_duration(it.retry_s)}, or after a reload.",
            Severity.ERROR,
        ),
        CloudCameUp: _ends(AlertType.CLOUD_DOWN, lambda it: f"Claude answers again after {_duration(it.down_s)}."),
        ConfigRejected: _begins(AlertType.CONFIG_REJECTED, _config_rejected, Severity.ERROR),
        ConfigReloaded: _ends(AlertType.CONFIG_REJECTED, lambda _: "A good configuration is in force."),
        StorageFailed: _begins(
            AlertType.STORAGE_FAILED,
            lambda it: f"The log of requests cannot be written ({shown(it.reason)}). Requests go on.",
            Severity.ERROR,
        ),
        StorageRecovered: _ends(
            AlertType.STORAGE_FAILED,
            lambda it: f"The log of requests is written again.{f' {it.dropped} entries are lost.' if it.dropped else ''}",
        ),
        ClockDoubted: _begins(
            AlertType.CLOCK_DOUBTED,
            lambda it: (
                f"The clock has jumped ahead by {it.ahead_s / 86_400:.0f} days. Nothing old is deleted until it is confirmed, "
                "or for a day. If the time is right: hearth admin confirm-clock."
            ),
        ),
        ClockConfirmed: _ends(AlertType.CLOCK_DOUBTED, lambda _: "The clock is believed again; what is old is deleted."),
        DiskRanLow: _begins(
            AlertType.DISK_LOW,
            lambda it: f"The disk of the log has {it.free_mib:.0f} MiB left; {it.limit_mib:.0f} MiB is the limit set.",
        ),
        DiskSpaceReturned: _ends(AlertType.DISK_LOW, lambda it: f"The disk of the log has {it.free_mib:.0f} MiB again."),
        LoopLagged: _happens(
            AlertType.LOOP_LAG,
            lambda it: f"Hearth did nothing for {it.lag_s:.1f} s: the machine is overloaded, or there is a defect. Everybody waited.",
        ),
        KeysTried: _happens(
            AlertType.WRONG_KEYS,
            lambda it: (
                f"{it.wrong} requests with a wrong key came from {shown(it.peer)}: a program there has an old key, or somebody tries keys. "
                "Right keys are let in as ever."
            ),
            lambda it: str(it.peer),
        ),
        ConnectionsCrowded: _happens(AlertType.CONNECTIONS, _crowded, lambda it: str(it.peer)),
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
