"""Runs every policy on every workload and shows how far it is. Called by `hearth.cli.simulate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress

from hearth.cli.simulate_sources import Source
from hearth.clock import Clock
from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.simulation.engine import brain_for, simulate
from hearth.simulation.estimating import EstimateError, Estimating
from hearth.simulation.records import Run

SILENT_S = 1.0
"""What is over by then shows no bar."""
ESTIMATES = 50
"""Arrivals of a run whose wait is estimated: each costs a few milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """One policy on one workload; `workload` is None where it has no name."""

    workload: str | None
    policy: str
    run: Run
    estimates: EstimateError


class RunProgress:
    """A bar on a terminal, from the first second on."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._began_at = clock.monotonic()
        self._bar: Progress | None = None
        self._total = self._before = 0

    @contextmanager
    def over(self, total: int) -> Iterator[None]:
        """Count up to `total` requests within the block; the bar is gone after it."""
        self._total = total
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()

    def arrived(self, requests: int) -> None:
        """So many requests of the present run have arrived."""
        if self._bar is None and self._console.is_terminal and self._clock.monotonic() - self._began_at > SILENT_S:
            self._bar = Progress(console=self._console, transient=True)
            self._bar.add_task("simulating", total=self._total)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._before + requests)

    def ended(self, requests: int) -> None:
        """A run of so many requests is over."""
        self.arrived(requests)
        self._before += requests


def run_policies(
    sources: Sequence[Source], base: SchedulerSettings, policies: Sequence[PolicyName], progress: RunProgress
) -> list[PolicyRun]:
    """Every policy on every workload, in this order. Raises as `simulate`."""
    runs = []
    for source in sources:
        for policy in policies:
            runs.append(_run(source, base, policy, progress))
            progress.ended(len(source.workload.jobs))
    return runs


def _run(source: Source, base: SchedulerSettings, policy: PolicyName, progress: RunProgress) -> PolicyRun:
    settings = source.workload.settings(base, policy)
    brain = Estimating(brain_for(source.workload, settings), every=max(1, len(source.workload.jobs) // ESTIMATES))
    run = simulate(source.workload, settings, brain, keep_decisions=False, on_progress=progress.arrived)
    return PolicyRun(workload=source.name, policy=policy.value, run=run, estimates=brain.error())
