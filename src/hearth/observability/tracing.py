"""Traces: what became of each request and when, as plain spans; only `otlp` knows OpenTelemetry."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from hearth.clock import Clock
from hearth.dialects.routes import Endpoint
from hearth.events import (
    ItemDispatched,
    ItemDiverged,
    ItemEnded,
    ItemEvent,
    ItemInterrupted,
    ItemPromoted,
    ItemProtected,
    ItemQueued,
    ItemResent,
    ItemResumed,
    ItemStreaming,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
)
from hearth.observability.sinks import HandlingSink
from hearth.types import Outcome, Sequence

Attributes: TypeAlias = Mapping[str, str | int | float | bool]


class SpanKind(StrEnum):
    """Which side of a call a span is."""

    SERVER = "server"
    INTERNAL = "internal"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened within a span."""

    at: float
    name: str
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time with what is known of it. `error`: the error's `reason`, empty where there was none."""

    name: str
    kind: SpanKind = SpanKind.INTERNAL
    began_at: float
    ended_at: float
    attributes: Attributes = field(default_factory=dict)
    error: str = ""
    marks: tuple[Mark, ...] = ()
    children: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How an item came in.

    Attributes:
        route: path of the HTTP address, empty for what did not come over HTTP.
        provider: whose model answers, in the words of OpenTelemetry's conventions.
        traceparent, tracestate: as the caller sent them (W3C Trace Context), not yet looked at.
    """

    route: str = ""
    provider: str = "ollama"
    traceparent: str = ""
    tracestate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One item's whole life. `wall_less_at_s` added to an instant gives seconds since 1970-01-01 UTC."""

    root: Span
    origin: Origin
    wall_less_at_s: float


_OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        Endpoint.CHAT: "chat",
        Endpoint.OPENAI_CHAT: "chat",
        Endpoint.OPENAI_RESPONSES: "chat",
        Endpoint.ANTHROPIC_MESSAGES: "chat",
        Endpoint.GENERATE: "text_completion",
        Endpoint.OPENAI_COMPLETIONS: "text_completion",
        Endpoint.EMBED: "embeddings",
        Endpoint.EMBEDDINGS: "embeddings",
        Endpoint.OPENAI_EMBEDDINGS: "embeddings",
    }
)
_OTHER_OPERATION = "text_completion"
"""Hearth's own address for completions, jobs, and programs that embed Hearth: a prompt in, a text out, whatever is called for it."""


def root_name(origin: Origin) -> str:
    """`POST /api/chat`, or `item` for what did not come over HTTP."""
    return f"POST {origin.route}" if origin.route else "item"


def call_name(origin: Origin, model: str) -> str:
    """`chat llama3.1:8b`."""
    return f"{_operation(origin)} {model}".rstrip()


def root_attributes(event: ItemEnded, origin: Origin) -> Attributes:
    """Of the whole item."""
    known: dict[str, str | int | float | bool | None] = {
        "http.request.method": "POST" if origin.route else None,
        "http.route": origin.route or None,
        "http.response.status_code": event.status if origin.route else None,
        "error.type": event.reason or None,
        "hearth.request_id": event.request_id,
        "hearth.sequence": event.sequence,
        "hearth.caller": event.caller,
        "hearth.lane": event.lane.value,
        "hearth.model": event.model,
        "hearth.task_type": event.task_type,
        "hearth.outcome": event.outcome.value,
        "hearth.attempts": event.attempts,
        "hearth.interruptions": event.interrupt_count,
        "hearth.queue_s": event.queue_s,
        "hearth.swap_s": event.swap_s,
        "hearth.prompt_tokens": event.prompt_tokens,
        "hearth.output_tokens": event.output_tokens,
        "hearth.cost_usd": event.cost_usd,
    }
    return _without_none(known)


def call_attributes(origin: Origin, model: str, attempt: int) -> dict[str, str | int | float | bool]:
    """Of one call of a model, as far as they are known when it begins."""
    return {
        "gen_ai.operation.name": _operation(origin),
        "gen_ai.provider.name": origin.provider,
        "gen_ai.request.model": model,
        "hearth.attempt": attempt,
    }


def result_attributes(event: ItemEnded) -> Attributes:
    """What the call that an item ended with adds."""
    return _without_none(
        {
            "gen_ai.response.model": event.model if event.output_tokens is not None else None,
            "gen_ai.usage.input_tokens": event.prompt_tokens,
            "gen_ai.usage.output_tokens": event.output_tokens,
            "http.response.status_code": event.status,
        }
    )


