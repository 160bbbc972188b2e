"""Counts what happens, event by event, in prometheus-client's own objects, and renders the page.

An `EventSink` on the way of every request: what is counted for each model and each caller is bound to its labels once. Counts are of this
process only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hearth.events import (
    AlertFailed,
    AlertSent,
    BackendCameUp,
    BackendWentDown,
    BatchEnded,
    BudgetExhausted,
    ConfigRejected,
    ConfigReloaded,
    DiskRanLow,
    DiskSpaceReturned,
    EmbeddingsFlushed,
    EmbeddingsParted,
    Event,
    InternalFault,
    ItemDiverged,
    ItemEnded,
    ItemHeld,
    ItemInterrupted,
    ItemPromoted,
    ItemProtected,
    ItemQueued,
    ItemResent,
    ItemResumed,
    JobEnded,
    JobQueued,
    RequestRejected,
    SwapCompleted,
    SwapFailed,
    WebhookDelivered,
    WebhookFailed,
)
from hearth.observability.latency import ANY_MODEL, seconds_of
from hearth.observability.metrics import families
from hearth.observability.metrics.families import CALLERS, DIRECTIONS, MODELS, OTHER, REASONS, Family, LabelCap
from hearth.observability.metrics.gauges import Live, live_metrics
from hearth.observability.sinks import HandlingSink
from hearth.types import Lane, Outcome, Way

NOBODY = "unknown"
"""For a refusal before anybody knew who asks."""
NONE = "none"
PHASE_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
INPUT_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
disable_created_metrics()  # type: ignore[no-untyped-call]  # a time series for each of the others, of which nobody asked


class Metrics(HandlingSink):
    """An `EventSink` that counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._model_cap, self._caller_cap, self._reason_cap = LabelCap(MODELS), LabelCap(CALLERS), LabelCap(REASONS)
        self._directions: set[tuple[str, str]] = set()
        self._models: dict[tuple[Lane, str], _OfModel] = {}
        self._callers: dict[tuple[Lane, str], _OfCaller] = {}
        self._phases = tuple(
            self._histogram(family)
            for family in (families.QUEUE_WAIT, families.SWAP_WAIT, families.FIRST_BYTE, families.BACKEND, families.TOTAL)
        )
        self._ended, self._tokens = self._counter(families.ENDED), self._counter(families.TOKENS)
        self._accepted, self._caller_ended = self._counter(families.ACCEPTED), self._counter(families.CALLER_ENDED)
        self._caller_tokens, self._cost = self._counter(families.CALLER_TOKENS), self._counter(families.COST)
        self._failures = self._counter(families.FAILURES)
        self._preemptions, self._preempted_s = self._counter(families.PREEMPTIONS), self._counter(families.PREEMPTED_SECONDS)
        self._replays = self._counter(families.REPLAYS, "verified", "diverged")
        self._resumed = self._counter(families.RESUMED, *Way, "failed")
        self._again_tokens = self._counter(families.AGAIN_TOKENS, *Way)
        self._catch_up_s = self._counter(families.CATCH_UP_SECONDS)
        self._swaps, self._swap_s = self._counter(families.SWAPS), self._counter(families.SWAP_SECONDS)
        self._swap_failures, self._unload_failures = self._counter(families.SWAP_FAILURES), self._counter(families.UNLOAD_FAILURES)
        self._embedding_calls = self._counter(families.EMBEDDING_CALLS)
        self._embedding_inputs = self._histogram(families.EMBEDDING_INPUTS, INPUT_BOUNDS)
        self._disk_low = Gauge(families.DISK_LOW.name, families.DISK_LOW.help, registry=self._registry)
        self._lag = self._histogram(families.LOOP_LAG, LAG_BOUNDS_S)
        self._handlers = self._table()

    def _counter(self, family: Family, *known: str) -> Counter:
        """With a row for each of the `known` values of its one label from the beginning."""
        counter = Counter(family.name, family.help, family.labels, registry=self._registry)
        for value in known:
            counter.labels(value)
        return counter

    def _histogram(self, family: Family, bounds: tuple[float, ...] = PHASE_BOUNDS_S) -> Histogram:
        return Histogram(family.name, family.help, family.labels, buckets=bounds, registry=self._registry)

    def _table(self) -> Mapping[type[Event], Callable[[Any], None]]:
        def model(event: Any) -> str:  # noqa: ANN401 - of any event that has one
            return self._model_cap.of(event.model or ANY_MODEL)

        def caller(event: Any) -> str:  # noqa: ANN401 - of any event that has one
            return self._caller_cap.of(event.caller or NOBODY)

        def reason(event: Any) -> str:  # noqa: ANN401 - of any event that has one
            return self._reason_cap.of(event.reason)

        return {
            ItemQueued: lambda it: self._of_caller(it.lane, it.caller).accepted.inc(),
            ItemEnded: self._on_ended,
            RequestRejected: self._counting(families.REJECTED, caller, reason),
            ItemPromoted: self._counting(families.PROMOTIONS, lambda it: it.band),
            ItemInterrupted: self._on_interrupted,
            ItemHeld: self._counting(families.HELD, model),
            ItemProtected: self._counting(families.PROTECTED),
            ItemResumed: self._on_resumed,
            ItemDiverged: self._on_diverged,
            ItemResent: self._counting(families.RESENDS, reason),
            SwapCompleted: self._on_swap,
            SwapFailed: self._on_swap_failed,
            BackendWentDown: self._counting(families.OUTAGES),
            BackendCameUp: self._counting(families.OUTAGE_SECONDS, amount=lambda it: it.down_s),
            BudgetExhausted: self._counting(families.BUDGET_REFUSALS, caller),
            JobQueued: self._counting(families.JOBS_ACCEPTED, caller),
            JobEnded: self._counting(families.JOBS_ENDED, lambda it: it.state),
            BatchEnded: self._counting(families.BATCHES_ENDED, lambda it: it.state),
            **self._either(families.WEBHOOKS, {WebhookDelivered: "delivered", WebhookFailed: "failed"}),
            AlertSent: self._counting(families.ALERTS_SENT, lambda it: it.target, amount=lambda it: it.alerts),
            AlertFailed: self._counting(families.ALERTS_FAILED, lambda it: it.target, reason, amount=lambda it: it.alerts),
            **self._either(families.CONFIG_RELOADS, {ConfigReloaded: "accepted", ConfigRejected: "rejected"}),
            DiskRanLow: lambda _: self._disk_low.set(1),
            DiskSpaceReturned: lambda _: self._disk_low.set(0),
            EmbeddingsFlushed: self._on_embeddings,
            EmbeddingsParted: self._counting(families.EMBEDDING_PARTED, reason),
            InternalFault: self._counting(families.FAULTS),
        }

    def _counting(
        self, family: Family, *labels: Callable[[Any], str], amount: Callable[[Any], float] = lambda _: 1
    ) -> Callable[[Any], None]:
        """A handler that adds to a counter of its own, under labels that are read off the event."""
        counter = self._counter(family)
        if not labels:
            return lambda event: counter.inc(amount(event))
        return lambda event: counter.labels(*[label(event) for label in labels]).inc(amount(event))

    def _either(self, family: Family, values: Mapping[type[Event], str]) -> dict[type[Event], Callable[[Any], None]]:
        counter = self._counter(family, *values.values())

        def handler(value: str) -> Callable[[Any], None]:
            return lambda _: counter.labels(value).inc()

        return {kind: handler(value) for kind, value in values.items()}

    def note_loop_lag(self, lag_s: float) -> None:
        """A timer of the loop came so late."""
        self._lag.observe(max(0.0, lag_s))

    def _on_ended(self, event: ItemEnded) -> None:
        model, caller = self._of_model(event.lane, event.model or ANY_MODEL), self._of_caller(event.lane, event.caller)
        if event.outcome is Outcome.COMPLETED:
            model.completed.inc()
            caller.completed.inc()
        else:
            self._ended.labels(*model.labels, event.outcome.value).inc()
            self._caller_ended.labels(*caller.labels, event.outcome.value).inc()
            self._failures.labels(event.lane.value, self._reason_cap.of(event.reason)).inc()
        for histogram, seconds in zip(model.phases, seconds_of(event), strict=True):
            if seconds is not None:
                histogram.observe(seconds)
        for tally in (model, caller):
            tally.prompt_tokens.inc(event.prompt_tokens or 0)
            tally.output_tokens.inc(event.output_tokens or 0)
        if event.cost_usd is not None:
            caller.cost_usd.inc(event.cost_usd)

    def _of_model(self, lane: Lane, model: str) -> _OfModel:
        found = self._models.get((lane, model))
        if found is None:
            name = self._model_cap.of(model)
            found = self._models.setdefault((lane, name), _OfModel((lane.value, name), self._ended, self._tokens, self._phases))
        return found

    def _of_caller(self, lane: Lane, caller: str) -> _OfCaller:
        found = self._callers.get((lane, caller))
        if found is None:
            name = self._caller_cap.of(caller)
            made = _OfCaller((lane.value, name), self._accepted, self._caller_ended, self._caller_tokens, self._cost)
            found = self._callers.setdefault((lane, name), made)
        return found

    def _on_interrupted(self, event: ItemInterrupted) -> None:
        model = self._model_cap.of(event.model or ANY_MODEL)
        self._preemptions.labels(model).inc()
        self._preempted_s.labels(model).inc(event.ran_s)

    def _on_resumed(self, event: ItemResumed) -> None:
        if event.how is Way.REPLAY:
            self._replays.labels("verified").inc()
        if event.diverged:
            self._replays.labels("diverged").inc()
        self._resumed.labels(event.how.value).inc()
        self._again_tokens.labels(event.how.value).inc(event.again_tokens)
        self._catch_up_s.inc(event.catch_up_s)

    def _on_diverged(self, _: ItemDiverged) -> None:
        self._replays.labels("diverged").inc()
        self._resumed.labels("failed").inc()

    def _on_swap(self, event: SwapCompleted) -> None:
        direction = ("+".join(self._model_cap.of(model) for model in event.from_models) or NONE, self._model_cap.of(event.to_model))
        if direction not in self._directions and len(self._directions) >= DIRECTIONS:
            direction = (OTHER, OTHER)
        self._directions.add(direction)
        self._swaps.labels(*direction).inc()
        self._swap_s.labels(*direction).inc(event.swap_s)

    def _on_swap_failed(self, event: SwapFailed) -> None:
        counter, model = (self._swap_failures, event.to_model) if event.to_model else (self._unload_failures, "+".join(event.from_models))
        counter.labels(self._model_cap.of(model), self._reason_cap.of(event.reason)).inc()

    def _on_embeddings(self, event: EmbeddingsFlushed) -> None:
        self._embedding_calls.labels(event.why).inc()
        self._embedding_inputs.labels(self._model_cap.of(event.model or ANY_MODEL)).observe(event.inputs)

    def metrics(self, live: Live | None = None) -> list[Metric]:
        """Everything counted so far, and what `live` says of this moment; values that do not change afterwards."""
        return [*self._registry.collect(), *(() if live is None else live_metrics(live, self._model_cap.of))]


class _OfModel:
    """What the requests of one lane on one model came to, bound to its labels."""

    def __init__(self, labels: tuple[str, str], ended: Counter, tokens: Counter, phases: Iterable[Histogram]) -> None:
        self.labels = labels
        self.completed = ended.labels(*labels, Outcome.COMPLETED.value)
        self.phases = tuple(phase.labels(*labels) for phase in phases)
        self.prompt_tokens, self.output_tokens = tokens.labels(*labels, "prompt"), tokens.labels(*labels, "output")


class _OfCaller:
    """What the requests of one caller in one lane came to, bound to its labels."""

    def __init__(self, labels: tuple[str, str], accepted: Counter, ended: Counter, tokens: Counter, cost: Counter) -> None:
        self.labels = labels
        self.accepted = accepted.labels(*labels)
        self.completed = ended.labels(*labels, Outcome.COMPLETED.value)
        self.prompt_tokens, self.output_tokens = tokens.labels(*labels, "prompt"), tokens.labels(*labels, "output")
        self.cost_usd = cost.labels(*labels)


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
