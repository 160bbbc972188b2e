"""Which model a band serves next when it has a choice.

A policy compares the heads of a band's lines; it never reaches across bands, never sees what is behind a head, and knows learned
estimates only. Rules that hold for every policy (bands, settling, the age that may force a swap) live in `scheduling.core`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hearth.config.settings import PolicyName
from hearth.scheduling.policies.affinity import affinity
from hearth.scheduling.policies.candidate import Candidate
from hearth.scheduling.policies.fifo import fifo

__all__ = ["POLICIES", "Candidate", "Choose", "Policy"]

Choose = Callable[[list[Candidate]], Candidate]
"""From one or more candidates of a band, the one to serve next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A way to choose. `ages`: an item that has waited too long may force a swap."""

    choose: Choose
    ages: bool


POLICIES: Mapping[PolicyName, Policy] = MappingProxyType(
    {PolicyName.FIFO: Policy(choose=fifo, ages=False), PolicyName.AFFINITY: Policy(choose=affinity, ages=True)}
)
