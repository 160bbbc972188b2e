"""Counts what happens, event by event, and says at a scrape what has come of it.

An `EventSink` on the way of every request, so an event costs less than two microseconds: no label is looked up by name, a request's end
finds two records by plain dictionaries. Counts are of this process only. One thread: the event loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
from hearth.observability.handling import HandlingSink
from hearth.observability.latency import ANY_MODEL, seconds_of
from hearth.observability.metrics import families
from hearth.observability.metrics.counting import INPUT_BOUNDS, LAG_BOUNDS_S, CallerTally, Histogram, ModelTally
from hearth.observability.metrics.families import Family, Reading, Row
from hearth.observability.metrics.labels import CALLERS, DIRECTIONS, MODELS, OTHER, REASONS, LabelCap
from hearth.observability.metrics.live import Live, live_readings
from hearth.types import Lane, Outcome, Way

NOBODY = "unknown"
"""For a refusal before anybody knew who asks."""
NONE = "none"
_COMPLETED = Outcome.COMPLETED.value
_PHASES = (families.QUEUE_WAIT, families.SWAP_WAIT, families.FIRST_BYTE, families.BACKEND, families.TOTAL)
"""In the order of `latency.Phase`."""


class _Counts:
    """One counter; the labels of one without are `()`."""

    __slots__ = ("_family", "_rows")

    def __init__(self, family: Family, *known: tuple[str, ...]) -> None:
        self._family = family
        self._rows: dict[tuple[str, ...], float] = dict.fromkeys(known, 0)

    def add(self, labels: tuple[str, ...], amount: float = 1) -> None:
        self._rows[labels] = self._rows.get(labels, 0) + amount

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, labels: tuple[str, ...]) -> bool:
        return labels in self._rows

    def reading(self) -> Reading:
        return Reading(family=self._family, rows=tuple(self._rows.items()))


class MetricTallies(HandlingSink):
    """An `EventSink` that counts."""

    def __init__(self) -> None:
        self._model_cap = LabelCap(MODELS)
        self._caller_cap = LabelCap(CALLERS)
        self._reason_cap = LabelCap(REASONS)
        self._models: dict[Lane, dict[str, ModelTally]] = {lane: {} for lane in Lane}
        self._callers: dict[Lane, dict[str, CallerTally]] = {lane: {} for lane in Lane}
        self._house_models, self._other_models = self._models[Lane.INTERNAL], self._models[Lane.EXTERNAL]
        self._house_callers, self._other_callers = self._callers[Lane.INTERNAL], self._callers[Lane.EXTERNAL]
        self._lag = Histogram(LAG_BOUNDS_S)
        self._all = list[_Counts]()
        self._failures = self._counts(families.FAILURES)
        self._rejected = self._counts(families.REJECTED)
        self._promotions = self._counts(families.PROMOTIONS)
        self._preemptions = self._counts(families.PREEMPTIONS)
        self._preempted_s = self._counts(families.PREEMPTED_SECONDS)
        self._protected = self._counts(families.PROTECTED, ())
        self._held = self._counts(families.HELD)
        self._replays = self._counts(families.REPLAYS, ("verified",), ("diverged",))
        self._resumed = self._counts(families.RESUMED, *((way.value,) for way in Way), ("failed",))
        self._again_tokens = self._counts(families.AGAIN_TOKENS, *((way.value,) for way in Way))
        self._catch_up_s = self._counts(families.CATCH_UP_SECONDS, ())
        self._resends = self._counts(families.RESENDS)
        self._swaps = self._counts(families.SWAPS)
        self._swap_s = self._counts(families.SWAP_SECONDS)
        self._swap_failures = self._counts(families.SWAP_FAILURES)
        self._unload_failures = self._counts(families.UNLOAD_FAILURES)
        self._outages = self._counts(families.OUTAGES, ())
        self._outage_s = self._counts(families.OUTAGE_SECONDS, ())
        self._budget_refusals = self._counts(families.BUDGET_REFUSALS)
        self._jobs_accepted = self._counts(families.JOBS_ACCEPTED)
        self._jobs_ended = self._counts(families.JOBS_ENDED)
        self._batches_ended = self._counts(families.BATCHES_ENDED)
        self._webhooks = self._counts(families.WEBHOOKS, ("delivered",), ("failed",))
        self._alerts_sent = self._counts(families.ALERTS_SENT)
        self._alerts_failed = self._counts(families.ALERTS_FAILED)
        self._reloads = self._counts(families.CONFIG_RELOADS, ("accepted",), ("rejected",))
        self._faults = self._counts(families.FAULTS, ())
        self._disk_low = False
        self._embedded: dict[str, Histogram] = {}
        self._embed_calls = self._counts(families.EMBEDDING_CALLS)
        self._embed_parted = self._counts(families.EMBEDDING_PARTED)
        self._handlers = self._table()

    def _counts(self, family: Family, *known: tuple[str, ...]) -> _Counts:
        """A counter that is on the page; of `known` labels from the beginning."""
        counts = _Counts(family, *known)
        self._all.append(counts)
        return counts

    def _table(self) -> Mapping[type[Event], Callable[[Any], None]]:
        return {
            ItemQueued: self._on_queued,
            ItemEnded: self._on_ended,
            RequestRejected: self._on_rejected,
            ItemPromoted: lambda it: self._promotions.add((it.band,)),
            ItemInterrupted: self._on_interrupted,
            ItemHeld: lambda it: self._held.add((self._model_cap.of(it.model or ANY_MODEL),)),
            ItemProtected: lambda _: self._protected.add(()),
            ItemResumed: self._on_resumed,
            ItemDiverged: self._on_diverged,
            ItemResent: lambda it: self._resends.add((self._reason_cap.of(it.reason),)),
            SwapCompleted: self._on_swap,
            SwapFailed: self._on_swap_failed,
            BackendWentDown: lambda _: self._outages.add(()),
            BackendCameUp: lambda it: self._outage_s.add((), it.down_s),
            BudgetExhausted: lambda it: self._budget_refusals.add((self._caller_cap.of(it.caller or NOBODY),)),
            JobQueued: lambda it: self._jobs_accepted.add((self._caller_cap.of(it.caller),)),
            JobEnded: lambda it: self._jobs_ended.add((it.state,)),
            BatchEnded: lambda it: self._batches_ended.add((it.state,)),
            WebhookDelivered: lambda _: self._webhooks.add(("delivered",)),
            WebhookFailed: lambda _: self._webhooks.add(("failed",)),
            AlertSent: lambda it: self._alerts_sent.add((it.target,), it.alerts),
            AlertFailed: lambda it: self._alerts_failed.add((it.target, self._reason_cap.of(it.reason)), it.alerts),
            ConfigReloaded: lambda _: self._reloads.add(("accepted",)),
            ConfigRejected: lambda _: self._reloads.add(("rejected",)),
            DiskRanLow: self._on_disk,
            DiskSpaceReturned: self._on_disk,
            EmbeddingsFlushed: self._on_embeddings,
            EmbeddingsParted: lambda it: self._embed_parted.add((self._reason_cap.of(it.reason),)),
            InternalFault: lambda _: self._faults.add(()),
        }

    def note_loop_lag(self, lag_s: float) -> None:
        """A timer of the loop came so late."""
        self._lag.add(max(0.0, lag_s))

    def _on_queued(self, event: ItemQueued) -> None:
        self._caller(event.lane, event.caller).accepted += 1

    def _on_ended(self, event: ItemEnded) -> None:
        model = self._model(event.lane, event.model or ANY_MODEL)
        caller = self._caller(event.lane, event.caller)
        if event.outcome is Outcome.COMPLETED:
            model.completed += 1
            caller.completed += 1
        else:
            self._count_failure(event, model, caller)
        for histogram, seconds in zip(model.phases, seconds_of(event), strict=True):
            if seconds is not None:
                histogram.add(seconds)
        if event.prompt_tokens is not None:
            model.prompt_tokens += event.prompt_tokens
            caller.prompt_tokens += event.prompt_tokens
        if event.output_tokens is not None:
            model.output_tokens += event.output_tokens
            caller.output_tokens += event.output_tokens
        if event.cost_usd is not None:
            caller.cost_usd += event.cost_usd

    def _count_failure(self, event: ItemEnded, model: ModelTally, caller: CallerTally) -> None:
        outcome = event.outcome.value
        model.other_ends[outcome] = model.other_ends.get(outcome, 0) + 1
        caller.other_ends[outcome] = caller.other_ends.get(outcome, 0) + 1
        self._failures.add((event.lane.value, self._reason_cap.of(event.reason)))

    def _model(self, lane: Lane, model: str) -> ModelTally:
        known = self._house_models if lane is Lane.INTERNAL else self._other_models
        found = known.get(model)
        return found if found is not None else known.setdefault(self._model_cap.of(model), ModelTally())

    def _caller(self, lane: Lane, caller: str) -> CallerTally:
        known = self._house_callers if lane is Lane.INTERNAL else self._other_callers
        found = known.get(caller)
        return found if found is not None else known.setdefault(self._caller_cap.of(caller), CallerTally())

    def _on_rejected(self, event: RequestRejected) -> None:
        self._rejected.add((self._caller_cap.of(event.caller or NOBODY), self._reason_cap.of(event.reason)))

    def _on_interrupted(self, event: ItemInterrupted) -> None:
        model = (self._model_cap.of(event.model or ANY_MODEL),)
        self._preemptions.add(model)
        self._preempted_s.add(model, event.ran_s)

    def _on_resumed(self, event: ItemResumed) -> None:
        if event.how is Way.REPLAY:
            self._replays.add(("verified",))
        if event.diverged:
            self._replays.add(("diverged",))
        self._resumed.add((event.how.value,))
        self._again_tokens.add((event.how.value,), event.again_tokens)
        self._catch_up_s.add((), event.catch_up_s)

    def _on_diverged(self, _: ItemDiverged) -> None:
        self._replays.add(("diverged",))
        self._resumed.add(("failed",))

    def _on_swap(self, event: SwapCompleted) -> None:
        evicted = "+".join(self._model_cap.of(model) for model in event.from_models) or NONE
        direction = (evicted, self._model_cap.of(event.to_model))
        if direction not in self._swaps and len(self._swaps) >= DIRECTIONS:
            direction = (OTHER, OTHER)
        self._swaps.add(direction)
        self._swap_s.add(direction, event.swap_s)

    def _on_swap_failed(self, event: SwapFailed) -> None:
        counts, model = (self._swap_failures, event.to_model) if event.to_model else (self._unload_failures, "+".join(event.from_models))
        counts.add((self._model_cap.of(model), self._reason_cap.of(event.reason)))

    def _on_disk(self, event: DiskRanLow | DiskSpaceReturned) -> None:
        self._disk_low = isinstance(event, DiskRanLow)

    def _on_embeddings(self, event: EmbeddingsFlushed) -> None:
        self._embed_calls.add((event.why,))
        model = self._model_cap.of(event.model or ANY_MODEL)
        self._embedded.setdefault(model, Histogram(INPUT_BOUNDS)).add(event.inputs)

    def readings(self, live: Live | None = None) -> list[Reading]:
        """Everything counted so far, and what `live` says of this moment under the same names; values that do not change afterwards."""
        return [*self._counted(), *(() if live is None else live_readings(live, self._model_cap.of))]

    def _counted(self) -> list[Reading]:
        return [
            *self._model_readings(),
            *self._caller_readings(),
            *(counts.reading() for counts in self._all),
            Reading(family=families.EMBEDDING_INPUTS, rows=[((model,), seen.distribution()) for model, seen in self._embedded.items()]),
            Reading(family=families.LOOP_LAG, rows=[((), self._lag.distribution())]),
            Reading(family=families.DISK_LOW, rows=[((), float(self._disk_low))]),
        ]

    def _model_readings(self) -> list[Reading]:
        found = [((lane.value, name), tally) for lane, known in self._models.items() for name, tally in known.items()]
        return [
            Reading(family=families.ENDED, rows=[row for key, tally in found for row in _ends(key, tally)]),
            *(
                Reading(family=family, rows=[(key, tally.phases[place].distribution()) for key, tally in found])
                for place, family in enumerate(_PHASES)
            ),
            Reading(family=families.TOKENS, rows=[row for key, tally in found for row in _tokens(key, tally)]),
        ]

    def _caller_readings(self) -> list[Reading]:
        found = [((lane.value, name), tally) for lane, known in self._callers.items() for name, tally in known.items()]
        return [
            Reading(family=families.ACCEPTED, rows=[(key, tally.accepted) for key, tally in found]),
            Reading(family=families.CALLER_ENDED, rows=[row for key, tally in found for row in _ends(key, tally)]),
            Reading(family=families.CALLER_TOKENS, rows=[row for key, tally in found for row in _tokens(key, tally)]),
            Reading(family=families.COST, rows=[(key, tally.cost_usd) for key, tally in found]),
        ]


def _ends(key: tuple[str, ...], tally: ModelTally | CallerTally) -> list[Row]:
    ends = {_COMPLETED: tally.completed, **tally.other_ends}
    return [((*key, outcome), count) for outcome, count in ends.items()]


def _tokens(key: tuple[str, ...], tally: ModelTally | CallerTally) -> list[Row]:
    return [((*key, "prompt"), tally.prompt_tokens), ((*key, "output"), tally.output_tokens)]
