"""Counts what happens, event by event, in prometheus-client's own objects, and renders the page. Counts are of this process only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hearth import events as ev
from hearth.observability.gauges import Live, Rows, live_metrics, metrics_of
from hearth.observability.metric_families import ANY_MODEL, CALLERS, DIRECTIONS, FAMILIES, MODELS, OTHER, REASONS, LabelCap
from hearth.observability.requests import Phase, seconds_of
from hearth.ports import HandlingSink
from hearth.types import Outcome, Way

NOBODY = "unknown"
"""For a refusal before anybody knew who asks."""
NONE = "none"
PHASE_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
INPUT_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
disable_created_metrics()  # type: ignore[no-untyped-call]  # a time series for each of the others, of which nobody asked
_KNOWN = {
    "hearth_replays_total": ("verified", "diverged"),
    "hearth_resumed_streams_total": (*Way, "failed"),
    "hearth_resumed_tokens_total": tuple(Way),
    "hearth_webhooks_total": ("delivered", "failed"),
    "hearth_config_reloads_total": ("accepted", "rejected"),
}
"""Values of labels that have a row from the beginning."""


class Metrics(HandlingSink):
    """An `EventSink` that counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._model_cap, self._caller_cap, self._reason_cap = LabelCap(MODELS), LabelCap(CALLERS), LabelCap(REASONS)
        self._directions: set[tuple[str, str]] = set()
        counted = [each for each in FAMILIES.values() if each.kind == "counter" and not each.live]
        self._counts: Rows = {each.name: {} if each.labels else {(): 0.0} for each in counted}
        for name, values in _KNOWN.items():
            self._counts[name] = {(value,): 0.0 for value in values}
        self._phase_rows: dict[tuple[str, str], list[Histogram]] = {}
        """To look each up at every end takes longer than to count."""
        self._phases = [self._histogram(f"hearth_{phase.value}_seconds") for phase in Phase]
        self._lag = self._histogram("hearth_loop_lag_seconds", LAG_BOUNDS_S)
        self._inputs = self._histogram("hearth_embedding_call_inputs", INPUT_BOUNDS)
        self._disk_low = Gauge("hearth_disk_low", FAMILIES["hearth_disk_low"].help, registry=self._registry)
        add, model, caller, reason = self._add, self._model, self._caller, self._reason
        self._handlers: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.ItemQueued: lambda it: add("hearth_requests_accepted_total", it.lane.value, caller(it)),
            ev.ItemEnded: self._on_ended,
            ev.RequestRejected: lambda it: add("hearth_requests_rejected_total", caller(it), reason(it)),
            ev.ItemPromoted: lambda it: add("hearth_promotions_total", it.band),
            ev.ItemInterrupted: self._on_interrupted,
            ev.ItemHeld: lambda it: add("hearth_held_streams_total", model(it)),
            ev.ItemProtected: lambda _: add("hearth_protected_total"),
            ev.ItemResumed: self._on_resumed,
            ev.ItemDiverged: self._on_diverged,
            ev.ItemResent: lambda it: add("hearth_resends_total", reason(it)),
            ev.SwapCompleted: self._on_swap,
            ev.SwapFailed: self._on_swap_failed,
            ev.BackendWentDown: lambda _: add("hearth_backend_outages_total"),
            ev.BackendCameUp: lambda it: add("hearth_backend_down_seconds_total", amount=it.down_s),
            ev.BudgetExhausted: lambda it: add("hearth_budget_refusals_total", caller(it)),
            ev.JobQueued: lambda it: add("hearth_jobs_accepted_total", caller(it)),
            ev.JobEnded: lambda it: add("hearth_jobs_total", it.state),
            ev.BatchEnded: lambda it: add("hearth_batches_total", it.state),
            ev.WebhookDelivered: lambda _: add("hearth_webhooks_total", "delivered"),
            ev.WebhookFailed: lambda _: add("hearth_webhooks_total", "failed"),
            ev.AlertSent: lambda it: add("hearth_alerts_sent_total", it.target, amount=it.alerts),
            ev.AlertFailed: lambda it: add("hearth_alerts_failed_total", it.target, reason(it), amount=it.alerts),
            ev.ConfigReloaded: lambda _: add("hearth_config_reloads_total", "accepted"),
            ev.ConfigRejected: lambda _: add("hearth_config_reloads_total", "rejected"),
            ev.DiskRanLow: lambda _: self._disk_low.set(1),
            ev.DiskSpaceReturned: lambda _: self._disk_low.set(0),
            ev.EmbeddingsFlushed: self._on_embeddings,
            ev.EmbeddingsParted: lambda it: add("hearth_embedding_parted_total", reason(it)),
            ev.InternalFault: lambda _: add("hearth_internal_faults_total"),
        }

    def _histogram(self, name: str, bounds: tuple[float, ...] = PHASE_BOUNDS_S) -> Histogram:
        return Histogram(name, FAMILIES[name].help, FAMILIES[name].labels, buckets=bounds, registry=self._registry)

    def _add(self, name: str, *labels: str, amount: float = 1) -> None:
        rows = self._counts[name]
        rows[labels] = rows.get(labels, 0.0) + amount

    def _model(self, event: Any) -> str:  # noqa: ANN401 - of any event that has one, as the two below
        return self._model_cap.of(event.model or ANY_MODEL)

    def _caller(self, event: Any) -> str:  # noqa: ANN401
        return self._caller_cap.of(event.caller or NOBODY)

    def _reason(self, event: Any) -> str:  # noqa: ANN401
        return self._reason_cap.of(event.reason)

    def note_loop_lag(self, lag_s: float) -> None:
        """A timer of the loop came so late."""
        self._lag.observe(max(0.0, lag_s))

    def _on_ended(self, event: ev.ItemEnded) -> None:
        """The rows of a completed request begin at 0 with the first one that has ended in another way."""
        add, completed, outcome = self._add, Outcome.COMPLETED.value, event.outcome.value
        lane, model, caller = event.lane.value, self._model(event), self._caller(event)
        add("hearth_requests_total", lane, model, completed, amount=outcome == completed)
        add("hearth_caller_requests_total", lane, caller, completed, amount=outcome == completed)
        if outcome != completed:
            add("hearth_requests_total", lane, model, outcome)
            add("hearth_caller_requests_total", lane, caller, outcome)
            add("hearth_request_failures_total", lane, self._reason(event))
        for kind, tokens in (("prompt", event.prompt_tokens), ("output", event.output_tokens)):
            add("hearth_tokens_total", lane, model, kind, amount=tokens or 0)
            add("hearth_caller_tokens_total", lane, caller, kind, amount=tokens or 0)
        add("hearth_cost_usd_total", lane, caller, amount=event.cost_usd or 0.0)
        phases = self._phase_rows.get((lane, model))
        if phases is None:
            phases = self._phase_rows[lane, model] = [phase.labels(lane, model) for phase in self._phases]
        for histogram, seconds in zip(phases, seconds_of(event), strict=True):
            if seconds is not None:
                histogram.observe(seconds)

    def _on_interrupted(self, event: ev.ItemInterrupted) -> None:
        self._add("hearth_preemptions_total", self._model(event))
        self._add("hearth_preempted_seconds_total", self._model(event), amount=event.ran_s)

    def _on_resumed(self, event: ev.ItemResumed) -> None:
        if event.how is Way.REPLAY:
            self._add("hearth_replays_total", "verified")
        if event.diverged:
            self._add("hearth_replays_total", "diverged")
        self._add("hearth_resumed_streams_total", event.how.value)
        self._add("hearth_resumed_tokens_total", event.how.value, amount=event.again_tokens)
        self._add("hearth_replay_catch_up_seconds_total", amount=event.catch_up_s)

    def _on_diverged(self, _: ev.ItemDiverged) -> None:
        self._add("hearth_replays_total", "diverged")
        self._add("hearth_resumed_streams_total", "failed")

    def _on_swap(self, event: ev.SwapCompleted) -> None:
        direction = ("+".join(map(self._model_cap.of, event.from_models)) or NONE, self._model_cap.of(event.to_model))
        if direction not in self._directions and len(self._directions) >= DIRECTIONS:
            direction = (OTHER, OTHER)
        self._directions.add(direction)
        self._add("hearth_swaps_total", *direction)
        self._add("hearth_swap_seconds_total", *direction, amount=event.swap_s)

    def _on_swap_failed(self, event: ev.SwapFailed) -> None:
        name = "hearth_swap_failures_total" if event.to_model else "hearth_unload_failures_total"
        self._add(name, self._model_cap.of(event.to_model or "+".join(event.from_models)), self._reason(event))

    def _on_embeddings(self, event: ev.EmbeddingsFlushed) -> None:
        self._add("hearth_embedding_calls_total", event.why)
        self._inputs.labels(self._model(event)).observe(event.inputs)

    def metrics(self, live: Live | None = None) -> list[Metric]:
        """Everything counted so far, and what `live` says of this moment; values that do not change afterwards."""
        known = live_metrics(live, self._model_cap.of) if live is not None else []
        return [*metrics_of(self._counts), *self._registry.collect(), *known]


class _Collected(Collector):
    """A collector of what was read already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def render(metrics: Iterable[Metric]) -> bytes:
    """The page (text format 0.0.4), and behind our own metrics those of the process; may run in a thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(metrics))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
