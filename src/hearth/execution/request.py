"""One request on its way: as it is submitted, as it is accepted, the reply that it fills, and what
has happened to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypedDict

from hearth.dialects.capabilities import Needs
from hearth.dialects.continuing import NO_TIME, Continuation, Spent
from hearth.dialects.replay import Sent
from hearth.errors import CallerGone, HearthError
from hearth.events import Event
from hearth.types import (
    NO_USAGE,
    BackendCall,
    Headers,
    Lane,
    Outcome,
    QueueItem,
    RequestId,
    Sequence,
    Usage,
    Way,
    value,
)


@value
class ReplyHead:
    """Status and end-to-end headers of an answer."""

    status: int
    headers: Headers


class Reply:
    """The pipe from one producer (an attempt) to one consumer (a route, an embedded caller) on the
    same event loop.

    The producer is not held up while less than `limit_bytes` are unread. All but the `async`
    methods may be called from callbacks.
    """

    __slots__ = (
        "_abandoned",
        "_chunks",
        "_ended",
        "_error",
        "_head",
        "_limit_bytes",
        "_on_abandon",
        "_reader",
        "_writer",
        "cost_usd",
        "ends_with_error",
        "unread_bytes",
    )

    def __init__(
        self, *, limit_bytes: int, on_abandon: Callable[[], object] = lambda: None
    ) -> None:
        self.cost_usd = 0.0
        """Known when it is complete."""
        self._limit_bytes = limit_bytes
        self._on_abandon = on_abandon
        self._head: ReplyHead | None = None
        self._chunks: list[bytes] = []
        self.unread_bytes = 0
        self._error: HearthError | None = None
        self._ended = False
        self.ends_with_error = False
        """The answer is complete, and what it ends with is an error in the words of the model
        server.
        """
        self._abandoned = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    @property
    def started(self) -> bool:
        """The head has been handed over: the attempt can no longer be redone without the caller
        noticing.
        """
        return self._head is not None

    @property
    def ended(self) -> bool:
        """The answer is complete, failed, or its caller has gone."""
        return self._ended or self._abandoned

    @property
    def complete(self) -> bool:
        return self._ended and self._error is None

    @property
    def full(self) -> bool:
        """The limit is unread: time to wait for the reader."""
        return self.unread_bytes >= self._limit_bytes

    def start(self, head: ReplyHead) -> None:
        """Hand over the head; the first one counts."""
        if self._head is None:
            self._head = head
            _wake(self._reader)

    def push(self, *chunks: bytes) -> None:
        """Add chunks, keeping their boundaries. Ignored once the answer has ended."""
        if not self.ended:
            self._chunks.extend(filter(None, chunks))
            self.unread_bytes += sum(map(len, chunks))
            _wake(self._reader)

    def finish(self, *, with_error: bool = False) -> None:
        """The answer is complete; `with_error` sets `ends_with_error`."""
        self._ended = True
        self.ends_with_error = with_error
        _wake(self._reader)
        _wake(self._writer)

    def fail(self, error: HearthError) -> None:
        """The answer ends with an error, delivered after what was pushed.

        The first ending counts.
        """
        if not self._ended:
            self._error = error
            self.finish()

    def abandon(self) -> None:
        """The caller has gone: drop what is unread and let the producer run on into nothing until
        it is stopped.
        """
        self._abandoned = True
        self._chunks.clear()
        self.unread_bytes = 0
        _wake(self._writer)
        _wake(self._reader)
        self._on_abandon()

    async def writable(self) -> None:
        while self.full and not self.ended:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def head(self) -> ReplyHead:
        """The head, as soon as there is one.

        Raises HearthError where the answer failed before it began.
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
            if self._error is not None or self._abandoned:
                raise self._broken()
            if self._ended:
                return ()
            await self._news()
        chunks = tuple(self._chunks)
        self._chunks.clear()
        self.unread_bytes = 0
        _wake(self._writer)
        return chunks

    async def body(self) -> bytes:
        """The whole rest of the answer. Raises HearthError as `take` does."""
        parts: list[bytes] = []
        while chunks := await self.take():
            parts.extend(chunks)
        return b"".join(parts)

    def whole(self) -> tuple[ReplyHead, bytes]:
        """Head and unread body of an answer that has ended. Raises HearthError as it ended."""
        if self._head is None or self._error is not None:
            raise self._broken()
        return self._head, b"".join(self._chunks)

    def _broken(self) -> HearthError:
        """What to raise; each time another, since one that is raised comes to know this reply."""
        return CallerGone() if self._error is None else self._error.again()

    def _news(self) -> asyncio.Future[None]:
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


Call: TypeAlias = BackendCall | Callable[[str], BackendCall]
"""A backend call, or what makes it on the model that was chosen, when an attempt starts."""


