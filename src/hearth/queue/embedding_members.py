"""A caller's own request within a call for several: an item with a number, events and an end like any other, without a place in the queue.

What happens to the call happens to each of them. Tells; never decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hearth.dialects.embedding import SingleInput
from hearth.errors import HearthError
from hearth.events import Event, ItemDispatched, ItemEnded, ItemInterrupted, ItemPromoted, ItemProtected, ItemResent
from hearth.execution.reply import ReplyHead
from hearth.execution.request import ActiveRequest
from hearth.ports import EventSink
from hearth.queue.item import Submission
from hearth.queue.recorder import ItemRecorder
from hearth.queue.registry import Registry
from hearth.types import Outcome


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    """One caller's request.

    Attributes:
        new: as it was submitted; one: what it asks for.
        attempts_before, interrupts_before: those of an earlier call that it was in.
    """

    work: ActiveRequest
    new: Submission
    one: SingleInput
    attempts_before: int = 0
    interrupts_before: int = 0


class Roll:
    """The members that are alive, and what is said of them."""

    def __init__(self, events: EventSink, registry: Registry) -> None:
        self._emit = events.emit
        self._recorder = ItemRecorder(events)
        self._registry = registry

    def enter(self, member: Member, position: int) -> None:
        """It was accepted, with `position` items ahead of the call that it will be in."""
        self._registry.add(member.work)
        self._recorder.queued(member.work, position, member.work.item.arrived_at)

    def tell(self, member: Member, event: Event) -> None:
        """Something has happened to the call that it is in."""
        work, before = member.work, member.attempts_before
        if isinstance(event, ItemDispatched):
            work.begin_attempt(before + event.attempt, event.model or "", event.at)
            self._emit(replace(event, attempt=work.attempt, waited_s=event.at - work.item.arrived_at, **work.identity))
        elif isinstance(event, ItemInterrupted):
            work.interrupts = member.interrupts_before + event.interrupt_count
            work.back_in_line()
            self._emit(replace(event, attempt=work.attempt, interrupt_count=work.interrupts, **work.identity))
        elif isinstance(event, ItemProtected):
            self._emit(replace(event, interrupt_count=work.interrupts, **work.identity))
        elif isinstance(event, ItemResent):
            work.back_in_line()
            self._emit(replace(event, attempt=work.attempt, **work.identity))
        elif isinstance(event, ItemPromoted):
            self._emit(replace(event, **work.identity))

    def apart(self, member: Member, reason: str, at: float) -> None:
        """The call that it was in has failed, and it is asked for by itself: one item, whose attempts go on counting."""
        work = member.work
        member.attempts_before, member.interrupts_before = work.attempt, work.interrupts
        if work.dispatched_at is None:  # it was back in line already
            return
        work.back_in_line()
        self._emit(ItemResent(at=at, attempt=work.attempt, reason=reason, **work.identity))

    def answer(self, member: Member, head: ReplyHead, body: bytes) -> None:
        """Hand over its answer."""
        reply = member.work.reply
        reply.start(head)
        reply.push(body)
        reply.finish()

    def end(self, member: Member, ended: ItemEnded, *, called_at: float, prompt_tokens: int | None, error: HearthError | None) -> None:
        """It has ended as the call has, which was submitted at `called_at`; an error is told to its caller."""
        work = member.work
        if not work.end(ended.outcome):
            return
        if error is not None:
            work.reply.fail(error)
        self._registry.end(work)
        held_s = called_at - work.item.arrived_at
        attempts, interrupts = member.attempts_before + ended.attempts, member.interrupts_before + ended.interrupt_count
        own = replace(ended, queue_s=ended.queue_s + held_s, total_s=ended.total_s + held_s, **work.identity)
        self._emit(replace(own, attempts=attempts, interrupt_count=interrupts, prompt_tokens=prompt_tokens))

    def leave(self, member: Member, outcome: Outcome, error: HearthError, at: float) -> None:
        """It has ended before its call has."""
        work = member.work
        if not work.end(outcome):
            return
        work.error = error
        work.reply.fail(error)
        self._registry.end(work)
        self._recorder.ended(work, at)
