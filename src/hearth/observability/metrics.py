"""What `/metrics` says: what was counted event by event in this process, and what is read of this
moment at each scrape.

The latter comes from the scheduler's state and from what the status page shows. What a part does
not say (no card, no store, no Claude) is absent and not zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import isfinite
from operator import attrgetter
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hearth.config.settings import QueueSettings
from hearth.events import (
    ConfigRejected,
    ConfigReloaded,
    DiskRanLow,
    DiskSpaceReturned,
    EmbeddingsFlushed,
    Event,
    ItemDiverged,
    ItemEnded,
    ItemResumed,
    ItemStopped,
    SwapCompleted,
    SwapFailed,
    WebhookDelivered,
    WebhookFailed,
)
from hearth.events.handling import HandlingSink
from hearth.observability.families import (
    ANY_MODEL,
    CALLERS,
    DIRECTIONS,
    MODELS,
    OTHER,
    PHASED_DIRECTIONS,
    REASONS,
    Family,
    LabelCap,
)
from hearth.observability.metric_families import FAMILIES
from hearth.observability.requests import PHASES, seconds_of
from hearth.scheduling.views import LANE_OF, StatusView
from hearth.types import MIB, JsonMapping, Lane, Outcome

NOBODY = "unknown"
"""For a refusal before anybody knew who asks."""
NONE = "none"
SWAP_PHASES = ("cooldown", "drain", "unload", "load")
PHASE_BOUNDS_S = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    900.0,
    3600.0,
)
INPUT_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
SWAP_BOUNDS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0)
CANCEL_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
# they would be a time series more for each counter and histogram
disable_created_metrics()  # type: ignore[no-untyped-call]
_KNOWN = {
    "hearth_replays_total": ("verified", "diverged"),
    "hearth_resumed_streams_total": ("continued", "replayed", "failed"),
    "hearth_resumed_tokens_total": ("continued", "replayed"),
    "hearth_webhooks_total": ("delivered", "failed"),
    "hearth_config_reloads_total": ("accepted", "rejected"),
}
"""Values of labels that have a row from the beginning."""


class Metrics(HandlingSink):
    """An `EventSink` that counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._model_cap = LabelCap(MODELS)
        self._caller_cap = LabelCap(CALLERS)
        self._reason_cap = LabelCap(REASONS)
        self._directions: set[tuple[str, str]] = set()
        self._phased_directions: set[tuple[str, str]] = set()
        counted = [each for each in FAMILIES.values() if each.kind != "histogram" and not each.live]
        self._counts: MetricRows = {each.name: {} if each.labels else {(): 0.0} for each in counted}
        for name, values in _KNOWN.items():
            self._counts[name] = {(value,): 0.0 for value in values}
        self._phase_rows: dict[tuple[str, str], list[Histogram]] = {}
        """To look each up at every end takes longer than to count."""
        self._phases = [self._histogram(f"hearth_{phase}_seconds") for phase in PHASES]
        self._speech = [
            self._histogram(f"hearth_speech_{phase}seconds") for phase in ("first_byte_", "")
        ]
        self._lag = self._histogram("hearth_loop_lag_seconds", LAG_BOUNDS_S)
        self._inputs = self._histogram("hearth_embedding_call_inputs", INPUT_BOUNDS)
        self._swap_phases = self._histogram("hearth_swap_phase_seconds", SWAP_BOUNDS_S)
        self._cancels = self._histogram("hearth_cancel_seconds", CANCEL_BOUNDS_S)
        self._labels: dict[str, Callable[[Any], str]] = {
            "model": self._model,
            "to_model": self._to_model,
            "caller": self._caller,
            "reason": self._reason,
        }
        calls: dict[type[Event], list[Callable[[Any], None]]] = {
            ItemEnded: [self._on_ended],
            ItemResumed: [self._on_resumed],
            ItemDiverged: [self._on_diverged],
            ItemStopped: [self._on_stopped],
            SwapCompleted: [self._on_swap],
            SwapFailed: [self._on_swap_failed],
            EmbeddingsFlushed: [self._on_embeddings],
            WebhookDelivered: [self._on_webhook],
            WebhookFailed: [self._on_webhook],
            ConfigReloaded: [self._on_reload],
            ConfigRejected: [self._on_reload],
            DiskRanLow: [self._on_disk],
            DiskSpaceReturned: [self._on_disk],
        }
        for family in counted:
            if family.on is not None:
                calls.setdefault(family.on, []).append(self._counting(family))
        self._handlers = {kind: _all_of(each) for kind, each in calls.items()}

    def _counting(self, family: Family) -> Callable[[Any], None]:
        """What counts an event of the kind that the family is about."""
        readers = [self._labels.get(label, attrgetter(label)) for label in family.labels]
        amount_of = attrgetter(family.by) if family.by else lambda _: 1.0

        def count(event: Event) -> None:
            self._add(family.name, *(read(event) for read in readers), amount=amount_of(event))

        return count

    def _histogram(self, name: str, bounds: tuple[float, ...] = PHASE_BOUNDS_S) -> Histogram:
        return Histogram(
            name,
            FAMILIES[name].help,
            FAMILIES[name].labels,
            buckets=bounds,
            registry=self._registry,
        )

    def _add(self, name: str, *labels: str, amount: float = 1) -> None:
        rows = self._counts[name]
        rows[labels] = rows.get(labels, 0.0) + amount

    # `event`: any that has this field; so in the three below
    def _model(self, event: Any) -> str:  # noqa: ANN401
        return self._model_cap.of(event.model or ANY_MODEL)

    def _to_model(self, event: Any) -> str:  # noqa: ANN401
        return self._model_cap.of(event.to_model)

    def _caller(self, event: Any) -> str:  # noqa: ANN401
        return self._caller_cap.of(event.caller or NOBODY)

    def _reason(self, event: Any) -> str:  # noqa: ANN401
        return self._reason_cap.of(event.reason)

    def note_loop_lag(self, lag_s: float) -> None:
        """A timer of the loop came so late."""
        self._lag.observe(max(0.0, lag_s))

    def _on_ended(self, event: ItemEnded) -> None:
        """The rows of a completed request begin at 0 with the first one that has ended in another
        way.
        """
        add = self._add
        lane = event.lane
        outcome = event.outcome
        model = self._model(event)
        caller = self._caller(event)
        completed = outcome is Outcome.COMPLETED
        add("hearth_requests_total", lane, model, Outcome.COMPLETED, amount=completed)
        add("hearth_caller_requests_total", lane, caller, Outcome.COMPLETED, amount=completed)
        if not completed:
            add("hearth_requests_total", lane, model, outcome)
            add("hearth_caller_requests_total", lane, caller, outcome)
            add("hearth_request_failures_total", lane, self._reason(event))
        for kind, tokens in (("prompt", event.prompt_tokens), ("output", event.output_tokens)):
            add("hearth_tokens_total", lane, model, kind, amount=tokens or 0)
            add("hearth_caller_tokens_total", lane, caller, kind, amount=tokens or 0)
        add("hearth_caller_run_seconds_total", lane, caller, amount=event.backend_s or 0.0)
        add("hearth_cost_usd_total", lane, caller, amount=event.cost_usd or 0.0)
        if event.kind == "speak":
            self._on_speech(event, model)
        if event.alias is not None and event.attempts:
            add("hearth_alias_bindings_total", event.alias, model)
        if event.bound_kept is not None:
            add("hearth_wait_bounds_total", lane, "kept", amount=event.bound_kept)
            add("hearth_wait_bounds_total", lane, "exceeded", amount=not event.bound_kept)
        phases = self._phase_rows.get((lane, model))
        if phases is None:
            phases = [phase.labels(lane, model) for phase in self._phases]
            self._phase_rows[lane, model] = phases
        for histogram, seconds in zip(phases, seconds_of(event), strict=True):
            if seconds is not None:
                histogram.observe(seconds)

    def _on_speech(self, event: ItemEnded, model: str) -> None:
        self._add("hearth_speech_requests_total", model, event.outcome)
        for histogram, seconds in zip(
            self._speech, (event.first_byte_s, event.backend_s), strict=True
        ):
            if seconds is not None:
                histogram.labels(model).observe(seconds)

    def _on_resumed(self, event: ItemResumed) -> None:
        if event.how == "replayed":
            self._add("hearth_replays_total", "verified")
        if event.diverged:
            self._add("hearth_replays_total", "diverged")

    def _on_diverged(self, _: ItemDiverged) -> None:
        self._add("hearth_replays_total", "diverged")
        self._add("hearth_resumed_streams_total", "failed")

    def _on_swap(self, event: SwapCompleted) -> None:
        direction = (
            "+".join(map(self._model_cap.of, event.from_models)) or NONE,
            self._model_cap.of(event.to_model),
        )
        direction = _capped(direction, self._directions, DIRECTIONS)
        self._add("hearth_swaps_total", *direction)
        self._add("hearth_swap_seconds_total", *direction, amount=event.swap_s)
        direction = _capped(direction, self._phased_directions, PHASED_DIRECTIONS)
        for phase in SWAP_PHASES:
            seconds = getattr(event, f"{phase}_s")
            self._swap_phases.labels(*direction, phase).observe(seconds)

    def _on_stopped(self, event: ItemStopped) -> None:
        self._cancels.labels(self._model(event)).observe(event.stop_s)

    def _on_swap_failed(self, event: SwapFailed) -> None:
        name = "hearth_swap_failures_total" if event.to_model else "hearth_unload_failures_total"
        self._add(
            name,
            self._model_cap.of(event.to_model or "+".join(event.from_models)),
            self._reason(event),
        )

    def _on_webhook(self, event: WebhookDelivered | WebhookFailed) -> None:
        outcome = "delivered" if isinstance(event, WebhookDelivered) else "failed"
        self._add("hearth_webhooks_total", outcome)

    def _on_reload(self, event: ConfigReloaded | ConfigRejected) -> None:
        outcome = "accepted" if isinstance(event, ConfigReloaded) else "rejected"
        self._add("hearth_config_reloads_total", outcome)

    def _on_disk(self, event: DiskRanLow | DiskSpaceReturned) -> None:
        self._counts["hearth_disk_low"][()] = float(isinstance(event, DiskRanLow))

    def _on_embeddings(self, event: EmbeddingsFlushed) -> None:
        self._inputs.labels(self._model(event)).observe(event.inputs)

    def metrics(self, live: Callable[[LabelOf], list[Metric]] = lambda _: []) -> list[Metric]:
        """Everything counted so far, and what `live` says of this moment (`live_metrics`); values
        that do not change afterwards.
        """
        return [*metrics_of(self._counts), *self._registry.collect(), *live(self._model_cap.of)]


