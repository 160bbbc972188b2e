"""Traces: what is told of each request, and how it gets to a collector with OpenTelemetry's own
SDK, also to one that is not there.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from hearth import events as ev
from hearth.bootstrap import running_gateway
from hearth.clock import SystemClock
from hearth.config.settings import (
    BackendMode,
    GatewayConfig,
    GpuSettings,
    Settings,
    TelemetrySettings,
)
from hearth.events import Event, ItemDispatched, ItemQueued, TelemetryFailed, TelemetryRecovered
from hearth.observability.requests import STEPS_KEPT, Origin, RequestTracker, Timeline
from hearth.observability.tracing import CLOSE_TIMEOUT_S, GIVING_UP_TIMEOUT_S, OtlpTraces
from hearth.types import Outcome
from hearth.types import Sequence as SequenceNumber
from tests.observability.samples import ended, sample
from tests.support.fake_webhooks import Reply, Webhooks, serving
from tests.support.fields import Fields
from tests.support.patience import WITHIN_S
from tests.support.recorder import Recorder
from tests.support.virtual_time import LoopClock, in_virtual_time, loop_s

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"
UNSAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-00"
SECRET = "the cellar key is under the third flower pot"


class Collector(SpanExporter):
    """Takes nothing until it is told to; a `stuck` one says nothing at all until the exporter is
    stopped.
    """

    def __init__(self, *, stuck: bool = False) -> None:
        self.takes = False
        self.stopped = threading.Event()
        self._stuck = stuck

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._stuck:
            self.stopped.wait(WITHIN_S)
        return SpanExportResult.SUCCESS if self.takes else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.stopped.set()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK collects spans for five seconds before it sends them, and tries for ten; nobody wants
    to wait for that here.
    """
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")


CHAT = Origin(route="/api/chat")


class Traced:
    """What the SDK makes of requests; times in seconds of the monotonic clock."""

    def __init__(
        self, collector: SpanExporter | None = None, events: Recorder | None = None, **settings: Any
    ) -> None:
        self._memory = InMemorySpanExporter()
        telemetry = TelemetrySettings(**{"otlp_endpoint": "http://c:4318", **settings})
        self.way = OtlpTraces(
            telemetry,
            clock=LoopClock(),
            events=events or Recorder(),
            exporter=collector or self._memory,
        )
        self._wall_less_at_s = LoopClock().wall() - LoopClock().monotonic()
        self.requests = RequestTracker(Timeline())
        self.requests.on_trace = self.way.deliver

    def tell(self, origin: Origin, *events: Event) -> None:
        for event in events:
            self.requests.emit(event)
            self.requests.note(SequenceNumber(1), origin)

    def one(self, traceparent: str = "") -> None:
        """A request that waits for a second and runs for two."""
        life = (about(ItemQueued, 1.0), about(ItemDispatched, 2.0), ended(at=4.0))
        self.tell(Origin(route="/api/chat", traceparent=traceparent), *life)

    def spans(self) -> list[ReadableSpan]:
        """All that have ended, in the order in which they began.

        Ends the way at once: virtual time does not wait for the SDK's thread.
        """
        self.way._shut_down(asyncio.Event())
        return sorted(self._memory.get_finished_spans(), key=lambda span: span.start_time or 0)

    def tree(self) -> tuple[ReadableSpan, list[ReadableSpan]]:
        """The root of the one request, and what is right below it."""
        found = self.spans()
        (root,) = (span for span in found if (span.attributes or {}).get("hearth.sequence") == 1)
        return root, below(found, root)

    def drawn(self, spans: Sequence[ReadableSpan], span: ReadableSpan, depth: int = 0) -> list[str]:
        """A span and what is below it: name, times, error or outcome, marks."""
        # no -0.0
        began_s, ended_s = (
            round((ns or 0) / 1e9 - self._wall_less_at_s, 3) + 0.0
            for ns in (span.start_time, span.end_time)
        )
        known = {
            "error": error_of(span),
            "outcome": said(span).get("hearth.outcome"),
            "marks": " ".join(mark.name for mark in span.events),
        }
        line = " ".join(
            [
                f"{'  ' * depth}{span.name} {began_s:g}-{ended_s:g}",
                *(f"{key}={text}" for key, text in known.items() if text),
            ]
        )
        return [
            line,
            *(each for child in below(spans, span) for each in self.drawn(spans, child, depth + 1)),
        ]


