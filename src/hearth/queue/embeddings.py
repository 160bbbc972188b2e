"""Where an embedding call with a single input waits for company: after Macaw's batch accumulator, without its delay for a lone call.

A call that nothing like it is under way for goes to the queue at once. While one is, those that come are held, and go together: when
`max_inputs` are there, when the last one under way has ended, after `max_wait_ms`, or when a call for another model comes, so that models
wait in the order in which they were asked for. What one input can spoil for all (an error status, a connection that breaks) is asked again
one by one. Must never wait for anything itself: it has timers, no tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from hearth.clock import Clock, RequestIds
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import EmbeddingSettings
from hearth.dialects.embedding import SingleInput, single_input
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import BackendGone, BackendProtocolError, BackendTimeout, CallerGone, HearthError, ShuttingDown
from hearth.events import DrainStarted, EmbeddingsFlushed, EmbeddingsParted, Event, GatewayStopping, InternalFault, ItemEnded
from hearth.execution.request import ActiveRequest, ReplyHead, WatchedReply
from hearth.ports import EventSink
from hearth.queue import status
from hearth.queue.embedding_batch import Batch, Key, Member, Roll
from hearth.queue.forecaster import Forecaster
from hearth.queue.item import Submission, Ticket, item_of
from hearth.queue.worker import LLMQueueWorker
from hearth.types import MIB, BackendCall, Lane, Outcome, Priority, RequestId, Sequence

_ONE_CAN_CAUSE = (BackendGone, BackendProtocolError, BackendTimeout)
"""Ends of a call that one of its inputs can bring about; what ails the model server as a whole is everybody's."""


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


@dataclass(slots=True, eq=False)
class _Group:
    """Calls that can go together: how many are in the queue or at the model server, and the one that is being filled."""

    underway: int = 0
    held: Batch | None = None
    timer: asyncio.TimerHandle | None = None


