"""Folding the owner's orders into the state, and obeying them once everything that waits has been seen to.

An order never goes before work: a load waits until the house is at rest, unless there is room beside what is in memory, and an unload
is void as soon as somebody asks for the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hearth.scheduling import inputs
from hearth.scheduling.actions import Action
from hearth.scheduling.home import MAX_RESTORES
from hearth.scheduling.inputs import Input
from hearth.scheduling.state import State


def _paused(state: State, fact: inputs.ExternalPaused, _now: float) -> list[Action]:
    state.orders.paused = fact.paused
    return []


def _pinned(state: State, fact: inputs.ModelPinned, _now: float) -> list[Action]:
    """Pinning asks for the model, too; unpinning takes that back."""
    orders, model = state.orders, fact.model
    if orders.pinned is not None and orders.pinned != model:
        orders.settle(orders.pinned)
    orders.pinned = model
    state.home_failures = 0
    if model is not None:
        _want(state, model)
    return []


def _load_ordered(state: State, fact: inputs.LoadOrdered, _now: float) -> list[Action]:
    _want(state, fact.model)
    return []


def _want(state: State, model: str) -> None:
    if state.is_there(model):
        state.orders.settle(model)
    else:
        state.orders.want(model)


def _unload_ordered(state: State, fact: inputs.UnloadOrdered, _now: float) -> list[Action]:
    """The model to come back to is then left alone until something was loaded: else it would be back in a moment."""
    state.orders.unwant(fact.model)
    if fact.model == state.comes_back:
        state.home_failures = MAX_RESTORES
    return []


ORDER_FOLDS: Mapping[type[Input], Callable[[State, Any, float], list[Action] | None]] = MappingProxyType(
    {
        inputs.ExternalPaused: _paused,
        inputs.ModelPinned: _pinned,
        inputs.LoadOrdered: _load_ordered,
        inputs.UnloadOrdered: _unload_ordered,
    }
)
"""As `facts.FOLDS`, of which they are a part."""
