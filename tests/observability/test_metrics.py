"""What is counted, what is read, under which bounded names, and that the page, its documentation
and the dashboard agree.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import fields

import aiohttp
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from docs_build.vocabulary_page import events_page, metrics_page
from hearth import events as ev
from hearth.api.app import HearthApp
from hearth.bootstrap import running_gateway
from hearth.config.loading import parse_config
from hearth.config.settings import (
    AuthSettings,
    BackendMode,
    GatewayConfig,
    KeySettings,
    ModelSettings,
    Settings,
)
from hearth.events import Event
from hearth.execution.gpu_tracker import CardUse
from hearth.gateway import Gateway
from hearth.observability.families import CALLERS, DIRECTIONS, MODELS, REASONS
from hearth.observability.metric_families import FAMILIES
from hearth.observability.metrics import Metrics, render
from hearth.types import Band, GpuReading, JsonDict, Lane, Outcome
from tests.observability.samples import all_kinds, ended, interrupted, rejected, sample
from tests.support.cases import for_each
from tests.support.fake_ollama import FakeModel
from tests.support.fields import Fields
from tests.support.house import House, in_loaded_house, settings_with, settle
from tests.support.http import ask
from tests.support.places import ROOT
from tests.support.virtual_time import in_virtual_time

DOCS = ROOT / "docs"
RULES = DOCS / "grafana" / "hearth.rules.yml"
Numbers = dict[tuple[str, frozenset[tuple[str, str]]], float]


def numbers(metrics: list[Metric]) -> Numbers:
    """Every sample of the rendered page, as a scraper reads it."""
    page = render(metrics).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def number(of: Metrics | Gateway, name: str, **labels: str) -> float | None:
    return numbers(of.metrics()).get((name, frozenset(labels.items())))


def counted(*events: Event) -> Metrics:
    tallies = Metrics()
    for event in events:
        tallies.emit(event)
    return tallies


LANE_MODEL = {"lane": "external", "model": "home:32b"}
STUCK = sample(ev.SwapFailed, from_models=("a",), to_model="", reason="swap_failed")
COUNTED: list[tuple[Event, str, str, float]] = [
    (
        sample(ev.ItemQueued, caller="webui"),
        "requests_accepted_total",
        "lane=external caller=webui",
        1,
    ),
    (ended(), "requests_total", "lane=external model=home:32b outcome=completed", 1),
    (ended(Outcome.EXPIRED), "requests_total", "lane=external model=home:32b outcome=expired", 1),
    (
        ended(lane=Lane.INTERNAL),
        "requests_total",
        "lane=internal model=home:32b outcome=completed",
        1,
    ),
    (ended(), "caller_requests_total", "lane=external caller=webui outcome=completed", 1),
    (
        ended(Outcome.FAILED),
        "caller_requests_total",
        "lane=external caller=webui outcome=failed",
        1,
    ),
    (
        ended(Outcome.FAILED, reason="backend_gone"),
        "request_failures_total",
        "lane=external reason=backend_gone",
        1,
    ),
    (ended(), "tokens_total", "lane=external model=home:32b kind=prompt", 12),
    (ended(), "tokens_total", "lane=external model=home:32b kind=output", 34),
    (ended(), "caller_tokens_total", "lane=external caller=webui kind=output", 34),
    (ended(cost_usd=0.25), "cost_usd_total", "lane=external caller=webui", 0.25),
    (ended(model=None), "requests_total", "lane=external model=any outcome=completed", 1),
    (ended(), "queue_wait_seconds_sum", "lane=external model=home:32b", 0.25),
    (ended(), "first_byte_seconds_sum", "lane=external model=home:32b", 0.5),
    (ended(), "backend_seconds_sum", "lane=external model=home:32b", 2.0),
    (ended(), "total_seconds_sum", "lane=external model=home:32b", 2.25),
    (ended(bound_kept=True), "wait_bounds_total", "lane=external result=kept", 1),
    (ended(bound_kept=True), "wait_bounds_total", "lane=external result=exceeded", 0),
    (ended(bound_kept=False), "wait_bounds_total", "lane=external result=exceeded", 1),
    (ended(swap_s=7.5), "swap_wait_seconds_sum", "lane=external model=home:32b", 7.5),
    (ended(backend_s=None), "backend_seconds_count", "lane=external model=home:32b", 0),
    (ended(first_byte_s=None), "first_byte_seconds_count", "lane=external model=home:32b", 0),
    (rejected(), "requests_rejected_total", "caller=webui reason=rate_limited", 1),
    (rejected(caller=""), "requests_rejected_total", "caller=unknown reason=rate_limited", 1),
    (interrupted(), "preemptions_total", "model=home:32b", 1),
    (interrupted(), "preempted_seconds_total", "model=home:32b", 1.0),
    (sample(ev.ItemYielded, model="home:32b"), "yielded_total", "model=home:32b", 1),
    (sample(ev.ItemHeld, model="home:32b"), "held_streams_total", "model=home:32b", 1),
    (sample(ev.ItemProtected), "protected_total", "", 1),
    (sample(ev.ItemPromoted, band="normal"), "promotions_total", "band=normal", 1),
    (sample(ev.ItemResumed), "replays_total", "result=verified", 1),
    (sample(ev.ItemResumed, catch_up_s=1.5), "replay_catch_up_seconds_total", "", 1.5),
    (sample(ev.ItemDiverged), "replays_total", "result=diverged", 1),
    (sample(ev.ItemResent, reason="backend_gone"), "resends_total", "reason=backend_gone", 1),
    (
        sample(ev.ItemBrokenOff, reason="runner_died"),
        "broken_streams_total",
        "reason=runner_died",
        1,
    ),
    (
        sample(ev.SwapCompleted, from_models=("a",), to_model="b"),
        "swaps_total",
        "from_model=a to_model=b",
        1,
    ),
    (
        sample(ev.SwapCompleted, from_models=("a", "c"), to_model="b"),
        "swaps_total",
        "from_model=a+c to_model=b",
        1,
    ),
    (
        sample(ev.SwapCompleted, from_models=(), to_model="b"),
        "swaps_total",
        "from_model=none to_model=b",
        1,
    ),
    (
        sample(ev.SwapCompleted, from_models=("a",), to_model="b", swap_s=9.0),
        "swap_seconds_total",
        "from_model=a to_model=b",
        9,
    ),
    *(
        (
            sample(ev.SwapCompleted, from_models=("a",), to_model="b", drain_s=7.0),
            "swap_phase_seconds_sum",
            f"from_model=a to_model=b phase={phase}",
            seconds,
        )
        for phase, seconds in (("cooldown", 1.25), ("drain", 7), ("unload", 1.25), ("load", 1.25))
    ),
    (sample(ev.ItemStopped, model="b", stop_s=0.02), "cancel_seconds_sum", "model=b", 0.02),
    (sample(ev.ModelUnresponsive, model="b"), "unresponsive_reloads_total", "model=b", 1),
    (sample(ev.EngineExited, model="b"), "engine_exits_total", "model=b", 1),
    (
        sample(ev.ConversationsSaved, model="b", conversations=2),
        "conversations_saved_total",
        "model=b",
        2,
    ),
    (
        sample(ev.ConversationsSaved, model="b", size_bytes=4096),
        "conversations_saved_bytes_total",
        "model=b",
        4096,
    ),
    (sample(ev.ConversationRestored, model="b"), "conversations_restored_total", "model=b", 1),
    (
        sample(ev.ConversationRestored, model="b", cached_tokens=900),
        "restored_tokens_total",
        "model=b",
        900,
    ),
    (
        sample(ev.ConversationUnsaved, model="b", step="save"),
        "conversations_unsaved_total",
        "model=b step=save",
        1,
    ),
    (
        sample(ev.SwapFailed, to_model="b", reason="timeout"),
        "swap_failures_total",
        "to_model=b reason=timeout",
        1,
    ),
    (sample(ev.LoadCut, to_model="b"), "loads_cut_total", "to_model=b", 1),
    (sample(ev.TurnBegan, model="b"), "turns_total", "model=b", 1),
    (sample(ev.GpuLeaseTaken, source="games"), "gpu_leases_taken_total", "source=games", 1),
    (sample(ev.GpuLeaseGranted), "gpu_leases_granted_total", "", 1),
    (sample(ev.GpuLeaseGranted, took_s=2.5), "gpu_lease_grant_seconds_total", "", 2.5),
    (sample(ev.GpuLeaseLate), "gpu_leases_late_total", "", 1),
    (sample(ev.GpuLeaseEnded, why="owner"), "gpu_leases_ended_total", "why=owner", 1),
    (sample(ev.GpuLeaseEnded, held_s=60.0), "gpu_leased_seconds_total", "", 60),
    (sample(ev.SuspendPrepared), "suspends_total", "", 1),
    (
        sample(ev.ModelSlow, model="b", remedy="reload"),
        "slow_model_remedies_total",
        "model=b remedy=reload",
        1,
    ),
    (STUCK, "unload_failures_total", "model=a reason=swap_failed", 1),
    (sample(ev.BackendWentDown), "backend_outages_total", "", 1),
    (sample(ev.BackendCameUp, down_s=30.0), "backend_down_seconds_total", "", 30),
    (sample(ev.AlertSent, target="ntfy", alerts=3), "alerts_sent_total", "target=ntfy", 3),
    (
        sample(ev.AlertFailed, target="ntfy", reason="dns", alerts=2),
        "alerts_failed_total",
        "target=ntfy reason=dns",
        2,
    ),
    (sample(ev.ConfigReloaded), "config_reloads_total", "result=accepted", 1),
    (sample(ev.ConfigRejected), "config_reloads_total", "result=rejected", 1),
    (sample(ev.DiskRanLow), "disk_low", "", 1),
    (sample(ev.InternalFault), "internal_faults_total", "", 1),
    (sample(ev.JobQueued, caller="n8n"), "jobs_accepted_total", "caller=n8n", 1),
    (sample(ev.JobEnded, state="completed"), "jobs_total", "state=completed", 1),
    (sample(ev.BatchEnded, state="expired"), "batches_total", "state=expired", 1),
    (sample(ev.WebhookDelivered), "webhooks_total", "result=delivered", 1),
    (
        sample(ev.ModelPutToSleep, model="m", sleep_level="offload", took_s=2.0),
        "sleep_seconds_total",
        "model=m sleep_level=offload",
        2.0,
    ),
    (
        sample(ev.ModelWoken, model="m", sleep_level="discard"),
        "wakes_total",
        "model=m sleep_level=discard",
        1,
    ),
    (
        sample(ev.SleepFailed, model="m", sleep_level="offload", step="wake"),
        "sleep_failures_total",
        "model=m sleep_level=offload step=wake",
        1,
    ),
    (sample(ev.WebhookFailed), "webhooks_total", "result=failed", 1),
    (sample(ev.BudgetExhausted, caller="n8n"), "budget_refusals_total", "caller=n8n", 1),
    (sample(ev.EnergyMeasured, energy_j=90.0), "gpu_energy_joules_total", "", 90),
    (sample(ev.EmbeddingsFlushed, why="full"), "embedding_calls_total", "why=full", 1),
    (sample(ev.EmbeddingsFlushed, model="e", inputs=5), "embedding_call_inputs_sum", "model=e", 5),
    (sample(ev.EmbeddingsParted, reason="timeout"), "embedding_parted_total", "reason=timeout", 1),
]


@for_each(("event", "name", "labels", "expected"), COUNTED)
def test_an_event_is_counted_where_the_owner_looks_for_it(event, name, labels, expected):
    of = dict(label.split("=") for label in labels.split())
    twice = expected if name == "disk_low" else 2 * expected
    assert [
        number(counted(*events), f"hearth_{name}", **of) for events in ((event,), (event, event))
    ] == [expected, twice]


def test_every_kind_that_is_counted_stands_above_and_no_kind_is_too_much():
    counted_kinds = {kind for kind in all_kinds() if Metrics().handler_of(kind) is not None}
    assert counted_kinds - {type(event) for event, *_ in COUNTED} == {ev.DiskSpaceReturned}
    tallies = counted(*map(sample, all_kinds()), ended(prompt_tokens=None, output_tokens=None))
    assert number(tallies, "hearth_tokens_total", **LANE_MODEL, kind="prompt") == 0, (
        "an unknown number of tokens is none"
    )
    assert (
        number(counted(sample(ev.DiskRanLow), sample(ev.DiskSpaceReturned)), "hearth_disk_low") == 0
    )
    assert not any(
        name == "hearth_swap_failures_total" for name, _ in numbers(counted(STUCK).metrics())
    ), "one that did not leave"


def test_many_models_callers_reasons_and_directions_share_the_label_other():
    events: list[Event] = []
    for each in range(300):
        model = f"model-{each}"
        caller = f"caller-{each}"
        events += [
            ended(model=model, caller=caller),
            ended(Outcome.FAILED, model=model, caller=caller, reason=f"reason-{each}"),
            rejected(caller=caller, reason=f"reason-{each}"),
            interrupted(model=model),
            sample(ev.ItemQueued, caller=caller),
            sample(ev.SwapCompleted, from_models=(f"model-{each // 40}",), to_model=model),
            sample(
                ev.SwapCompleted,
                from_models=(f"model-{each % 50}",),
                to_model=f"model-{each // 50}",
            ),
            sample(ev.SwapFailed, to_model=model, reason=f"reason-{each}"),
            sample(ev.SwapFailed, from_models=(model,), to_model="", reason=f"reason-{each}"),
        ]
    found = numbers(counted(*events).metrics())
    values: dict[str, set[str]] = {}
    for _, labels in found:
        for name, value in labels:
            values.setdefault(name, set()).add(value)
    assert len(values["model"]) == MODELS + 1
    assert len(values["caller"]) == CALLERS + 1
    assert len(values["reason"]) == REASONS + 1
    assert len([1 for name, _ in found if name == "hearth_swaps_total"]) == DIRECTIONS + 1
    whole = sum(value for (name, _), value in found.items() if name == "hearth_requests_total")
    assert whole == 600
    assert sum(value for (name, _), value in found.items() if name == "hearth_swaps_total") == 600
    assert len(found) < 12_000


@in_virtual_time
async def test_the_queue_is_read_by_lane_and_band_with_the_age_of_its_oldest():
    settings = settings_with(queue={"max_external_depth": 7})
    async with House("a", "b", "c", "d", resident="a", settings=settings) as house:
        first = house.submit("a", service_s=100.0)
        for after_s in (5, 10):
            await asyncio.sleep(after_s)
            house.submit("b")
        await asyncio.sleep(1)
        gateway = house.gateway
        assert number(gateway, "hearth_queue_depth", lane="external", band="external") == 2
        assert number(gateway, "hearth_queue_depth", lane="internal", band="critical") == 0
        assert number(
            gateway, "hearth_queue_oldest_age_seconds", lane="external", band="external"
        ) == pytest.approx(11)
        assert (
            number(gateway, "hearth_queue_oldest_age_seconds", lane="internal", band="normal") == 0
        )
        assert number(gateway, "hearth_queue_limit", lane="external") == 7
        assert number(gateway, "hearth_queue_model_depth", model="b:latest") == 2
        assert number(gateway, "hearth_requests_running", lane="external", model="a:latest") == 1
        assert number(gateway, "hearth_model_resident", model="a:latest", phase="ready") == 1
        house.cancel(first)
        await asyncio.sleep(30)
        overhead = float(str(house.gpu_status["swap_overhead_pct_1h"]))
        assert number(gateway, "hearth_swap_overhead_ratio") == pytest.approx(overhead / 100) != 0
        assert (
            number(gateway, "hearth_swaps_total", from_model="a:latest", to_model="b:latest") == 1
        )
        assert number(gateway, "hearth_queue_depth", lane="external", band="external") == 0
        for each in range(MODELS):
            gateway.records.metrics.emit(ended(model=f"model-{each}"))
        gateway.orders.pause()
        for _ in range(2):
            house.submit("c")
        house.submit("d")
        await settle()
        assert number(gateway, "hearth_queue_model_depth", model="other") == 3


@in_virtual_time
async def test_the_oldest_of_the_interrupted_is_not_the_one_that_goes_first():
    settings = settings_with(scheduling={"preemption": "at_once"}).replace(
        models={"a": ModelSettings(parallel=2)}
    )
    async with House(
        FakeModel(name="a", parallel=2), "b", resident="a", settings=settings
    ) as house:
        house.submit("a", service_s=50.0)
        await asyncio.sleep(4)
        house.submit("a", service_s=50.0)
        await asyncio.sleep(6)
        house.internal("b", service_s=20.0)
        await asyncio.sleep(5)
        waiting = house.worker.scheduler.gateway.waiting.in_order(Band.INTERRUPTED)
        assert [entry.item.sequence for entry in waiting] == [2, 1]
        assert number(
            house.gateway, "hearth_queue_oldest_age_seconds", lane="external", band="interrupted"
        ) == pytest.approx(15)
        assert number(house.gateway, "hearth_preemptions_total", model="a:latest") == 2


CARD_METRICS = (
    "gpu_up",
    "gpu_memory_total_bytes",
    "gpu_memory_foreign_bytes",
    "gpu_temperature_celsius",
    "gpu_power_limit_watts",
)


@in_loaded_house
async def test_the_card_is_absent_until_it_speaks_and_0_when_it_is_lost(house: House):
    gateway = house.gateway
    tracker = house.worker.tracker

    def card() -> list[float | None]:
        return [number(gateway, f"hearth_{name}") for name in CARD_METRICS]

    assert card() == [None] * 5
    tracker.record_reading(
        GpuReading(name="card", total_mib=24_576, utilisation_pct=40, temperature_c=61),
        CardUse(foreign_mib=512),
    )
    assert card() == [1, 24 * 1024**3, 512 * 1024**2, 61, None]
    assert number(gateway, "hearth_gpu_utilisation_ratio") == pytest.approx(0.4)
    tracker.record_no_reading()
    assert card() == [0, None, None, None, None]


@in_loaded_house
async def test_leases_are_read_by_their_source_and_counted_to_their_end(house: House):
    leases = house.gateway.leases

    def read(*names: str, **labels: str) -> list[float | None]:
        return [number(house.gateway, f"hearth_gpu_{name}", **labels) for name in names]

    assert read("leased_bytes", "lease_waiting_requests") == [0, 0]
    assert read("leases", source="api") == [None]
    leases.take(reason="", source="api", mib=1024.0, lease_id="one")
    leases.take(reason="", source="games", mib=512.0, lease_id="games:1")
    assert read("leased_bytes") == [1536 * 1024**2]
    assert read("leases", source="games") == [1]
    house.submit("a")
    leases.take(reason="", source="api", lease_id="two")
    await asyncio.sleep(9)
    assert read("leases", source="api") == [2]
    assert read("leased_bytes", "lease_waiting_requests") == [None, 1]
    assert read("leases_granted_total", "leases_late_total") == [3, 0]
    leases.end("one", "released")
    assert read("leases_ended_total", why="released") == [1]
    assert read("leased_seconds_total") == [9]
    assert read("leases_taken_total", source="api") == [2]


@in_loaded_house
async def test_orders_are_read_while_there_are_some(house: House):
    gateway = house.gateway
    orders = house.gateway.orders

    def read() -> tuple[float | None, ...]:
        return (
            number(gateway, "hearth_pinned", model="a:latest"),
            number(gateway, "hearth_paused", lane="external"),
            number(gateway, "hearth_draining"),
            number(gateway, "hearth_ready"),
        )

    await orders.pin("a")
    orders.pause()
    orders.drain()
    await settle()
    assert read() == (1, 1, 1, 0)
    orders.unpin()
    orders.resume()
    await settle()
    assert read() == (None, 0, 0, 1)


PARTS: dict[str, JsonDict] = {
    "storage": {"state": "disk_full", "waiting_rows": 12, "dropped": 3},
    "cloud": {"state": "ready", "running": [{}], "spent_today_usd": 1.5, "limit_today_usd": 5.0},
    "alerts": {"suppressed": 4, "dropped": 1, "active": [{"type": "gpu_lost", "subject": ""}]},
    "jobs": {"waiting": 9, "running": 1},
}
READ: list[tuple[str, dict[str, str], float]] = [
    ("jobs_waiting", {}, 9),
    ("jobs_running", {}, 1),
    ("store_up", {}, 0),
    ("store_queue_rows", {}, 12),
    ("store_dropped_rows_total", {}, 3),
    ("cloud_up", {}, 1),
    ("cloud_requests_running", {}, 1),
    ("cloud_spent_today_usd", {"lane": "external"}, 1.5),
    ("alerts_suppressed_total", {}, 4),
    ("alerts_active", {"type": "gpu_lost"}, 1),
]


@in_virtual_time
async def test_absent_parts_have_no_metrics_and_present_ones_are_read():
    async with House("a") as house:
        assert {number(house.gateway, f"hearth_{name}", **labels) for name, labels, _ in READ} == {
            None
        }
        for name, part in PARTS.items():
            house.gateway.show(name, lambda part=part: part)  # type: ignore[misc]
        assert [
            (name, labels, number(house.gateway, f"hearth_{name}", **labels))
            for name, labels, _ in READ
        ] == READ


# The page, its documentation, the dashboard and the rules.


def own_fields(kind: type[Event]) -> set[str]:
    base = next(known for known in (ev.ItemEvent, ev.JobEvent, Event) if issubclass(kind, known))
    return {field.name for field in fields(kind)} - {field.name for field in fields(base)}


def test_every_event_and_metric_is_documented_once_with_its_fields():
    for kind in all_kinds():
        when, _, said = (" ".join((kind.__doc__ or "").split())).partition(" Fields: ")
        assert when.endswith("."), kind
        if said:
            assert set(re.findall(r"`([a-z_]+)`", said)) - {"reason"} | (
                {"reason"} & own_fields(kind)
            ) == own_fields(kind), kind
    assert sorted(re.findall(r"^\| `(\w+)` \|", events_page(), re.MULTILINE)) == sorted(
        kind.NAME for kind in all_kinds()
    )
    assert re.findall(r"^\| `(\w+)` \|", metrics_page(), re.MULTILINE) == list(FAMILIES)
    for family in FAMILIES.values():
        assert re.fullmatch(r"hearth_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.help.endswith(".")


def metrics_in(expression: str) -> set[str]:
    """Names of metrics of ours, without what a histogram adds to them; recording rules have a colon
    and are others.
    """
    found = set(re.findall(r"\bhearth_\w+", expression))
    return {
        name if name in FAMILIES else re.sub(r"_(bucket|sum|count)$", "", name) for name in found
    }


def expressions(dashboard: Fields) -> list[str]:
    panels = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    return [*panels, *(note["expr"] for note in dashboard["annotations"]["list"])]


def test_dashboard_and_rules_ask_for_metrics_and_labels_that_exist():
    dashboard = json.loads((DOCS / "grafana" / "hearth.json").read_text(encoding="utf-8"))
    shown = set().union(*map(metrics_in, expressions(dashboard)))
    asked = metrics_in(RULES.read_text(encoding="utf-8"))
    assert shown | asked <= set(FAMILIES)
    assert 2 * len(shown) >= len(FAMILIES)
    assert "hearth_backend_up" in asked
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(panel["title"] and panel["targets"] for panel in panels)
    known = {label for family in FAMILIES.values() for label in family.labels} | {"le", "job"}
    for text in (*expressions(dashboard), RULES.read_text(encoding="utf-8")):
        grouped = {
            name.strip()
            for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", text)
            for name in group.split(",")
        }
        chosen = set(re.findall(r"[{,](\w+)(?:=~|!~|!=|=)\"", text))
        assert grouped | chosen <= known, text


EVERYTHING = """
modes: {{night: {{}}}}
storage: {{path: "{folder}/hearth.db"}}
cloud: {{api_key: "${{KEY}}", base_url: "http://127.0.0.1:9"}}
alerts: {{webhook_url: "http://127.0.0.1:9/"}}
"""
EMPTY_AT_REST = {
    "hearth_alerts_active",
    "hearth_conversations_stored_bytes",
    "hearth_pinned",
    "hearth_queue_model_depth",
    "hearth_speech_running",
}
"""Gauges with a label for something that there is none of."""


async def test_a_real_gateway_shows_every_metric_while_it_works(tmp_path):
    config = parse_config(EVERYTHING.format(folder=tmp_path), source="f", environ={"KEY": "x"})
    running = running_gateway(config, port=0, backend_mode=BackendMode.EMULATOR, store=True)
    async with running as (_, url), aiohttp.ClientSession() as caller:
        body = {
            "model": "llama3.1:8b",
            "prompt": "hi",
            "stream": False,
            "options": {"num_predict": 2},
        }
        asked = asyncio.ensure_future(caller.post(f"{url}/api/generate", json=body))
        headers = (await caller.get(f"{url}/metrics")).headers
        pages = [await (await caller.get(f"{url}/metrics")).text() for _ in range(3)]
        assert (await asked).status == 200
        pages.append(await (await caller.get(f"{url}/metrics")).text())
    assert (headers["content-type"], headers["cache-control"]) == (
        "text/plain; version=0.0.4; charset=utf-8",
        "no-store",
    )
    assert "\nprocess_resident_memory_bytes " in pages[0]
    for page in pages:
        assert {
            line.split()[2] for line in page.splitlines() if line.startswith("# TYPE hearth_")
        } == set(FAMILIES)
    found = {
        each.name: [sample.value for sample in each.samples]
        for each in text_string_to_metric_families(pages[-1])
    }
    assert [found[f"hearth_{name}"] for name in ("requests", "backend_emulated", "ready")] == [
        [1.0]
    ] * 3
    assert found["hearth_connections"] >= [1.0]
    assert [len(found[f"hearth_cloud_{name}"]) for name in ("spent_today_usd", "reserved_usd")] == [
        2,
        2,
    ], "a number for each lane"
    silent = {
        name
        for name in FAMILIES
        if not found[name.removesuffix("_total")] and not name.startswith("hearth_gpu_")
    }
    assert {name for name in silent if FAMILIES[name].kind == "gauge"} == EMPTY_AT_REST
    assert {name for name in silent if not FAMILIES[name].labels} == set()


async def test_nothing_that_a_caller_makes_up_is_a_label():
    key = KeySettings(name="n8n", sha256="0" * 64)
    config = GatewayConfig(settings=Settings(auth=AuthSettings(keys=(key,))), source=None)
    async with running_gateway(config, port=0, backend_mode=BackendMode.EMULATOR) as (gateway, _):
        app = HearthApp(gateway)
        for each in range(5):
            await ask(
                app, "POST", f"/made/up/{each}", key=f"made-up-{each}", x_caller=f"caller-{each}"
            )
        [rejected] = [
            metric for metric in gateway.metrics() if metric.name == "hearth_requests_rejected"
        ]
        assert [(each.labels, each.value) for each in rejected.samples] == [
            ({"caller": "unknown", "reason": "unauthenticated"}, 5)
        ]
