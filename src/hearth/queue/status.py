"""What `/llm/queue/status` shows of the queue, in the shape of donna's LLM gateway page with more
keys. No prompt ever appears here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import islice

from hearth.clock import rfc3339_ms
from hearth.dialects.waits import Wait, WaitState
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.request import ActiveRequest, FinishedRequest
from hearth.execution.runtime import Runtime
from hearth.scheduling.residency import Resident
from hearth.scheduling.sleeping import Sleeper
from hearth.scheduling.views import StatusView
from hearth.scheduling.waiting import Entry
from hearth.types import Band, JsonDict, Lane, QueueItem, Sequence

SHARES_SHOWN = 50
NEXT_ITEMS = 20
"""How many waiting items a status lists per lane; the rest is a number."""


def status(
    runtime: Runtime, starts: Mapping[Sequence, float], now: float, wall_s: float
) -> JsonDict:
    """What runs, what waits and what the GPU holds; `starts`: seconds until each waiting item
    starts; `wall_s`: add it for 1970.
    """
    view = runtime.view
    longest_first = sorted(
        view.running, key=lambda entry: (entry.dispatched_at, entry.item.sequence)
    )
    running = [_item(entry, now, wall_s) for entry in longest_first]
    return {
        "current_request": running[0] if running else None,
        "running": running,
        "internal_queue": _queue(runtime, Lane.INTERNAL, starts, now, wall_s),
        "external_queue": _queue(runtime, Lane.EXTERNAL, starts, now, wall_s),
        "mode": "active" if view.active else "quiet",
        "gpu": {
            **runtime.tracker.get_metrics(now),
            "residents": [_resident(each, runtime, now) for each in view.latest_first],
            "sleepers": [{"model": each.model, **sleeper(each, wall_s)} for each in view.sleepers],
        },
        "promotions": view.promotions,
        "draining": view.draining,
        "hold": _hold(view, now),
        "turn": _turn(view, now),
        "shares": _shares(view),
    }


def _hold(view: StatusView, now: float) -> JsonDict | None:
    """The model that external requests wait for, since an internal caller is likely to come back to
    it.
    """
    hold = view.hold
    if hold is None or hold.until <= now:
        return None
    return {"model": hold.model, "caller": hold.caller, "ends_in_s": round(hold.until - now, 1)}


def _shares(view: StatusView) -> list[JsonDict]:
    """What callers were given who are served by their shares: seconds of the GPU with the loads
    that were for them, since each was last without work; the most first.
    """
    accounts = view.shares()
    by_band = defaultdict[Band, float](float)
    for sharer, account in accounts.items():
        by_band[sharer.band] += account.service_s
    most_first = sorted(accounts.items(), key=lambda each: -each[1].service_s)
    return [
        {
            "caller": sharer.caller,
            "user": sharer.user or None,
            "band": sharer.band.name.lower(),
            "service_s": round(account.service_s, 1),
            "share_pct": round(100 * account.service_s / max(by_band[sharer.band], 1e-9), 1),
            "requests": account.open,
            "running": account.running,
        }
        for sharer, account in most_first[:SHARES_SHOWN]
    ]


def _turn(view: StatusView, now: float) -> JsonDict | None:
    """The turn of external requests; `ends_in_s` is null while its model is being loaded."""
    turn = view.turn
    if turn is None:
        return None
    ends_in_s = None if turn.until is None else round(max(0.0, turn.until - now), 1)
    return {"model": turn.model, "turn_s": turn.length_s, "ends_in_s": ends_in_s}


def item(view: StatusView, work: ActiveRequest, now: float, wall_s: float) -> JsonDict:
    entry = view.entry(work.item.sequence)
    if entry is None:
        return _identity(work.item) | {"state": "accepted"}
    run = work.attempt.resumed
    resumed: JsonDict = (
        {} if run is None else {"resumed": run.mode, "again_tokens": run.again_tokens}
    )
    return _item(entry, now, wall_s) | resumed


def wait(
    view: StatusView, entry: Entry, starts: Mapping[Sequence, float], now: float
) -> Wait | None:
    """What its caller can be told of a request of whose answer nothing has come; `starts` as for
    `status`.
    """
    if entry.place != "waiting":
        return Wait(state="reading")
    reason = view.reason_of(entry, now)
    blocked = _BLOCKED.get(str(reason["kind"]))
    if blocked is not None:
        return Wait(state=blocked)
    wait_s = starts.get(entry.item.sequence)
    if reason["kind"] == "lease":
        return Wait(state="leased", wait_s=wait_s)
    position = _position(starts, wait_s)
    if reason["kind"] == "load" and position in (None, 1):
        return Wait(state="loading", wait_s=wait_s, model=str(reason["model"]))
    return Wait(state="queued", position=position, wait_s=wait_s)


def _position(starts: Mapping[Sequence, float], wait_s: float | None) -> int | None:
    """1 is expected to start next; None where that is not known."""
    if wait_s is None:
        return None
    return 1 + sum(other_s < wait_s for other_s in starts.values())


_BLOCKED: Mapping[str, WaitState] = {
    "backend_down": "down",
    "paused": "paused",
    "caller_paused": "paused",
}


def ended(of: FinishedRequest) -> JsonDict:
    known = {"state": of.outcome.value, "attempts": of.attempts, "interrupt_count": of.interrupts}
    return _identity(of.item) | {"model": of.model} | known


def models(runtime: Runtime, watch: BackendWatch) -> Callable[[], list[JsonDict]]:
    """What makes the list of all models that are installed, resident or configured, with what is
    known of them at this moment.

    It reads nothing that changes: for a long list, a thread makes it.
    """
    view = runtime.view
    settings = view.settings
    home = view.home
    offloaded = watch.offloaded
    installed = watch.installed
    residents = {
        name: (resident.phase, len(resident.running)) for name, resident in view.residents.items()
    }
    waiting = view.wanted_models
    engine_of = watch.engine_of
    is_remote = watch.is_remote
    away = frozenset(view.away)
    footprint_mib = runtime.tracker.footprint_mib
    in_memory = {
        model.name: (round(footprint_mib(model), 1), round(model.size_mib, 1))
        for model in watch.resident
    }

    def listed() -> list[JsonDict]:
        names = {model.name for model in installed}
        rows: list[JsonDict] = []
        for name in sorted(names | residents.keys() | settings.models.keys()):
            phase, running = residents.get(name, (None, 0))
            vram_mib, size_mib = in_memory.get(name, (None, None))
            row = {
                "name": name,
                "engine": engine_of(name),
                "remote": is_remote(name),
                "away": name.lower() in away,
                "installed": name in names,
                "resident": name in residents,
                "phase": phase,
                "home": name == home,
                "running": running,
                "waiting": waiting.get(name, 0),
                "parallel": settings.parallel(name),
                "vram_mib": vram_mib,
                "size_mib": size_mib,
                "offloaded": name in offloaded,
            }
            rows.append(row)
        return rows

    return listed


def _queue(
    runtime: Runtime, lane: Lane, starts: Mapping[Sequence, float], now: float, wall_s: float
) -> JsonDict:
    view = runtime.view
    is_rough = runtime.forecasts.is_rough()
    next_items = []
    for entry in islice(view.in_line(lane), NEXT_ITEMS):
        wait_s = starts.get(entry.item.sequence)
        estimate = {
            "estimated_start_s": None if wait_s is None else round(wait_s, 1),
            "start_bound_s": (
                None
                if wait_s is None
                else round(runtime.forecasts.wait_bound_s(entry.item, wait_s, now), 1)
            ),
            "estimate_is_rough": is_rough and wait_s is not None,
            "position": _position(starts, wait_s),
            "waits_for": _waits_for(view, entry, now),
        }
        next_items.append(_item(entry, now, wall_s) | estimate)
    return {"pending": view.pending(lane), "next_items": next_items}


def _waits_for(view: StatusView, entry: Entry, now: float) -> JsonDict:
    """Why it has not been started (`scheduling.reasons`), with seconds in place of instants."""
    reason = view.reason_of(entry, now)
    since = reason.pop("since", None)
    until = reason.pop("until", None)
    cost_s = reason.get("cost_s")
    if isinstance(cost_s, float):
        reason["cost_s"] = round(cost_s, 1)
    if isinstance(since, float):
        reason["elapsed_s"] = round(now - since, 1)
    if isinstance(until, float):
        reason["ends_in_s"] = round(max(0.0, until - now), 1)
    return reason


def _identity(of: QueueItem) -> JsonDict:
    return {
        "sequence": of.sequence,
        "request_id": of.request_id,
        "type": of.lane.value,
        "caller": of.caller,
        "user": of.user or None,
        "priority": of.priority.name.lower() if of.lane is Lane.INTERNAL else None,
        "task_type": of.task_type,
        "model": of.model,
        "alias": of.alias or None,
        "kind": of.kind,
        "dialect": of.dialect,
        "streaming": of.streaming,
        "prompt_tokens": of.prompt_tokens,
        "inputs": of.inputs,
        "background": of.background or None,
        "prompt_preview": of.prompt_preview,
    }


def _item(entry: Entry, now: float, wall_s: float) -> JsonDict:
    arrived_at = entry.item.arrived_at
    started_at = None if entry.place == "waiting" else entry.dispatched_at
    return _identity(entry.item) | {
        "model": entry.model or entry.wanted_model,
        "state": entry.place,
        "band": entry.band.name.lower(),
        "attempts": entry.attempts,
        "interrupt_count": entry.interrupts,
        "enqueued_at": rfc3339_ms(arrived_at + wall_s),
        "started_at": None if started_at is None else rfc3339_ms(started_at + wall_s),
        "waited_s": round((now if started_at is None else started_at) - arrived_at, 3),
        "running_s": None if started_at is None else round(now - started_at, 3),
        "first_byte": entry.first_byte_at is not None,
    }


def sleeper(each: Sleeper, wall_s: float) -> JsonDict:
    """A model that sleeps, and what that keeps; `wall_s`: add it for 1970."""
    return {
        "level": each.level,
        "host_mib": round(each.rest.host_mib),
        "residual_mib": round(each.rest.residual_mib),
        "since": round(each.since + wall_s, 2),
    }


def _resident(resident: Resident, runtime: Runtime, now: float) -> JsonDict:
    view = runtime.view
    warmth = view.warmth(resident.model, now)
    return {
        "model": resident.model,
        "engine": runtime.engine_of(resident.model),
        "phase": resident.phase,
        "running": len(resident.running),
        "waiting": view.wants(resident.model),
        "parallel": resident.parallel,
        "reserved_mib": resident.reserved_mib,
        "resident_s": round(now - resident.loaded_at, 3) if resident.phase == "ready" else None,
        "warm_conversations": warmth.conversations,
        "warm_tokens": warmth.tokens,
        "reread_s": round(warmth.reread_s, 1),
    }