def _capped(direction: tuple[str, str], known: set[tuple[str, str]], most: int) -> tuple[str, str]:
    """The direction, or, where that would be one more than so many, `other`."""
    if direction not in known and len(known) >= most:
        direction = (OTHER, OTHER)
    known.add(direction)
    return direction


def _all_of(calls: Sequence[Callable[[Any], None]]) -> Callable[[Any], None]:
    """One handler for all of them."""
    if len(calls) == 1:
        return calls[0]

    def handle(event: Event) -> None:
        for call in calls:
            call(event)

    return handle


class _Collected(Collector):
    """A collector of what was read already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def render(metrics: Iterable[Metric]) -> bytes:
    """The page (text format 0.0.4), and behind our own metrics those of the process; may run in a
    thread.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(metrics))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


# What is read of this moment.

LabelOf = Callable[[str], str]
MetricReading = tuple[str, tuple[str, ...], float | None]
"""Name of a metric, values of its labels, and the number; None where it is not known."""
MetricRows = dict[str, dict[tuple[str, ...], float]]
"""Numbers by metric and by the values of its labels."""
PARTS_READ = frozenset(
    {
        "conversations",
        "orders",
        "modes",
        "leases",
        *(each.at.partition(".")[0] for each in FAMILIES.values()),
    }
)
"""The parts of the status that `live_metrics` reads: some of the others take long to build."""


