"""Every accepted request, wherever it runs, until a while after its end: numbered, found, shown,
cancelled and ended here.

The registry asks its owner (the queue, the embedding batcher, Claude). Of what has ended, identity
and outcome are kept, never a body.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b

from hearth.clock import new_id
from hearth.errors import HearthError
from hearth.events import Event, ItemDispatched, ItemEnded, ItemQueued, ItemResent, ItemStreaming
from hearth.execution.request import (
    ActiveRequest,
    FinishedRequest,
    Owner,
    PromisedWait,
    Reply,
    Submission,
)
from hearth.execution.runtime import Runtime
from hearth.queue import status
from hearth.types import MIB, JsonDict, Outcome, RequestId, Sequence

REMEMBERED = 1000
"""Ended items that can still be asked for."""


class Registry:
    """Requests by number and by the id that their caller knows; `end` emits the one terminal event
    of each.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._emit = runtime.events.emit
        self._works: dict[Sequence, ActiveRequest] = {}
        self._by_request: dict[RequestId, list[Sequence]] = {}
        self._ended: OrderedDict[Sequence, FinishedRequest] = OrderedDict()
        self._last = 0
        self._salt = new_id("").encode()

    # The life of a request.

    def number(
        self,
        new: Submission,
        owner: Owner,
        now: float,
        *,
        max_wait_s: float = 0.0,
        arrived_at: float | None = None,
        on_abandon: Callable[[Sequence], object] = lambda _: None,
        model: str | None = None,
    ) -> ActiveRequest:
        """The request with the next number, each once in the order of acceptance, which its item
        then knows; `add` it.

        Args:
            max_wait_s: how long it may wait for its start; 0, or a durable one, waits for ever.
            arrived_at: the instant of the place in line that it takes over.
            model: on which it will run, where that is known before its first attempt.
        """
        self._last += 1
        item = new.item
        item.sequence = Sequence(self._last)
        item.arrived_at = now if arrived_at is None else arrived_at
        item.expires_at = now + max_wait_s if max_wait_s > 0 and not new.durable else None
        reply = Reply(
            limit_bytes=int(self._runtime.settings.server.write_buffer_mib * MIB),
            on_abandon=partial(on_abandon, item.sequence),
        )
        return ActiveRequest(
            new=new, item=item, reply=reply, owner=owner, accepted_at=now, model=model
        )

    def add(
        self, work: ActiveRequest, position: int, at: float, wait: PromisedWait | None = None
    ) -> None:
        """The request is accepted with `position` items ahead of it, and its caller is told of
        `wait`.
        """
        item = work.item
        work.wait = wait
        self._works[item.sequence] = work
        self._by_request.setdefault(item.request_id, []).append(item.sequence)
        self.emit(work, ItemQueued(at=at, position=position, counted=item.counted, **work.identity))

    def emit(self, work: ActiveRequest, event: Event) -> None:
        (work.new.on_event or self._emit)(event)

    def dispatched(self, work: ActiveRequest, at: float) -> None:
        wait = work.wait
        if wait is not None and wait.waited_s is None:
            wait.waited_s = at - work.accepted_at
            if wait.bound_s:
                band = work.item.band
                self._runtime.forecasts.learn_wait(band, wait.expected_s, wait.waited_s)
        self.emit(
            work,
            ItemDispatched(
                at=at,
                attempt=work.attempt.number,
                waited_s=at - work.item.arrived_at,
                alias=work.item.alias or None,
                **work.identity,
            ),
        )

    def first_byte(self, work: ActiveRequest, at: float) -> None:
        attempt = work.attempt
        first_byte_s = _between(attempt.dispatched_at, at) or 0.0
        self.emit(
            work,
            ItemStreaming(
                at=at, attempt=attempt.number, first_byte_s=first_byte_s, **work.identity
            ),
        )

    def resent(self, work: ActiveRequest, at: float) -> None:
        """The attempt failed unseen; there will be another."""
        attempt = work.attempt
        reason = attempt.error.reason if attempt.error is not None else ""
        self.emit(work, ItemResent(at=at, attempt=attempt.number, reason=reason, **work.identity))

    def close(
        self, work: ActiveRequest, outcome: Outcome, error: HearthError | None = None
    ) -> bool:
        """Set the outcome, tell the caller of an error, and remember the request.

        False where it had ended before.
        """
        if work.outcome is not None:
            return False
        work.outcome = outcome
        if error is not None:
            work.attempt.error = error
            work.reply.fail(error)
        sequence = work.item.sequence
        del self._works[sequence]
        self._ended[sequence] = FinishedRequest(
            work.item,
            work.model or work.item.model,
            work.attempt.number,
            work.interrupts,
            outcome,
        )
        if len(self._ended) > REMEMBERED:
            oldest, finished = self._ended.popitem(last=False)
            request_id = finished.item.request_id
            self._by_request[request_id].remove(oldest)
            if not self._by_request[request_id]:
                del self._by_request[request_id]
        return True

    def end(
        self,
        work: ActiveRequest,
        outcome: Outcome,
        at: float,
        error: HearthError | None = None,
        *,
        cost_usd: float | None = None,
        waited_for: Mapping[str, float] | None = None,
    ) -> bool:
        """`close` it, and emit its terminal event; `waited_for`: what the queue does not know of
        it.
        """
        if not self.close(work, outcome, error):
            return False
        attempt = work.attempt
        reason = attempt.error.reason if attempt.error is not None else str(outcome)
        ended = ItemEnded(
            at=at,
            outcome=outcome,
            reason="" if outcome is Outcome.COMPLETED else reason,
            attempts=attempt.number,
            interrupt_count=work.interrupts,
            queue_s=(at if attempt.dispatched_at is None else attempt.dispatched_at)
            - work.item.arrived_at,
            swap_s=attempt.swap_s,
            first_byte_s=_between(attempt.dispatched_at, attempt.first_byte_at),
            backend_s=_between(attempt.dispatched_at, at),
            total_s=at - work.item.arrived_at,
            prompt_tokens=attempt.usage.prompt_tokens,
            output_tokens=attempt.usage.output_tokens,
            status=attempt.status,
            cost_usd=cost_usd,
            resumed=work.resumed,
            emulated=attempt.emulated,
            conversation=self._shown(work.item.conversation),
            decode_s=attempt.usage.decode_s,
            engine=attempt.engine,
            waited_for=waited_for or self.waited_for(work.item.sequence, at),
            **work.asked_for,
            **work.promise_kept(at),
            **work.identity,
        )
        self.emit(work, ended)
        return True

    def waited_for(self, sequence: Sequence, now: float) -> dict[str, float]:
        """What an item of the queue has waited for, in seconds, to the millisecond."""
        waited = self._runtime.view.waited_for(sequence, now)
        rounded = {kind: round(seconds, 3) for kind, seconds in waited.items()}
        return {kind: seconds for kind, seconds in rounded.items() if seconds}

    def _shown(self, conversation: str) -> str | None:
        """What may be written down of a conversation's key, which is a digest of words."""
        if not conversation:
            return None
        return blake2b(conversation.encode(), digest_size=6, key=self._salt).hexdigest()

    # What others ask for.

    def model_of(self, sequence: Sequence) -> str | None:
        """The model that works on a request or has ended it; None where none does yet."""
        work = self._works.get(sequence)
        if work is not None:
            return work.model
        ended = self._ended.get(sequence)
        return None if ended is None else ended.model

    def live(self, sequence: Sequence) -> ActiveRequest | None:
        return self._works.get(sequence)

    def unanswered(self, owner: Owner) -> list[ActiveRequest]:
        """Those of this owner whose answer is not complete, in the order in which they were
        accepted.
        """
        return [
            work for work in self._works.values() if work.owner is owner and not work.reply.complete
        ]

    def cancel(self, sequence: Sequence) -> bool:
        """Give an item up in any state.

        True where it is cancelled now or was before, False where it ended otherwise or never was.
        """
        work = self._works.get(sequence)
        ended = self._ended.get(sequence)
        if work is None:
            return ended is not None and ended.outcome is Outcome.CANCELLED
        if work.reply.complete:
            return False
        work.owner.give_up([work])
        return True

    def cancel_request(self, request_id: RequestId, *, caller: str | None) -> bool | None:
        """Cancel by the id that the caller knows.

        With a `caller`, only its own; None where there is no such request.
        """
        sequences = self._by_request.get(request_id, ())
        known = {
            sequence: (self._works.get(sequence) or self._ended[sequence]).item.caller
            for sequence in sequences
        }
        found = [
            self.cancel(sequence) for sequence, owner in known.items() if caller in {None, owner}
        ]
        return any(found) if found else None

    def cancel_caller(self, caller: str) -> list[RequestId]:
        """Give up all that a caller has, in one decision of each owner. Returns the ids of what is
        cancelled now, none the next time.

        An item that carries something else (a job, the inputs of several callers) ends with that.
        """
        mine = (
            work
            for work in self._works.values()
            if work.item.caller == caller and not work.reply.complete
        )
        works = [work for work in mine if not (work.new.durable or work.new.carries)]
        owners = dict.fromkeys(work.owner for work in works)
        given_up = [
            owner.give_up([work for work in works if work.owner is owner]) for owner in owners
        ]
        return [work.item.request_id for of_owner in given_up for work in of_owner]

    def get_item(self, sequence: int) -> JsonDict | None:
        """One item, waiting, running or lately ended; None where there is none."""
        work = self._works.get(Sequence(sequence))
        ended = self._ended.get(Sequence(sequence))
        if work is not None:
            return work.owner.shown(work)
        return None if ended is None else status.ended(ended)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
