"""One accepted request on its way through the house: the scheduler's item, the call it makes, the reply it fills, and what happened.

Carries values between the worker (which owns it) and the executor (which reports into it); decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypedDict

from hearth.dialects.continuing import NO_TIME, Continuation, Spent
from hearth.dialects.replay import Sent
from hearth.errors import HearthError
from hearth.events import Event
from hearth.execution.reply import Reply
from hearth.types import NO_USAGE, BackendCall, Lane, Outcome, QueueItem, RequestId, Sequence, Usage, Way

Call: TypeAlias = BackendCall | Callable[[str], BackendCall]
"""A backend call, or what makes it on the model that was chosen."""


class Owner(Protocol):
    """Who carries accepted requests out: the queue, the embedding batcher, Claude."""

    def give_up(self, works: list[ActiveRequest]) -> list[ActiveRequest]:
        """Cancel these for their callers, in one decision. Returns those that were not given up before."""
        ...

    def shown(self, work: ActiveRequest) -> dict[str, object]:
        """The request as status shows it."""
        ...


class Identity(TypedDict):
    """Whose event it is: what every event of an item begins with."""

    sequence: Sequence
    request_id: RequestId
    lane: Lane
    caller: str
    model: str | None
    task_type: str | None


class FinishedRequest(NamedTuple):
    """What is remembered of a work that has ended: no body, no answer."""

    item: QueueItem
    model: str | None
    attempts: int
    interrupts: int
    outcome: Outcome


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """An accepted request.

    Attributes:
        call: the backend call, or what makes it for the model that was chosen.
        owner: who carries it out.
        carries: it answers for something that is cancelled by itself: a job, or the inputs of several callers.
        told: hears the events of the item in place of the house.
        digest: as in `NewItem`.
        attempt: the current or last attempt, 0 before the first.
        reported: the last attempt whose end has been reported.
        dispatched_at, first_byte_at: instants of the current attempt, or of the one that the item ended with; None while it waits.
        forwarded: the caller has been given bytes of the current attempt.
        sent: what the caller has been given of a stream that may be interrupted, over all attempts; None for others.
        spent: seconds that interrupted attempts took of which the caller has text.
        resumed: how the current attempt goes on with what was sent; None where it does not.
        again_tokens, verified_chars: what of the text so far it had to read or to write again, and what it was compared with.
        pausing: its attempt is to stop and to go on later; rest: what was read of it to see that.
        diverged: the current attempt has replayed something else before it went on in another way.
        rendering: a hash of the prompt as the model server rendered it when the stream was interrupted; None where that is not known.
        fingerprint: what the first attempt ran on; a replay on anything else would prove nothing.
        swap_s: seconds of its wait spent bringing in its model.
        status: HTTP status of the backend's answer.
        error: why the last attempt failed, or what its answer, which its caller has, says of itself.
        outcome: set once, by whoever ends it first.
    """

    item: QueueItem
    call: Call
    reply: Reply
    owner: Owner
    carries: bool = False
    told: Callable[[Event], None] | None = None
    digest: bytes = b""
    attempt: int = 0
    reported: int = 0
    interrupts: int = 0
    model: str | None = None
    dispatched_at: float | None = None
    first_byte_at: float | None = None
    swap_s: float = 0.0
    forwarded: bool = False
    sent: Sent | None = None
    fingerprint: str = ""
    spent: Spent = NO_TIME
    resumed: Way | None = None
    again_tokens: int = 0
    verified_chars: int = 0
    diverged: bool = False
    pausing: bool = False
    rest: Continuation | None = None
    rendering: int | None = None
    status: int | None = None
    usage: Usage = NO_USAGE
    error: HearthError | None = None
    outcome: Outcome | None = None

    @property
    def identity(self) -> Identity:
        """For its events."""
        item = self.item
        return {
            "sequence": item.sequence,
            "request_id": item.request_id,
            "lane": item.lane,
            "caller": item.caller,
            "model": self.model or item.model,
            "task_type": item.task_type,
        }

    @property
    def resumable(self) -> bool:
        """What its caller has been given is still known."""
        return self.sent is not None and self.sent.replayable

    def begin_attempt(self, attempt: int, model: str, now: float) -> None:
        """A new attempt starts; what the last one left is forgotten."""
        self.attempt = attempt
        self.model = model
        self.dispatched_at = now
        self.first_byte_at = None
        self.forwarded = False
        self._resume_anew()
        self.status = None
        self.error = None
        self.usage = NO_USAGE

    def back_in_line(self) -> None:
        """The attempt is over and the item waits again."""
        self.dispatched_at = None
        self.first_byte_at = None
        self.forwarded = False
        self._resume_anew()

    def _resume_anew(self) -> None:
        self.resumed, self.again_tokens, self.verified_chars, self.diverged = None, 0, 0, False

    def spend(self, now: float) -> None:
        """The current attempt is interrupted: what it took counts for the answer, of which the caller has a part."""
        if self.dispatched_at is None or not self.forwarded:
            return
        first_at = now if self.first_byte_at is None else self.first_byte_at
        before = self.spent
        self.spent = Spent(
            total_s=before.total_s + now - self.dispatched_at,
            prompt_s=before.prompt_s + first_at - self.dispatched_at,
            decode_s=before.decode_s + now - first_at,
        )

    def end(self, outcome: Outcome) -> bool:
        """Set the terminal state; False when it had one already."""
        if self.outcome is not None:
            return False
        self.outcome = outcome
        return True

    def ended(self) -> FinishedRequest:
        """What to remember of it."""
        return FinishedRequest(self.item, self.model or self.item.model, self.attempt, self.interrupts, self.outcome or Outcome.FAILED)


def call_on(call: Call, model: str) -> BackendCall:
    """The backend call for the model that was chosen."""
    return call if isinstance(call, BackendCall) else call(model)
