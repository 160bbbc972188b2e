"""All that the dashboard shows, as one value of plain mappings by key, which makes small patches;
never a request or result, and of a prompt only its beginning, where `server.prompt_previews` is on.

Everything that takes time is an instant, so that nothing changes while nothing happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from math import inf, isinf
from typing import Any

from hearth.config.active_hours import window_text
from hearth.events import ItemEnded
from hearth.execution.lease_views import leases_shown
from hearth.gateway import Gateway
from hearth.job_types import Job
from hearth.jobs.service import Jobs
from hearth.observability.requests import DEPTH_STEP_S
from hearth.queue.status import sleeper
from hearth.scheduling.forecast import HORIZON_ITEMS
from hearth.scheduling.waiting import Entry
from hearth.types import JsonDict, JsonMapping, Lane, QueueItem, Sequence

WAITING_SHOWN = 40
"""Rows of the queue; the rest is a number.

Far more than fit on a screen, and never more than are run forward for an estimate.
"""
MODELS_SHOWN = 1_000
"""Those in use, and then the first by name: nobody reads through more, and the loop would stand
still to compare them.
"""
JOBS_SHOWN = 6
ERROR_CHARS = 200
_NOT_SHOWN = frozenset({"current_swap", "residents", "resident_models"})


def _of_note(models: list[JsonDict]) -> list[JsonDict]:
    if len(models) <= MODELS_SHOWN:
        return models
    used = [model for model in models if model["resident"] or model["waiting"] or model["home"]]
    quiet = (
        model for model in models if not (model["resident"] or model["waiting"] or model["home"])
    )
    return [*used, *islice(quiet, max(0, MODELS_SHOWN - len(used)))]


class View:
    """Builds the value; `shift_s` turns monotonic instants into seconds since 1970, for as long as
    this view is used.
    """

    def __init__(self, gateway: Gateway, shift_s: float) -> None:
        self._gateway = gateway
        self._view = gateway.worker.runtime.view
        self._shift_s = shift_s
        self._starts: dict[Sequence, float] = {}
        # of each waiting item that is shown: its expected start, and the bound that was made of it
        self._bounds: dict[Sequence, tuple[float, float]] = {}
        uptime_s = gateway.health()["uptime_s"]
        self._started: int | None = None
        if isinstance(uptime_s, float):
            self._started = round(gateway.clock.wall() - uptime_s)

    async def build(self, now: float) -> JsonDict:
        """Everything, as of `now` (monotonic)."""
        view = self._view
        beside = self._gateway.worker.parts()
        usage = self._gateway.rate_limiter.get_all_usage(now)
        return {
            "house": self._house(now, beside),
            "gpu": self._gpu(now),
            "residents": {
                each.model: {
                    "phase": each.phase,
                    "running": len(each.running),
                    "waiting": view.wants(each.model),
                    "parallel": each.parallel,
                    "reserved_mib": None if each.reserved_mib is None else round(each.reserved_mib),
                    "since": self._wall(each.loaded_at) if each.phase == "ready" else None,
                }
                for each in view.latest_first
            },
            "sleepers": {each.model: sleeper(each, self._shift_s) for each in view.sleepers},
            "running": {str(entry.item.sequence): self._running(entry) for entry in view.running},
            "waiting": self._waiting(now),
            "models": {
                str(model["name"]): model for model in _of_note(await self._gateway.models())
            },
            "callers": {
                caller: {
                    "minute": [used.minute, used.minute_limit],
                    "hour": [used.hour, used.hour_limit],
                }
                for caller, used in usage.items()
            },
            "orders": beside.get("orders"),
            "leases": leases_shown(self._gateway.leases.leases.values(), view, self._shift_s),
            "timeline": self._timeline(now),
            "recent": {
                str(number): self._ended(ended)
                for number, ended in self._gateway.records.timeline.ended
            },
            "refused": {
                str(number): _fields(each, "request_id", "caller", "path", "status", "reason")
                | {"model": each.model or None, "at": self._wall(each.at)}
                for number, each in self._gateway.records.timeline.refused
            },
        }

    def _wall(self, at: float | None) -> float | None:
        return None if at is None else round(at + self._shift_s, 2)

    def _house(self, now: float, beside: JsonMapping) -> JsonDict:
        view = self._view
        health = self._gateway.health()
        config = beside["config"]
        cloud = beside.get("cloud")
        if isinstance(config, Mapping):
            config = {key: value for key, value in config.items() if key != "last_attempt"}
        if isinstance(cloud, Mapping):
            # Its running items as a number, since their waits grow all the time.
            cloud = {
                key: len(value) if isinstance(value, list) else value
                for key, value in cloud.items()
            }
        return {
            **{key: health[key] for key in ("version", "status", "reason")},
            **{key: beside.get(key) for key in ("backend", "alerts", "warnings", "storage")},
            "started": self._started,
            "mode": "active" if view.active else "quiet",
            "hours": self._hours(),
            "modes": beside.get("modes"),
            "draining": view.draining,
            "promotions": view.promotions,
            "policy": view.settings.scheduling.policy.value,
            "announced": {
                task: self._wall(at) for at, task in reversed(view.announced) if at > now
            },
            "config": config,
            "stats": beside["stats_24h"],
            "cloud": cloud,
        }

    def _hours(self) -> JsonDict:
        config = self._gateway.config
        windows = [window_text(window) for window in config.settings.scheduling.active_hours]
        return {
            "windows": windows,
            "changes": config.next_mode_change(self._gateway.clock.wall()),
        }

    def _gpu(self, now: float) -> JsonDict:
        limits = self._gateway.settings.gpu.alerts
        capacity_mib = self._view.capacity_mib
        if capacity_mib is not None:
            capacity_mib = None if isinf(capacity_mib) else round(capacity_mib)
        metrics = self._gateway.worker.tracker.get_metrics(now)
        return {key: value for key, value in metrics.items() if key not in _NOT_SHOWN} | {
            "capacity_mib": capacity_mib,
            "swap": self._swap(),
            "limits": {
                "swap_overhead_pct": limits.swap_overhead_pct_warning,
                "swaps_per_hour": limits.swaps_per_hour_warning,
                "swap_ms": limits.swap_wait_ms_warning,
                "temperature_c": limits.temperature_c,
            },
        }

    def _swap(self) -> JsonDict | None:
        view = self._view
        swap = view.swap
        target = view.loading
        if swap is None:
            return None
        begun: JsonDict = {"since": self._wall(swap.started_at), "why": swap.why}
        if view.cutting is not None:
            return {"cutting": view.cutting} | begun
        if target is None:
            return {"unloading": sorted(view.unloading)} | begun
        return {
            "from": list(swap.replaced),
            "to": target,
            "since": self._wall(swap.started_at - swap.before.unload_s),
            "cost_s": round(view.expected_swap_s(swap.origin, target), 1),
            "why": swap.why,
        }

    def _entry(self, entry: Entry) -> JsonDict:
        item = entry.item
        return _names(item) | {
            "kind": item.kind,
            "streaming": item.streaming,
            "prompt_tokens": item.prompt_tokens or None,
            "arrived": self._wall(item.arrived_at),
            "band": entry.band.name.lower(),
            "interrupts": entry.interrupts or None,
            "alias": item.alias or None,
            "background": item.background or None,
            "prompt_preview": item.prompt_preview or None,
        }

    def _running(self, entry: Entry) -> JsonDict:
        return self._entry(entry) | {
            "model": entry.model or entry.wanted_model,
            "attempt": entry.attempts,
            "stopping": entry.place == "stopping" or None,
            "dispatched": self._wall(entry.dispatched_at),
            "first_byte": self._wall(entry.first_byte_at),
            "expected_end": self._wall(entry.expected_end_at),
        }

    def _waiting(self, now: float) -> JsonDict:
        view = self._view
        entries = self._in_expected_order(now)[:WAITING_SHOWN]
        rough = self._gateway.worker.runtime.forecasts.is_rough() or None
        return {
            "internal": view.pending(Lane.INTERNAL),
            "external": view.pending(Lane.EXTERNAL),
            "models": {model or "*": number for model, number in view.wanted_models.items()},
            "order": [entry.item.sequence for entry in entries],
            "rows": {
                str(entry.item.sequence): self._row(entry, now) | {"rough": rough}
                for entry in entries
            },
        }

    def _in_expected_order(self, now: float) -> list[Entry]:
        """The first of the queue as the scheduler, run forward, would start them; those without an
        estimate come last, in line.
        """
        before = self._starts
        self._starts = {}
        for sequence, wait_s in self._gateway.worker.forecaster.starts(now).items():
            start_at = before.get(sequence, inf)
            # one that has moved by less than a second, or a tenth of the wait, has not moved
            has_moved = abs(start_at - now - wait_s) >= max(1.0, 0.1 * wait_s)
            self._starts[sequence] = now + wait_s if has_moved else start_at
        self._bounds = {
            sequence: bound for sequence, bound in self._bounds.items() if sequence in self._starts
        }
        found = map(self._view.entry, self._starts)
        waiting = [entry for entry in found if entry is not None and entry.place == "waiting"]
        if len(waiting) < min(WAITING_SHOWN, self._view.waiting):
            waiting = self._view.first(HORIZON_ITEMS)
        return sorted(
            waiting,
            key=lambda entry: (self._starts.get(entry.item.sequence, inf), entry.band, entry.key),
        )

    def _row(self, entry: Entry, now: float) -> JsonDict:
        why = self._view.reason_of(entry, now)
        for key, value in why.items():
            if isinstance(value, float):
                why[key] = round(value, 1) if key == "cost_s" else self._wall(value)
        start_at = self._starts.get(entry.item.sequence)
        return self._entry(entry) | {
            "why": why,
            "start": None if start_at is None else round(start_at + self._shift_s),
            "bound": None if start_at is None else round(self._bound_at(entry, start_at, now)),
        }

    def _bound_at(self, entry: Entry, start_at: float, now: float) -> float:
        """The calendar instant by which 90 % of such items start; it moves only with the expected
        start.
        """
        sequence = entry.item.sequence
        made_of, bound_at = self._bounds.get(sequence, (inf, inf))
        if made_of != start_at:
            forecasts = self._gateway.worker.runtime.forecasts
            bound_at = now + forecasts.wait_bound_s(entry.item, start_at - now, now)
            self._bounds[sequence] = start_at, bound_at
        return bound_at + self._shift_s

    def _timeline(self, now: float) -> JsonDict:
        timeline = self._gateway.records.timeline
        residents = self._view.latest_first
        loaded = [each for each in residents if each.phase not in {"loading", "cutting"}]
        timeline.settle({each.model: each.loaded_at for each in loaded}, now)
        spans: JsonDict = {}
        for span in timeline.spans(now):
            end = [] if span.ended_at is None else [self._wall(span.ended_at)]
            spans[str(span.number)] = [span.model, span.kind, self._wall(span.began_at), *end]
        depths = {
            str(each.step): [
                self._wall(each.step * DEPTH_STEP_S),
                each.internal,
                each.external,
                each.internal_last,
                each.external_last,
            ]
            for each in timeline.depths(now)
        }
        marks = {
            str(number): [self._wall(mark.at), mark.model or "", mark.caller]
            for number, mark in timeline.interruptions(now)
        }
        gaps = [[self._wall(began), self._wall(ended)] for began, ended in timeline.gaps(now)]
        return {"spans": spans, "marks": marks, "depths": depths, "gaps": gaps}

    def _ended(self, item: ItemEnded) -> JsonDict:
        durations = {
            name: getattr(item, name)
            for name in ("queue_s", "swap_s", "first_byte_s", "backend_s", "decode_s", "total_s")
        }
        return (
            _names(item)
            | _fields(item, "resumed", "prompt_tokens", "output_tokens", "cost_usd")
            | {"engine": item.engine or None, "waited_for": item.waited_for or None}
            | {
                name: None if duration_s is None else round(duration_s, 2)
                for name, duration_s in durations.items()
            }
            | {
                "outcome": item.outcome.value,
                "reason": item.reason or None,
                "interrupts": item.interrupt_count or None,
                "ended": self._wall(item.at),
            }
        )


def _fields(of: object, *names: str) -> JsonDict:
    return {name: getattr(of, name) for name in names}


def _names(item: QueueItem | ItemEnded) -> JsonDict:
    return _fields(item, "sequence", "request_id", "caller", "task_type", "model") | {
        "user": item.user or None,
        "lane": item.lane.value,
    }


def jobs_shown(
    gateway: Gateway,
    jobs: Jobs,
    owner: str | None,
    line: tuple[int, float | None, tuple[Job, ...]],
    failed: Iterable[Job],
) -> JsonDict:
    """Durable jobs of an owner, of all for None: how many, the first that wait, what is on its way,
    what failed last.

    `line` as the store's `waiting` has it.
    """
    count, oldest_wall_s, first = line
    wall_s = gateway.clock.wall()
    config = gateway.config
    running = [job for job in jobs.runner.running() if owner in (None, job.caller)]
    waiting = {}
    started = {job.job_id for job in running}  # some of them since the store was asked
    for job in (job for job in first if job.job_id not in started):
        start_s = jobs.estimated_start_s(job)
        waiting[job.job_id] = _job(job) | {
            "ahead": job.position,
            "start": None if start_s is None else round(wall_s + start_s),
            "not_before": job.not_before_wall_s,
            "off_peak": job.off_peak or None,
            "attempts": job.attempts or None,
        }
    shown: Any = bare(
        {
            "counts": {"queued": count, "running": len(running), **jobs.ended(owner)},
            "oldest": oldest_wall_s,
            "waiting": waiting,
            "running": {
                job.job_id: _job(job) | {"sequence": jobs.runner.sequence_of(job.job_id)}
                for job in running[:JOBS_SHOWN]
            },
            "failed": {
                job.job_id: _job(job)
                | _fields(job, "reason", "status", "attempts")
                | {"error": job.error[:ERROR_CHARS] or None, "ended": job.ended_wall_s}
                for job in failed
            },
            "off_peak": {
                "now": not config.is_active_hours(wall_s),
                "changes": config.next_mode_change(wall_s),
            },
        }
    )
    return dict(shown)


def _job(job: Job) -> JsonDict:
    return _fields(job, "caller", "task_type", "model") | {
        "accepted": round(job.accepted_wall_s, 2)
    }


def bare(value: object) -> object:
    """The value without anything that is None in its mappings, since null means "gone" in a
    patch.
    """
    if isinstance(value, Mapping):
        return {str(key): bare(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [bare(each) for each in value]
    return value


def merge_patch(old: JsonDict, new: JsonDict) -> JsonDict:
    """What makes `old` into `new` (RFC 7386), both as `bare` leaves them.

    Lists are replaced as a whole.
    """
    patch: JsonDict = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if before is not value and before != value:
            patch[key] = (
                merge_patch(before, value)
                if isinstance(before, dict) and isinstance(value, dict)
                else value
            )
    return patch
