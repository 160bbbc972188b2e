"""A workload as the text of a trace file, which `traces` reads back as the same workload. Called by `hearth simulate --save`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from hearth.simulation.workloads import Job, Workload
from hearth.types import Usage


def trace_text(workload: Workload) -> str:
    """The header line and a line for each request, every line ended."""
    lines = (_header(workload), *(_request(job) for job in workload.jobs))
    return "".join(json.dumps(line) + "\n" for line in lines)


def _header(workload: Workload) -> dict[str, object]:
    swap_s: dict[str, dict[str, float]] = {}
    for (origin, target), seconds in workload.swap_costs.by_pair.items():
        swap_s.setdefault(origin, {})[target] = seconds
    return {
        "models": {name: _given({"vram_gb": model.vram_gb, "parallel": model.parallel}) for name, model in workload.models.items()},
        "swap_s": swap_s,
        **_changed({"unload_s": dict(workload.unload_s), "gpu": _given({"vram_gb": workload.vram_gb})}),
        **_changed({"resident": list(workload.resident), "home": workload.home}),
        **_changed({"hours": [{"t": at, "active": active} for at, active in workload.modes]}),
    }


def _request(job: Job) -> dict[str, object]:
    return {
        "id": job.id,
        "t": job.at,
        "model": job.model,
        "lane": job.lane.value,
        "priority": job.priority.name.lower(),
        "caller": job.caller,
        "service_s": job.service_s,
        "first_byte_s": job.first_byte_s,
        **_changed({"prompt_tokens": job.prompt_tokens, "stream": job.streaming, "also_after": list(job.also_after)}),
        **_given({"after": job.after, "think_s": job.think_s or None, "max_tokens": job.max_tokens}),
        **_given({"cancel_after_s": job.cancel_after_s, "max_wait_s": job.max_wait_s}),
        "reports": _reports(job.usage),
    }


def _reports(usage: Usage) -> dict[str, object]:
    """Without the load time, from which nothing is learned."""
    return _given({name: value for name, value in asdict(usage).items() if name != "load_s"})


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _changed(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields that say anything."""
    return {name: value for name, value in fields.items() if value}
