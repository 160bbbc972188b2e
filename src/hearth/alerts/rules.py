"""What is an alert: which event raises or ends which, and the sentence of each; `alerter` has those
that need several events. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from hearth.config.choices import Severity
from hearth.config.settings import ENGINE, AlertType
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
    EngineExited,
    Event,
    GpuCooledDown,
    GpuLeaseEnded,
    GpuLeaseGranted,
    GpuLeaseLate,
    GpuLost,
    GpuOverheated,
    GpuRecovered,
    InternalFault,
    ItemDiverged,
    ItemProtected,
    KeysTried,
    LoopLagged,
    ModelFastAgain,
    ModelOffloaded,
    ModelStaysSlow,
    ModelUnresponsive,
    ResidencyDrifted,
    StorageFailed,
    StorageRecovered,
    SwapCompleted,
    SwapFailed,
    WalDamaged,
)
from hearth.types import JsonDict, frozen, plural

AlertKey = tuple[AlertType, str]
"""The type, and whom it is about: what is debounced by itself."""
NAME_CHARS = 100
REASON_CHARS = 300
SHOWN_PROBLEMS = 3
TOLERATED_RELOADS = 2
"""Of a model that sent nothing, within ten minutes."""
OWN_TASK = "alerts"
"""Where a defect of the alerter itself is reported; an alert about that would only feed it."""


@frozen
class Alert:
    """Something that the owner should know.

    Attributes:
        subject: whom it is about: a caller, a model, a part of Hearth; empty for the whole.
        text: one or two plain sentences; never a prompt, an answer, a key or a URL.
        at: the monotonic instant of the fact in seconds.
        lasting: it goes on until an alert with the same key and `resolved` ends it.
        suppressed: alerts with this key that were left out since the last one that was sent.
    """

    type: AlertType
    text: str
    at: float
    subject: str = ""
    lasting: bool = False
    resolved: bool = False
    suppressed: int = 0

    @property
    def severity(self) -> Severity:
        """That of its type; what is over is no longer bad."""
        return Severity.INFORMATION if self.resolved else self.type.severity

    @property
    def key(self) -> AlertKey:
        return self.type, self.subject

    @property
    def title(self) -> str:
        return f"Resolved: {self.type.words}" if self.resolved else self.type.words


def worst_first(alerts: Iterable[Alert]) -> list[Alert]:
    """By severity, and within one as they are."""
    return sorted(alerts, key=lambda each: -each.severity)


@frozen
class Breach:
    """A limit of the GPU's hour that is passed now: swaps, milliseconds or percent, as `kind`
    says.
    """

    kind: AlertType
    measured: float
    threshold: float


def shown(text: str, limit: int = NAME_CHARS) -> str:
    """A name or a reason on one line: what is not printable (line breaks, ESC, direction overrides)
    becomes `?`, the end is cut.
    """
    head = "".join(each if each.isprintable() else "?" for each in text[: limit + 1])
    return head if len(head) <= limit else head[: limit - 1] + "…"


def starvation(at: float, caller: str, interrupt_count: int, model: str | None) -> Alert:
    asked = f" for {shown(model)}" if model else ""
    text = (
        f"A request of {shown(caller)}{asked} was interrupted"
        f" {plural(interrupt_count, 'time')}. It will not be interrupted again."
    )
    return Alert(type=AlertType.STARVATION, subject=caller, at=at, text=text)


def budget(at: float, spent_usd: float, limit_usd: float) -> Alert:
    text = f"{_usd(spent_usd)} of {_usd(limit_usd)} for cloud models has been spent today."
    return Alert(type=AlertType.BUDGET, at=at, text=text)


LASTING_BREACHES = (AlertType.GPU_SWAP_FREQUENCY, AlertType.GPU_SWAP_OVERHEAD)


def breached(breach: Breach, at: float) -> Alert:
    measured = breach.measured
    limit = breach.threshold
    if breach.kind is AlertType.GPU_SWAP_FREQUENCY:
        text = f"{measured:.0f} model swaps in the last hour; the limit is {limit:.0f}."
    elif breach.kind is AlertType.GPU_SWAP_LATENCY:
        text = (
            f"The last model swap took {measured / 1000:.0f} s; the limit is {limit / 1000:.0f} s."
        )
    else:
        text = (
            f"Model swaps took {measured:.0f} % of the GPU's busy time in the last hour; the limit"
            f" is {limit:.0f} %."
        )
    return Alert(type=breach.kind, at=at, lasting=breach.kind in LASTING_BREACHES, text=text)


Rule = Callable[[Any], Iterable[Alert]]
AlertText = str | Callable[[Any], str]
"""A sentence with an event's fields in braces (`{down}`: `down_s` as people say it), or what makes
one of the event.
"""


@dataclass(frozen=True, slots=True)
class _OneAlert:
    """A rule for an event that is always one alert; `about`: the field that says whom it is about.
    The rest as in `Alert`.
    """

    kind: AlertType
    text: AlertText
    about: str = ""
    lasting: bool = False
    resolved: bool = False

    # `event`: of the kind that the text is written for
    def __call__(self, event: Any) -> tuple[Alert, ...]:  # noqa: ANN401
        alert = Alert(
            type=self.kind,
            subject=str(getattr(event, self.about)) if self.about else "",
            at=event.at,
            lasting=self.lasting,
            resolved=self.resolved,
            text=_filled(self.text, event) if isinstance(self.text, str) else self.text(event),
        )
        return (alert,)


def _filled(text: str, event: Any) -> str:  # noqa: ANN401 - of the kind that the text is for
    words: JsonDict = {}
    for each in fields(event):
        value = getattr(event, each.name)
        words[each.name] = shown(value) if isinstance(value, str) else value
        if each.name.endswith("_s"):
            words[each.name.removesuffix("_s")] = _duration(value)
    return text.format(**words)


_begins = partial(_OneAlert, lasting=True)
"""A condition that goes on until another rule ends it."""
_ends = partial(_OneAlert, resolved=True)


def _is_loaded(model: str, at: float) -> Alert:
    text = f"{shown(model)} is loaded."
    return Alert(type=AlertType.SWAP_FAILED, subject=model, at=at, resolved=True, text=text)


def _offload(model: str, at: float, *, offloaded: bool) -> Alert:
    text = f"{shown(model)} runs entirely on the GPU again."
    if offloaded:
        text = (
            f"{shown(model)} does not fit on the GPU. Part of it runs on the CPU, which is many"
            " times slower."
        )
    return Alert(
        type=AlertType.MODEL_OFFLOADED,
        subject=model,
        at=at,
        lasting=offloaded,
        resolved=not offloaded,
        text=text,
    )


def _loaded(event: SwapCompleted) -> Iterator[Alert]:
    yield _is_loaded(event.to_model, event.at)
    yield _offload(event.to_model, event.at, offloaded=event.offloaded)


def _offloaded(event: ModelOffloaded) -> Iterator[Alert]:
    yield _offload(event.model, event.at, offloaded=True)


def _protected(event: ItemProtected) -> Iterator[Alert]:
    yield starvation(event.at, event.caller, event.interrupt_count, event.model)


def _nearly_spent(event: BudgetThresholdReached) -> Iterator[Alert]:
    yield budget(event.at, event.spent_usd, event.limit_usd)


def _swap_failed(event: SwapFailed) -> Iterator[Alert]:
    subject = event.to_model or ", ".join(event.from_models)
    text = f"{shown(subject)} could not be unloaded ({shown(event.reason)})."
    if event.to_model:
        text = (
            f"{shown(subject)} did not load ({shown(event.reason)}, after"
            f" {_duration(event.swap_s)}); the log has the details."
        )
    yield Alert(
        type=AlertType.SWAP_FAILED,
        subject=subject,
        at=event.at,
        lasting=bool(event.to_model),
        text=text,
    )


def _drifted(event: ResidencyDrifted) -> Iterator[Alert]:
    reloaded, gone, came = (
        shown(", ".join(names)) for names in (event.reloaded, event.vanished, event.appeared)
    )
    if reloaded:
        advice = (
            "Set num_ctx in the model itself (in its Modelfile: PARAMETER num_ctx), or this will"
            " happen again."
        )
        text = f"The model server reloaded {reloaded} with another context length. {advice}"
    elif came:
        unloaded = f" and unloaded {gone}" if gone else ""
        text = (
            f"Another program loaded {came}{unloaded}. Connect every program to Hearth instead, or"
            " it cannot schedule them."
        )
    else:  # perhaps with a model server that was back before it was missed
        text = f"Another program unloaded {gone}, or the model server was restarted."
    yield Alert(type=AlertType.RESIDENCY_DRIFTED, at=event.at, text=text)
    for model in event.appeared:
        yield _is_loaded(model, event.at)


_reloaded_often = _OneAlert(
    AlertType.MODEL_UNRESPONSIVE,
    "{model} was reloaded {reloads} times within 10 minutes because it sent nothing. Look into the"
    " model server's log. If its first token takes long, raise "
    f"{ENGINE}.first_byte_timeout_s.",
    "model",
)
_caught = _OneAlert(
    AlertType.INTERNAL_FAULT,
    "A defect was caught in {where} ({detail}); Hearth continues. Please report it.",
    "where",
)


def _slow(event: ModelStaysSlow) -> str:
    tried = shown(", and ".join(event.tried), REASON_CHARS)
    tried = f"What was tried did not help: {tried}." if tried else "Nothing could be tried."
    return (
        f"{shown(event.model)} writes {event.tokens_per_s:.1f} tokens/s, usually"
        f" {event.usual_tokens_per_s:.0f}: it seems to compute on the CPU, whatever the model"
        f" server lists. {tried} Restart the model server, or this machine."
    )


def _unresponsive(event: ModelUnresponsive) -> Iterable[Alert]:
    return _reloaded_often(event) if event.reloads > TOLERATED_RELOADS else ()


def _fault(event: InternalFault) -> Iterable[Alert]:
    return () if event.where == OWN_TASK else _caught(event)


def _exhausted(event: BudgetExhausted) -> str:
    text = (
        f"A request of {shown(event.caller)} was refused: it could cost"
        f" {_usd(event.wanted_usd)}, and"
    )
    return (
        f"{text} {_usd(event.spent_usd)} of"
        f" {'its own ' if event.own else ''}{_usd(event.limit_usd)} for today is spent or reserved."
    )


def _config_rejected(event: ConfigRejected) -> str:
    """The problems are written to be shown: they quote no secret."""
    first = "; ".join(shown(each, REASON_CHARS) for each in event.problems[:SHOWN_PROBLEMS])
    more = len(event.problems) - SHOWN_PROBLEMS
    return (
        "The previous configuration stays in force."
        f" {first}{f'; and {more} more' if more > 0 else ''}."
    )


def _crowded(event: ConnectionsCrowded) -> str:
    bound = shown(event.bound.replace("_", " "))
    return (
        f"{shown(event.peer)} has {event.open} open connections, and {event.refused} more were"
        f" refused: {bound} has reached its limit."
    )


def _unreachable(event: BackendWentDown) -> str:
    why = f"({shown(event.reason, REASON_CHARS)})."
    if event.problem:
        why = f"as it should. {shown(event.problem, REASON_CHARS)}"
    who = f"engine {shown(event.engine)}" if event.engine else "model server"
    waits = "for its models wait and" if event.engine else "wait for it and"
    return f"The {who} does not answer {why} Requests {waits} then get 503."


def _late(event: GpuLeaseLate) -> str:
    waits = f"Another program has waited {_duration(event.waited_s)} for memory of the GPU"
    if event.keeps:
        models = shown(", ".join(event.keeps), REASON_CHARS)
        return (
            f"{waits}: {models} could not be unloaded yet. If that goes on, look into the model"
            " server's log, and restart it."
        )
    return (
        f"{waits}: no model is loaded any more, but the memory is not free. Restart the model"
        " server, or see with nvidia-smi which program has it."
    )


def _answers_again(event: BackendCameUp) -> str:
    who = f"engine {shown(event.engine)}" if event.engine else "model server"
    return f"The {who} answers again after {_duration(event.down_s)}."


def _diverged(event: ItemDiverged) -> str:
    answer = f"An answer of {shown(event.model or 'a model')} to {shown(event.caller)}"
    return f"{answer} could not continue after an interruption; the caller got a retryable error."


def _ahead(event: ClockDoubted) -> str:
    until = (
        "Nothing old is deleted until it is confirmed, or for a day. If the time is right: hearth"
        " admin confirm-clock."
    )
    return f"The clock jumped ahead by {event.ahead_s / 86_400:.0f} days. {until}"


def _not_writable(event: StorageFailed) -> str:
    if event.reason == "corrupt":
        found = shown(event.detail, REASON_CHARS)
        return (
            f"The database is damaged ({found}). Jobs are refused, other requests continue: restore"
            " a backup, and check the disk."
        )
    return f"The request log cannot be written ({shown(event.reason)}). Requests continue."


def _wal_damaged(event: WalDamaged) -> str:
    lost = (
        f"{event.unreadable_frames} frames at the end of the database's write-ahead log could not"
        " be read"
    )
    if event.certain:
        lost += ": what was stored last is lost, accepted jobs perhaps among it."
    else:
        lost += "; they may be a commit that a power cut broke off, and then nothing is lost."
    if event.copy:
        lost += " A copy is kept beside the database."
    return f"{lost} Check the disk."


def _writable(event: StorageRecovered) -> str:
    lost = f" {event.dropped} entries were lost." if event.dropped else ""
    return f"The request log can be written again.{lost}"


RULES: Mapping[type[Event], Rule] = {
    BackendWentDown: _begins(AlertType.BACKEND_DOWN, _unreachable, about="engine"),
    BackendCameUp: _ends(AlertType.BACKEND_DOWN, _answers_again, about="engine"),
    ItemProtected: _protected,
    ItemDiverged: _OneAlert(AlertType.REPLAY_DIVERGED, _diverged, "caller"),
    SwapCompleted: _loaded,
    SwapFailed: _swap_failed,
    ModelOffloaded: _offloaded,
    ResidencyDrifted: _drifted,
    ModelUnresponsive: _unresponsive,
    ModelStaysSlow: _begins(AlertType.MODEL_SLOW, _slow, about="model"),
    ModelFastAgain: _ends(
        AlertType.MODEL_SLOW,
        "{model} writes {tokens_per_s:.0f} tokens/s again, after {slow}.",
        about="model",
    ),
    EngineExited: _OneAlert(
        AlertType.ENGINE_EXITED,
        "The server of {model} {how} after {ready}. It is started again when the model is asked"
        " for; its last lines: hearth models log {model}",
        "model",
    ),
    GpuLost: _begins(
        AlertType.GPU_LOST,
        "The GPU can no longer be read ({reason}). If models fail too, the machine may need a"
        " restart.",
    ),
    GpuRecovered: _ends(AlertType.GPU_LOST, "The GPU is back after {lost}."),
    GpuOverheated: _begins(
        AlertType.GPU_HOT,
        "The GPU is at {temperature_c:.0f} °C; the limit is {limit_c:.0f} °C.",
    ),
    GpuCooledDown: _ends(
        AlertType.GPU_HOT, "The GPU has cooled to {temperature_c:.0f} °C after {hot}."
    ),
    GpuLeaseLate: _begins(AlertType.GPU_LEASE_LATE, _late, about="lease_id"),
    GpuLeaseGranted: _ends(
        AlertType.GPU_LEASE_LATE, "The memory is free after {took}.", about="lease_id"
    ),
    GpuLeaseEnded: _ends(
        AlertType.GPU_LEASE_LATE, "The program no longer waits for it.", about="lease_id"
    ),
    BudgetThresholdReached: _nearly_spent,
    BudgetExhausted: _OneAlert(AlertType.BUDGET_EXHAUSTED, _exhausted, "caller"),
    CloudWentDown: _begins(
        AlertType.CLOUD_DOWN,
        "Claude refuses requests ({reason}); Hearth tries again in {retry}, or after a reload.",
    ),
    CloudCameUp: _ends(AlertType.CLOUD_DOWN, "Claude answers again after {down}."),
    ConfigRejected: _begins(AlertType.CONFIG_REJECTED, _config_rejected),
    ConfigReloaded: _ends(AlertType.CONFIG_REJECTED, "A valid configuration is in force."),
    StorageFailed: _begins(AlertType.STORAGE_FAILED, _not_writable),
    StorageRecovered: _ends(AlertType.STORAGE_FAILED, _writable),
    WalDamaged: _OneAlert(AlertType.WAL_DAMAGED, _wal_damaged),
    ClockDoubted: _begins(AlertType.CLOCK_DOUBTED, _ahead),
    ClockConfirmed: _ends(
        AlertType.CLOCK_DOUBTED, "The clock is trusted again; old entries are deleted."
    ),
    DiskRanLow: _begins(
        AlertType.DISK_LOW,
        "The disk of the log has {free_mib:.0f} MiB left; {limit_mib:.0f} MiB is the limit set.",
    ),
    DiskSpaceReturned: _ends(
        AlertType.DISK_LOW, "The disk of the log has {free_mib:.0f} MiB again."
    ),
    LoopLagged: _OneAlert(
        AlertType.LOOP_LAG,
        "Hearth was blocked for {lag_s:.1f} s: the machine is overloaded, or there is a defect. All"
        " requests waited.",
    ),
    KeysTried: _OneAlert(
        AlertType.WRONG_KEYS,
        "{wrong} requests with a wrong key came from {peer}: a program with an old key, or someone"
        " who guesses. Valid keys are still accepted.",
        "peer",
    ),
    ConnectionsCrowded: _OneAlert(AlertType.CONNECTIONS, _crowded, "peer"),
    InternalFault: _fault,
}


def _usd(amount: float) -> str:
    """To the cent; less than ten cents with what is behind it, where one call may cost a tenth of a
    cent.
    """
    return f"{amount:.4f} USD" if 0 < amount < 0.1 else f"{amount:.2f} USD"


def _duration(seconds: float) -> str:
    """Rounded to what people say: 8 s, 4 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
