"""One accepted request on its way: the scheduler's item, the call it makes, the reply it fills, and what happened.

A reply has one producer (the executor) and one consumer (the HTTP route or an in-process caller), both on the same event loop. The producer
never waits while less than `limit_bytes` are unread, so a model's slot is not held by a slow reader until that much has piled up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypedDict

from hearth.dialects.continuing import NO_TIME, Continuation, Spent
from hearth.dialects.replay import Sent
from hearth.errors import CallerGone, HearthError
from hearth.events import Event
from hearth.types import NO_USAGE, BackendCall, Headers, Lane, Outcome, QueueItem, RequestId, Sequence, Usage, Way, value


@value
class ReplyHead:
    """Status and end-to-end headers of an answer."""

    status: int
    headers: Headers


class Reply:
    """The pipe. Everything but the three `async` methods is immediate and may be called from callbacks."""

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._head: ReplyHead | None = None
        self._chunks: list[bytes] = []
        self._unread_bytes = 0
        self._error: HearthError | None = None
        self._ended = False
        self._abandoned = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self.cost_usd = 0.0
        """What the answer has cost in money, known when it is complete."""

    @property
    def started(self) -> bool:
        """The head has been handed over: the attempt can no longer be redone without the caller noticing."""
        return self._head is not None

    @property
    def ended(self) -> bool:
        """The answer is complete, failed, or its caller has gone."""
        return self._ended or self._abandoned

    @property
    def complete(self) -> bool:
        """The whole answer has been handed over."""
        return self._ended and self._error is None

    @property
    def unread_bytes(self) -> int:
        """Bytes pushed and not yet taken."""
        return self._unread_bytes

    @property
    def full(self) -> bool:
        """The limit is unread: time to wait for the reader."""
        return self._unread_bytes >= self._limit_bytes

    def start(self, head: ReplyHead) -> None:
        """Hand over the head; the first one counts."""
        if self._head is None:
            self._head = head
            _wake(self._reader)

    def push(self, chunk: bytes) -> None:
        """Add a chunk, keeping its boundaries. Ignored once the answer has ended."""
        if chunk:
            self.push_all((chunk,))

    def push_all(self, chunks: tuple[bytes, ...]) -> None:
        """Add chunks, none of them empty."""
        if self._ended or self._abandoned:
            return
        self._chunks.extend(chunks)
        self._unread_bytes += sum(map(len, chunks))
        _wake(self._reader)

    def finish(self) -> None:
        """The answer is complete."""
        self._ended = True
        _wake(self._reader)
        _wake(self._writer)

    def fail(self, error: HearthError) -> None:
        """The answer ends with an error, delivered after what was pushed. The first ending counts."""
        if not self._ended:
            self._error = error
            self.finish()

    def abandon(self) -> None:
        """The caller has gone: drop what is unread and let the producer run on into nothing until it is stopped."""
        self._abandoned = True
        self._chunks.clear()
        self._unread_bytes = 0
        _wake(self._writer)
        _wake(self._reader)

    async def writable(self) -> None:
        """Wait until less than the limit is unread."""
        while self.full and not self.ended:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def head(self) -> ReplyHead:
        """The head, as soon as there is one.

        Raises:
            HearthError: the answer failed before it began.
        """
        while self._head is None:
            if self.ended:
                raise self._broken()
            await self._news()
        return self._head

    async def take(self) -> tuple[bytes, ...]:
        """All unread chunks, at least one; empty at the end of a complete answer.

        Raises:
            HearthError: the answer broke off after the chunks taken so far.
        """
        while not self._chunks:
            if self.ended:
                if self._error is not None or self._abandoned:
                    raise self._broken()
                return ()
            await self._news()
        chunks = tuple(self._chunks)
        self._chunks.clear()
        self._unread_bytes = 0
        _wake(self._writer)
        return chunks

    async def body(self) -> bytes:
        """The whole rest of the answer. Raises HearthError as `take` does."""
        parts: list[bytes] = []
        while chunks := await self.take():
            parts.extend(chunks)
        return b"".join(parts)

    def whole(self) -> tuple[ReplyHead, bytes]:
        """Head and unread body of an answer that has ended.

        Raises:
            HearthError: as it ended.
        """
        if self._head is None or self._error is not None:
            raise self._broken()
        return self._head, b"".join(self._chunks)

    def _broken(self) -> HearthError:
        """What to raise; each time another, since one that is raised comes to know this reply."""
        return CallerGone() if self._error is None else self._error.again()

    def _news(self) -> asyncio.Future[None]:
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader


class WatchedReply(Reply):
    """A reply that tells when its caller has gone, so that whoever serves callers need not know who serves this one."""

    def __init__(self, *, limit_bytes: int, on_abandon: Callable[[], object]) -> None:
        super().__init__(limit_bytes=limit_bytes)
        self._on_abandon = on_abandon

    def abandon(self) -> None:
        """The caller has gone."""
        super().abandon()
        self._on_abandon()


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


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