class EmbeddingBatcher:
    """Puts single embedding calls together. Must live on the event loop of the worker, which does the rest."""

    def __init__(self, *, worker: LLMQueueWorker, config: Callable[[], GatewayConfig], clock: Clock, events: EventSink) -> None:
        self._worker = worker
        self._config = config
        self._clock = clock
        self._events = events
        self._state = worker.scheduler.state
        self._forecaster = Forecaster(self._state)
        self._roll = Roll(events, worker.registry)
        self._groups: dict[Key, _Group] = {}
        self._seats: dict[Sequence, tuple[Member, Batch]] = {}
        self._new_id = RequestIds("embed").take
        self._stopping = False

    # The way in.

    def take(self, new: Submission) -> Ticket | None:
        """Accept an embedding call that can share one with others; None where the queue is to take it as it is.

        Raises:
            QueueFull: it would go alone, and there is no room.
        """
        if self._stopping or not self._settings().accumulate or (new.lane is Lane.INTERNAL and new.priority is Priority.CRITICAL):
            return None
        call = new.call
        if not isinstance(call, BackendCall):
            return None
        one = single_input(INFERENCE_ROUTES[call.path.partition("?")[0]], call.body)
        if one is None:
            return None
        key = Key(call.path, new.model, new.lane, new.priority, new.task_type, one.options)
        self._flush_all(Why.OTHER_MODEL, lambda held: held.model != key.model)
        group = self._groups.setdefault(key, _Group())
        if not group.underway and group.held is None:
            return self._alone(key, group, new)
        return self._join(key, group, new, one)

    def _alone(self, key: Key, group: _Group, new: Submission) -> Ticket:
        """An item of its own; only its end is of interest here."""
        group.underway += 1
        try:
            ticket = self._worker.submit(replace(new, told=partial(self._hear_alone, key)))
        except HearthError:
            self._over(key)
            raise
        self._events.emit(EmbeddingsFlushed(at=self._clock.monotonic(), model=key.model, inputs=1, why=Why.ALONE.value, held_s=0.0))
        return ticket

    def _hear_alone(self, key: Key, event: Event) -> None:
        self._events.emit(event)
        if isinstance(event, ItemEnded):
            asyncio.get_running_loop().call_soon(self._over, key)

    def _join(self, key: Key, group: _Group, new: Submission, one: SingleInput) -> Ticket:
        settings, now = self._settings(), self._clock.monotonic()
        if group.held is None:
            group.held = Batch(key=key, opened_at=now)
            group.timer = asyncio.get_running_loop().call_later(settings.max_wait_ms / 1000, self._flush, key, Why.TIMER)
        member = self._member(new, one, now)
        item, position = member.work.item, self._state.waiting.ahead_of(member.work.item.band)
        wait_s = self._forecaster.wait_s(item, 0, now)
        is_rough = self._forecaster.is_rough(item, wait_s)
        self._sit(member, group.held)
        self._roll.enter(member, position)
        if len(group.held.members) >= settings.max_inputs:
            self._flush(key, Why.FULL)
        return Ticket(
            sequence=item.sequence,
            request_id=item.request_id,
            position=position,
            estimated_wait_s=wait_s,
            is_rough=is_rough,
            reply=member.work.reply,
        )

    def _member(self, new: Submission, one: SingleInput, now: float) -> Member:
        item = item_of(new, self._worker.registry.next_sequence(), now, 0.0)
        limit_bytes = int(self._config().settings.server.write_buffer_mib * MIB)
        reply = WatchedReply(limit_bytes=limit_bytes, on_abandon=lambda: self._leave(item.sequence))
        return Member(work=ActiveRequest(item=item, call=new.call, reply=reply, owner=self), new=new, one=one)

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
            ticket = self._worker.submit(batch.item(RequestId(self._new_id()), partial(self._hear, batch)))
        except HearthError as error:
            self._dismiss(batch, error)
            self._over(batch.key)
            return
        batch.sequence, batch.reply = ticket.sequence, ticket.reply
        self._events.emit(EmbeddingsFlushed(at=now, model=batch.key.model, inputs=inputs, why=why.value, held_s=now - batch.opened_at))

    def _dismiss(self, batch: Batch, error: HearthError) -> None:
        """Its members end with this error, each with one of its own."""
        outcome = Outcome.CANCELLED if isinstance(error, ShuttingDown) else Outcome.FAILED
        for member in self._rise(batch):
            self._roll.leave(member, outcome, error.again(), self._clock.monotonic())

    def _rise(self, batch: Batch) -> list[Member]:
        """Its members, who are in no call any more."""
        members, batch.members = batch.members, []
        for member in members:
            del self._seats[member.work.item.sequence]
        return members

    # What became of it.

    def _hear(self, batch: Batch, event: Event) -> None:
        """Called within a decision of the worker's: what leads to another submission has to wait for its end."""
        if isinstance(event, ItemEnded):
            asyncio.get_running_loop().call_soon(self._settle, batch, event)
            return
        batch.hear(event)
        for member in batch.members:
            self._roll.tell(member, event)

    def _settle(self, batch: Batch, ended: ItemEnded) -> None:
        try:
            self._hand_out(batch, ended)
        except Exception as error:  # noqa: BLE001 - supervision point: whatever a defect raises, no caller waits for ever
            self._events.emit(InternalFault(at=self._clock.monotonic(), where="embeddings", detail=type(error).__name__))
            self._dismiss(batch, HearthError())
        self._over(batch.key)

    def _hand_out(self, batch: Batch, ended: ItemEnded) -> None:
        if not batch.members or batch.reply is None:
            return
        try:
            head, body = batch.reply.whole()
        except HearthError as error:
            if len(batch.members) > 1 and isinstance(error, _ONE_CAN_CAUSE):
                self._part(batch, error.reason)
            else:
                self._end_all(batch, ended, error)
            return
        if head.status >= 400 and len(batch.asked) > 1:
            self._part(batch, f"status_{head.status}")
            return
        parts = batch.parts(body, ended.prompt_tokens)
        if parts is None:
            self._part(batch, "unknown_answer")
            return
        alive = set(map(id, self._rise(batch)))
        for member, part in zip(batch.asked, parts, strict=True):
            if id(member) in alive:
                self._roll.answer(member, _head_for(head, part.body, len(batch.asked)), part.body)
                self._roll.end(member, ended, called_at=batch.called_at, prompt_tokens=part.prompt_tokens, error=None)

    def _end_all(self, batch: Batch, ended: ItemEnded, error: HearthError) -> None:
        for member in self._rise(batch):
            self._roll.end(member, ended, called_at=batch.called_at, prompt_tokens=None, error=error.again())

    def _part(self, batch: Batch, reason: str) -> None:
        """Ask for each input by itself."""
        now, members = self._clock.monotonic(), self._rise(batch)
        self._events.emit(EmbeddingsParted(at=now, model=batch.key.model, inputs=len(members), reason=reason))
        for member in members:
            self._roll.apart(member, reason, now)
            single = Batch(key=batch.key, opened_at=now, apart=True)
            self._sit(member, single)
            self._submit(single, Why.APART)

    def _over(self, key: Key) -> None:
        """A call of this kind is no longer under way."""
        group = self._groups[key]
        group.underway -= 1
        if group.underway:
            return
        if group.held is not None:
            self._flush(key, Why.IDLE)
        else:
            del self._groups[key]

    def _leave(self, sequence: Sequence) -> bool:
        """The caller does not want it any more; the last one to leave ends the call."""
        seat = self._seats.pop(sequence, None)
        if seat is None:
            return False
        member, batch = seat
        batch.members.remove(member)
        self._roll.leave(member, Outcome.CANCELLED, CallerGone(), self._clock.monotonic())
        if not batch.members:
            self._abandon(batch)
        return True

    def _abandon(self, batch: Batch) -> None:
        if batch.sequence is not None:
            self._worker.cancel(batch.sequence)
            return
        group = self._groups[batch.key]
        self._unhold(group)
        if not group.underway:
            del self._groups[batch.key]

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

    def _settings(self) -> EmbeddingSettings:
        """Always those in force."""
        return self._config().settings.embeddings


def _head_for(head: ReplyHead, body: bytes, inputs: int) -> ReplyHead:
    """The head of a part of an answer; `x-hearth-merged` says how many inputs the answer was for."""
    if inputs == 1:
        return head
    length = b"%d" % len(body)
    kept = tuple((name, length if name == b"content-length" else value) for name, value in head.headers)
    return ReplyHead(status=head.status, headers=(*kept, (b"x-hearth-merged", b"%d" % inputs)))
