"""One call of the model server for several callers: who is in it, what it asks, whose answer is where, and what is told of each.

An item of the queue like any other, with one slot and one place in line. Its body is made when an attempt starts, so a member that has
left by then costs nothing. A call for one member goes out as its caller sent it. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hearth.dialects.embedding import Part, SingleInput, joined_body, split_answer
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import HearthError
from hearth.events import Event, ItemDispatched, ItemEnded, ItemInterrupted, ItemPromoted, ItemProtected, ItemResent
from hearth.execution.request import ActiveRequest, Reply, ReplyHead, call_on
from hearth.ports import EventSink
from hearth.queue.effects import ItemRecorder
from hearth.queue.item import Submission
from hearth.queue.registry import Registry
from hearth.types import SEVERAL_CALLERS, BackendCall, Headers, Lane, Outcome, Priority, RequestId, Sequence, WorkKind


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


_JSON_BODY: Headers = ((b"content-type", b"application/json"),)


class Key(NamedTuple):
    """What calls must have in common to go together: address, model, place in line, and all of the body but the input."""

    path: str
    model: str | None
    lane: Lane
    priority: Priority
    task_type: str | None
    options: bytes


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """The call.

    Attributes:
        members: those that are alive.
        opened_at: when its first member came; called_at: when it went to the queue.
        sequence, reply: its place in the queue and its answer; None before.
        asked: whose inputs the last attempt asks for, as they were when it began.
        apart: its one member was in another call before, which has failed.
    """

    key: Key
    opened_at: float
    members: list[Member] = field(default_factory=list)
    called_at: float = 0.0
    sequence: Sequence | None = None
    reply: Reply | None = None
    asked: tuple[Member, ...] = ()
    apart: bool = False

    def item(self, request_id: RequestId, told: Callable[[Event], None]) -> Submission:
        """The call as the queue takes it."""
        self.asked = tuple(self.members)
        callers, first = {member.new.caller for member in self.members}, self.members[0].new
        return Submission(
            lane=self.key.lane,
            priority=self.key.priority,
            caller=first.caller if len(callers) == 1 else SEVERAL_CALLERS,
            model=self.key.model,
            task_type=self.key.task_type,
            kind=WorkKind.EMBED,
            dialect=first.dialect,
            prompt_tokens=sum(member.new.prompt_tokens for member in self.members),
            request_id=request_id,
            call=self._call_on,
            inputs=len(self.members),
            told=told,
            accepted=self.apart,
            carries=True,
        )

    def hear(self, event: Event) -> None:
        """With an attempt it is settled who is asked for: its body may be made more than once, and a member may leave in between."""
        if isinstance(event, ItemDispatched):
            self.asked = tuple(self.members) or self.asked

    def _call_on(self, model: str) -> BackendCall:
        if len(self.asked) > 1:
            body = joined_body([member.one for member in self.asked])
            return BackendCall(method="POST", path=self.key.path, headers=_JSON_BODY, body=body)
        return call_on(self.asked[0].new.call, model)

    def parts(self, body: bytes, prompt_tokens: int | None) -> list[Part] | None:
        """The answer to each of `asked` from the one to all of them; None where it cannot be told whose is what."""
        if len(self.asked) == 1:
            return [Part(body=body, prompt_tokens=prompt_tokens)]
        return split_answer(INFERENCE_ROUTES[self.key.path.partition("?")[0]], body, [member.one for member in self.asked])
