"""What is shown of the leases of the GPU: each to who may see it, and to everybody only that there
are some.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from hearth.execution.gpu_leases import Lease, LeaseSource
from hearth.types import JsonDict

Wall = Callable[[float | None], float | None]
"""The seconds since 1970 of a monotonic instant."""

_HOLDERS: Mapping[LeaseSource, str] = {
    "api": "another program",
    "connection": "another program",
    "games": "a game",
    "named": "another program",
    "pressure": "other programs",
    "comfyui": "ComfyUI",
}


def lease_shown(lease: Lease, wall: Wall) -> JsonDict:
    """One lease; `mib` is null for all memory, `until` where only its holder ends it."""
    return {
        "id": lease.id,
        "mib": lease.mib,
        "reason": lease.reason,
        "source": lease.source,
        "caller": lease.taken_by,
        "since": wall(lease.taken_at),
        "until": wall(lease.until),
        "granted": lease.granted_at is not None,
    }


def gpu_shown(leases: Collection[Lease], wall: Wall) -> JsonDict:
    """Who has the GPU, without names of callers and what they wrote: `state` is free, yielding
    (memory is being freed) or yielded; `until` is null where no time is known.
    """
    if not leases:
        return {"state": "free", "to": None, "mib": None, "since": None, "until": None}
    sizes = [lease.mib for lease in leases if lease.mib is not None]
    ends = [lease.until for lease in leases if lease.until is not None]
    is_granted = all(lease.granted_at is not None for lease in leases)
    return {
        "state": "yielded" if is_granted else "yielding",
        "to": ", ".join(dict.fromkeys(_HOLDERS[lease.source] for lease in leases)),
        "mib": sum(sizes) if len(sizes) == len(leases) else None,
        "since": wall(min(lease.taken_at for lease in leases)),
        "until": wall(max(ends)) if len(ends) == len(leases) else None,
    }
