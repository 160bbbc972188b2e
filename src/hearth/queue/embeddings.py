"""Where an embedding call with a single input waits for others to share a call with: after Macaw's batch accumulator, without its delay
for a lone call.

A call that nothing like it is under way for goes to the queue at once. While one is, those that come are held, and go together: when
`max_inputs` are there, when the last one under way has ended, after `max_wait_ms`, or when a call for another model comes, so that models
wait in the order in which they were asked for. A shared call is an item of the queue like any other, with one slot and one place in line;
its body is made when an attempt starts, so a member that has left by then costs nothing. What one input can spoil for all (an error
status, a connection that breaks) is asked again one by one. Must never wait for anything itself: it has timers, no tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from hearth.clock import new_id
from hearth.config.settings import EmbeddingSettings
from hearth.dialects.embedding import Part, SingleInput, joined_body, single_input, split_answer
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.errors import BackendGone, BackendProtocolError, BackendTimeout, CallerGone, HearthError, ShuttingDown
from hearth.events import (
    DrainStarted,
    EmbeddingsFlushed,
    EmbeddingsParted,
    Event,
    GatewayStopping,
    ItemDispatched,
    ItemEnded,
    ItemInterrupted,
    ItemPromoted,
    ItemProtected,
    ItemResent,
)
from hearth.execution.request import ActiveRequest, Reply, ReplyHead, Submission, Ticket
from hearth.queue import status
from hearth.queue.forecaster import Forecaster
from hearth.queue.worker import LLMQueueWorker
from hearth.types import (
    MIB,
    SEVERAL_CALLERS,
    BackendCall,
    Headers,
    Lane,
    Outcome,
    Priority,
    QueueItem,
    RequestId,
    Sequence,
    WorkKind,
)

_ONE_CAN_CAUSE = (BackendGone, BackendProtocolError, BackendTimeout)
"""Ends of a call that one of its inputs can bring about; what ails the model server as a whole is everybody's."""
_JSON_BODY: Headers = ((b"content-type", b"application/json"),)


class Why(StrEnum):
    """What sent a call to the queue."""

    ALONE = "alone"
    """Nothing like it was under way."""
    FULL = "full"
    TIMER = "timer"
    IDLE = "idle"
    """The last one like it has ended."""
    OTHER_MODEL = "other_model"
    APART = "apart"
    """The call that it was in has failed."""
    STOPPING = "stopping"


