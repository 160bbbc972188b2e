"""Traces on their way to a collector: OpenTelemetry's own SDK, a real receiver of OTLP over HTTP, and a collector that is not there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from hearth.bootstrap import running_gateway
from hearth.clock import SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.loading import parse_config
from hearth.config.settings import BackendMode, GpuSettings, Settings, TelemetrySettings
from hearth.errors import ConfigError
from hearth.events import TelemetryFailed, TelemetryRecovered
from hearth.observability.otlp import OtlpTraces, address_of
from hearth.observability.tracing import Mark, Origin, Span, SpanKind, Trace
from tests.config.keeping import Heard
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01", f"00-{TRACE_ID}-{PARENT_ID}-00"
SECRET = "the cellar key is under the third flower pot"


class Moody(SpanExporter):
    """A collector that takes nothing until it is told to."""

    def __init__(self) -> None:
        self.takes = False
        self.stopped = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS if self.takes else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.stopped = True


class Stuck(Moody):
    """A collector that says nothing at all until the exporter is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._released = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._released.wait(WITHIN_S)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        super().shutdown()
        self._released.set()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK collects spans for five seconds before it sends them; nobody wants to wait for that here."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


def a_trace(traceparent: str = "", *, error: str = "") -> Trace:
    inner = Span(name="queue", began_at=1.0, ended_at=2.0)
    call = Span(name="chat m", kind=SpanKind.CLIENT, began_at=2.0, ended_at=4.0, attributes={"gen_ai.request.model": "m"}, error=error)
    root = Span(
        name="POST /api/chat",
        kind=SpanKind.SERVER,
        began_at=1.0,
        ended_at=4.0,
        error=error,
        marks=(Mark(at=1.5, name="promoted"),),
        children=(inner, call),
    )
    return Trace(root=root, origin=Origin(route="/api/chat", traceparent=traceparent), wall_less_at_s=1_000_000.0)


async def exported(*traces: Trace, **settings: Any) -> list[ReadableSpan]:
    """What the SDK makes of traces."""
    memory = InMemorySpanExporter()
    way = OtlpTraces(
        TelemetrySettings(otlp_endpoint="http://127.0.0.1:9", **settings), clock=SystemClock(), events=Heard(), exporter=memory
    )
    for trace in traces:
        way.deliver(trace)
    await way.aclose()
    return list(memory.get_finished_spans())


@for_each("text", ["otlp_endpoint: collector", "otlp_endpoint: 'http://me:secret@c:4318'", "sample_ratio: 1.5", "service_name: ''"])
def test_settings_that_cannot_be_used_are_refused_by_name(text: str):
    with pytest.raises(ConfigError, match=rf"telemetry\.{text.partition(':')[0]}"):
        parse_config(f"telemetry: {{{text}}}", source="f", environ={})


async def test_a_trace_becomes_spans_with_its_times_parents_kinds_and_marks():
    spans = {span.name: span for span in await exported(a_trace())}
    assert set(spans) == {"POST /api/chat", "queue", "chat m"}
    root, wait, call = spans["POST /api/chat"], spans["queue"], spans["chat m"]
    assert root.parent is None
    assert wait.parent is not None
    assert call.parent is not None
    assert wait.parent.span_id == call.parent.span_id == root.context.span_id
    assert (root.start_time, root.end_time) == (1_000_001_000_000_000, 1_000_004_000_000_000)
    assert (root.kind.name, wait.kind.name, call.kind.name) == ("SERVER", "INTERNAL", "CLIENT")
    assert [(event.name, event.timestamp) for event in root.events] == [("promoted", 1_000_001_500_000_000)]
    assert root.resource.attributes["service.name"] == "hearth"


async def test_an_error_is_the_status_of_its_span():
    spans = {span.name: span for span in await exported(a_trace(error="backend_gone"))}
    assert (spans["chat m"].status.status_code, spans["chat m"].status.description) == (StatusCode.ERROR, "backend_gone")
    assert spans["queue"].status.status_code is StatusCode.UNSET


async def test_the_callers_trace_goes_on_in_hearth():
    (root,) = (span for span in await exported(a_trace(SAMPLED)) if span.kind.name == "SERVER")
    assert root.parent is not None
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == (TRACE_ID, PARENT_ID)


@for_each("bad", ["x", "00-0-0-01", f"00-{'0' * 32}-{PARENT_ID}-01", f"ff-{TRACE_ID}-{PARENT_ID}-01", SAMPLED + "\x00"])
async def test_a_traceparent_that_cannot_be_read_begins_a_trace_of_its_own(bad: str):
    (root,) = (span for span in await exported(a_trace(bad)) if span.kind.name == "SERVER")
    assert root.parent is None


async def test_a_caller_that_keeps_no_trace_of_its_own_is_not_traced():
    assert await exported(a_trace(UNSAMPLED)) == []


async def test_the_sample_ratio_counts_for_those_who_do_not_decide_themselves():
    spans = await exported(a_trace(), a_trace(SAMPLED), sample_ratio=0.0)
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE_ID}
    assert len(spans) == 3


