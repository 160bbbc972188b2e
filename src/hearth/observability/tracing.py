"""Traces: what became of each request and when, sent to a collector with OpenTelemetry's own SDK,
on a thread of the SDK's.

The one module that imports the SDK, which is an extra: import it only where a collector is
configured. Nothing global is set, so no other library of this process begins to trace. What
OpenTelemetry reads from the environment (`OTEL_EXPORTER_OTLP_HEADERS`, `..._TIMEOUT`,
`..._CERTIFICATE`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_BSP_*`) holds here too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hearth.clock import Clock
from hearth.config.settings import TelemetrySettings
from hearth.dialects.routes import Endpoint
from hearth.events import (
    ItemBrokenOff,
    ItemDispatched,
    ItemDiverged,
    ItemEnded,
    ItemEvent,
    ItemInterrupted,
    ItemPromoted,
    ItemProtected,
    ItemResent,
    ItemResumed,
    ItemStreaming,
    ItemYielded,
    SwapFailed,
    SwapStarted,
    TelemetryFailed,
    TelemetryRecovered,
)
from hearth.observability.requests import Origin, SwapEvent, TrackedRequest
from hearth.ports import EventSink
from hearth.types import JsonDict, Outcome, __version__, without_none

CLOSE_TIMEOUT_S = 3.0
"""For the last spans at the end; a collector that is gone must not hold it up."""
GIVING_UP_TIMEOUT_S = 1.0
"""More, for an attempt that is broken off."""
_SIGNAL_PATH = "/v1/traces"
_EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_OPERATIONS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            Endpoint.CHAT,
            Endpoint.OPENAI_CHAT,
            Endpoint.OPENAI_RESPONSES,
            Endpoint.ANTHROPIC_MESSAGES,
        ),
        "chat",
    ),
    **dict.fromkeys(
        (Endpoint.EMBED, Endpoint.EMBEDDINGS, Endpoint.OPENAI_EMBEDDINGS), "embeddings"
    ),
}
_OTHER_OPERATION = "text_completion"
"""Also of Hearth's own address for completions, of jobs, and of programs that embed Hearth: a
prompt in, a text out.
"""

_Attributes = Mapping[str, str | int | float | bool | None]


class OtlpTraces(SpanExporter):
    """The way to one collector, from now until `aclose`.

    Must be made on the event loop; the SDK exports through it, on its own thread.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        *,
        clock: Clock,
        events: EventSink,
        exporter: SpanExporter | None = None,
    ) -> None:
        self._endpoint = address_of(settings.otlp_endpoint)
        self._clock = clock
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._complaint = ""
        logging.getLogger(_EXPORTER_LOGGER).addFilter(self._keep_complaint)
        self._exporter = exporter or OTLPSpanExporter(endpoint=self._endpoint)
        self._provider = TracerProvider(
            resource=Resource.create(
                {"service.name": settings.service_name, "service.version": __version__}
            ),
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self))
        self._tracer = self._provider.get_tracer("hearth", __version__)
        self._sent = 0
        self._lost = 0
        self._lost_in_a_row = 0
        self._failing = False

    def deliver(self, request: TrackedRequest, ended: ItemEnded, swaps: list[SwapEvent]) -> None:
        """Put the trace of a request in the queue for the collector; never blocks."""
        wall_less_at_s = self._clock.wall() - self._clock.monotonic()
        _Trace(self._tracer, request, swaps, wall_less_at_s).write(ended)

    def status(self) -> JsonDict:
        """What the gateway's status shows: spans that the collector took, and those that it did
        not.
        """
        return {
            "endpoint": self._endpoint,
            "failing": self._failing,
            "sent_spans": self._sent,
            "lost_spans": self._lost,
        }

    async def aclose(self) -> None:
        """Send what waits, for `CLOSE_TIMEOUT_S`, and stop; returns `GIVING_UP_TIMEOUT_S` later at
        the latest.
        """
        ended = asyncio.Event()
        threading.Thread(
            target=self._shut_down, args=(ended,), name="telemetry's end", daemon=True
        ).start()
        if not await _within(CLOSE_TIMEOUT_S, ended):
            self.shutdown()
            await _within(GIVING_UP_TIMEOUT_S, ended)

    def _shut_down(self, ended: asyncio.Event) -> None:
        self._provider.shutdown()
        logging.getLogger(_EXPORTER_LOGGER).removeFilter(self._keep_complaint)
        self._on_loop(ended.set)

    def export(self, spans: Seq[ReadableSpan]) -> SpanExportResult:
        """As the SDK says."""
        result = self._exporter.export(spans)
        self._on_loop(self._note, len(spans), result is SpanExportResult.SUCCESS, self._complaint)
        return result

    def shutdown(self) -> None:
        """Stop; what is tried again and again is broken off."""
        self._exporter.shutdown()

    def _keep_complaint(self, record: logging.LogRecord) -> bool:
        """Keep what the exporter says of each batch out of the log: `telemetry_failed` says the
        last of it, once.
        """
        self._complaint = record.getMessage()
        return False

    def _on_loop(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop has been closed: nobody is left to report to
            return

    def _note(self, count: int, taken: bool, detail: str) -> None:  # noqa: FBT001
        now = self._clock.monotonic()
        if taken:
            self._sent += count
            if self._failing:
                self._events.emit(TelemetryRecovered(at=now, lost_spans=self._lost_in_a_row))
            self._failing = False
            self._lost_in_a_row = 0
            return
        self._lost += count
        self._lost_in_a_row += count
        if not self._failing:
            self._failing = True
            self._events.emit(TelemetryFailed(at=now, endpoint=self._endpoint, detail=detail))


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def address_of(endpoint: str) -> str:
    """The address that traces are posted to; OTLP's path is added where it is missing (OTLP 1.5,
    "OTLP/HTTP Request").
    """
    return endpoint if endpoint.endswith(_SIGNAL_PATH) else endpoint.rstrip("/") + _SIGNAL_PATH


@dataclass(slots=True)
class _ModelCall:
    """A call of the model that has not ended."""

    span: Span
    began_at: float
    first_byte_at: float | None = None


class _Trace:
    """The spans of one request: waits with the swaps in them, and calls of its model.

    `wall_less_at_s`: wall less monotonic time.
    """

    def __init__(
        self, tracer: Tracer, request: TrackedRequest, swaps: list[SwapEvent], wall_less_at_s: float
    ) -> None:
        self._tracer = tracer
        self._request = request
        self._operation = _OPERATIONS.get(request.origin.route, _OTHER_OPERATION)
        self._swaps = swaps
        self._wall_less_at_s = wall_less_at_s
        self._inside = Context()
        self._waited_from = request.queued.at
        self._position = request.queued.position
        self._call: _ModelCall | None = None

    def write(self, ended: ItemEnded) -> None:
        """Make them, as parts of the caller's own trace where it sent one that can be read."""
        root = self._begin_root(ended)
        if not root.is_recording():
            return
        self._inside = set_span_in_context(root, Context())
        for step in self._request.steps:
            self._follow(step, root)
        error = ended.reason if ended.outcome in (Outcome.FAILED, Outcome.EXPIRED) else ""
        if self._call is None:
            self._wait(ended.at, ended.model)
        else:
            if self._call.first_byte_at is None and ended.first_byte_s is not None:
                self._call.first_byte_at = self._call.began_at + ended.first_byte_s
            result: _Attributes = {
                "gen_ai.response.model": ended.model if ended.output_tokens is not None else None,
                "gen_ai.usage.input_tokens": ended.prompt_tokens,
                "gen_ai.usage.output_tokens": ended.output_tokens,
                "http.response.status_code": ended.status,
            }
            self._end_call(ended.at, error, result)
        self._end(root, ended.at, error)

    def _begin_root(self, ended: ItemEnded) -> Span:
        origin = self._request.origin
        at = self._request.queued.at
        parent = Context()
        if origin.traceparent:
            carrier = {"traceparent": origin.traceparent, "tracestate": origin.tracestate}
            parent = TraceContextTextMapPropagator().extract(carrier, context=parent)
        about = _of_request(ended, origin)
        if not origin.route:
            return self._begin("item", at, parent, about)
        return self._begin(f"POST {origin.route}", at, parent, about, SpanKind.SERVER)

    def _follow(self, step: ItemEvent, root: Span) -> None:
        """Write what ended with a step, and begin what began."""
        if isinstance(step, ItemDispatched):
            self._wait(step.at, step.model)
            self._call = _ModelCall(self._begin_call(step), step.at)
        elif isinstance(step, ItemInterrupted | ItemYielded | ItemResent | ItemBrokenOff):
            reason = step.reason if isinstance(step, ItemResent | ItemBrokenOff) else ""
            self._end_call(step.at, reason, {"hearth.outcome": _ENDS_OF_CALLS[type(step)]})
            self._waited_from = step.at
            self._position = 0
        elif isinstance(step, ItemStreaming):
            if self._call is not None:
                self._call.first_byte_at = step.at
        elif type(step) in _MARKS:
            name, fields = _MARKS[type(step)]
            about = {attribute: getattr(step, field) for attribute, field in fields.items()}
            span = root if self._call is None else self._call.span
            span.add_event(name, about, self._ns(step.at))

    def _wait(self, ended_at: float, model: str | None) -> None:
        """With the swaps to the model in it, cut to it; one that goes on is included."""
        began_at = self._waited_from
        wait = self._begin("queue", began_at, self._inside, {"hearth.position": self._position})
        inside = set_span_in_context(wait, Context())
        for swap in self._swaps:
            swap_began_at = swap.at
            swap_ended_at = ended_at
            if not isinstance(swap, SwapStarted):
                swap_began_at = swap.at - swap.swap_s
                swap_ended_at = swap.at
            if swap.to_model == model and swap_ended_at > began_at and swap_began_at < ended_at:
                error = swap.reason if isinstance(swap, SwapFailed) else ""
                about: _Attributes = {
                    "hearth.to_model": swap.to_model,
                    "hearth.from_models": ", ".join(swap.from_models) or None,
                    "error.type": error or None,
                }
                span = self._begin("swap", max(swap_began_at, began_at), inside, about)
                self._end(span, swap_ended_at, error)
        self._end(wait, ended_at)

    def _begin_call(self, step: ItemDispatched) -> Span:
        model = step.model or ""
        about: _Attributes = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": self._request.origin.provider,
            "gen_ai.request.model": step.alias or model,
            "hearth.attempt": step.attempt,
        }
        name = f"{self._operation} {model}".rstrip()
        return self._begin(name, step.at, self._inside, about, SpanKind.CLIENT)

    def _end_call(self, at: float, error: str, about: _Attributes) -> None:
        call = self._call
        self._call = None
        if call is None:
            return
        call.span.set_attributes(without_none({**about, "error.type": error or None}))
        if call.first_byte_at is not None:
            first_s = call.first_byte_at - call.began_at
            call.span.set_attribute("gen_ai.response.time_to_first_chunk", first_s)
            inside = set_span_in_context(call.span, Context())
            self._end(self._begin("first byte", call.began_at, inside, {}), call.first_byte_at)
        self._end(call.span, at, error)

    def _begin(
        self,
        name: str,
        at: float,
        parent: Context,
        about: _Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        return self._tracer.start_span(
            name,
            context=parent,
            kind=kind,
            attributes=without_none(about),
            start_time=self._ns(at),
        )

    def _end(self, span: Span, at: float, error: str = "") -> None:
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(self._ns(at))

    def _ns(self, at: float) -> int:
        return round((at + self._wall_less_at_s) * 1e9)


_SHOWN_FIELDS = (
    *("request_id", "sequence", "caller", "model", "task_type", "attempts"),
    *("queue_s", "swap_s", "prompt_tokens", "output_tokens", "cost_usd"),
)
_ENDS_OF_CALLS: Mapping[type[ItemEvent], str] = {
    ItemInterrupted: "interrupted",
    ItemYielded: "yielded",
    ItemResent: "resent",
    ItemBrokenOff: "broken_off",
}
_MARKS: Mapping[type[ItemEvent], tuple[str, Mapping[str, str]]] = {
    ItemPromoted: ("promoted", {"hearth.band": "band"}),
    ItemProtected: ("protected", {"hearth.interruptions": "interrupt_count"}),
    ItemResumed: (
        "resumed",
        {
            "hearth.how": "how",
            "hearth.again_tokens": "again_tokens",
            "hearth.verified_chars": "verified_chars",
        },
    ),
    ItemDiverged: ("diverged", {}),
}


def _of_request(event: ItemEnded, origin: Origin) -> _Attributes:
    http = {
        "http.request.method": "POST",
        "http.route": origin.route,
        "http.response.status_code": event.status,
    }
    return {
        **(http if origin.route else {}),
        "error.type": event.reason or None,
        "hearth.lane": event.lane.value,
        "hearth.outcome": event.outcome.value,
        "hearth.interruptions": event.interrupt_count,
        **{f"hearth.{name}": getattr(event, name) for name in _SHOWN_FIELDS},
    }
