"""Which conversation is in which slot of one llama-server, over a stop and a start of it.

A server keeps what it has read in its slots, and writes a slot to a file when it is asked to
(`/slots/N?action=save`). Before it is stopped, each slot with a long conversation is saved. The
next server of this model reads a conversation from its file right before its next request, which is
pinned to that slot by `id_slot`, since the next unrelated request would take a restored slot first.
A conversation's next turn is pinned to its slot, too, where that is free: a busy slot is waited for
though others are free. Everything else goes where the server wants: it finds the slot with the
longest common beginning, and has a cache in main memory, which it does not look into for an empty
slot that a request is pinned to.

Which slot it took is seen afterwards (`SlotTable`), since Hearth alone talks to it. A wrong guess
costs a reading and never gives a wrong answer: the server compares each prompt with what the slot
holds.

What is claimed is checked: a file's size before it is read (a cut one ends the server), the
answer's cached tokens afterwards. A failure costs a reading, never a request; `Trust` counts.

Source: llama.cpp's `tools/server`, and what a real one did, October 2026.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

from hearth.clock import Clock
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.dialects.stream import StreamTail, count_in
from hearth.engines.continuations import Opens
from hearth.engines.llama_server.saved import SavedConversation, SavedConversations
from hearth.engines.llama_server.slot_routes import SlotFailed, SlotRoutes
from hearth.engines.llama_server.slot_table import Slot, SlotCall, SlotTable
from hearth.engines.llama_server.trust import Speed, Trust
from hearth.engines.port import Exchange
from hearth.events import (
    ConversationRestored,
    ConversationsSaved,
    ConversationUnsaved,
    Event,
    SavingSwitchedOff,
)
from hearth.types import NO_USAGE, BackendCall, Headers, Usage

PINS = b'"id_slot"'
LEAST_TOKENS = 256
"""Fewer are read again in no more time than it takes to save them."""
MOSTLY = 0.5
"""So much of what was read before is found again where a restored slot was of use."""
SAVE_S = 15.0
"""So long at most all slots of a server are saved; what is not done then is read again."""
MOST_READ = 4096
"""Conversations that are remembered as read in this run."""


class Slots:
    """The slots of one run of a server.

    Args:
        opens: carries calls to it. model: its name, for events. signature: see `signature_of`.
        count: of its slots. report: gets the events.
    """

    def __init__(
        self,
        opens: Opens,
        *,
        saved: SavedConversations,
        trust: Trust,
        model: str,
        signature: str,
        count: int,
        clock: Clock,
        report: Callable[[Event], None],
    ) -> None:
        self._opens = opens
        self._routes = SlotRoutes(opens)
        self._table = SlotTable(self._routes, count, clock)
        self._saved = saved
        self._trust = trust
        self._model = model
        self._signature = signature
        self._clock = clock
        self._report = report
        self._read: dict[str, None] = {}
        """Conversations that this run has read: its own caches have later states of them than the
        disk.
        """
        self._unproven: SavedConversation | None = None
        """What was restored last, until an answer has shown it."""
        self._reading = Speed()
        self._writing = Speed()
        self._bytes_per_token = 0.0
        self._lock = asyncio.Lock()
        """Held until the server has taken a call, so that its list shows where that went."""

    # Calls.

    async def open(self, call: BackendCall) -> Exchange:
        """As `engines.port` says; a call that generates text goes to its slot."""
        route = INFERENCE_ROUTES.get(call.path)
        if route is None or route.kind != "generate" or self._trust.is_off:
            return await self._opens.open(call)
        async with self._lock:
            made = await self._placed("" if PINS in call.body else call.conversation)
            if made.slot is not None and self._table.only is None:
                call = replace(call, body=_pinned(call.body, made.slot.number))
            try:
                exchange = await self._opens.open(call)
            except BaseException:
                made.has_ended = True
                self._begin(made)  # it may have taken a slot
                raise
            if exchange.status >= HTTPStatus.BAD_REQUEST:  # it took none
                return exchange
            self._begin(made)
        return _Watched(exchange, StreamTail(route), lambda usage: self._end(made, usage))

    async def _placed(self, conversation: str) -> SlotCall:
        """Where a call goes, after what was saved of its conversation was restored there."""
        await self._table.find_lost()
        own = self._table.own(conversation)
        if own is not None:
            return SlotCall(conversation, None if own.calls else own)
        if conversation and conversation not in self._read:
            entry = self._saved.find(conversation, self._signature, self._clock.wall())
            slot = None if entry is None else await self._restored(entry)
            if slot is not None:
                return SlotCall(conversation, slot, restored=entry)
        return SlotCall(conversation, self._table.only)

    def _begin(self, made: SlotCall) -> None:
        """The server has taken a call."""
        self._table.begin(made)
        if made.conversation:
            self._read[made.conversation] = None
            if len(self._read) > MOST_READ:
                del self._read[next(iter(self._read))]

    def _end(self, made: SlotCall, usage: Usage) -> None:
        """An answer has ended, or was cut off: then the slot keeps what was read."""
        self._table.end(made, usage)
        read_tokens = (usage.prompt_tokens or 0) - (usage.cached_tokens or 0)
        if usage.prompt_s and read_tokens >= LEAST_TOKENS:
            self._reading.learn(read_tokens, usage.prompt_s)
        if usage != NO_USAGE:  # the server lives
            self._unproven = None
        if made.restored is not None:
            self._prove(made.restored, usage)

    # Before a stop.

    async def save(self) -> None:
        """Save what is worth it, within `SAVE_S`; to be called when nothing runs any more, before
        the server is stopped.
        """
        if self._trust.is_off:
            return
        try:
            async with asyncio.timeout(SAVE_S), self._lock:
                await self._save()
        except TimeoutError:
            self._unsaved("save", f"not done within {SAVE_S:g} s")

    async def _save(self) -> None:
        await self._table.find_lost()
        if not await self._table.look():
            return
        began_at = self._clock.monotonic()
        failed = list[SlotFailed]()
        entries = list[SavedConversation]()
        for slot in self._table.latest_first:
            try:
                entries += await self._saved_slot(slot)
            except SlotFailed as failure:
                failed.append(failure)
        self._note_saved(entries, failed, self._clock.monotonic() - began_at)

    async def _saved_slot(self, slot: Slot) -> list[SavedConversation]:
        """Save a slot; nothing where that is not worth it. Raises SlotFailed."""
        if not slot.conversation or (slot.tokens and slot.tokens == slot.on_disk):
            return []
        if not slot.tokens and slot.prompt_tokens >= LEAST_TOKENS:
            raise SlotFailed("the server has emptied the slot", doubtful=True)
        if slot.tokens < LEAST_TOKENS or not self._reading.is_slower_than(self._writing):
            return []
        began_at = self._clock.monotonic()
        entry = await self._written(slot)
        slot.on_disk = entry.tokens
        self._bytes_per_token = entry.size_bytes / entry.tokens
        self._writing.learn(entry.tokens, self._clock.monotonic() - began_at)
        return [entry]

    async def _written(self, slot: Slot) -> SavedConversation:
        """A slot in a file. Raises SlotFailed."""
        saved = self._saved
        name = ""
        try:
            await asyncio.to_thread(saved.make_room, slot.tokens * self._bytes_per_token)
            name = await asyncio.to_thread(saved.new_file)
            said = await self._routes.filed(slot.number, "save", name)
            tokens = count_in(said, "n_saved") or 0
            if not tokens:
                raise SlotFailed("the server saved nothing", doubtful=True)
            entry = SavedConversation(
                name=name,
                conversation=slot.conversation,
                model=self._model,
                signature=self._signature,
                tokens=tokens,
                prompt_tokens=slot.prompt_tokens,
                size_bytes=count_in(said, "n_written", 10**15) or 0,
                modified_ns=0,
                used_at=self._clock.wall(),
            )
            return await asyncio.to_thread(saved.add, entry)
        except OSError as error:
            raise SlotFailed(error.strerror or str(error), doubtful=False) from error
        finally:
            if name:
                await asyncio.to_thread(saved.discard_unknown, name)

    def _note_saved(
        self, entries: list[SavedConversation], failed: list[SlotFailed], took_s: float
    ) -> None:
        """Of several slots, one that was saved shows that saving works."""
        for failure in failed:
            self._unsaved("save", str(failure))
        if entries:
            self._trust.worked("save")
            self._report(
                ConversationsSaved(
                    at=self._clock.monotonic(),
                    model=self._model,
                    conversations=len(entries),
                    tokens=sum(entry.tokens for entry in entries),
                    size_bytes=sum(entry.size_bytes for entry in entries),
                    took_s=took_s,
                )
            )
        elif any(failure.doubtful for failure in failed):
            self._distrust("save", str(failed[-1]))

    # After a start.

    async def _restored(self, entry: SavedConversation) -> Slot | None:
        """The slot into which a conversation was read from its file; None where it was not."""
        if not await asyncio.to_thread(self._saved.is_whole, entry):
            self._not_restored(entry, "its file was changed", doubtful=False)
            return None
        slot = await self._cleared()
        if slot is None:
            return None
        try:
            await self._read_into(slot, entry)
        except SlotFailed as failure:
            self._not_restored(entry, str(failure), doubtful=failure.doubtful)
            return None
        return slot

    async def _cleared(self) -> Slot | None:
        """A free slot, an empty one if there is any; else what is in there is saved before."""
        slot = self._table.free() if await self._table.look() else None
        if slot is None:
            return None
        try:
            await self._saved_slot(slot)
        except SlotFailed as failure:
            self._unsaved("save", str(failure))
        return slot

    async def _read_into(self, slot: Slot, entry: SavedConversation) -> None:
        """Raises SlotFailed."""
        slot.forget()
        self._unproven = entry
        said = await self._routes.filed(slot.number, "restore", entry.name)
        counts = count_in(said, "n_restored"), count_in(said, "n_read", 10**15)
        if counts != (entry.tokens, entry.size_bytes):
            reason = f"the server read {counts[0]} of {entry.tokens} tokens"
            raise SlotFailed(reason, doubtful=True)
        slot.hold(entry)
        await asyncio.to_thread(self._saved.used, entry, self._clock.wall())

    def _prove(self, entry: SavedConversation, usage: Usage) -> None:
        """Does the answer show that the slot was of use? One that was cut off does not tell, nor
        does a prompt that no longer goes on with the last one.
        """
        prompt_tokens = usage.prompt_tokens or 0
        cached_tokens = usage.cached_tokens
        if cached_tokens is None or prompt_tokens < MOSTLY * entry.prompt_tokens:
            return
        known_tokens = entry.prompt_tokens or entry.tokens  # the answer was cut off
        if cached_tokens < MOSTLY * min(known_tokens, prompt_tokens):
            reason = f"{cached_tokens} of {entry.tokens} restored tokens were of use"
            self._not_restored(entry, reason)
            return
        self._trust.worked("restore")
        self._report(
            ConversationRestored(
                at=self._clock.monotonic(),
                model=self._model,
                tokens=entry.tokens,
                cached_tokens=cached_tokens,
            )
        )

    def crashed(self) -> None:
        """The server has ended by itself: what was restored last may have done it."""
        entry = self._unproven
        self._unproven = None
        if entry is not None:
            self._not_restored(entry, "the server ended after it")

    # What goes wrong.

    def _not_restored(
        self, entry: SavedConversation, reason: str, *, doubtful: bool = True
    ) -> None:
        self._saved.remove(entry)
        self._unsaved("restore", reason)
        if doubtful:
            self._distrust("restore", reason)

    def _unsaved(self, step: str, reason: str) -> None:
        self._report(
            ConversationUnsaved(
                at=self._clock.monotonic(), model=self._model, step=step, reason=reason
            )
        )

    def _distrust(self, step: str, reason: str) -> None:
        if self._trust.failed(step):
            self._report(
                SavingSwitchedOff(at=self._clock.monotonic(), model=self._model, reason=reason)
            )


def _pinned(body: bytes, number: int) -> bytes:
    """A JSON object with another field: the slot."""
    fields = body.lstrip().removeprefix(b"{")
    return b'{"id_slot":%d%b%b' % (number, b"" if fields.lstrip() == b"}" else b",", fields)


class _Watched:
    """An `Exchange` of whose end `on_end` hears, with the usage that it reports."""

    def __init__(
        self, exchange: Exchange, tail: StreamTail, on_end: Callable[[Usage], None]
    ) -> None:
        self.status = exchange.status
        self.headers: Headers = exchange.headers
        self._exchange = exchange
        self._tail = tail
        self._on_end: Callable[[Usage], None] | None = on_end

    async def take(self) -> tuple[bytes, ...]:
        chunks = await self._exchange.take()
        for chunk in chunks:
            self._tail.feed(chunk)
        return chunks

    def close(self) -> None:
        self._exchange.close()
        on_end = self._on_end
        self._on_end = None
        if on_end is not None:
            on_end(self._tail.ending().usage)