def about(kind: type[Event], at: float = 0.0, **chosen: Any) -> Event:
    return sample(kind, at=at, sequence=SequenceNumber(1), model="m", **chosen)


def below(spans: Sequence[ReadableSpan], parent: ReadableSpan) -> list[ReadableSpan]:
    return [
        span
        for span in spans
        if span.parent is not None and span.parent.span_id == parent.context.span_id
    ]


def said(span: ReadableSpan) -> Fields:
    return dict(span.attributes or {})


def error_of(span: ReadableSpan) -> str | None:
    return span.status.description if span.status.status_code is StatusCode.ERROR else None


def swapped(at: float, swap_s: float, to_model: str = "m") -> Event:
    return sample(ev.SwapCompleted, at=at, swap_s=swap_s, to_model=to_model)


def failed_load(at: float) -> Event:
    return sample(ev.SwapFailed, at=at, swap_s=1.0, to_model="m", reason="swap_failed")


def end(at: float, outcome: Outcome = Outcome.COMPLETED, **more: Any) -> Event:
    told = {} if outcome is Outcome.COMPLETED else {"first_byte_s": None, "reason": outcome.value}
    return ended(outcome, at=at, **{"model": "m", **told, **more})


QUEUED = about(ItemQueued)
CALLED = about(ItemDispatched, alias=None)
RESENT = sample(ev.ItemResent, at=1.0, sequence=SequenceNumber(1), model="m", reason="backend_gone")
BROKEN_OFF = sample(
    ev.ItemBrokenOff, at=1.0, sequence=SequenceNumber(1), model="m", reason="runner_died"
)
GIVEN_UP = end(9.0, Outcome.CANCELLED)
LIVES: dict[str, tuple[list[Event], list[str]]] = {
    "a wait with its swap in it and a call with its first byte in it": (
        [
            QUEUED,
            swapped(2.5, 2.5),
            about(ItemDispatched, 2.5),
            about(ev.ItemStreaming, 3.25),
            end(4.5),
        ],
        ["queue 0-2.5", "  swap 0-2.5", "chat m 2.5-4.5", "  first byte 2.5-3.25"],
    ),
    "a first byte of which only the end tells": (
        [QUEUED, CALLED, end(2.0)],
        ["queue 0-0", "chat m 0-2", "  first byte 0-0.5"],
    ),
    "an interruption for another program ends a call as well": (
        [QUEUED, CALLED, about(ev.ItemYielded, 0.5), about(ItemDispatched, 1.5), end(3.5)],
        [
            "queue 0-0",
            "chat m 0-0.5 outcome=yielded",
            "queue 0.5-1.5",
            "chat m 1.5-3.5",
            "  first byte 1.5-2",
        ],
    ),
    "an interruption ends a call and begins a wait": (
        [
            QUEUED,
            CALLED,
            about(ev.ItemInterrupted, 0.5),
            about(ItemDispatched, 1.5),
            end(3.5, first_byte_s=None),
        ],
        ["queue 0-0", "chat m 0-0.5 outcome=interrupted", "queue 0.5-1.5", "chat m 1.5-3.5"],
    ),
    "a call that failed unseen is an error and the item is none": (
        [QUEUED, CALLED, RESENT, about(ItemDispatched, 1.0), end(2.0, first_byte_s=None)],
        ["queue 0-0", "chat m 0-1 error=backend_gone outcome=resent", "queue 1-1", "chat m 1-2"],
    ),
    "so is one in which the model server died": (
        [
            QUEUED,
            CALLED,
            about(ev.ItemStreaming, 0.5),
            BROKEN_OFF,
            about(ItemDispatched, 1.5),
            end(2.0, first_byte_s=None),
        ],
        [
            "queue 0-0",
            "chat m 0-1 error=runner_died outcome=broken_off",
            "  first byte 0-0.5",
            "queue 1-1.5",
            "chat m 1.5-2",
        ],
    ),
    "loads that failed stand in the wait": (
        [
            QUEUED,
            failed_load(1.0),
            failed_load(3.0),
            end(3.0, Outcome.FAILED, reason="swap_failed"),
        ],
        ["queue 0-3", "  swap 0-1 error=swap_failed", "  swap 2-3 error=swap_failed"],
    ),
    "the part of a swap to its own model that lies in the wait": (
        [
            swapped(0.5, 0.5),
            about(ItemQueued, 1.0),
            swapped(2.5, 2.5),
            swapped(2.5, 0.1, "other"),
            about(ItemDispatched, 2.5),
            end(3.0),
        ],
        ["queue 1-2.5", "  swap 1-2.5", "chat m 2.5-3", "  first byte 2.5-3"],
    ),
    "also of one that goes on where it is cancelled": (
        [
            sample(ev.SwapStarted, at=0.0, to_model="m"),
            about(ItemQueued, 1.0),
            end(1.5, Outcome.CANCELLED),
        ],
        ["queue 1-1.5", "  swap 1-1.5"],
    ),
    "a swap stands in the wait in which it was, also where its model is loaded again": (
        [
            QUEUED,
            swapped(2.0, 1.0),
            about(ItemDispatched, 3.0),
            about(ev.ItemInterrupted, 4.0),
            swapped(6.0, 1.0),
            GIVEN_UP,
        ],
        ["queue 0-3", "  swap 1-2", "chat m 3-4 outcome=interrupted", "queue 4-9", "  swap 5-6"],
    ),
    "what happens to a call is marked on it": (
        [
            QUEUED,
            CALLED,
            about(ev.ItemProtected),
            about(ev.ItemResumed),
            about(ev.ItemDiverged),
            end(5.0),
        ],
        ["queue 0-0", "chat m 0-5 marks=protected resumed diverged", "  first byte 0-0.5"],
    ),
}


