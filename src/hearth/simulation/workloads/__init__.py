"""What is asked of the house: the values of a workload, random ones for tests, and the named ones that ship (`WORKLOADS`, `LONG`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from hearth.simulation.workloads import mixes
from hearth.simulation.workloads.jobs import Job, Mix, SwapCosts, Workload, random_workload
from hearth.simulation.workloads.mixes import LONG, NEAR_CAPACITY

__all__ = ["LONG", "NEAR_CAPACITY", "WORKLOADS", "Job", "Mix", "SwapCosts", "Workload", "random_workload"]

WORKLOADS: Mapping[str, Callable[[], Workload]] = MappingProxyType(
    {
        "single_model": mixes.single_model,
        "balanced": mixes.balanced,
        "bursty": mixes.bursty,
        "dominant": mixes.dominant,
        "interleave": mixes.interleave,
        "two_medium": partial(mixes.poisson, mixes.TWO, mixes.MEDIUM),
        "two_heavy": partial(mixes.poisson, mixes.TWO, mixes.HEAVY),
        "equal_medium": partial(mixes.poisson, mixes.EQUAL, mixes.MEDIUM),
        "equal_heavy": partial(mixes.poisson, mixes.EQUAL, mixes.HEAVY),
        "three_medium": partial(mixes.poisson, mixes.THREE, mixes.MEDIUM),
        "three_heavy": partial(mixes.poisson, mixes.THREE, mixes.HEAVY),
        "four_medium": partial(mixes.poisson, mixes.FOUR, mixes.MEDIUM),
        "four_heavy": partial(mixes.poisson, mixes.FOUR, mixes.HEAVY),
        "equal_bursts": partial(mixes.in_bursts, mixes.EQUAL, mixes.HEAVY),
        "three_bursts": partial(mixes.in_bursts, mixes.THREE, mixes.MEDIUM),
        "two_diurnal": partial(mixes.diurnal, mixes.TWO, mixes.HEAVY),
        "three_diurnal": partial(mixes.diurnal, mixes.THREE, mixes.MEDIUM),
        "two_overload": partial(mixes.poisson, mixes.EQUAL, mixes.OVERLOAD),
        "four_overload": partial(mixes.poisson, mixes.FOUR, mixes.OVERLOAD),
        "agents": mixes.agents,
        "relay": mixes.relay,
        "house_day": mixes.house_day,
        "prompts": mixes.prompts,
    }
)
"""Builders by name; each makes the same workload every time."""
