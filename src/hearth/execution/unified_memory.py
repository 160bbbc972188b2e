"""What models may have of main memory, where the GPU has none of its own.

There, a model too many goes into swap, not onto the CPU: the machine crawls, or hangs until it is
switched off. So a reserve is kept beside what all programs use now, and swap never counts.
"""

from __future__ import annotations

from dataclasses import replace

from hearth.config.choices import MIB_PER_GB
from hearth.types import GpuReading

RESERVE_SHARE = 0.1
LEAST_RESERVE_MIB = 4 * MIB_PER_GB
MOST_RESERVE_MIB = 12 * MIB_PER_GB
"""A tenth of main memory, of all and not of what is free now, up to 12 GiB is what
github.com/NousResearch/hermes-agent/pull/103274 keeps; llamastash keeps 8 GiB (issue 80). With less
than 0.82 to 0.87 of a GB10 for models its owners have no trouble (MiaAI-Lab/DeepSeek-v4-Flash
issue 5, GLM-5.3-Flash issue 47). Desktops of small machines need more than a tenth.
"""


def reserve_mib(total_mib: float, reserve_gb: float | None) -> float:
    """What stays free of this much main memory; `reserve_gb`: as configured."""
    if reserve_gb is not None:
        return reserve_gb * MIB_PER_GB
    return min(MOST_RESERVE_MIB, max(LEAST_RESERVE_MIB, RESERVE_SHARE * total_mib))


def as_card(reading: GpuReading, reserve_gb: float | None) -> GpuReading:
    """A reading in whose numbers main memory is a card: what models may have at most, and how much
    of that is not to be had now. Any other reading as it is.
    """
    if not reading.unified or reading.total_mib is None or reading.used_mib is None:
        return reading
    kept_mib = reserve_mib(reading.total_mib, reserve_gb)
    most_mib = max(0.0, reading.total_mib - kept_mib)
    free_mib = most_mib - reading.used_mib
    limit_mib = reading.gpu_limit_mib
    if limit_mib is not None:
        most_mib = min(most_mib, limit_mib)
        free_mib = min(free_mib, limit_mib - (reading.gpu_used_mib or 0.0))
    return replace(reading, total_mib=most_mib, used_mib=most_mib - max(0.0, free_mib))
