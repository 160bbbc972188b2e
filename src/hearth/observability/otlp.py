"""Sends traces to a collector with OpenTelemetry's own SDK, on a thread of the SDK's.

The one module that imports the SDK, which is an extra: import it only where a collector is configured. Nothing global is set, so no other
library of this process begins to trace. What OpenTelemetry reads from the environment (`OTEL_EXPORTER_OTLP_HEADERS`, `..._TIMEOUT`,
`..._CERTIFICATE`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_BSP_*`) holds here too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind as OtelKind
from opentelemetry.trace import Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hearth.clock import Clock
from hearth.config.settings import TelemetrySettings
from hearth.events import TelemetryFailed, TelemetryRecovered
from hearth.observability.tracing import Origin, Span, SpanKind, Trace
from hearth.ports import EventSink
from hearth.types import __version__

CLOSE_TIMEOUT_S = 3.0
"""For the last spans at the end; a collector that is gone must not hold it up."""

GIVING_UP_TIMEOUT_S = 1.0
"""More, for an attempt that was told to break off."""

_SIGNAL_PATH = "/v1/traces"
_EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_KINDS = {SpanKind.SERVER: OtelKind.SERVER, SpanKind.INTERNAL: OtelKind.INTERNAL, SpanKind.CLIENT: OtelKind.CLIENT}
_PROPAGATOR = TraceContextTextMapPropagator()


class OtlpTraces:
    """The way to one collector, from now until `aclose`. Must be made on the event loop.

    Args:
        exporter: instead of one for `settings.otlp_endpoint`.
    """

    def __init__(self, settings: TelemetrySettings, *, clock: Clock, events: EventSink, exporter: SpanExporter | None = None) -> None:
        self._endpoint = address_of(settings.otlp_endpoint)
        self._clock, self._events = clock, events
        self._loop = asyncio.get_running_loop()
        self._overheard = _Overheard()
        logging.getLogger(_EXPORTER_LOGGER).addFilter(self._overheard)
        self._exporter = _Watched(exporter or OTLPSpanExporter(endpoint=self._endpoint), self._exported)
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": settings.service_name, "service.version": __version__}),
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("hearth", __version__)
        self._sent = self._lost = self._lost_in_a_row = 0
        self._failing = False

    def deliver(self, trace: Trace) -> None:
        """Put a trace in the queue for the collector; never blocks."""
        write_trace(self._tracer, trace)

    def status(self) -> dict[str, object]:
        """What the gateway's status shows: spans that the collector took, and those that it did not."""
        return {"endpoint": self._endpoint, "failing": self._failing, "sent_spans": self._sent, "lost_spans": self._lost}

    async def aclose(self) -> None:
        """Send what waits, for `CLOSE_TIMEOUT_S`, and stop; returns `GIVING_UP_TIMEOUT_S` later at the latest."""
        ended = asyncio.Event()
        threading.Thread(target=self._shut_down, args=(ended,), name="telemetry's end", daemon=True).start()
        if await _within(CLOSE_TIMEOUT_S, ended):
            return
        self._exporter.shutdown()
        await _within(GIVING_UP_TIMEOUT_S, ended)

    def _shut_down(self, ended: asyncio.Event) -> None:
        self._provider.shutdown()
        logging.getLogger(_EXPORTER_LOGGER).removeFilter(self._overheard)
        self._on_loop(ended.set)

    def _exported(self, count: int, *, taken: bool) -> None:
        """On the SDK's thread."""
        self._on_loop(lambda: self._note(count, self._overheard.last, taken=taken))

    def _on_loop(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop has been closed: nobody is left to hear of it
            return

    def _note(self, count: int, detail: str, *, taken: bool) -> None:
        if taken:
            self._sent += count
            if self._failing:
                self._events.emit(TelemetryRecovered(at=self._clock.monotonic(), lost_spans=self._lost_in_a_row))
            self._failing, self._lost_in_a_row = False, 0
            return
        self._lost += count
        self._lost_in_a_row += count
        if not self._failing:
            self._failing = True
            self._events.emit(TelemetryFailed(at=self._clock.monotonic(), endpoint=self._endpoint, detail=detail))


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


class _Watched(SpanExporter):
    """Says what became of each batch."""

    def __init__(self, inner: SpanExporter, tell: Callable[..., None]) -> None:
        self._inner = inner
        self._tell = tell

    def export(self, spans: Seq[ReadableSpan]) -> SpanExportResult:
        """As the exporter does; on the SDK's thread."""
        result = self._inner.export(spans)
        self._tell(len(spans), taken=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Stop; what is tried again and again is broken off."""
        self._inner.shutdown()


class _Overheard(logging.Filter):
    """Keeps the exporter's own complaints, several for each batch, out of the log: `telemetry_failed` says the last one, once."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let nothing through."""
        self.last = record.getMessage()
        return False


def address_of(endpoint: str) -> str:
    """The address that traces are posted to; OTLP's path is added where it is missing (OTLP 1.5, "OTLP/HTTP Request")."""
    return endpoint if endpoint.endswith(_SIGNAL_PATH) else endpoint.rstrip("/") + _SIGNAL_PATH


def write_trace(tracer: Tracer, trace: Trace) -> None:
    """Make the spans of a trace, as parts of the caller's own where it sent one that can be read."""
    _write(tracer, trace.root, _parent_of(trace.origin), trace.wall_less_at_s)


def _parent_of(origin: Origin) -> Context:
    if not origin.traceparent:
        return Context()
    carrier = {"traceparent": origin.traceparent, "tracestate": origin.tracestate}
    return _PROPAGATOR.extract(carrier, context=Context())


def _write(tracer: Tracer, span: Span, context: Context, wall_less_at_s: float) -> None:
    began_ns = _ns(span.began_at, wall_less_at_s)
    made = tracer.start_span(span.name, context=context, kind=_KINDS[span.kind], attributes=span.attributes, start_time=began_ns)
    if not made.is_recording():
        return
    for mark in span.marks:
        made.add_event(mark.name, mark.attributes, _ns(mark.at, wall_less_at_s))
    if span.error:
        made.set_status(Status(StatusCode.ERROR, span.error))
    for child in span.children:
        _write(tracer, child, set_span_in_context(made, Context()), wall_less_at_s)
    made.end(max(began_ns, _ns(span.ended_at, wall_less_at_s)))


def _ns(at: float, wall_less_at_s: float) -> int:
    return round((at + wall_less_at_s) * 1e9)