def _operation(origin: Origin) -> str:
    return _OPERATIONS.get(origin.route, _OTHER_OPERATION)


def _without_none(known: Mapping[str, str | int | float | bool | None]) -> dict[str, str | int | float | bool]:
    return {name: value for name, value in known.items() if value is not None}


SWAPS_KEPT = 256
"""A wait is told of at most so many swaps of the house ago: hours, where they cost minutes."""
CHILDREN_KEPT = 200
"""Spans of one item; one that is interrupted for ever must not grow for ever."""

_NOWHERE = Origin()
_AT_FAULT = (Outcome.FAILED, Outcome.EXPIRED)


@dataclass(slots=True)
class _Call:
    """An attempt that runs."""

    model: str
    attempt: int
    began_at: float
    first_byte_at: float | None = None
    marks: list[Mark] = field(default_factory=list)


@dataclass(slots=True)
class _Item:
    """What is known of a live item. It waits while `call` is None."""

    began_at: float
    waiting_since: float
    position: int
    origin: Origin = _NOWHERE
    call: _Call | None = None
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


class TraceBuilder(HandlingSink):
    """A `SelectiveSink`; `deliver` gets each trace and must not block."""

    def __init__(self, *, clock: Clock, deliver: Callable[[Trace], None]) -> None:
        self._clock = clock
        self._deliver = deliver
        self._items: dict[Sequence, _Item] = {}
        self._swaps: deque[tuple[str, Span]] = deque(maxlen=SWAPS_KEPT)
        self._swapping: SwapStarted | None = None
        self._handlers = {
            ItemQueued: self._on_queued,
            ItemDispatched: self._on_dispatched,
            ItemStreaming: self._on_streaming,
            ItemInterrupted: self._on_interrupted,
            ItemResent: self._on_resent,
            ItemPromoted: self._on_promoted,
            ItemProtected: self._on_protected,
            ItemResumed: self._on_resumed,
            ItemDiverged: self._on_diverged,
            ItemEnded: self._on_ended,
            SwapStarted: self._on_swap_started,
            SwapCompleted: self._on_swap_completed,
            SwapFailed: self._on_swap_failed,
        }

    def __len__(self) -> int:
        return len(self._items)

    def note(self, sequence: Sequence, origin: Origin) -> None:
        """Say where an accepted item came from; one that has ended meanwhile is left as it is."""
        item = self._items.get(sequence)
        if item is not None:
            item.origin = origin

    def _on_queued(self, event: ItemQueued) -> None:
        self._items[event.sequence] = _Item(event.at, event.at, event.position)

    def _on_dispatched(self, event: ItemDispatched) -> None:
        item = self._items.get(event.sequence)
        if item is None:
            return
        self._end_wait(item, event.model, event.at)
        item.call = _Call(event.model or "", event.attempt, event.at)

    def _on_streaming(self, event: ItemStreaming) -> None:
        item = self._items.get(event.sequence)
        if item is not None and item.call is not None:
            item.call.first_byte_at = event.at

    def _on_interrupted(self, event: ItemInterrupted) -> None:
        self._back_in_line(event, "", {"hearth.outcome": "interrupted"})

    def _on_resent(self, event: ItemResent) -> None:
        self._back_in_line(event, event.reason, {"hearth.outcome": "resent"})

    def _on_promoted(self, event: ItemPromoted) -> None:
        self._mark(event, "promoted", {"hearth.band": event.band})

    def _on_protected(self, event: ItemProtected) -> None:
        self._mark(event, "protected", {"hearth.interruptions": event.interrupt_count})

    def _on_resumed(self, event: ItemResumed) -> None:
        self._mark(
            event,
            "resumed",
            {"hearth.how": event.how.value, "hearth.again_tokens": event.again_tokens, "hearth.verified_chars": event.verified_chars},
        )

    def _on_diverged(self, event: ItemDiverged) -> None:
        self._mark(event, "diverged", {})

    def _on_swap_started(self, event: SwapStarted) -> None:
        self._swapping = event

    def _on_swap_completed(self, event: SwapCompleted) -> None:
        self._swapping = None
        self._swaps.append((event.to_model, _swap_span(event.from_models, event.to_model, event.at - event.swap_s, event.at)))

    def _on_swap_failed(self, event: SwapFailed) -> None:
        """One without a target is a model that would not leave: nobody's wait in particular."""
        if event.to_model:
            self._swapping = None
            span = _swap_span(event.from_models, event.to_model, event.at - event.swap_s, event.at, error=event.reason)
            self._swaps.append((event.to_model, span))

    def _on_ended(self, event: ItemEnded) -> None:
        item = self._items.pop(event.sequence, None)
        if item is None:
            return
        error = event.reason if event.outcome in _AT_FAULT else ""
        if item.call is None:
            self._end_wait(item, event.model, event.at)
        else:
            if item.call.first_byte_at is None and event.first_byte_s is not None:
                item.call.first_byte_at = item.call.began_at + event.first_byte_s
            _end_call(item, item.call, event.at, error, result_attributes(event))
        self._deliver(self._trace_of(item, event, error))

    def _trace_of(self, item: _Item, event: ItemEnded, error: str) -> Trace:
        root = Span(
            name=root_name(item.origin),
            kind=SpanKind.SERVER if item.origin.route else SpanKind.INTERNAL,
            began_at=item.began_at,
            ended_at=event.at,
            attributes=root_attributes(event, item.origin),
            error=error,
            marks=tuple(item.marks),
            children=tuple(item.spans),
        )
        return Trace(root=root, origin=item.origin, wall_less_at_s=self._clock.wall() - self._clock.monotonic())

    def _back_in_line(self, event: ItemEvent, error: str, attributes: Attributes) -> None:
        item = self._items.get(event.sequence)
        if item is None or item.call is None:
            return
        _end_call(item, item.call, event.at, error, attributes)
        item.call, item.waiting_since, item.position = None, event.at, 0

    def _mark(self, event: ItemEvent, name: str, attributes: Attributes) -> None:
        item = self._items.get(event.sequence)
        if item is not None:
            marks = item.marks if item.call is None else item.call.marks
            marks.append(Mark(at=event.at, name=name, attributes=attributes))

    def _end_wait(self, item: _Item, model: str | None, at: float) -> None:
        span = Span(
            name="queue",
            began_at=item.waiting_since,
            ended_at=at,
            attributes={"hearth.position": item.position},
            children=self._swaps_between(model, item.waiting_since, at),
        )
        _keep(item, span)

    def _swaps_between(self, model: str | None, began_at: float, ended_at: float) -> tuple[Span, ...]:
        """The swaps to a model during a wait, in order, cut to it; one that goes on is included."""
        found = [_cut(span, began_at) for to_model, span in self._swaps if to_model == model and span.ended_at > began_at]
        running = self._swapping
        if running is not None and running.to_model == model and running.at < ended_at:
            found.append(_swap_span(running.from_models, running.to_model, max(running.at, began_at), ended_at))
        return tuple(found)


