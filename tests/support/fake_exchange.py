"""One answer of a fake Ollama: its chunks come at their instants, break as scripted, and what
happened is on record.

Used by `fake_ollama` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum

from hearth.errors import BackendGone, HearthError
from hearth.types import Headers
from tests.support import ollama_wire as wire
from tests.support.taking import Taking
from tests.support.virtual_time import loop_s


class CallFault(StrEnum):
    REFUSE = "refuse"
    GONE_BEFORE_HEAD = "gone_before_head"
    GONE_MID_STREAM = "gone_mid_stream"
    SILENT = "silent"
    """Never a byte."""
    STALL = "stall"
    """The first chunk, then nothing."""
    SERVER_ERROR = "server_error"
    """500 in the route's own shape."""
    RUNNER_DIED = "runner_died"
    """The same, in the words of an Ollama whose model died at work."""
    RUNNER_DIES = "runner_dies"
    """Half of the chunks, then what Ollama says where the model dies within a stream, and a clean
    end.
    """
    ERROR_LINE = "error_line"
    """The first chunk, then an error line and a clean end."""
    NO_DONE = "no_done"
    """A clean end without the dialect's terminator."""
    SLOW = "slow"
    """Ten times the service time."""


class Ending(StrEnum):
    COMPLETED = "completed"
    CLOSED = "closed"
    """The client left before the end."""
    BROKEN = "broken"
    """The server's fault, scripted or not."""


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """One generation; instants are loop time."""

    method: str
    path: str
    model: str | None
    body: bytes
    headers: Headers
    opened_at: float
    first_byte_at: float | None = None
    ended_at: float | None = None
    ending: Ending | None = None


class FakeExchange(Taking):
    """The `Exchange` of one call: chunks become available at their instants and are lost when it is
    closed.
    """

    def __init__(
        self,
        record: CallRecord,
        answer: wire.Answer,
        instants: tuple[float, ...],
        at_end: Callable[[], None],
    ) -> None:
        self._record = record
        self._answer = answer
        self._instants = instants
        self._at_end = at_end
        self._waiter: asyncio.Future[None] | None = None
        self._fault: CallFault | None = None
        self._silent = self._hurried = False

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Headers:
        return self._answer.headers

    def break_with(self, fault: CallFault | None) -> None:
        """Script what goes wrong; before the head is asked for."""
        self._fault = fault
        kept = self._answer.chunks[:-1]
        if fault is CallFault.RUNNER_DIES and not kept:
            # Nothing of a whole answer is out when its model dies: Ollama answers 500.
            self._answer = wire.error(self._record.path, 500, wire.RUNNER_DIED)
            return
        if fault is CallFault.ERROR_LINE:
            kept = (*kept[:1], wire.error_line(wire.OUT_OF_ORDER))
        elif fault is CallFault.RUNNER_DIES:
            kept = (*kept[: len(kept) // 2], *wire.death_notice(self._record.path))
        if fault in {CallFault.ERROR_LINE, CallFault.NO_DONE, CallFault.RUNNER_DIES}:
            self._answer = self._answer.cut_to(kept)

    def hurry(self) -> None:
        """What is left comes now."""
        self._hurried = True
        if self._waiter is not None:
            settle(self._waiter)

    def fall_silent(self) -> None:
        """Nothing comes after the chunk that is waited for now."""
        self._silent = True

    async def head(self) -> None:
        await asyncio.sleep(0)
        first_at = self._instants[0] if self._instants else self._record.opened_at
        await self._until(None if self._fault is CallFault.SILENT else first_at)
        if self._fault is CallFault.GONE_BEFORE_HEAD:
            self.end(Ending.BROKEN)
            raise BackendGone
        self._record.first_byte_at = loop_s()

    async def chunks(self) -> AsyncIterator[bytes]:
        last = len(self._answer.chunks) - 1
        if last < 0:
            self.end(Ending.COMPLETED)
        for index, chunk in enumerate(self._answer.chunks):
            stalls = self._silent or (self._fault is CallFault.STALL and index == min(1, last))
            await self._until(None if stalls else self._instants[index])
            if self._breaks_at(index, last):
                self.end(Ending.BROKEN)
                raise BackendGone
            if index == last:
                self.end(Ending.COMPLETED)
            yield chunk

    def _breaks_at(self, index: int, last: int) -> bool:
        return self._fault is CallFault.GONE_MID_STREAM and index == (last + 1) // 2

    def close(self) -> None:
        self.end(Ending.CLOSED)

    def end(self, ending: Ending) -> None:
        """The first ending counts; it frees the slot."""
        if self._record.ending is not None:
            return
        self._record.ending = ending
        self._record.ended_at = loop_s()
        self._at_end()
        if self._waiter is not None:
            settle(self._waiter)

    async def _until(self, instant: float | None) -> None:
        """Wait for the instant (None: for ever) or the end of the call, whichever comes first."""
        loop = asyncio.get_running_loop()
        comes = instant is not None and (self._hurried or instant <= loop.time())
        if self._record.ending is None and not comes:
            self._waiter = loop.create_future()
            timer = None if instant is None else loop.call_at(instant, settle, self._waiter)
            try:
                await self._waiter
            finally:
                if timer is not None:
                    timer.cancel()
        if self._record.ending is not None:
            raise BackendGone


def settle(waiter: asyncio.Future[None], error: HearthError | None = None) -> None:
    """End a wait, once; a later ending of the same wait is ignored."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