@pytest.mark.parametrize("name", LIVES)
async def test_an_item_is_its_waits_and_calls_with_what_was_in_them(name):
    traced, (events, expected) = Traced(), LIVES[name]
    traced.tell(CHAT, *events)
    spans = traced.spans()
    (root,) = (span for span in spans if span.parent is None)
    first, *others = traced.drawn(spans, root)
    assert ([line.removeprefix("  ") for line in others], first[:14]) == (
        expected,
        "POST /api/chat",
    )
    assert (error_of(root) is not None) == (said(root)["hearth.outcome"] == "failed")


async def test_a_call_by_an_alias_was_asked_for_by_that_and_answered_by_a_model():
    traced = Traced()
    traced.tell(CHAT, QUEUED, about(ItemDispatched, alias="coder"), end(2.0))
    _, (_, call) = traced.tree()
    names = {"gen_ai.request.model": "coder", "gen_ai.response.model": "m"}
    assert names.items() <= said(call).items()


async def test_what_is_known_of_a_request_and_its_call_is_on_their_spans():
    traced = Traced()
    promoted = sample(ev.ItemPromoted, at=0.5, sequence=SequenceNumber(1), band="normal")
    traced.tell(CHAT, QUEUED, promoted, CALLED, end(2.0, interrupt_count=1))
    root, (_, call) = traced.tree()
    assert {
        "hearth.attempt": 3,
        "gen_ai.usage.output_tokens": 34,
        "gen_ai.response.time_to_first_chunk": 0.5,
    }.items() <= said(call).items()
    names = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "ollama",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
    }
    assert names.items() <= said(call).items()
    known = {
        "caller": "webui",
        "request_id": "req_1",
        "lane": "external",
        "outcome": "completed",
        "output_tokens": 34,
        "interruptions": 1,
    }
    http = {
        "http.request.method": "POST",
        "http.route": "/api/chat",
        "http.response.status_code": 200,
    }
    assert ({f"hearth.{name}": value for name, value in known.items()} | http).items() <= said(
        root
    ).items()
    assert not any(name.startswith("gen_ai.") for name in said(root))
    assert (root.kind.name, call.kind.name, root.parent) == ("SERVER", "CLIENT", None)
    assert [(mark.name, dict(mark.attributes or {})) for mark in root.events] == [
        ("promoted", {"hearth.band": "normal"})
    ]
    inside = Traced()
    inside.tell(Origin(), QUEUED, CALLED, end(2.0))
    # what ends without having begun is no trace
    inside.tell(CHAT, ended(sequence=SequenceNumber(2)))
    root, (_, call) = inside.tree()
    assert (root.name, call.name, any(name.startswith("http.") for name in said(root))) == (
        "item",
        "text_completion m",
        False,
    )