class Key(NamedTuple):
    """What calls must have in common to go together: address, model, place in line, and all of the body but the input."""

    path: str
    model: str | None
    lane: Lane
    priority: Priority
    task_type: str | None
    options: bytes


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    """One caller's request; `attempts_before` and `interrupts_before` are those of an earlier call that it was in."""

    work: ActiveRequest
    one: SingleInput
    attempts_before: int = 0
    interrupts_before: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """A call for its members.

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

    def submission(self, told: Callable[[Event], None]) -> Submission:
        """The call as the queue takes it. A call for one member goes out as its caller sent it."""
        self.asked = tuple(self.members)
        items = [member.work.item for member in self.members]
        item = QueueItem(
            lane=self.key.lane,
            priority=self.key.priority,
            caller=items[0].caller if len({item.caller for item in items}) == 1 else SEVERAL_CALLERS,
            model=self.key.model,
            task_type=self.key.task_type,
            kind=WorkKind.EMBED,
            dialect=items[0].dialect,
            prompt_tokens=sum(item.prompt_tokens for item in items),
            request_id=RequestId(new_id("embed_")),
            inputs=len(items),
        )
        return Submission(item=item, call=self._call_on, told=told, accepted=self.apart, carries=True)

    def _call_on(self, model: str) -> BackendCall:
        if len(self.asked) == 1:
            return self.asked[0].work.new.call_on(model)
        body = joined_body([member.one for member in self.asked])
        return BackendCall(method="POST", path=self.key.path, headers=_JSON_BODY, body=body)

    def parts(self, body: bytes, prompt_tokens: int | None) -> list[Part] | None:
        """The answer to each of `asked` from the one to all of them; None where it cannot be told whose is what."""
        if len(self.asked) == 1:
            return [Part(body=body, prompt_tokens=prompt_tokens)]
        return split_answer(_route(self.key.path), body, [member.one for member in self.asked])


@dataclass(slots=True, eq=False)
class _Group:
    """Calls that can go together: how many are in the queue or at the model server, and the one that is being filled."""

    underway: int = 0
    held: Batch | None = None
    timer: asyncio.TimerHandle | None = None


class EmbeddingBatcher:
    """Puts single embedding calls together. Must live on the event loop of the worker, which does the rest."""

    def __init__(self, worker: LLMQueueWorker) -> None:
        self._worker = worker
        self._registry = worker.registry
        self._runtime = worker.runtime
        self._clock = worker.runtime.clock
        self._emit = worker.runtime.events.emit
        self._state = worker.runtime.state
        self._forecaster = Forecaster(self._state)
        self._groups: dict[Key, _Group] = {}
        self._seats: dict[Sequence, tuple[Member, Batch]] = {}
        self._stopping = False

    # The way in.

    def take(self, new: Submission) -> Ticket | None:
        """Accept an embedding call that can share one with others; None where the queue is to take it as it is.

        Raises:
            QueueFull: it would go alone, and there is no room.
        """
        item, call = new.item, new.call
        is_critical = item.lane is Lane.INTERNAL and item.priority is Priority.CRITICAL
        if self._stopping or not self._settings.accumulate or is_critical or not isinstance(call, BackendCall):
            return None
        one = single_input(_route(call.path), call.body)
        if one is None:
            return None
        key = Key(call.path, item.model, item.lane, item.priority, item.task_type, one.options)
        self._flush_all(Why.OTHER_MODEL, lambda held: held.model != key.model)
        group = self._groups.setdefault(key, _Group())
        if not group.underway and group.held is None:
            return self._alone(key, group, new)
        return self._join(key, group, new, one)

    def _alone(self, key: Key, group: _Group, new: Submission) -> Ticket:
        """An item of its own; only its end is of interest here."""
        group.underway += 1

        def told(event: Event) -> None:
            self._emit(event)
            if isinstance(event, ItemEnded):
                asyncio.get_running_loop().call_soon(self._over, key)

        try:
            ticket = self._worker.submit(replace(new, told=told))
        except HearthError:
            self._over(key)
            raise
        self._emit(EmbeddingsFlushed(at=self._clock.monotonic(), model=key.model, inputs=1, why=Why.ALONE.value, held_s=0.0))
        return ticket

    def _join(self, key: Key, group: _Group, new: Submission, one: SingleInput) -> Ticket:
        settings, now = self._settings, self._clock.monotonic()
        if group.held is None:
            group.held = Batch(key=key, opened_at=now)
            group.timer = asyncio.get_running_loop().call_later(settings.max_wait_ms / 1000, self._flush, key, Why.TIMER)
        limit_bytes = int(self._runtime.settings.server.write_buffer_mib * MIB)
        work = self._registry.number(new, self, now, limit_bytes=limit_bytes, on_abandon=self._leave)
        item, position = work.item, self._state.waiting.ahead_of(work.item.band)
        wait_s = self._forecaster.wait_s(item, 0, now)
        is_rough = self._forecaster.is_rough(item, wait_s)
        self._sit(Member(work=work, one=one), group.held)
        self._registry.add(work, position, now)
        if len(group.held.members) >= settings.max_inputs:
            self._flush(key, Why.FULL)
        return Ticket(
            sequence=item.sequence,
            request_id=item.request_id,
            position=position,
            estimated_wait_s=wait_s,
            is_rough=is_rough,
            reply=work.reply,
        )

    def _sit(self, member: Member, batch: Batch) -> None:
        batch.members.append(member)
        self._seats[member.work.item.sequence] = member, batch

    # On to the queue.

    def _flush_all(self, why: Why, wanted: Callable[[Key], bool]) -> None:
        for key in [key for key, group in self._groups.items() if group.held is not None and wanted(key)]:
            self._flush(key, why)

    def _flush(self, key: Key, why: Why) -> None:
        """What is held goes to the queue now."""
        batch = self._unhold(self._groups[key])
        if batch is not None:
            self._submit(batch, why)

    def _unhold(self, group: _Group) -> Batch | None:
        batch, timer = group.held, group.timer
        group.held = group.timer = None
        if timer is not None:
            timer.cancel()
        return batch

    def _submit(self, batch: Batch, why: Why) -> None:
        batch.called_at = now = self._clock.monotonic()
        self._groups[batch.key].underway += 1
        inputs = len(batch.members)
        try:
            ticket = self._worker.submit(batch.submission(partial(self._told, batch)))
        except HearthError as error:
            self._dismiss(batch, error)
            self._over(batch.key)
            return
        batch.sequence, batch.reply = ticket.sequence, ticket.reply
        self._emit(EmbeddingsFlushed(at=now, model=batch.key.model, inputs=inputs, why=why.value, held_s=now - batch.opened_at))

    # What became of it.

    def _told(self, batch: Batch, event: Event) -> None:
        """Called within a decision of the worker's: what leads to another submission has to wait for its end."""
        if isinstance(event, ItemEnded):
            asyncio.get_running_loop().call_soon(self._settle, batch, event)
            return
        if isinstance(event, ItemDispatched):  # with an attempt it is settled who is asked for: a member may leave before its end
            batch.asked = tuple(batch.members) or batch.asked
        for member in batch.members:
            self._tell(member, event)

    def _tell(self, member: Member, event: Event) -> None:
        """Something has happened to the call that it is in."""
        work = member.work
        if isinstance(event, ItemDispatched):
            work.begin_attempt(member.attempts_before + event.attempt, event.model or "", event.at)
            self._registry.dispatched(work, event.at)
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

    def _settle(self, batch: Batch, ended: ItemEnded) -> None:
        try:
            if batch.members and batch.reply is not None:
                self._hand_out(batch, batch.reply, ended)
        except Exception as error:  # noqa: BLE001 - supervision point: whatever a defect raises, no caller waits for ever
            self._runtime.report_fault("embeddings", error)
            self._dismiss(batch, HearthError())
        self._over(batch.key)

    def _hand_out(self, batch: Batch, answer: Reply, ended: ItemEnded) -> None:
        try:
            head, body = answer.whole()
        except HearthError as error:
            if len(batch.members) > 1 and isinstance(error, _ONE_CAN_CAUSE):
                self._part(batch, error.reason)
                return
            for member in self._rise(batch):
                self._end(member, batch, ended, error=error.again())
            return
        parts = batch.parts(body, ended.prompt_tokens)
        if head.status >= 400 and len(batch.asked) > 1:
            self._part(batch, f"status_{head.status}")
        elif parts is None:
            self._part(batch, "unknown_answer")
        else:
            alive = set(map(id, self._rise(batch)))
            for member, part in zip(batch.asked, parts, strict=True):
                if id(member) in alive:
                    reply = member.work.reply
                    reply.start(_head_for(head, part.body, len(batch.asked)))
                    reply.push(part.body)
                    reply.finish()
                    self._end(member, batch, ended, prompt_tokens=part.prompt_tokens)

    def _end(
        self, member: Member, batch: Batch, ended: ItemEnded, *, prompt_tokens: int | None = None, error: HearthError | None = None
    ) -> None:
        """It has ended as the call has; an error is told to its caller."""
        work = member.work
        if self._registry.close(work, ended.outcome, error):
            held_s = batch.called_at - work.item.arrived_at
            own = replace(
                ended,
                queue_s=ended.queue_s + held_s,
                total_s=ended.total_s + held_s,
                attempts=member.attempts_before + ended.attempts,
                interrupt_count=member.interrupts_before + ended.interrupt_count,
                prompt_tokens=prompt_tokens,
                **work.identity,
            )
            self._emit(own)

    def _dismiss(self, batch: Batch, error: HearthError) -> None:
        """Its members end with this error, each with one of its own."""
        outcome = Outcome.CANCELLED if isinstance(error, ShuttingDown) else Outcome.FAILED
        for member in self._rise(batch):
            self._registry.end(member.work, outcome, self._clock.monotonic(), error.again())

    def _rise(self, batch: Batch) -> list[Member]:
        """Its members, who are in no call any more."""
        members, batch.members = batch.members, []
        for member in members:
            del self._seats[member.work.item.sequence]
        return members

    def _part(self, batch: Batch, reason: str) -> None:
        """Ask for each input by itself: each is one item, whose attempts go on counting."""
        now, members = self._clock.monotonic(), self._rise(batch)
        self._emit(EmbeddingsParted(at=now, model=batch.key.model, inputs=len(members), reason=reason))
        for member in members:
            work = member.work
            member.attempts_before, member.interrupts_before = work.attempt, work.interrupts
            if work.dispatched_at is not None:  # else it was back in line already
                work.back_in_line()
                self._emit(ItemResent(at=now, attempt=work.attempt, reason=reason, **work.identity))
            single = Batch(key=batch.key, opened_at=now, apart=True)
            self._sit(member, single)
            self._submit(single, Why.APART)

    def _over(self, key: Key) -> None:
        """A call of this kind is no longer under way."""
        group = self._groups[key]
        group.underway -= 1
        if not group.underway and group.held is None:
            del self._groups[key]
        elif not group.underway:
            self._flush(key, Why.IDLE)

    def _leave(self, sequence: Sequence) -> bool:
        """The caller does not want it any more; the last one to leave ends the call."""
        seat = self._seats.pop(sequence, None)
        if seat is None:
            return False
        member, batch = seat
        batch.members.remove(member)
        self._registry.end(member.work, Outcome.CANCELLED, self._clock.monotonic(), CallerGone())
        if batch.members:
            return True
        if batch.sequence is not None:
            self._worker.cancel(batch.sequence)
            return True
        group = self._groups[batch.key]
        self._unhold(group)
        if not group.underway:
            del self._groups[batch.key]
        return True

    # What others ask for.

    def give_up(self, works: list[ActiveRequest]) -> list[ActiveRequest]:
        """As `Owner` says."""
        return [work for work in works if self._leave(work.item.sequence)]

    def shown(self, work: ActiveRequest) -> dict[str, object]:
        """As `Owner` says; a call that went alone is the worker's to show."""
        _, batch = self._seats[work.item.sequence]
        carrier = None if batch.sequence is None else self._worker.get_item(batch.sequence)
        state = "held" if carrier is None else carrier["state"]
        now = self._clock.monotonic()
        return status.item(self._state, work, now, self._clock.wall() - now) | {"state": state, "carried_by": batch.sequence}

    def status(self) -> dict[str, object]:
        """How many inputs are held back, and how many calls of accumulated kinds are in the queue or at the model server."""
        held = [group.held for group in self._groups.values() if group.held is not None]
        return {
            "held": sum(len(batch.members) for batch in held),
            "calls_under_way": sum(group.underway for group in self._groups.values()),
        }

    def emit(self, event: Event) -> None:
        """A stop begins, or a drain: nothing is held back any more. After a stop, what comes is the queue's own to refuse."""
        self._stopping = self._stopping or isinstance(event, GatewayStopping)
        self._flush_all(Why.STOPPING, lambda _: True)

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        """As `SelectiveSink` says."""
        return self.emit if kind in {DrainStarted, GatewayStopping} else None

    @property
    def _settings(self) -> EmbeddingSettings:
        return self._runtime.settings.embeddings


def _route(path: str) -> Route:
    return INFERENCE_ROUTES[path.partition("?")[0]]


def _head_for(head: ReplyHead, body: bytes, inputs: int) -> ReplyHead:
    """The head of a part of an answer; `x-hearth-merged` says how many inputs the answer was for."""
    if inputs == 1:
        return head
    length = b"%d" % len(body)
    kept = tuple((name, length if name == b"content-length" else value) for name, value in head.headers)
    return ReplyHead(status=head.status, headers=(*kept, (b"x-hearth-merged", b"%d" % inputs)))
