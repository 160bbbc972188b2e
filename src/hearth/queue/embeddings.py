"""Embedding calls with a single input share calls of the model server: after Macaw's batch
accumulator, without its delay for a lone call.

A call that nothing like it is under way for goes to the queue at once. While one is, those that
arrive are held, and go together: when `max_inputs` are there, when the last one under way has
ended, after `max_wait_ms`, or when a call for another model arrives, so that models wait in the
order in which they were asked for. Few calls that are alike are in the queue at once, the others
wait here: a program that uploads a book sends a thousand inputs in a moment, and would fill the
queue for everybody.

A shared call is an item of the queue like any other; its body is made when an attempt starts, so a
member whose caller has gone by then costs nothing. What one input can spoil for all (an error
status, a connection that breaks) is asked again one by one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from hearth.clock import new_id
from hearth.config.settings import EmbeddingSettings
from hearth.dialects.embedding import Part, SingleInput, joined_body, single_input, split_answer
from hearth.dialects.routes import route_of
from hearth.errors import (
    BackendGone,
    BackendProtocolError,
    BackendTimeout,
    CallerGone,
    HearthError,
    ShuttingDown,
)
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
    ItemYielded,
)
from hearth.events.handling import HandlingSink
from hearth.execution.request import ActiveRequest, Reply, ReplyHead, Submission, Ticket
from hearth.queue.worker import LLMQueueWorker
from hearth.types import (
    JSON_BODY,
    SEVERAL_CALLERS,
    BackendCall,
    JsonDict,
    Lane,
    Outcome,
    Priority,
    RequestId,
    Sequence,
)

_ONE_CAN_CAUSE = (BackendGone, BackendProtocolError, BackendTimeout)
"""Ends of a call that one of its inputs can bring about; what ails the model server as a whole is
everybody's.
"""
HELD = "batching"
"""What an input waits for before its call is in the queue, beside the kinds of
`scheduling.reasons`.
"""
MOST_UNDER_WAY = 4
"""Calls that are alike in the queue or at the model server: so many that no slot waits for the next
one.
"""

Cause: TypeAlias = Literal["alone", "full", "timer", "idle", "other_model", "apart", "stopping"]
"""What sent a call to the queue: nothing like it was under way (`idle`: any more), or the call that
it was in has failed (`apart`).
"""


class CallKey(NamedTuple):
    """What calls must have in common to go together: `options` is all of the body but the input,
    `paused` their caller, where that is paused.
    """

    path: str
    model: str | None
    lane: Lane
    priority: Priority
    task_type: str | None
    options: bytes
    paused: str


@dataclass(slots=True, eq=False, kw_only=True)
class SharedCall:
    """A call for its members.

    Attributes:
        members: those whose callers still wait, in their order.
        opened_at: when its first member arrived; called_at: when it went to the queue.
        sequence, reply: its place in the queue and its answer; None before.
        asked: whose inputs the last attempt asks for, as they were when it began.
        apart: its one member was in another call before, which has failed.
    """

    key: CallKey
    opened_at: float
    members: dict[Sequence, tuple[ActiveRequest, SingleInput]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    called_at: float = 0.0
    sequence: Sequence | None = None
    reply: Reply | None = None
    asked: tuple[tuple[ActiveRequest, SingleInput], ...] = ()
    apart: bool = False

    @property
    def works(self) -> list[ActiveRequest]:
        return [work for work, _ in self.members.values()]

    def submission(self, on_event: Callable[[Event], None]) -> Submission:
        """The call as the queue takes it. A call for one member goes out as its caller sent it."""
        self.asked = tuple(self.members.values())
        items = [work.item for work in self.works]
        item = replace(
            items[0],
            sequence=Sequence(0),
            request_id=RequestId(new_id("embed_")),
            caller=items[0].caller
            if len({item.caller for item in items}) == 1
            else SEVERAL_CALLERS,
            user=items[0].user if len({(item.caller, item.user) for item in items}) == 1 else "",
            local_only=any(item.local_only for item in items),
            prompt_tokens=sum(item.prompt_tokens for item in items),
            inputs=len(items),
            prompt_preview="",
        )
        return Submission(
            item=item, call=self._call_on, on_event=on_event, accepted=True, carries=True
        )

    def _call_on(self, model: str) -> BackendCall:
        if len(self.asked) == 1:
            return self.asked[0][0].new.call_on(model)
        return BackendCall(
            method="POST",
            path=self.key.path,
            headers=JSON_BODY,
            body=joined_body([one for _, one in self.asked]),
        )

    def parts(self, body: bytes, prompt_tokens: int | None) -> list[Part] | None:
        """The answer to each of `asked` from the one to all of them; None where it is not known
        whose is what.
        """
        if len(self.asked) == 1:
            return [(body, prompt_tokens)]
        return split_answer(route_of(self.key.path), body, [one for _, one in self.asked])


class EmbeddingBatcher(HandlingSink):
    """Puts single embedding calls together.

    Must live on the event loop of the worker, which does the rest; has timers, no tasks.
    """

    def __init__(self, worker: LLMQueueWorker) -> None:
        self._worker = worker
        self._registry = worker.registry
        self._runtime = worker.runtime
        self._now = worker.runtime.clock.monotonic
        self._emit = worker.runtime.events.emit
        self._underway = Counter[CallKey]()
        """Calls in the queue or at the model server."""
        self._held: dict[CallKey, SharedCall] = {}
        """The one for each kind that still takes members."""
        self._ready: dict[CallKey, deque[tuple[SharedCall, Cause]]] = {}
        """Those that wait for others of their kind to end."""
        self._calls: dict[Sequence, SharedCall] = {}
        self._stopping = False
        self._handlers = {DrainStarted: self._stop, GatewayStopping: self._stop}

    # The way in.

    def take(self, new: Submission, count: Callable[[], None]) -> Ticket | None:
        """Accept an embedding call that can share one with others; None where the queue is to take
        it as it is.

        Args:
            count: counts a call of the model server against the caller's limit. Not called for an
            input that goes into a call in
                which its caller has another one; may raise RateLimited.

        Raises:
            ShuttingDown, Draining: nothing new is accepted. QueueFull: it would go alone, or be the
            first of a call, and there is no room.
        """
        item = new.item
        call = new.call
        is_critical = item.lane is Lane.INTERNAL and item.priority is Priority.CRITICAL
        if (
            self._stopping
            or not self._settings.accumulate
            or is_critical
            or not isinstance(call, BackendCall)
        ):
            return None
        one = single_input(route_of(call.path), call.body)
        if one is None:
            return None
        is_paused = item.caller in self._runtime.view.paused_callers
        key = CallKey(
            call.path,
            item.model,
            item.lane,
            item.priority,
            item.task_type,
            one.options,
            paused=item.caller if is_paused else "",
        )
        self._flush_all("other_model", lambda held: held.model != key.model)
        if not self._underway[key] and key not in self._held:
            count()
            return self._alone(key, new)
        # Its model was looked up since it was admitted, and a drain may have begun meanwhile.
        self._worker.admission.check_open(accepted=new.accepted)
        batch = self._held.get(key)
        if batch is None:
            self._worker.admission.check_depth(item.lane, item.caller, item.user, item.model)
        if batch is not None and any(work.item.caller == item.caller for work in batch.works):
            item.counted = None
        else:
            count()
        return self._join(key, new, one)

    def _alone(self, key: CallKey, new: Submission) -> Ticket:
        """An item of its own; only its end is of interest here."""
        self._underway[key] += 1

        def on_event(event: Event) -> None:
            self._emit(event)
            # as in `_told`: not within the decision that has ended it
            if isinstance(event, ItemEnded):
                asyncio.get_running_loop().call_soon(self._over, key)

        try:
            ticket = self._worker.submit(replace(new, on_event=on_event))
        except HearthError:
            self._over(key)
            raise
        self._flushed(key, "alone", inputs=1, held_s=0.0)
        return ticket

    def _join(self, key: CallKey, new: Submission, one: SingleInput) -> Ticket:
        settings = self._settings
        now = self._now()
        batch = self._held.get(key)
        if batch is None:
            batch = SharedCall(key=key, opened_at=now)
            self._held[key] = batch
            batch.timer = asyncio.get_running_loop().call_later(
                settings.max_wait_ms / 1000, self._flush, key, "timer"
            )
        work = self._registry.number(new, self, now, on_abandon=self._leave)
        self._add_member(work, one, batch)
        ticket = self._worker.accept(work, self._runtime.view.ahead_of(work.item.band))
        if len(batch.members) >= settings.max_inputs:
            self._flush(key, "full")
        return ticket

    def _add_member(self, work: ActiveRequest, one: SingleInput, batch: SharedCall) -> None:
        batch.members[work.item.sequence] = work, one
        self._calls[work.item.sequence] = batch

    # On to the queue.

    def _flush_all(self, why: Cause, wanted: Callable[[CallKey], bool] = lambda _: True) -> None:
        for key in filter(wanted, tuple(self._held)):
            self._flush(key, why)

    def _flush(self, key: CallKey, why: Cause) -> None:
        batch = self._unhold(key)
        if batch is None:
            return
        if self._underway[key] < MOST_UNDER_WAY or why == "stopping":
            self._submit(batch, why)
        else:
            self._ready.setdefault(key, deque()).append((batch, why))

    def _unhold(self, key: CallKey) -> SharedCall | None:
        batch = self._held.pop(key, None)
        if batch is not None and batch.timer is not None:
            batch.timer.cancel()
        return batch

    def _submit(self, batch: SharedCall, why: Cause) -> None:
        now = self._now()
        batch.called_at = now
        self._underway[batch.key] += 1
        inputs = len(batch.members)
        try:
            ticket = self._worker.submit(batch.submission(partial(self._on_call_event, batch)))
        except HearthError as error:
            self._dismiss(batch, error)
            self._over(batch.key)
            return
        batch.sequence = ticket.sequence
        batch.reply = ticket.reply
        self._flushed(batch.key, why, inputs=inputs, held_s=now - batch.opened_at)

    def _flushed(self, key: CallKey, why: Cause, *, inputs: int, held_s: float) -> None:
        self._emit(
            EmbeddingsFlushed(
                at=self._now(), model=key.model, inputs=inputs, why=why, held_s=held_s
            )
        )

    # What became of it.

    def _on_call_event(self, batch: SharedCall, event: Event) -> None:
        """Called within a decision of the worker's: what leads to another submission has to wait
        for its end.
        """
        if isinstance(event, ItemEnded):
            asyncio.get_running_loop().call_soon(self._settle, batch, event)
            return
        # an attempt asks for those who are there when it begins
        if isinstance(event, ItemDispatched):
            batch.asked = tuple(batch.members.values()) or batch.asked
        for work in batch.works:
            self._pass_to(work, event)

    def _pass_to(self, work: ActiveRequest, event: Event) -> None:
        """Something has happened to the call that it is in; its own attempts go on counting over
        several calls.
        """
        if isinstance(event, ItemDispatched):
            model = event.model or ""
            work.begin_attempt(
                work.attempt.number + 1, model, event.at, engine=self._runtime.engine_of(model)
            )
            self._registry.dispatched(work, event.at)
        elif isinstance(
            event, ItemInterrupted | ItemYielded | ItemProtected | ItemResent | ItemPromoted
        ):
            if isinstance(event, ItemInterrupted | ItemYielded | ItemResent):
                work.back_in_line(work.interrupts + isinstance(event, ItemInterrupted))
            # The event tells of the shared call; a member may have been in others before, so its
            # own counts take the place of those of the call, in the events that have them.
            own: dict[str, Any] = {
                "attempt": work.attempt.number,
                "interrupt_count": work.interrupts,
            }
            self._emit(
                replace(
                    event,
                    **{name: value for name, value in own.items() if hasattr(event, name)},
                    **work.identity,
                )
            )

    def _settle(self, batch: SharedCall, ended: ItemEnded) -> None:
        try:
            if batch.members and batch.reply is not None:
                self._hand_out(batch, batch.reply, ended)
        except Exception as error:  # noqa: BLE001
            # Supervision point: whatever a defect raises, no caller waits for ever.
            self._runtime.report_fault("embeddings", error)
            self._dismiss(batch, HearthError())
        self._over(batch.key)

    def _hand_out(self, batch: SharedCall, answer: Reply, ended: ItemEnded) -> None:
        try:
            head, body = answer.whole()
        except HearthError as error:
            if len(batch.members) > 1 and isinstance(error, _ONE_CAN_CAUSE):
                self._part(batch, error.reason)
            else:
                for work, _ in self._release(batch):
                    self._end(work, batch, ended, error=error.again())
            return
        parts = batch.parts(body, ended.prompt_tokens)
        if head.status >= 400 and len(batch.asked) > 1:
            self._part(batch, f"status_{head.status}")
        elif parts is None:
            self._part(batch, "unknown_answer")
        else:
            waiting = [work for work, _ in self._release(batch)]
            for (work, _), (own, tokens) in zip(batch.asked, parts, strict=True):
                if work in waiting:
                    work.reply.start(_head_for(head, own, len(parts)))
                    work.reply.push(own)
                    work.reply.finish()
                    self._end(work, batch, ended, prompt_tokens=tokens)

    def _end(
        self,
        work: ActiveRequest,
        batch: SharedCall,
        ended: ItemEnded,
        *,
        prompt_tokens: int | None = None,
        error: HearthError | None = None,
    ) -> None:
        """It has ended as the call has; its caller gets an error."""
        if self._registry.close(work, ended.outcome, error):
            held_s = batch.called_at - work.item.arrived_at
            own = replace(
                ended,
                waited_for=_waited_for(ended.waited_for or {}, 0.0 if batch.apart else held_s),
                queue_s=ended.queue_s + held_s,
                total_s=ended.total_s + held_s,
                attempts=work.attempt.number,
                interrupt_count=work.interrupts,
                prompt_tokens=prompt_tokens,
                counted=work.item.counted,
                **work.promise_kept(ended.at),
                **work.identity,
            )
            self._emit(own)

    def _dismiss(self, batch: SharedCall, error: HearthError) -> None:
        """Its members end with this error, each with one of its own."""
        outcome = Outcome.CANCELLED if isinstance(error, ShuttingDown) else Outcome.FAILED
        for work, _ in self._release(batch):
            self._end_early(work, batch, outcome, error.again())

    def _end_early(
        self, work: ActiveRequest, batch: SharedCall, outcome: Outcome, error: HearthError
    ) -> None:
        """It ends before its call has."""
        now = self._now()
        waited = {}
        if batch.sequence is not None:
            waited = self._registry.waited_for(batch.sequence, now)
        held_until = now if batch.sequence is None else batch.called_at
        held_s = 0.0 if batch.apart else held_until - work.item.arrived_at
        self._registry.end(work, outcome, now, error, waited_for=_waited_for(waited, held_s))

    def _release(self, batch: SharedCall) -> list[tuple[ActiveRequest, SingleInput]]:
        """Its members, who are in no call any more."""
        members = batch.members
        batch.members = {}
        for sequence in members:
            del self._calls[sequence]
        return list(members.values())

    def _part(self, batch: SharedCall, reason: str) -> None:
        """Ask for each input by itself: each is one item."""
        now = self._now()
        members = self._release(batch)
        self._emit(
            EmbeddingsParted(at=now, model=batch.key.model, inputs=len(members), reason=reason)
        )
        for work, one in members:
            if work.attempt.dispatched_at is not None:  # else it was back in line already
                work.back_in_line()
                self._emit(
                    ItemResent(at=now, attempt=work.attempt.number, reason=reason, **work.identity)
                )
            single = SharedCall(key=batch.key, opened_at=now, apart=True)
            self._add_member(work, one, single)
            self._submit(single, "apart")

    def _over(self, key: CallKey) -> None:
        self._underway[key] -= 1
        if not self._underway[key]:
            del self._underway[key]
        if key in self._ready:
            self._submit(*self._next_ready(key))
        elif key not in self._underway:
            self._flush(key, "idle")

    def _next_ready(self, key: CallKey) -> tuple[SharedCall, Cause]:
        ready = self._ready[key]
        following = ready.popleft()
        if not ready:
            del self._ready[key]
        return following

    def _leave(self, sequence: Sequence) -> bool:
        """The caller does not want it any more; the last one to go ends the call."""
        batch = self._calls.pop(sequence, None)
        if batch is None:
            return False
        work, _ = batch.members.pop(sequence)
        self._end_early(work, batch, Outcome.CANCELLED, CallerGone())
        if not batch.members and batch.sequence is not None:
            self._worker.cancel(batch.sequence)
        elif not batch.members:
            self._drop(batch)
        return True

    def _drop(self, batch: SharedCall) -> None:
        """Nobody waits for this call any more, which is in no queue yet."""
        if self._held.get(batch.key) is batch:
            self._unhold(batch.key)
            return
        left = deque(each for each in self._ready.pop(batch.key, ()) if each[0] is not batch)
        if left:
            self._ready[batch.key] = left

    # What others ask for.

    def give_up(self, works: list[ActiveRequest]) -> list[ActiveRequest]:
        return [work for work in works if self._leave(work.item.sequence)]

    def shown(self, work: ActiveRequest) -> JsonDict:
        """As `Owner` says; a call that went alone is the worker's to show."""
        carried_by = self._calls[work.item.sequence].sequence
        carrier = None if carried_by is None else self._worker.get_item(carried_by)
        state = "held" if carrier is None else carrier["state"]
        return self._worker.shown(work) | {"state": state, "carried_by": carried_by}

    def status(self) -> JsonDict:
        """How many inputs are held back, and how many calls of accumulated kinds are in the queue
        or at the model server.
        """
        waiting = [
            *self._held.values(),
            *(batch for ready in self._ready.values() for batch, _ in ready),
        ]
        return {
            "held": sum(len(batch.members) for batch in waiting),
            "calls_under_way": self._underway.total(),
        }

    def _stop(self, event: DrainStarted | GatewayStopping) -> None:
        """Nothing is held any more; what arrives once the gateway stops is the queue's own to
        refuse.
        """
        self._stopping = self._stopping or isinstance(event, GatewayStopping)
        for key in tuple(self._ready):
            while key in self._ready:
                self._submit(*self._next_ready(key))
        self._flush_all("stopping")

    @property
    def _settings(self) -> EmbeddingSettings:
        return self._runtime.settings.embeddings


def _waited_for(of_call: Mapping[str, float], held_s: float) -> dict[str, float]:
    """What the call has waited for, and for how long its input was held before."""
    held = {HELD: round(held_s, 3)} if held_s >= 0.001 else {}
    return dict(of_call) | held


def _head_for(head: ReplyHead, body: bytes, inputs: int) -> ReplyHead:
    """The head of a part of an answer; `x-hearth-merged` says how many inputs the answer was
    for.
    """
    if inputs == 1:
        return head
    length = b"%d" % len(body)
    kept = tuple(
        (name, length if name == b"content-length" else value) for name, value in head.headers
    )
    return ReplyHead(status=head.status, headers=(*kept, (b"x-hearth-merged", b"%d" % inputs)))