async def test_an_item_that_is_interrupted_for_ever_does_not_grow_for_ever():
    traced = Traced()
    traced.tell(
        CHAT, *map(about, (ItemQueued, *(ItemDispatched, ev.ItemInterrupted) * 3 * STEPS_KEPT))
    )
    traced.tell(CHAT, about(ItemDispatched, 8.0), ended(at=9.0))
    _, parts = traced.tree()
    assert len(parts) <= STEPS_KEPT + 4
    assert traced.drawn((), parts[-1])[0].endswith(" 8-9"), (
        "the last one is worth more than those before it"
    )


@pytest.mark.parametrize(
    ("traceparent", "parent"),
    [
        (SAMPLED, (TRACE_ID, PARENT_ID)),
        *(
            (bad, None)
            for bad in (
                "x",
                "00-0-0-01",
                f"00-{'0' * 32}-{PARENT_ID}-01",
                f"ff-{TRACE_ID}-{PARENT_ID}-01",
                SAMPLED + "\x00",
            )
        ),
    ],
)
async def test_the_callers_trace_goes_on_and_an_unreadable_one_is_replaced(traceparent, parent):
    traced = Traced()
    traced.one(traceparent)
    root, _ = traced.tree()
    assert (
        root.parent and (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}")
    ) == parent


async def test_a_caller_decides_whether_it_is_traced_and_a_ratio_for_the_rest():
    traced = Traced(sample_ratio=0.0, service_name="our house", otlp_endpoint="http://c:4318/")
    for traceparent in ("", UNSAMPLED, SAMPLED):
        traced.one(traceparent)
    spans = traced.spans()
    assert {span.resource.attributes["service.name"] for span in spans} == {"our house"}
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE_ID}
    assert (len(spans), traced.way.status()["endpoint"]) == (4, "http://c:4318/v1/traces")


async def test_a_collector_that_takes_nothing_is_reported_once_and_on_recovery():
    def seen(kind: type[Event], times: int) -> Callable[[], bool]:
        return lambda: len(heard.of(kind)) == times

    heard = Recorder()
    collector = Collector()
    traced = Traced(collector, heard, otlp_endpoint="http://c:4318/v1/traces")
    for times in (1, 2):
        for taken, kind in ((False, TelemetryFailed), (True, TelemetryRecovered)):
            collector.takes = taken
            traced.one()
            await heard.until(seen(kind, times))
    await traced.way.aclose()
    assert (collector.stopped.is_set(), heard.of(TelemetryFailed)[0].endpoint) == (
        True,
        "http://c:4318/v1/traces",
    )
    status = traced.way.status()
    lost = sum(each.lost_spans for each in heard.of(TelemetryRecovered))
    assert (status["failing"], status["lost_spans"], len(heard.all)) == (False, lost, 4)
    assert cast("int", status["sent_spans"]) + lost == 16


@in_virtual_time
async def test_a_collector_that_says_nothing_does_not_hold_up_the_end():
    collector = Collector(stuck=True)
    traced = Traced(collector)
    traced.one()
    await traced.way.aclose()
    assert collector.stopped.is_set()
    assert loop_s() <= CLOSE_TIMEOUT_S + GIVING_UP_TIMEOUT_S


async def test_with_nobody_at_the_endpoint_the_log_gets_one_event(caplog: pytest.LogCaptureFixture):
    heard = Recorder()
    way = OtlpTraces(
        TelemetrySettings(otlp_endpoint="http://127.0.0.1:9"), clock=SystemClock(), events=heard
    )
    traced = Traced()
    traced.requests.on_trace = way.deliver
    traced.one()
    await way.aclose()
    failed = await heard.first(TelemetryFailed)
    assert failed.detail
    assert heard.all == [failed]
    assert [
        record.name for record in caplog.records if record.name.startswith("opentelemetry.exporter")
    ] == []