@value
class Submission:
    """A request as it is submitted; sequence and instants of its item come with its acceptance."""

    item: QueueItem
    call: Call
    on_event: Callable[[Event], None] | None = None
    """Gets the item's events in place of everybody."""
    durable: bool = False
    """It is on the disk until it ends, nobody holds a connection open for it: it waits for as long
    as it takes.
    """
    carries: bool = False
    """It answers for something that is cancelled by itself, such as the inputs of several
    callers.
    """
    accepted: bool = False
    """Its callers were promised it before, as a part of another item: only a stop refuses it."""
    digest: bytes = b""
    """Stands for address and body as they were sent; empty for what keeps no place in line."""
    needs: Needs | None = None
    """What it asks of its model; None for what any model can do."""

    def call_on(self, model: str) -> BackendCall:
        return self.call if isinstance(self.call, BackendCall) else self.call(model)


@value
class Ticket:
    """An accepted request; the answer arrives in `reply`.

    `position`: items ahead of it when it arrived; `estimated_wait_s`: until its start, None for
    unknown, `is_rough` for a guess; `served_by`: `claude` where it does not wait for the GPU.
    """

    sequence: Sequence
    request_id: RequestId
    position: int
    estimated_wait_s: float | None
    reply: Reply
    served_by: str = ""
    is_rough: bool = False


class Owner(Protocol):
    """Who carries accepted requests out: the queue, the embedding batcher, Claude."""

    def give_up(self, works: list[ActiveRequest]) -> list[ActiveRequest]:
        """Cancel these for their callers, in one decision.

        Returns those that were not given up before.
        """
        ...

    def shown(self, work: ActiveRequest) -> dict[str, object]: ...


class Identity(TypedDict):
    """Whose event it is: what every event of an item begins with."""

    sequence: Sequence
    request_id: RequestId
    lane: Lane
    caller: str
    model: str | None
    task_type: str | None


class FinishedRequest(NamedTuple):
    """What is remembered of a request that has ended: no body, no answer."""

    item: QueueItem
    model: str | None
    attempts: int
    interrupts: int
    outcome: Outcome


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """An accepted request.

    Attributes:
        new: as it was submitted; item: as it was accepted. owner: who carries it out. accepted_at:
        when; its item may have arrived before, in a place that it has taken over. attempt: the
        current or last attempt, 0 before the first. reported: the last attempt whose end has been
        reported. quiet_s, whole_s: how long the current attempt may take to the first byte of a
        stream, and to a whole answer. dispatched_at, first_byte_at: instants of the current
        attempt, or of the one that the item ended with; None while it waits. forwarded: the caller
        has been given bytes of the current attempt. sent: what the caller has been given of a
        stream that may be interrupted, over all attempts; None for others. spent: seconds that
        interrupted attempts took of which the caller has text. resumed: how the current attempt
        goes on with what was sent; None where it does not. again_tokens, verified_chars: what of
        the text so far it had to read or to write again, and what it was compared with. pausing:
        its attempt is to stop and to go on later; rest: what was read of it to see that. diverged:
        the current attempt has replayed something else before it went on in another way. rendering:
        a hash of the prompt as the model server rendered it when the stream was interrupted; None
        where that is not known. fingerprint: what the first attempt ran on; a replay on anything
        else would prove nothing. swap_s: seconds of its wait spent bringing in its model. emulated:
        the emulator works, or has worked, on the current or last attempt. status: HTTP status of
        the backend's answer. error: why the last attempt failed, or what its answer, which its
        caller has, says of itself. outcome: set once, by whoever ends it first.
    """

    new: Submission
    item: QueueItem
    reply: Reply
    owner: Owner
    accepted_at: float = 0.0
    attempt: int = 0
    reported: int = 0
    interrupts: int = 0
    model: str | None = None
    quiet_s: float = 0.0
    whole_s: float = 0.0
    dispatched_at: float | None = None
    first_byte_at: float | None = None
    swap_s: float = 0.0
    emulated: bool = False
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
        item = self.item
        return {
            "sequence": item.sequence,
            "request_id": item.request_id,
            "lane": item.lane,
            "caller": item.caller,
            "model": self.model or item.model,
            "task_type": item.task_type,
        }

    def call(self) -> BackendCall:
        return self.new.call_on(self.model or "")

    def begin_attempt(self, attempt: int, model: str, now: float) -> None:
        self.back_in_line()
        self.attempt, self.model, self.dispatched_at = attempt, model, now
        self.status, self.error, self.usage = None, None, NO_USAGE

    def back_in_line(self) -> None:
        self.dispatched_at = self.first_byte_at = self.resumed = None
        self.forwarded = self.diverged = False
        self.again_tokens = self.verified_chars = 0

    def spend(self, now: float) -> None:
        """The current attempt is interrupted: what it took counts for the answer, of which the
        caller has a part.
        """
        if self.dispatched_at is None or not self.forwarded:
            return
        began_at, before, first_at = (
            self.dispatched_at,
            self.spent,
            now if self.first_byte_at is None else self.first_byte_at,
        )
        total_s, prompt_s = before.total_s + now - began_at, before.prompt_s + first_at - began_at
        self.spent = Spent(
            total_s=total_s, prompt_s=prompt_s, decode_s=before.decode_s + now - first_at
        )
