"""What is shown of the leases of the GPU: each to who may see it, and to everybody only that there
are some. `wall_s`: add it to an instant for seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from hearth.execution.gpu_leases import Lease, LeaseSource
from hearth.scheduling.views import StatusView
from hearth.types import JsonDict


def lease_shown(lease: Lease, wall_s: float) -> JsonDict:
    """One lease; `mib` is null for all memory, `until` where only its holder ends it."""
    return {"id": lease.id, **_without_id(lease, wall_s)}


def gpu_shown(leases: Collection[Lease], view: StatusView, wall_s: float) -> JsonDict:
    """Who has the GPU, without names of callers and what they wrote: `state` is free, yielding
    (memory is being freed) or yielded; `mib` is null for all that there is, and `until` where no
    time is known.
    """
    if not leases:
        return {"state": "free", "to": None, "mib": None, "since": None, "until": None}
    mib = sum(inf if lease.mib is None else lease.mib for lease in leases)
    ends = [lease.until for lease in leases if lease.until is not None]
    is_granted = all(lease.granted_at is not None for lease in leases)
    return {
        "state": "yielded" if is_granted else "yielding",
        "to": ", ".join(dict.fromkeys(_kind_of(lease.source) for lease in leases)),
        "mib": None if mib >= (view.capacity_mib or inf) else mib,
        "since": _wall(min(lease.taken_at for lease in leases), wall_s),
        "until": _wall(max(ends), wall_s) if len(ends) == len(leases) else None,
    }


def leases_shown(leases: Collection[Lease], view: StatusView, wall_s: float) -> JsonDict:
    """What the status says, to every caller: also how many requests wait because of that, which
    models are still in the way, and each lease without the id by which it is ended.
    """
    return {
        **gpu_shown(leases, view, wall_s),
        "waiting": view.waiting_for_leases,
        "in_the_way": list(view.in_leased_room),
        "held": [_without_id(lease, wall_s) for lease in leases],
    }


def _without_id(lease: Lease, wall_s: float) -> JsonDict:
    return {
        "mib": lease.mib,
        "reason": lease.reason,
        "source": lease.source,
        "caller": lease.taken_by,
        "since": _wall(lease.taken_at, wall_s),
        "until": None if lease.until is None else _wall(lease.until, wall_s),
        "granted": lease.granted_at is not None,
    }


def _kind_of(source: LeaseSource) -> str:
    match source:
        case "games":
            return "a game"
        case "pressure":
            return "other programs"
        case "comfyui":
            return "ComfyUI"
        case "suspend":
            return "sleep"
        case "api" | "connection" | "named":
            return "another program"


def _wall(at: float, wall_s: float) -> float:
    return round(at + wall_s, 2)