def live_metrics(
    label_of: LabelOf,
    *,
    view: StatusView,
    now: float,
    limits: QueueSettings,
    parts: JsonMapping,
) -> list[Metric]:
    """Every metric of this moment, from the scheduler's numbers and the `parts` of the status, the
    GPU and health among them.

    `label_of` gives the bounded name of a model. Rows with the same labels are added up.
    """
    rows: MetricRows = {each.name: {} for each in FAMILIES.values() if each.live}
    for name, labels, value in chain(
        _gateway(view, parts, label_of),
        _queue(view, now, limits, label_of),
        _residency(view, now, parts, label_of),
        _leases(view, parts),
        _cloud(parts),
        _status(parts),
    ):
        if value is not None:
            rows[name][labels] = rows[name].get(labels, 0.0) + value
    return metrics_of(rows)


def metrics_of(rows: MetricRows) -> list[Metric]:
    """Counters and gauges with these numbers."""
    metrics: list[Metric] = []
    for name, found in rows.items():
        family = FAMILIES[name]
        metric = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(
            name, family.help, labels=family.labels
        )
        for labels, value in found.items():
            metric.add_metric(labels, value)
        metrics.append(metric)
    return metrics


def _gateway(view: StatusView, parts: JsonMapping, label_of: LabelOf) -> Iterator[MetricReading]:
    health, backend, config = (_part(parts, name) for name in ("health", "backend", "config"))
    yield (
        "hearth_build_info",
        (_text(health, "version"), _text(backend, "mode"), _text(backend, "version")),
        1.0,
    )
    for engine in _listed(backend, "engines"):
        labels = str(engine["name"]), str(engine["kind"])
        yield "hearth_engine_up", labels, bool(engine["up"])
    yield "hearth_loop_tasks", (), len(asyncio.all_tasks())
    yield "hearth_ready", (), health.get("status") == "ok"
    yield "hearth_mode_active", (), view.active
    modes = _part(parts, "modes")
    for name in _listed(modes, "names"):
        yield "hearth_mode_in_force", (str(name),), modes.get("mode") == name
    yield "hearth_draining", (), view.draining or bool(_part(parts, "orders").get("draining"))
    yield "hearth_paused", (Lane.EXTERNAL.value,), view.paused
    if view.pinned is not None:
        yield "hearth_pinned", (label_of(view.pinned),), 1.0
    yield "hearth_config_last_reload_successful", (), not config.get("problems")
    yield "hearth_config_restart_pending", (), len(_listed(config, "restart_pending"))


