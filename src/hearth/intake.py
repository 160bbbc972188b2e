"""What comes in through the door: a request as it is submitted, the ticket for it, and the item that the scheduler will know it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hearth.reply import Reply
from hearth.types import BackendCall, Dialect, Lane, Priority, QueueItem, RequestId, Sequence, WorkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItem:
    """A request as it is submitted. `call` is the backend call, or makes it once the model is chosen (`model` None)."""

    lane: Lane
    priority: Priority
    caller: str
    model: str | None
    request_id: RequestId
    call: BackendCall | Callable[[str], BackendCall]
    task_type: str | None = None
    kind: WorkKind = WorkKind.GENERATE
    dialect: Dialect = Dialect.OLLAMA
    streaming: bool = False
    prompt_tokens: int = 0
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """An accepted request: `position` items were ahead of it when it came; the answer arrives in `reply`."""

    sequence: Sequence
    request_id: RequestId
    position: int
    reply: Reply


def item_of(new: NewItem, sequence: Sequence, now: float, max_wait_s: float) -> QueueItem:
    """The accepted item; with `max_wait_s` 0 it waits for ever."""
    return QueueItem(
        sequence=sequence,
        request_id=new.request_id,
        lane=new.lane,
        priority=new.priority,
        caller=new.caller,
        model=new.model,
        arrived_at=now,
        task_type=new.task_type,
        kind=new.kind,
        dialect=new.dialect,
        streaming=new.streaming,
        prompt_tokens=new.prompt_tokens,
        max_tokens=new.max_tokens,
        expires_at=now + max_wait_s if max_wait_s > 0 else None,
    )