@for_each("endpoint", ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"])
def test_the_path_of_traces_is_added_where_it_is_missing(endpoint: str):
    assert address_of(endpoint) == "http://c:4318/v1/traces"


def way_to(collector: SpanExporter, heard: Heard) -> OtlpTraces:
    return OtlpTraces(TelemetrySettings(otlp_endpoint="http://c:4318"), clock=SystemClock(), events=heard, exporter=collector)


async def test_a_collector_that_takes_nothing_is_told_of_once():
    heard, collector = Heard(), Moody()
    way = way_to(collector, heard)
    way.deliver(a_trace())
    failed = await heard.first(TelemetryFailed)
    assert failed.endpoint == "http://c:4318/v1/traces"
    way.deliver(a_trace())
    await way.aclose()
    assert collector.stopped
    assert way.status() == {"endpoint": "http://c:4318/v1/traces", "failing": True, "sent_spans": 0, "lost_spans": 6}
    assert heard.all == [failed]


async def test_a_collector_that_takes_traces_again_is_told_of_with_what_was_lost():
    heard, collector = Heard(), Moody()
    way = way_to(collector, heard)
    way.deliver(a_trace())
    await heard.first(TelemetryFailed)
    collector.takes = True
    way.deliver(a_trace())
    recovered = await heard.first(TelemetryRecovered)
    assert recovered.lost_spans == 3
    await way.aclose()
    assert way.status() == {"endpoint": "http://c:4318/v1/traces", "failing": False, "sent_spans": 3, "lost_spans": 3}


async def test_a_collector_that_says_nothing_does_not_hold_up_the_end():
    collector = Stuck()
    way = way_to(collector, Heard())
    way.deliver(a_trace())
    async with asyncio.timeout(WITHIN_S):
        await way.aclose()
    assert collector.stopped


async def test_nobody_listens_at_the_endpoint_and_the_log_gets_one_event_and_no_line_of_the_sdk(caplog: pytest.LogCaptureFixture):
    heard = Heard()
    way = OtlpTraces(TelemetrySettings(otlp_endpoint="http://127.0.0.1:9"), clock=SystemClock(), events=heard)
    way.deliver(a_trace())
    await way.aclose()
    failed = await heard.first(TelemetryFailed)
    assert failed.detail
    assert heard.all == [failed]
    assert [record.name for record in caplog.records if record.name.startswith("opentelemetry.exporter")] == []


@contextmanager
def receiver() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector: its address, and every request that it was sent."""
    taken: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf":
                taken.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Nothing on the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", taken
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@asynccontextmanager
async def traced_house(endpoint: str) -> AsyncIterator[str]:
    """A gateway with the emulator behind it that tells a collector; the URL it listens at."""
    settings = Settings(gpu=GpuSettings(home_model=""), telemetry=TelemetrySettings(otlp_endpoint=endpoint, service_name="our house"))
    async with running_gateway(GatewayConfig(settings=settings), port=0, backend_mode=BackendMode.EMULATOR) as (_, url):
        yield url


def attributes(span: ProtoSpan) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


async def ask(url: str, path: str, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> int:
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body, headers=headers) as answer:
        await answer.read()
        return answer.status


async def test_requests_arrive_at_a_collector_as_traces_with_no_word_of_a_prompt():
    chat = {"model": "llama3.1:8b", "messages": [{"role": "user", "content": SECRET}], "options": {"num_predict": 3}}
    embed = {"model": "nomic-embed-text", "input": SECRET}
    with receiver() as (endpoint, taken):
        async with traced_house(endpoint) as url:
            assert await ask(url, "/api/chat", chat, {"traceparent": SAMPLED, "tracestate": "rojo=1"}) == 200
            assert await ask(url, "/v1/embeddings", embed) == 200
            assert await ask(url, "/api/chat", {**chat, "model": "no-such-model"}) == 404
    found = [each for request in taken for each in request.resource_spans]
    assert {attributes(each.resource)["service.name"] for each in found} == {"our house"}
    spans = [span for each in found for scope in each.scope_spans for span in scope.spans]
    roots = {span.name: span for span in spans if span.kind == ProtoSpan.SPAN_KIND_SERVER}
    assert set(roots) == {"POST /api/chat", "POST /v1/embeddings"}
    chatted = roots["POST /api/chat"]
    assert (chatted.trace_id.hex(), chatted.parent_span_id.hex(), chatted.trace_state) == (TRACE_ID, PARENT_ID, "rojo=1")
    assert {span.name for span in spans if span.trace_id == chatted.trace_id} == {
        "POST /api/chat",
        "queue",
        "swap",
        "chat llama3.1:8b",
        "first byte",
    }
    embedded = next(span for span in spans if span.name == "embeddings nomic-embed-text:latest")
    assert attributes(embedded)["gen_ai.operation.name"] == "embeddings"
    assert all(SECRET.encode() not in request.SerializeToString() for request in taken)


def test_without_opentelemetry_the_start_is_refused_with_what_to_install(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("telemetry: {otlp_endpoint: 'http://127.0.0.1:4318'}\nstorage: {enabled: false}\n")
    hidden = "import sys; sys.modules['opentelemetry.sdk'] = None; from hearth.cli import main; main()"
    command = [sys.executable, "-c", hidden, "serve", "--emulator", "--port", "0", "--config", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WITHIN_S, cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, check=False
    )
    assert done.returncode == 2
    assert '.venv/bin/pip install -e ".[otel]"' in done.stderr
    assert "telemetry.otlp_endpoint" in done.stderr


def test_without_a_collector_nothing_of_opentelemetrys_sdk_is_imported(tmp_path: Path):
    told = """
import asyncio, sys
from hearth.bootstrap import build_gateway
from hearth.config.gateway_config import GatewayConfig
async def life():
    gateway = await build_gateway(GatewayConfig(), ollama_url="http://127.0.0.1:9")
    print(gateway.traces, "opentelemetry.sdk" in sys.modules)
asyncio.run(life())
"""
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=WITHIN_S, cwd=tmp_path, check=False)
    assert done.stdout == "None False\n", done.stderr