def _end_call(item: _Item, call: _Call, at: float, error: str, attributes: Attributes) -> None:
    carried = {**call_attributes(item.origin, call.model, call.attempt), **attributes}
    children: tuple[Span, ...] = ()
    if call.first_byte_at is not None:
        carried["gen_ai.response.time_to_first_chunk"] = call.first_byte_at - call.began_at
        children = (Span(name="first byte", began_at=call.began_at, ended_at=call.first_byte_at),)
    if error:
        carried["error.type"] = error
    span = Span(
        name=call_name(item.origin, call.model),
        kind=SpanKind.CLIENT,
        began_at=call.began_at,
        ended_at=at,
        attributes=carried,
        error=error,
        marks=tuple(call.marks),
        children=children,
    )
    _keep(item, span)


def _keep(item: _Item, span: Span) -> None:
    """The first ones and the last one are worth the most."""
    if len(item.spans) >= CHILDREN_KEPT:
        item.spans.pop()
    item.spans.append(span)


def _swap_span(from_models: tuple[str, ...], to_model: str, began_at: float, ended_at: float, *, error: str = "") -> Span:
    attributes: dict[str, str | int | float | bool] = {"hearth.to_model": to_model}
    if from_models:
        attributes["hearth.from_models"] = ", ".join(from_models)
    if error:
        attributes["error.type"] = error
    return Span(name="swap", began_at=began_at, ended_at=ended_at, attributes=attributes, error=error)


def _cut(span: Span, began_at: float) -> Span:
    """The part of a span after an instant."""
    if span.began_at >= began_at:
        return span
    return Span(name=span.name, began_at=began_at, ended_at=span.ended_at, attributes=span.attributes, error=span.error)
