"""What the metrics say of this moment: read from the scheduler's state and from what the status page shows, at each scrape.

Looks and never changes anything, on the event loop. What a part does not say (no card, no store, no Claude) is absent and not zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from hearth.config.settings import QueueSettings
from hearth.observability.metrics import families
from hearth.observability.metrics.families import Family, Kind
from hearth.scheduling import snapshot
from hearth.scheduling.state import State
from hearth.types import MIB, Band, Lane

LabelOf = Callable[[str], str]
Row = tuple[tuple[str, ...], float]
"""Values of the labels, and the number."""
_LANE_OF: Mapping[Band, Lane] = {band: Lane.INTERNAL if band <= Band.BACKGROUND else Lane.EXTERNAL for band in Band}
_PARTS_OF_CARD = (
    (families.GPU_USED, "memory_used_mib", MIB),
    (families.GPU_TOTAL, "memory_total_mib", MIB),
    (families.GPU_FOREIGN, "foreign_mib", MIB),
    (families.GPU_BUSY, "utilisation_pct", 0.01),
    (families.GPU_TEMPERATURE, "temperature_c", 1.0),
    (families.GPU_POWER, "power_w", 1.0),
    (families.GPU_POWER_LIMIT, "power_limit_w", 1.0),
    (families.GPU_THROTTLED, "throttled", 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Where this moment is read.

    Attributes:
        gpu: `GpuTracker.get_metrics`; health: `Gateway.health`.
        parts: what else the status shows, by key: `alerts`, `storage`, `jobs`, `cloud`, `latency`, `orders`, `connections`; what is
            missing is nowhere.
    """

    now: float
    state: State
    limits: QueueSettings
    gpu: Mapping[str, object]
    health: Mapping[str, object]
    parts: Mapping[str, object]


def live_metrics(live: Live, label_of: LabelOf) -> list[Metric]:
    """Every metric of this moment; `label_of` gives the bounded name of a model."""
    return [
        *_gateway(live, label_of),
        *_queue(live, label_of),
        *_residency(live, label_of),
        *_card(live),
        *_cloud(live),
        *_alerts(live),
        *_store(live),
        *_latency(live),
        *_connections(live),
    ]


def _gateway(live: Live, label_of: LabelOf) -> list[Metric]:
    pinned = live.state.orders.pinned
    backend, config = _part(live.health, "backend"), _part(live.health, "config")
    info = (_text(live.health, "version"), _text(backend, "mode"), _text(backend, "version"))
    return [
        _metric(families.BUILD_INFO, [(info, 1.0)]),
        _one(families.UPTIME, _number(live.health, "uptime_s")),
        _one(families.LOOP_TASKS, float(len(asyncio.all_tasks()))),
        _one(families.READY, float(live.health.get("status") == "ok")),
        _one(families.ACTIVE_HOURS, float(live.state.active)),
        _one(families.DRAINING, float(live.state.draining or bool(_part(live.parts, "orders").get("draining")))),
        _metric(families.PAUSED, [((Lane.EXTERNAL.value,), float(live.state.orders.paused))]),
        _metric(families.PINNED, [((label_of(pinned),), 1.0)] if pinned is not None else []),
        _one(families.BACKEND_UP, _number(backend, "up")),
        _one(families.BACKEND_EMULATED, _number(backend, "emulator")),
        _one(families.CONFIG_OK, float(not config.get("problems"))),
        _one(families.CONFIG_GENERATION, _number(config, "generation")),
        _one(families.CONFIG_PENDING, float(len(_listed(config, "restart_pending")))),
    ]


def _queue(live: Live, label_of: LabelOf) -> list[Metric]:
    waiting = live.state.waiting
    limits = {Lane.INTERNAL: live.limits.max_internal_depth, Lane.EXTERNAL: live.limits.max_external_depth}
    places: list[tuple[tuple[str, ...], Band]] = [((lane.value, band.name.lower()), band) for band, lane in _LANE_OF.items()]
    by_model = [(label_of(model or "any"), float(waiting.wants(model))) for model in waiting.models()]
    rounds = [((label_of(model), band.name.lower()), float(count)) for (model, band), count in live.state.rounds.items()]
    return [
        _metric(families.QUEUE_DEPTH, [(labels, float(_depth(live.state, band))) for labels, band in places]),
        _metric(families.QUEUE_OLDEST, [(labels, _oldest_s(live, band)) for labels, band in places]),
        _metric(families.QUEUE_LIMIT, [((lane.value,), float(limit)) for lane, limit in limits.items()]),
        _metric(families.QUEUE_BY_MODEL, _summed([((model,), count) for model, count in by_model])),
        _metric(families.RUNNING, _running(live, label_of)),
        _metric(families.PACKING_ROUNDS, _summed(rounds)),
    ]


def _depth(state: State, band: Band) -> int:
    return state.waiting.ahead_of(band) - (state.waiting.ahead_of(Band(band - 1)) if band else 0)


def _oldest_s(live: Live, band: Band) -> float:
    """The head of a line is its oldest, except where the latest interrupted goes first."""
    waiting = live.state.waiting
    entries = waiting.in_order(band) if band is Band.INTERRUPTED else waiting.heads(band)
    return max((live.now - entry.item.arrived_at for entry in entries), default=0.0)


def _running(live: Live, label_of: LabelOf) -> list[Row]:
    found = [
        ((entry.item.lane.value, label_of(resident.model)), 1.0)
        for resident in live.state.residency.residents.values()
        for entry in resident.running.values()
    ]
    return _summed([*(((lane.value, label_of(model)), 0.0) for model in live.state.residency.residents for lane in Lane), *found])


