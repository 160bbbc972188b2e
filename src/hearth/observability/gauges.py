"""What the metrics say of this moment: read from the scheduler's state and from what the status page shows, at each scrape.

Looks and never changes anything, on the event loop. What a part does not say (no card, no store, no Claude) is absent and not zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from hearth.config.settings import QueueSettings
from hearth.observability.metric_families import ANY_MODEL, FAMILIES
from hearth.scheduling.state import State
from hearth.types import MIB, Band, Lane

LabelOf = Callable[[str], str]
Reading = tuple[str, tuple[str, ...], float | None]
"""Name of a metric, values of its labels, and the number; None where it is not known."""
Rows = dict[str, dict[tuple[str, ...], float]]
"""Numbers by metric and by the values of its labels."""
_LANE_OF: Mapping[Band, Lane] = {band: Lane.INTERNAL if band <= Band.BACKGROUND else Lane.EXTERNAL for band in Band}


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Where this moment is read: `GpuTracker.get_metrics`, `Gateway.health`, and by key the other parts of the status; what is missing is
    nowhere.
    """

    now: float
    state: State
    limits: QueueSettings
    gpu: Mapping[str, object]
    health: Mapping[str, object]
    parts: Mapping[str, object]


def live_metrics(live: Live, label_of: LabelOf) -> list[Metric]:
    """Every metric of this moment; `label_of` gives the bounded name of a model. Rows with the same labels are added up."""
    rows: Rows = {each.name: {} for each in FAMILIES.values() if each.live}
    for read in (_gateway, _queue, _residency, _cloud, _status):
        for name, labels, value in read(live, label_of):
            if value is not None:
                rows[name][labels] = rows[name].get(labels, 0.0) + value
    return metrics_of(rows)


def metrics_of(rows: Rows) -> list[Metric]:
    """Counters and gauges with these numbers."""
    metrics: list[Metric] = []
    for name, found in rows.items():
        family = FAMILIES[name]
        metric = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(name, family.help, labels=family.labels)
        for labels, value in found.items():
            metric.add_metric(labels, value)
        metrics.append(metric)
    return metrics


def _gateway(live: Live, label_of: LabelOf) -> Iterator[Reading]:
    state, backend, config = live.state, _part(live.health, "backend"), _part(live.health, "config")
    yield "hearth_build_info", (_text(live.health, "version"), _text(backend, "mode"), _text(backend, "version")), 1.0
    yield "hearth_loop_tasks", (), len(asyncio.all_tasks())
    yield "hearth_ready", (), live.health.get("status") == "ok"
    yield "hearth_mode_active", (), state.active
    yield "hearth_draining", (), state.draining or bool(_part(live.parts, "orders").get("draining"))
    yield "hearth_paused", (Lane.EXTERNAL.value,), state.paused
    if state.pinned_name is not None:
        yield "hearth_pinned", (label_of(state.pinned_name),), 1.0
    yield "hearth_config_last_reload_successful", (), not config.get("problems")
    yield "hearth_config_restart_pending", (), len(_listed(config, "restart_pending"))


def _queue(live: Live, label_of: LabelOf) -> Iterator[Reading]:
    waiting = live.state.waiting
    for band, lane in _LANE_OF.items():
        labels = lane.value, band.name.lower()
        yield "hearth_queue_depth", labels, waiting.ahead_of(band) - (waiting.ahead_of(Band(band - 1)) if band else 0)
        # The head of a line is its oldest, except where the latest interrupted goes first.
        entries = waiting.in_order(band) if band is Band.INTERRUPTED else waiting.heads(band)
        yield "hearth_queue_oldest_age_seconds", labels, max((live.now - entry.item.arrived_at for entry in entries), default=0.0)
    yield "hearth_queue_limit", (Lane.INTERNAL.value,), live.limits.max_internal_depth
    yield "hearth_queue_limit", (Lane.EXTERNAL.value,), live.limits.max_external_depth
    for model in waiting.models():
        yield "hearth_queue_model_depth", (label_of(model or ANY_MODEL),), waiting.wants(model)
    for (model, band), count in live.state.rounds.items():
        yield "hearth_packing_rounds_total", (label_of(model), band.name.lower()), count
    for model, resident in live.state.residency.residents.items():
        for lane in Lane:
            running = sum(entry.item.lane is lane for entry in resident.running.values())
            yield "hearth_requests_running", (lane.value, label_of(model)), running


def _residency(live: Live, label_of: LabelOf) -> Iterator[Reading]:
    for resident in live.state.residency.latest_first:
        model, reserved_mib = label_of(resident.model), resident.reserved_mib
        yield "hearth_model_resident", (model, resident.phase), 1.0
        yield "hearth_model_reserved_bytes", (model,), None if reserved_mib is None else reserved_mib * MIB
        yield "hearth_model_slots", (model,), resident.parallel
    yield "hearth_swap_in_progress", (), live.gpu.get("current_swap") is not None
    yield "hearth_models_offloaded", (), len(_listed(live.gpu, "offloaded_models"))


def _cloud(live: Live, _: LabelOf) -> Iterator[Reading]:
    cloud = _part(live.parts, "cloud")
    yield "hearth_cloud_up", (), {"ready": 1.0, "down": 0.0}.get(_text(cloud, "state"))
    yield "hearth_cloud_requests_running", (), len(_listed(cloud, "running")) if cloud else None
    for lane, prefix in (Lane.EXTERNAL, ""), (Lane.INTERNAL, "internal_"):
        yield "hearth_cloud_spent_today_usd", (lane.value,), _number(cloud, f"{prefix}spent_today_usd")
        yield "hearth_cloud_reserved_usd", (lane.value,), _number(cloud, f"{prefix}reserved_usd")


def _status(live: Live, _label_of: LabelOf) -> Iterator[Reading]:
    health = {part: live.health.get(part) for part in ("backend", "config")}
    every: Mapping[str, object] = {**live.parts, **health, "gpu": live.gpu, "health": live.health}
    for family in FAMILIES.values():
        part, _, key = family.at.partition(".")
        if key:
            yield family.name, (), _number(_part(every, part), key, family.factor)
    yield "hearth_gpu_up", (), {"ok": 1.0, "lost": 0.0}.get(_text(live.gpu, "readings"))
    store = _part(live.parts, "storage")
    yield "hearth_store_up", (), _text(store, "state") == "ok" if store else None
    for alert in _listed(_part(live.parts, "alerts"), "active"):
        yield "hearth_alerts_active", (str(alert["type"]),), 1.0
    for phase, requests in _part(_part(live.parts, "latency"), "under_way").items():
        yield "hearth_requests_under_way", (phase,), _number(requests, "requests")
        yield "hearth_requests_under_way_oldest_seconds", (phase,), _number(requests, "oldest_s")


def _part(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = of.get(key)
    return value if isinstance(value, dict) else {}


def _listed(of: Mapping[str, Any], key: str) -> list[Any]:
    value = of.get(key)
    return value if isinstance(value, list) else []


def _text(of: Mapping[str, Any], key: str) -> str:
    value = of.get(key)
    return "" if value is None else str(value)


def _number(of: Mapping[str, Any], key: str, factor: float = 1.0) -> float | None:
    value = of.get(key)
    return float(value) * factor if isinstance(value, int | float) else None
