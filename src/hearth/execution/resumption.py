"""How one interrupted answer goes on, and what that costs."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from hearth.dialects.replay import Replay, Sent
from hearth.dialects.routes import route_of
from hearth.dialects.stream import DeathNotice, Ending, StreamTail
from hearth.dialects.usage import HiddenUsage
from hearth.engines.port import Continuation, Continuations, LaterRun
from hearth.errors import BackendError, HearthError, StreamDiverged
from hearth.execution.attempt import Attempt
from hearth.types import NO_TIME, BackendCall, Elapsed, LoadedModel, ResumeMode

RENDER_LAST_S = 0.03
"""How long an interruption may wait to see how the prompt is rendered now, so that it is known
whether it is the same later.
"""
READ_AT_ONCE_BYTES = 64 * 1024
"""So much of a stream can be read within an interruption: some 5 ms.

With more, the model's digest alone says whether it is the same.
"""
REPLAYS = 10
MOST_DIVERGED = 2
"""A model of which more than so many of the last replays gave another text is not replayed."""

Run: TypeAlias = Callable[[BackendCall, LaterRun], Awaitable[None]]
"""Makes a call and passes on what comes out of a later run."""


@dataclass(slots=True, frozen=True)
class ModelMemory:
    """What is known of models as they are loaded, over all requests.

    Attributes:
        load_of: a model as it is loaded now. continuations_of: how its answers are continued,
        None for not at all. replays: of the last ones, whether they gave another text than the
        caller has.
    """

    load_of: Callable[[str], LoadedModel]
    continuations_of: Callable[[str], Continuations | None]
    replays: defaultdict[LoadedModel, deque[bool]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=REPLAYS))
    )


class ReplayedRun:
    """The same request again, compared with what was sent before anything is passed on."""

    mode: ResumeMode = "replayed"

    def __init__(self, call: BackendCall, sent: Sent) -> None:
        route = route_of(call.path)
        self.again_tokens = sent.frames
        self._tail = StreamTail(route)
        self._replay = Replay(route, sent)
        self._notice = DeathNotice(route)
        self._usage = HiddenUsage(route) if call.hides_usage else None

    @property
    def verified_chars(self) -> int:
        return self._replay.verified_chars

    def feed(self, chunk: bytes, wall_s: float) -> bytes:
        del wall_s
        self._tail.feed(chunk)
        chunk = chunk if self._usage is None else self._usage.without(chunk)
        return b"".join(self._notice.without((self._replay.feed(chunk),)))

    def end(self, wall_s: float) -> tuple[Ending, bytes]:
        del wall_s
        ending = self._tail.ending()
        return ending, self._replay.finish() if ending.complete else b""


class Resumption:
    """Made when a stream is interrupted first, kept until it is complete.

    Attributes:
        elapsed: what the interrupted attempts took of which the caller has text. has_diverged: the
        current attempt has replayed something else before it went on in another way.
    """

    def __init__(
        self,
        memory: ModelMemory,
        sent: Sent,
        *,
        modes: Sequence[ResumeMode],
        call_on: Callable[[str], BackendCall],
    ) -> None:
        """`modes`: best first; `call_on`: makes the call on a model."""
        self._memory = memory
        self._load = sent.written_by
        self._modes = modes
        self._call_on = call_on
        self._sent = sent
        self._continuation: Continuation | None = None
        self._prefix_hash: int | None = None
        """Of the prompt as it was rendered at the interruption; None where that is not known."""
        self.elapsed = NO_TIME
        self.has_diverged = False

    def _modes_on(self, model: str, *, as_loaded: bool = False) -> list[ResumeMode]:
        """How it can go on on this model, best first; `as_loaded`: as that is loaded now."""
        load = self._memory.load_of(model)
        if self._load.digest != load.digest:
            return []
        continuations = self._memory.continuations_of(model)
        differed = sum(self._memory.replays[self._load])
        can = {
            # a real engine repeats a text only for an equal history of its prompt cache
            "replayed": differed <= MOST_DIVERGED and (load == self._load or not as_loaded),
            "continued": continuations is not None and continuations.can_continue(self._load),
        }
        return [mode for mode in self._modes if can[mode]]

    def is_possible(self, model: str, attempt: Attempt) -> bool:
        """What runs now, as `attempt`, can be stopped, and the answer can go on."""
        modes = self._modes_on(model)
        was_continued = attempt.resumed is not None and attempt.resumed.mode == "continued"
        # Once continued, the text was drawn in two runs, and no single run of the whole repeats it:
        # then only another continuation will do, and whether that can be asked has to be read.
        if not modes or ("replayed" in modes and not was_continued):
            return bool(modes)
        try:
            self._continuation = self._read(model)
        except StreamDiverged:
            return False
        return self._continuation.can_be_asked

    def _read(self, model: str) -> Continuation:
        continuations = self._memory.continuations_of(model)
        if continuations is None:
            raise StreamDiverged
        return continuations.of(self._load, self._call_on(model), self._sent)

    async def pause(self, model: str, attempt: Attempt, now: float) -> int:
        """It was stopped to go on later: see how its prompt is rendered while its model is there;
        the tokens that the next attempt only reads.
        """
        self._add(attempt, now)
        continuation = self._continuation
        self._continuation = None
        if next(iter(self._modes_on(model)), None) != "continued":
            return 0
        with suppress(HearthError, TimeoutError, asyncio.CancelledError):
            if continuation is None and self._sent.size_bytes <= READ_AT_ONCE_BYTES:
                continuation = self._read(model)
            if continuation is not None:
                async with asyncio.timeout(RENDER_LAST_S):
                    self._prefix_hash = hash(await continuation.prefix())
        return self._sent.frames

    def broken_off(self, attempt: Attempt, now: float) -> int:
        """The attempt broke off: tokens of which the caller has the text."""
        self._add(attempt, now)
        self._continuation = None
        return self._sent.frames

    def _add(self, attempt: Attempt, now: float) -> None:
        """What an attempt took counts for the answer, of which the caller has a part."""
        began_at = attempt.dispatched_at
        before = self.elapsed
        if began_at is None:
            return
        first_at = now if attempt.first_byte_at is None else attempt.first_byte_at
        self.elapsed = Elapsed(
            total_s=before.total_s + now - began_at,
            prompt_s=before.prompt_s + first_at - began_at,
            decode_s=before.decode_s + now - first_at,
        )

    async def go_on(self, model: str, attempt: Attempt, run: Run, limit_s: float) -> None:
        """Go on in the first mode that works. Nothing of one that turns out not to has been passed
        on.

        Args:
            run: makes the calls. limit_s: for what has to be
            asked before each.

        Raises:
            StreamDiverged: no mode works, or it was another answer after all.
            TimeoutError: what has to be asked first is not answered.
        """
        failed = StreamDiverged("the model was changed while the answer was interrupted")
        self.has_diverged = False
        for mode in self._modes_on(model, as_loaded=True):
            try:
                if mode == "replayed":
                    await self._replay(self._call_on(model), run)
                else:
                    await self._continue(model, attempt, run, limit_s)
            except StreamDiverged as error:
                if attempt.forwarded:
                    raise
                failed = error
                self.has_diverged = self.has_diverged or mode == "replayed"
            else:
                return
        raise failed

    async def _replay(self, call: BackendCall, run: Run) -> None:
        record = self._memory.replays[self._load]
        try:
            await run(call, ReplayedRun(call, self._sent))
        except StreamDiverged:
            record.append(True)
            raise
        record.append(False)

    async def _continue(self, model: str, attempt: Attempt, run: Run, limit_s: float) -> None:
        continuation = self._read(model)
        if continuation.has_no_text:  # any answer goes on from there, and says nothing of replays
            call = self._call_on(model)
            await run(call, ReplayedRun(call, self._sent))
            return
        async with asyncio.timeout(limit_s):
            prefix = await continuation.prefix()
        if self._prefix_hash not in (None, hash(prefix)):
            raise StreamDiverged(
                "the model's template has changed while the answer was interrupted"
            )
        failed = StreamDiverged()
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    asked = await continuation.next_ask(self.elapsed)
                if asked is None:
                    break
                await self._ask(attempt, run, *asked)
            except StreamDiverged as error:
                failed = error
            else:
                return
        raise failed

    @staticmethod
    async def _ask(attempt: Attempt, run: Run, call: BackendCall, rest: LaterRun) -> None:
        try:
            await run(call, rest)
        except BackendError as error:
            if attempt.forwarded or attempt.status is None or not 400 <= attempt.status < 500:
                raise
            attempt.status = None
            raise StreamDiverged(
                "the model server does not accept the text so far as a prompt"
            ) from error