def _residency(live: Live, label_of: LabelOf) -> list[Metric]:
    residents = [(label_of(view.model), view) for view in snapshot.residents(live.state)]
    overhead_pct = _number(live.gpu, "swap_overhead_pct_1h")
    return [
        _metric(families.RESIDENT, _summed([((model, view.phase), 1.0) for model, view in residents])),
        _metric(
            families.RESERVED,
            _summed([((model,), view.reserved_mib * MIB) for model, view in residents if view.reserved_mib is not None]),
        ),
        _metric(families.SLOTS, _summed([((model,), float(view.parallel)) for model, view in residents])),
        _one(families.SWAP_RUNNING, float(live.gpu.get("current_swap") is not None)),
        _one(families.SWAP_OVERHEAD, None if overhead_pct is None else overhead_pct / 100.0),
        _one(families.HOME, _number(live.gpu, "is_home")),
        _one(families.OFFLOADED, float(len(_listed(live.gpu, "offloaded_models")))),
        _one(families.DRIFTS, _number(live.gpu, "drift_count")),
    ]


def _card(live: Live) -> list[Metric]:
    up = {"ok": 1.0, "lost": 0.0}.get(_text(live.gpu, "readings"))
    parts = [(family, _number(live.gpu, key), factor) for family, key, factor in _PARTS_OF_CARD]
    return [_one(families.GPU_UP, up), *(_one(family, None if value is None else value * factor) for family, value, factor in parts)]


def _cloud(live: Live) -> list[Metric]:
    cloud = _part(live.parts, "cloud")
    up = {"ready": 1.0, "down": 0.0}.get(_text(cloud, "state"))
    spent = {"external": _number(cloud, "spent_today_usd"), "internal": _number(cloud, "internal_spent_today_usd")}
    reserved = {"external": _number(cloud, "reserved_usd"), "internal": _number(cloud, "internal_reserved_usd")}
    return [
        _one(families.CLOUD_UP, up),
        _one(families.CLOUD_RUNNING, float(len(_listed(cloud, "running"))) if cloud else None),
        _metric(families.CLOUD_SPENT, _known(spent)),
        _metric(families.CLOUD_RESERVED, _known(reserved)),
        _one(families.CLOUD_LIMIT, _number(cloud, "limit_today_usd")),
    ]


def _alerts(live: Live) -> list[Metric]:
    alerts = _part(live.parts, "alerts")
    active = [((_text(each, "type"),), 1.0) for each in _listed(alerts, "active") if isinstance(each, dict)]
    return [
        _one(families.ALERTS_SUPPRESSED, _number(alerts, "suppressed")),
        _one(families.ALERTS_DROPPED, _number(alerts, "dropped")),
        _metric(families.ALERTS_ACTIVE, _summed(active)),
    ]


def _store(live: Live) -> list[Metric]:
    store, jobs, batches = _part(live.parts, "storage"), _part(live.parts, "jobs"), _part(live.parts, "batches")
    return [
        _one(families.JOBS_WAITING, _number(jobs, "waiting")),
        _one(families.JOBS_RUNNING, _number(jobs, "running")),
        _one(families.BATCHES_OPEN, _number(batches, "open")),
        _one(families.BATCH_REQUESTS_LEFT, _number(batches, "requests_left")),
        _one(families.STORE_UP, float(_text(store, "state") == "ok") if store else None),
        _one(families.STORE_QUEUE, _number(store, "waiting_rows")),
        _one(families.STORE_DROPPED, _number(store, "dropped")),
    ]


def _latency(live: Live) -> list[Metric]:
    latency = _part(live.parts, "latency")
    phases = [((phase,), part) for phase, part in _part(latency, "under_way").items() if isinstance(part, dict)]
    return [
        _metric(families.UNDER_WAY, [(labels, _number(part, "requests") or 0.0) for labels, part in phases]),
        _metric(families.UNDER_WAY_OLDEST, [(labels, _number(part, "oldest_s") or 0.0) for labels, part in phases]),
        _one(families.LOST, _number(latency, "lost")),
    ]


def _connections(live: Live) -> list[Metric]:
    held = _part(live.parts, "connections")
    return [
        _one(families.CONNECTIONS, _number(held, "open")),
        _one(families.CONNECTION_LIMIT, _number(held, "limit")),
        _one(families.CONNECTIONS_REFUSED, _number(held, "refused")),
    ]


def _metric(family: Family, rows: Iterable[Row]) -> Metric:
    kind = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, value in rows:
        metric.add_metric(labels, value)
    return metric


def _one(family: Family, value: float | None) -> Metric:
    return _metric(family, () if value is None else [((), value)])


def _known(values: Mapping[str, float | None]) -> list[Row]:
    return [((label,), value) for label, value in values.items() if value is not None]


def _summed(rows: Iterable[tuple[tuple[str, ...], float]]) -> list[Row]:
    """One row per labels: several models may share the label `other`."""
    sums: dict[tuple[str, ...], float] = {}
    for labels, value in rows:
        sums[labels] = sums.get(labels, 0.0) + value
    return list(sums.items())


def _part(of: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = of.get(key)
    return value if isinstance(value, dict) else {}


def _listed(of: Mapping[str, object], key: str) -> list[object]:
    value = of.get(key)
    return value if isinstance(value, list) else []


def _text(of: Mapping[str, object], key: str) -> str:
    value = of.get(key)
    return "" if value is None else str(value)


def _number(of: Mapping[str, object], key: str) -> float | None:
    value = of.get(key)
    return float(value) if isinstance(value, int | float) else None
