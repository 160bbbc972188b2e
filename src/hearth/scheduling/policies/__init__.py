"""Which model a band serves next when it has a choice.

A policy compares the heads of a band's lines and how much waits behind each; it never reaches across bands and knows learned estimates
only. Rules that hold for every policy (bands, settling, one swap at a time) live in `scheduling.placement`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hearth.config.choices import PolicyName
from hearth.scheduling.policies.adaptive import adaptive, is_late
from hearth.scheduling.policies.candidates import Candidate, Candidates
from hearth.scheduling.policies.plain import affinity, all_earned, cost_aware, fifo, time_slice
from hearth.scheduling.state import State

__all__ = ["POLICIES", "Candidate", "Policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A way to choose."""

    # of the candidates of a band at an instant, the one to serve next; or the instant until which no swap is started, which only makes
    # sense where all of them need one
    choose: Callable[[Candidates, State, float], Candidate | float]
    learns: bool  # it reads what was learned of callers (`arrivals`)
    # may the longest waiting item that needs a swap, `max_swap_wait_s` old, force it now (rule 5 of `placement`)? None: never
    forces: Callable[[Candidate, Candidates, State, float], bool] | None = None
    preloads: bool = False  # a model that is likely to be asked for next is loaded while nothing else is to be done


POLICIES: Mapping[PolicyName, Policy] = MappingProxyType(
    {
        PolicyName.FIFO: Policy(choose=fifo, learns=False),
        PolicyName.AFFINITY: Policy(choose=affinity, learns=False, forces=all_earned),
        PolicyName.COST_AWARE: Policy(choose=cost_aware, learns=True),
        PolicyName.TIME_SLICE: Policy(choose=time_slice, learns=True),
        PolicyName.ADAPTIVE: Policy(choose=adaptive, learns=True, forces=is_late, preloads=True),
    }
)
