"""What aliases would change in a workload: the same requests, for any of several models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from hearth.scheduling.actions import Action
from hearth.scheduling.core import Scheduler
from hearth.scheduling.forecast import ForecastView
from hearth.scheduling.inputs import Arrived, Input
from hearth.simulation.engine import Handle
from hearth.simulation.workloads import Workload, WorkloadJob

THIRD_OF_HOUSE_DAY = ("automations", "chat", "editor")
"""Callers of that workload that send a third of its requests."""


def with_aliases(
    workload: Workload, aliases: Mapping[str, Sequence[str]], callers: Collection[str] = ()
) -> Workload:
    """The workload in which a request for a model of an alias is one for the alias; only those of
    these callers, if any are given. A model is in one alias at most.
    """
    alias_of = {model: alias for alias, models in aliases.items() for model in models}

    def aliased(job: WorkloadJob) -> WorkloadJob:
        alias = alias_of.get(job.model or "")
        if alias is None or (callers and job.caller not in callers):
            return job
        choices = tuple(aliases[alias])
        return replace(workload.on_model(job, choices[0]), alias=alias, choices=choices)

    return replace(workload, jobs=tuple(map(aliased, workload.jobs)))


class BoundOnArrival:
    """Before a scheduler, or what `handle` puts around it: each request of an alias is bound when
    it arrives, to the model that would serve it then. So does a router that does not hold the
    queue.
    """

    def __init__(self, scheduler: Scheduler, handle: Handle | None = None) -> None:
        self._handle = scheduler.handle if handle is None else handle
        self._view = ForecastView(scheduler)

    def handle(self, fact: Input, now: float) -> list[Action]:
        """As `Scheduler.handle`."""
        if isinstance(fact, Arrived) and fact.item.choices:
            model = self._view.waits_for(fact.item)
            fact = Arrived(item=replace(fact.item, model=model, alias="", choices=()))
        return self._handle(fact, now)
