"""What the dashboard shows of the state of a gateway.

What does a waiting item wait for? Read from the scheduler's state, never changing it; the page puts it into words.

One reason each, the first that holds: nothing answers, a stop, a pause, an announced task, memory (a pinned model that leaves no room, a
swap, a load under way, a model that is left alone after a failure), a slot, and last its turn.

All that the dashboard shows, as one value of plain mappings, in which everything that takes time is an instant.

So nothing changes while nothing happens, and what is sent is what happened. Collections are mappings by key, which makes small patches.
No prompt ever appears here.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isinf

from hearth.events import ItemEnded
from hearth.gateway import Gateway
from hearth.observability.timeline import DEPTH_STEP_S, Depth, Span
from hearth.queue.forecaster import Forecaster
from hearth.scheduling.forecast import HORIZON_ITEMS, is_rough
from hearth.scheduling.residency import Phase, Resident
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry, Place
from hearth.types import Lane, QueueItem, Sequence

Reason = dict[str, object]


def reason_of(state: State, entry: Entry, now: float) -> Reason:
    """Why a waiting item has not been started.

    Returns:
        `kind`, and what belongs to it: `model`, `cost_s` (estimated), `since` and `until` (monotonic), `task`, `busy` of `parallel` slots.
    """
    return _held(state, entry) or _announced(state, entry, now) or _of_model(state, entry, now)


def _held(state: State, entry: Entry) -> Reason | None:
    """What holds everything, or all of a lane."""
    if state.down_since is not None:
        return {"kind": "backend_down", "since": state.down_since}
    if state.draining:
        return {"kind": "stopping"}
    return {"kind": "paused"} if state.orders.paused and entry.item.lane is Lane.EXTERNAL else None


def _of_model(state: State, entry: Entry, now: float) -> Reason:
    model = entry.item.model
    if model is None:
        return _anywhere(state)
    resident = state.residency.residents.get(model)
    if resident is not None:
        return _present(state, resident)
    return _kept_out(state, entry, model) or _absent(state, model, now)


def _announced(state: State, entry: Entry, now: float) -> Reason | None:
    """Held back, as an external item that could still run when the house's own task is due."""
    held = state.held_for(entry, now)
    return None if held is None else {"kind": "announced", "task": held[1], "until": held[0]}


def _anywhere(state: State) -> Reason:
    ready = [resident for resident in state.residency.residents.values() if resident.phase is Phase.READY]
    if not ready:
        return {"kind": "swap", "model": state.home, "cost_s": state.estimates.swap_s("", state.home or "")}
    free = [resident for resident in ready if resident.free_slots > 0]
    return {"kind": "turn"} if free else _slot(state, ready[0])


def _kept_out(state: State, entry: Entry, model: str) -> Reason | None:
    """The pinned model, where an external item's model would have to take its place."""
    pinned = state.orders.pinned
    if pinned is None or entry.item.lane is not Lane.EXTERNAL or pinned not in state.residency.residents:
        return None
    fits = state.residency.eviction_for(model, (pinned,), entry.item.task_type) is not None
    return None if fits else {"kind": "pinned", "model": pinned}


def _absent(state: State, model: str, now: float) -> Reason:
    retry_at = state.not_before.get(model)
    if retry_at is not None and retry_at > now:
        return {"kind": "left_alone", "model": model, "until": retry_at}
    cost_s = state.estimates.swap_s(_in_memory(state), model)
    return {"kind": "swap", "model": model, "cost_s": cost_s, "until": state.held_until}


def _present(state: State, resident: Resident) -> Reason:
    if resident.phase is Phase.LOADING:
        swap = state.residency.swap
        since = None if swap is None else swap.started_at
        cost_s = state.estimates.swap_s("" if swap is None else swap.origin, resident.model)
        return {"kind": "load", "model": resident.model, "since": since, "cost_s": cost_s}
    if resident.phase is Phase.UNLOADING or resident.suspect:
        return {"kind": "swap", "model": resident.model, "cost_s": state.estimates.swap_s("", resident.model)}
    return {"kind": "turn"} if resident.free_slots > 0 else _slot(state, resident)


def _slot(state: State, resident: Resident) -> Reason:
    parallel = state.settings.parallel(resident.model)
    return {"kind": "slot", "model": resident.model, "busy": len(resident.running), "parallel": parallel}


def _in_memory(state: State) -> str:
    return next(iter(state.residency.residents), "")


WAITING_SHOWN = 40
"""Rows of the queue; the rest is a number. Far more than fit on a screen, and never more than are run forward for an estimate."""
_NOT_SHOWN = frozenset({"current_swap", "residents", "resident_models"})