def attributes(span: ProtoSpan) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


async def test_requests_arrive_at_a_collector_as_traces_with_no_word_of_a_prompt():
    chat = {
        "model": "llama3.1:8b",
        "messages": [{"role": "user", "content": SECRET}],
        "options": {"num_predict": 3},
    }
    embed = {"model": "nomic-embed-text", "input": SECRET}
    collector = Webhooks(default=Reply(200))
    async with serving(collector) as endpoint:
        settings = Settings(
            gpu=GpuSettings(home_model=""),
            telemetry=TelemetrySettings(otlp_endpoint=endpoint, service_name="our house"),
        )
        running = running_gateway(
            GatewayConfig(settings=settings), port=0, backend_mode=BackendMode.EMULATOR
        )
        async with running as (_, url), aiohttp.ClientSession() as session:
            for path, body, status in (
                ("/api/chat", chat, 200),
                ("/v1/embeddings", embed, 200),
                ("/api/chat", {**chat, "model": "no-such-model"}, 404),
            ):
                headers = (
                    {"traceparent": SAMPLED, "tracestate": "rojo=1"} if path == "/api/chat" else {}
                )
                async with session.post(url + path, json=body, headers=headers) as answer:
                    await answer.read()
                    assert answer.status == status
    assert {(each.path, each.headers["content-type"]) for each in collector.seen} == {
        ("/v1/traces", "application/x-protobuf")
    }
    taken = [ExportTraceServiceRequest.FromString(each.body) for each in collector.seen]
    found = [each for request in taken for each in request.resource_spans]
    assert {attributes(each.resource)["service.name"] for each in found} == {"our house"}
    spans = [span for each in found for scope in each.scope_spans for span in scope.spans]
    roots = {span.name: span for span in spans if span.kind == ProtoSpan.SPAN_KIND_SERVER}
    assert set(roots) == {"POST /api/chat", "POST /v1/embeddings"}
    chatted = roots["POST /api/chat"]
    assert (chatted.trace_id.hex(), chatted.parent_span_id.hex(), chatted.trace_state) == (
        TRACE_ID,
        PARENT_ID,
        "rojo=1",
    )
    names = {"POST /api/chat", "queue", "swap", "chat llama3.1:8b", "first byte"}
    assert {span.name for span in spans if span.trace_id == chatted.trace_id} == names
    embedded = next(span for span in spans if span.name == "embeddings nomic-embed-text:latest")
    assert attributes(embedded)["gen_ai.operation.name"] == "embeddings"
    assert all(SECRET.encode() not in request.SerializeToString() for request in taken)


def program(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(folder)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        cwd=folder,
        env=environment,
        check=False,
    )


def test_without_opentelemetry_the_start_is_refused_with_what_to_install(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "telemetry: {otlp_endpoint: 'http://127.0.0.1:4318'}\nstorage: {enabled: false}\n"
    )
    hidden = (
        "import sys; sys.modules['opentelemetry.sdk'] = None; from hearth.cli import main; main()"
    )
    done = program(hidden, tmp_path, "serve", "--emulator", "--port", "0", "--config", str(file))
    assert done.returncode == 2
    assert " -m pip install 'opentelemetry-exporter-otlp-proto-http<2,>=1.45'" in done.stderr
    assert "telemetry.otlp_endpoint" in done.stderr


def test_without_a_collector_nothing_of_opentelemetrys_sdk_is_imported(tmp_path: Path):
    told = """
import asyncio, sys
from hearth.bootstrap import build_gateway
from hearth.config.settings import GatewayConfig
async def life():
    gateway = await build_gateway(GatewayConfig(), backend_url="http://127.0.0.1:9")
    print(gateway.records.requests.on_trace, "opentelemetry.sdk" in sys.modules)
asyncio.run(life())
"""
    done = program(told, tmp_path)
    assert done.stdout == "None False\n", done.stderr
