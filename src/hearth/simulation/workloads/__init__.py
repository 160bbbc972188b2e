"""What is asked of the house: the values of a workload, random ones for tests, and the named ones that ship (`WORKLOADS`, `LONG`)."""

from __future__ import annotations

from hearth.simulation.workloads.jobs import Job, Mix, SwapCosts, Workload, random_workload
from hearth.simulation.workloads.long import LONG, NEAR_CAPACITY
from hearth.simulation.workloads.shipped import WORKLOADS

__all__ = ["LONG", "NEAR_CAPACITY", "WORKLOADS", "Job", "Mix", "SwapCosts", "Workload", "random_workload"]