class View:
    """Builds the value.

    Args:
        wall_less_now_s: what turns monotonic instants into seconds since 1970, for as long as this view is used.
    """

    def __init__(self, gateway: Gateway, wall_less_now_s: float) -> None:
        self._gateway = gateway
        self._shift_s = wall_less_now_s
        self._starts: dict[Sequence, float] = {}
        self._forecaster = Forecaster(gateway.worker.scheduler.state)
        uptime_s = gateway.health()["uptime_s"]
        self._started = round(gateway.clock.wall() - uptime_s) if isinstance(uptime_s, float) else None

    async def build(self, now: float) -> dict[str, object]:
        """Everything, as of `now` (monotonic)."""
        state, beside = self._gateway.worker.scheduler.state, self._gateway.status_beside_queue()
        return {
            "house": self._house(now, beside),
            "gpu": self._gpu(now),
            "residents": {each.model: self._resident(each, state.waiting.wants(each.model)) for each in state.residency.latest_first},
            "running": {str(entry.item.sequence): self._running(entry) for entry in state.running},
            "waiting": self._waiting(now),
            "models": {str(model["name"]): model for model in await self._gateway.models()},
            "callers": self._callers(now),
            "orders": beside.get("orders"),
            "timeline": self._timeline(now),
            "recent": {str(number): self._ended(ended) for number, ended in self._gateway.records.timeline.ended},
        }

    def _wall(self, at: float | None) -> float | None:
        return None if at is None else round(at + self._shift_s, 2)

    def _house(self, now: float, beside: Mapping[str, object]) -> dict[str, object]:
        state, health, config = self._gateway.worker.scheduler.state, self._gateway.health(), beside["config"]
        return {
            "version": health["version"],
            "started": self._started,
            "status": health["status"],
            "reason": health["reason"],
            "mode": "active" if state.active else "quiet",
            "draining": state.draining,
            "promotions": state.promotions,
            "policy": state.settings.scheduling.policy.value,
            "announced": {task: self._wall(at) for at, task in reversed(state.announced) if at > now},
            "backend": beside["backend"],
            "config": {key: value for key, value in config.items() if key != "last_attempt"} if isinstance(config, Mapping) else {},
            "stats": beside["stats_24h"],
            "alerts": beside.get("alerts"),
            "warnings": beside["warnings"],
            "cloud": _cloud(beside.get("cloud")),
            "storage": beside.get("storage"),
        }

    def _gpu(self, now: float) -> dict[str, object]:
        state, limits = self._gateway.worker.scheduler.state, self._gateway.config.settings.gpu.alerts
        metrics = self._gateway.worker.tracker.get_metrics(now)
        capacity_mib = state.residency.capacity_mib
        return {key: value for key, value in metrics.items() if key not in _NOT_SHOWN} | {
            "capacity_mib": None if capacity_mib is None or isinf(capacity_mib) else round(capacity_mib),
            "swap": self._swap(),
            "limits": {
                "swap_overhead_pct": limits.swap_overhead_pct_warning,
                "swaps_per_hour": limits.swaps_per_hour_warning,
                "swap_ms": limits.swap_wait_ms_warning,
                "temperature_c": limits.temperature_c,
            },
        }

    def _swap(self) -> dict[str, object] | None:
        state = self._gateway.worker.scheduler.state
        swap = state.residency.swap
        if swap is None:
            return None
        target = state.residency.loading
        if target is None:
            return {"unloading": sorted(state.residency.unloading), "since": self._wall(swap.started_at), "why": swap.why.value}
        cost_s = state.estimates.swap_s(swap.origin, target)
        return {
            "from": list(swap.replaced),
            "to": target,
            "since": self._wall(swap.started_at - swap.cleared_s),
            "cost_s": round(cost_s, 1),
            "why": swap.why.value,
        }

    def _resident(self, resident: Resident, waiting: int) -> dict[str, object]:
        return {
            "phase": resident.phase.value,
            "running": len(resident.running),
            "waiting": waiting,
            "parallel": resident.parallel,
            "reserved_mib": None if resident.reserved_mib is None else round(resident.reserved_mib),
            "since": self._wall(resident.loaded_at) if resident.phase is Phase.READY else None,
        }

    def _item(self, item: QueueItem) -> dict[str, object]:
        return {
            "sequence": item.sequence,
            "request_id": item.request_id,
            "lane": item.lane.value,
            "caller": item.caller,
            "task_type": item.task_type,
            "model": item.model,
            "kind": item.kind.value,
            "streaming": item.streaming,
            "prompt_tokens": item.prompt_tokens or None,
            "arrived": self._wall(item.arrived_at),
        }

    def _entry(self, entry: Entry) -> dict[str, object]:
        return self._item(entry.item) | {"band": entry.band.name.lower(), "interrupts": entry.interrupts or None}

    def _running(self, entry: Entry) -> dict[str, object]:
        return self._entry(entry) | {
            "model": entry.model or entry.item.model,
            "attempt": entry.attempts,
            "stopping": entry.place is Place.STOPPING or None,
            "dispatched": self._wall(entry.dispatched_at),
            "first_byte": self._wall(entry.first_byte_at),
            "expected_end": self._wall(entry.expected_end_at),
        }

    def _waiting(self, now: float) -> dict[str, object]:
        state = self._gateway.worker.scheduler.state
        entries = self._in_expected_order(now)
        rough = is_rough(state) or None
        rows = {str(entry.item.sequence): self._row(entry, now) | {"rough": rough} for entry in entries[:WAITING_SHOWN]}
        return {
            "internal": state.waiting.count(Lane.INTERNAL),
            "external": state.waiting.count(Lane.EXTERNAL),
            "models": {model or "*": state.waiting.wants(model) for model in state.waiting.models()},
            "order": [entry.item.sequence for entry in entries[:WAITING_SHOWN]],
            "rows": rows,
        }

    def _in_expected_order(self, now: float) -> list[Entry]:
        """The first of the queue as the scheduler, run forward, would start them; what it cannot tell comes last, in line."""
        known = self._steadied(self._forecaster.starts(now), now)
        state = self._gateway.worker.scheduler.state
        found = [state.entries[sequence] for sequence in known if sequence in state.entries]
        waiting = [entry for entry in found if entry.place is Place.WAITING]
        if len(waiting) < min(WAITING_SHOWN, len(state.waiting)):
            waiting = state.waiting.first(HORIZON_ITEMS)
        return sorted(waiting, key=lambda entry: (known.get(entry.item.sequence, inf), entry.band, entry.key))

    def _steadied(self, starts: Mapping[Sequence, float], now: float) -> dict[Sequence, float]:
        """Instants of expected starts; one that has moved by less than a second, or a tenth of the wait, has not moved."""
        fresh = {sequence: now + wait_s for sequence, wait_s in starts.items()}
        before = self._starts
        self._starts = {
            sequence: before[sequence] if sequence in before and abs(before[sequence] - at) < max(1.0, 0.1 * (at - now)) else at
            for sequence, at in fresh.items()
        }
        return self._starts

    def _row(self, entry: Entry, now: float) -> dict[str, object]:
        state = self._gateway.worker.scheduler.state
        why = reason_of(state, entry, now)
        cost_s = why.get("cost_s")
        if isinstance(cost_s, float):
            why["cost_s"] = round(cost_s, 1)
        for key in ("since", "until"):
            at = why.get(key)
            if isinstance(at, float):
                why[key] = self._wall(at)
        start_at = self._starts.get(entry.item.sequence)
        return self._entry(entry) | {"why": why, "start": None if start_at is None else round(start_at + self._shift_s)}

    def _callers(self, now: float) -> dict[str, object]:
        usage = self._gateway.rate_limiter.get_all_usage(now)
        return {
            caller: {"minute": [used.minute, used.minute_limit], "hour": [used.hour, used.hour_limit]} for caller, used in usage.items()
        }

    def _timeline(self, now: float) -> dict[str, object]:
        timeline = self._gateway.records.timeline
        residents = self._gateway.worker.scheduler.state.residency.latest_first
        timeline.settle({each.model: each.loaded_at for each in residents if each.phase is not Phase.LOADING}, now)
        return {
            "spans": {str(span.number): self._span(span) for span in timeline.spans(now)},
            "marks": {str(number): [self._wall(mark.at), mark.model or "", mark.caller] for number, mark in timeline.interruptions(now)},
            "depths": {str(depth.step): self._depth(depth) for depth in timeline.depths(now)},
        }

    def _span(self, span: Span) -> list[object]:
        end = self._wall(span.ended_at)
        return [span.model, span.kind.value, self._wall(span.began_at), *([] if end is None else [end])]

    def _depth(self, depth: Depth) -> list[object]:
        began = self._wall(depth.step * DEPTH_STEP_S)
        return [began, depth.internal, depth.external, depth.internal_last, depth.external_last]

    def _ended(self, item: ItemEnded) -> dict[str, object]:
        return {
            "sequence": item.sequence,
            "request_id": item.request_id,
            "lane": item.lane.value,
            "caller": item.caller,
            "model": item.model,
            "task_type": item.task_type,
            "outcome": item.outcome.value,
            "reason": item.reason or None,
            "interrupts": item.interrupt_count or None,
            "resumed": item.resumed,
            "queue_s": round(item.queue_s, 2),
            "swap_s": round(item.swap_s, 2),
            "first_byte_s": None if item.first_byte_s is None else round(item.first_byte_s, 2),
            "backend_s": None if item.backend_s is None else round(item.backend_s, 2),
            "total_s": round(item.total_s, 2),
            "prompt_tokens": item.prompt_tokens,
            "output_tokens": item.output_tokens,
            "cost_usd": item.cost_usd,
            "ended": self._wall(item.at),
        }


def _cloud(shown: object) -> dict[str, object] | None:
    """What Claude costs; its running items as a number, since their waits grow all the time."""
    if not isinstance(shown, Mapping):
        return None
    return {key: len(value) if isinstance(value, list) else value for key, value in shown.items()}


def bare(value: object) -> object:
    """The value without anything that is None in its mappings, since null means "gone" in a patch."""
    if isinstance(value, Mapping):
        return {str(key): bare(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [bare(each) for each in value]
    return value


def merge_patch(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """What makes `old` into `new` (RFC 7386), both as `bare` leaves them. Lists are replaced as a whole."""
    patch: dict[str, object] = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if before is value or before == value:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            patch[key] = merge_patch(before, value)
        else:
            patch[key] = value
    return patch