def _queue(
    view: StatusView, now: float, limits: QueueSettings, label_of: LabelOf
) -> Iterator[MetricReading]:
    for band, lane in LANE_OF.items():
        labels = lane.value, band.name.lower()
        yield "hearth_queue_depth", labels, view.depth(band)
        yield "hearth_queue_oldest_age_seconds", labels, view.oldest_age_s(band, now)
    yield "hearth_queue_limit", (Lane.INTERNAL.value,), limits.max_internal_depth
    yield "hearth_queue_limit", (Lane.EXTERNAL.value,), limits.max_external_depth
    for wanted, waiting in view.wanted_models.items():
        yield "hearth_queue_model_depth", (label_of(wanted or ANY_MODEL),), waiting
    for (model, band), count in view.rounds.items():
        yield "hearth_packing_rounds_total", (label_of(model), band.name.lower()), count
    for resident in view.latest_first:
        for lane in Lane:
            running = sum(entry.item.lane is lane for entry in resident.running.values())
            yield "hearth_requests_running", (lane.value, label_of(resident.model)), running
        speaking = sum(entry.item.kind == "speak" for entry in resident.running.values())
        yield "hearth_speech_running", (label_of(resident.model),), speaking or None


def _residency(
    view: StatusView, now: float, parts: JsonMapping, label_of: LabelOf
) -> Iterator[MetricReading]:
    gpu = _part(parts, "gpu")
    for resident in view.latest_first:
        model = label_of(resident.model)
        reserved_mib = resident.reserved_mib
        yield "hearth_model_resident", (model, resident.phase), 1.0
        yield (
            "hearth_model_reserved_bytes",
            (model,),
            None if reserved_mib is None else reserved_mib * MIB,
        )
        yield "hearth_model_slots", (model,), resident.parallel
        warmth = view.warmth(resident.model, now)
        yield "hearth_warm_conversations", (model,), warmth.conversations
        yield "hearth_warm_tokens", (model,), warmth.tokens
    for name, tokens, seconds in view.reread:
        yield "hearth_reread_tokens_total", (label_of(name),), tokens
        yield "hearth_reread_seconds_total", (label_of(name),), seconds
    for saved in _listed(_part(parts, "conversations"), "models"):
        yield (
            "hearth_conversations_stored_bytes",
            (label_of(saved["model"]),),
            saved["size_bytes"],
        )
    yield "hearth_swap_in_progress", (), gpu.get("current_swap") is not None
    yield "hearth_models_offloaded", (), len(_listed(gpu, "offloaded_models"))


def _leases(view: StatusView, parts: JsonMapping) -> Iterator[MetricReading]:
    leases = _part(parts, "leases")
    held = _listed(leases, "held")
    for lease in held:
        yield "hearth_gpu_leases", (str(lease["source"]),), 1.0
    leased_mib = _number(leases, "mib") if held else 0.0
    if leased_mib is None:  # all that there is
        leased_mib = view.capacity_mib
    if leased_mib is not None and isfinite(leased_mib):
        yield "hearth_gpu_leased_bytes", (), leased_mib * MIB


def _cloud(parts: JsonMapping) -> Iterator[MetricReading]:
    cloud = _part(parts, "cloud")
    yield "hearth_cloud_up", (), {"ready": 1.0, "down": 0.0}.get(_text(cloud, "state"))
    yield "hearth_cloud_requests_running", (), len(_listed(cloud, "running")) if cloud else None
    for lane, prefix in (Lane.EXTERNAL, ""), (Lane.INTERNAL, "internal_"):
        yield (
            "hearth_cloud_spent_today_usd",
            (lane.value,),
            _number(cloud, f"{prefix}spent_today_usd"),
        )
        yield "hearth_cloud_reserved_usd", (lane.value,), _number(cloud, f"{prefix}reserved_usd")


def _status(parts: JsonMapping) -> Iterator[MetricReading]:
    for family in FAMILIES.values():
        part, _, key = family.at.partition(".")
        if key:
            yield family.name, (), _number(_part(parts, part), key, family.factor)
    yield "hearth_gpu_up", (), {"ok": 1.0, "lost": 0.0}.get(_text(_part(parts, "gpu"), "readings"))
    store = _part(parts, "storage")
    yield "hearth_store_up", (), _text(store, "state") == "ok" if store else None
    for alert in _listed(_part(parts, "alerts"), "active"):
        yield "hearth_alerts_active", (str(alert["type"]),), 1.0
    for phase, requests in _part(_part(parts, "latency"), "under_way").items():
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
