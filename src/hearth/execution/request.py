"""One request on its way: as it is submitted, as it is accepted, the reply that it fills, and what
has happened to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import field, replace
from typing import NamedTuple, Protocol, TypeAlias, TypedDict

from hearth.dialects.capabilities import Needs
from hearth.dialects.replay import Sent
from hearth.dialects.routes import Route
from hearth.errors import CallerGone, HearthError
from hearth.events import Event
from hearth.execution.attempt import Attempt
from hearth.execution.resumption import ModelMemory, Resumption
from hearth.types import (
    BackendCall,
    Counted,
    Headers,
    JsonDict,
    Lane,
    LoadedModel,
    MediaKind,
    Outcome,
    QueueItem,
    RequestId,
    ResumeMode,
    Sequence,
    entity,
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
        call = self.call if isinstance(self.call, BackendCall) else self.call(model)
        item = self.item
        # a program's own calls beside a conversation do not go on with what was read of it
        if not item.conversation or item.background:
            return call
        return replace(call, conversation="/".join(item.conversation_key))


@entity
class PromisedWait:
    """What a request was told of its wait when it was accepted; `waited_s`: until its first
    start.
    """

    expected_s: float
    bound_s: float
    waited_s: float | None = None

    def is_kept(self, waited_s: float) -> bool | None:
        """Did it start within its bound? None where it was to start at once, and where it ended
        after `waited_s`, before either was certain.
        """
        if not self.bound_s:
            return None
        if self.waited_s is not None:
            return self.waited_s <= self.bound_s
        return None if waited_s <= self.bound_s else False


@value
class Ticket:
    """An accepted request; the answer arrives in `reply`.

    `position`: items ahead of it when it arrived; `estimated_wait_s`: until its start, None for
    unknown, `is_rough` for a guess; `wait_bound_s`: within which 90 % start;
    `served_by`: `claude` where it does not wait for the GPU.
    """

    sequence: Sequence
    request_id: RequestId
    position: int
    estimated_wait_s: float | None
    wait_bound_s: float | None = None
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

    def shown(self, work: ActiveRequest) -> JsonDict: ...


class EventIdentity(TypedDict):
    """Whose event it is: what every event of an item begins with."""

    sequence: Sequence
    request_id: RequestId
    lane: Lane
    caller: str
    model: str | None
    task_type: str | None


class AskedFor(TypedDict):
    """What an end says of what was asked for; None where that is not so."""

    chain_id: str | None
    counted: Counted | None
    background: str | None
    user: str | None
    alias: str | None
    kind: MediaKind | None
    audio_s: float | None


class PromiseKept(TypedDict):
    """What an end says of the wait that was promised."""

    wait_bound_s: float | None
    bound_kept: bool | None


class FinishedRequest(NamedTuple):
    """What is remembered of a request that has ended: no body, no answer."""

    item: QueueItem
    model: str | None
    attempts: int
    interrupts: int
    outcome: Outcome


@entity
class ActiveRequest:
    """An accepted request.

    Attributes:
        new: as it was submitted; item: as it was accepted. owner: who carries it out. accepted_at:
        when; its item may have arrived before, in a place that it has taken over. model: of the
        current or last attempt. attempt: the current or last one. sent: what the caller has been
        given of a stream that may be interrupted, over all attempts; None for others. resumption:
        how that goes on; None before it was interrupted. outcome: set once, by whoever ends it
        first. wait: what its caller was told of its wait; None where nothing was.
    """

    new: Submission
    item: QueueItem
    reply: Reply
    owner: Owner
    accepted_at: float = 0.0
    model: str | None = None
    attempt: Attempt = field(default_factory=Attempt)
    interrupts: int = 0
    sent: Sent | None = None
    resumption: Resumption | None = None
    outcome: Outcome | None = None
    wait: PromisedWait | None = None

    @property
    def identity(self) -> EventIdentity:
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
    def asked_for(self) -> AskedFor:
        item = self.item
        return {
            "chain_id": item.chain_id,
            "counted": item.counted,
            "background": item.background or None,
            "user": item.user or None,
            "alias": item.alias or None,
            "kind": item.media,
            "audio_s": item.audio_s or None,
        }

    def promise_kept(self, now: float) -> PromiseKept:
        """What has come by now of what its caller was told of its wait."""
        wait = self.wait
        if wait is None:
            return {"wait_bound_s": None, "bound_kept": None}
        return {"wait_bound_s": wait.bound_s, "bound_kept": wait.is_kept(now - self.accepted_at)}

    @property
    def resumed(self) -> ResumeMode | None:
        """How the current attempt goes on with what was sent; None where it does not."""
        run = self.attempt.resumed
        return None if run is None else run.mode

    def call(self) -> BackendCall:
        return self.new.call_on(self.model or "")

    def begin_attempt(
        self,
        number: int,
        model: str,
        now: float,
        *,
        engine: str,
        swap_s: float = 0.0,
        emulated: bool = False,
    ) -> None:
        self.model = model
        self.attempt = Attempt(
            number=number, dispatched_at=now, swap_s=swap_s, emulated=emulated, engine=engine
        )

    def back_in_line(self, interrupts: int | None = None) -> None:
        """Wait for another attempt; the last one is kept for what it says of the failure."""
        attempt = self.attempt
        attempt.dispatched_at = None
        attempt.first_byte_at = None
        attempt.resumed = None
        attempt.forwarded = False
        self.interrupts = self.interrupts if interrupts is None else interrupts

    def begin_stream(self, route: Route, load: LoadedModel, limit_bytes: int) -> None:
        """Remember what is sent from now on, if the stream may be interrupted."""
        if self.item.ways:
            self.sent = Sent(route, limit_bytes=limit_bytes, written_by=load)

    def resumption_by(self, memory: ModelMemory) -> Resumption | None:
        """How its stream goes on; None where what was sent is not remembered."""
        if self.sent is None or not self.sent.replayable:
            return None
        if self.resumption is None:
            self.resumption = Resumption(
                memory, self.sent, modes=self.item.ways, call_on=self.new.call_on
            )
        return self.resumption

    def end_stream(self) -> None:
        """It is complete: nothing of it will ever go on."""
        self.sent = None
