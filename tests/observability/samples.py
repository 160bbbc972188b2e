"""One event of every kind, built from the field types, so that a new kind is covered the day it is
written.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from hearth import events
from hearth.events import (
    BackendWentDown,
    Event,
    ItemEnded,
    ItemEvent,
    ItemInterrupted,
    JobEvent,
    RequestRejected,
)
from hearth.types import Lane, Outcome, RequestId
from tests.support.fields import Fields

E = TypeVar("E", bound=Event)


def all_kinds() -> list[type[Event]]:
    """Every concrete event class, by name."""
    found = [
        known
        for known in vars(events).values()
        if isinstance(known, type) and issubclass(known, Event)
    ]
    return sorted(
        (kind for kind in found if kind not in (Event, ItemEvent, JobEvent)),
        key=lambda kind: kind.__name__,
    )


def sample(kind: type[E], /, *, text: str = "word", at: float = 5.0, **chosen: Any) -> E:
    """An event of `kind` with `text` in every text field that is not chosen."""
    hints = typing.get_type_hints(kind)
    values: Fields = {field.name: _value(hints[field.name], text) for field in fields(kind)}
    return kind(**{**values, "at": at, **chosen})


def _value(hint: object, text: str) -> object:
    hint = getattr(hint, "__supertype__", hint)
    options = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return options[-1]
    if typing.get_origin(hint) is tuple:
        return (text, text)
    if typing.get_origin(hint) is Mapping:
        return {text: 1.25}
    if type(None) in options:
        return _value(options[0], text)
    known = {
        str: text,
        int: 3,
        float: 1.25,
        bool: True,
        Lane: Lane.EXTERNAL,
        Outcome: Outcome.COMPLETED,
    }
    return known[typing.cast("type", hint)]


def fact(at: float) -> Event:
    """An event that is known by its instant."""
    return BackendWentDown(at=at, reason="test")


OF_ITEM: Fields = {
    "sequence": 1,
    "request_id": "req_1",
    "caller": "webui",
    "model": "home:32b",
    "task_type": None,
}
TOOK: Fields = {
    "queue_s": 0.25,
    "swap_s": 0.0,
    "first_byte_s": 0.5,
    "backend_s": 2.0,
    "total_s": 2.25,
}
CAME_OUT: Fields = {
    "attempts": 1,
    "interrupt_count": 0,
    "prompt_tokens": 12,
    "output_tokens": 34,
    "status": 200,
    "reason": "",
}
NOTHING: Fields = {"resumed": None, "cost_usd": None, "chain_id": None}


def ended(
    outcome: Outcome = Outcome.COMPLETED,
    *,
    lane: Lane = Lane.EXTERNAL,
    at: float = 0.0,
    **more: Any,
) -> ItemEnded:
    return ItemEnded(
        **{
            **OF_ITEM,
            **TOOK,
            **CAME_OUT,
            **NOTHING,
            "outcome": outcome,
            "lane": lane,
            "at": at,
            **more,
        }
    )


def interrupted(*, lane: Lane = Lane.EXTERNAL, at: float = 0.0, **more: Any) -> ItemInterrupted:
    return ItemInterrupted(
        **{
            **OF_ITEM,
            "lane": lane,
            "at": at,
            "attempt": 1,
            "interrupt_count": 1,
            "ran_s": 1.0,
            **more,
        }
    )


def rejected(
    *, at: float = 0.0, caller: str = "webui", reason: str = "rate_limited", status: int = 429
) -> RequestRejected:
    return RequestRejected(
        at=at,
        request_id=RequestId("req_2"),
        caller=caller,
        path="/api/chat",
        status=status,
        reason=reason,
    )
