"""The execution of one reply on a loaded model: waits for a slot, reads the prompt, says the tokens at the model's pace.

Paces by an absolute schedule, so a fast emulator is not limited by the resolution of timers. It must never frame bytes for a dialect.
Called by `session` and `embeddings`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hearth.emulator.engine import Engine
from hearth.emulator.errors import RunnerDied
from hearth.emulator.runners import Runner, SlotUse
from hearth.emulator.text import Piece, ReplyPlan

_TIMER_RESOLUTION_S = 0.001

Say = Callable[[Piece], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one execution took, by the emulator's clock."""

    prompt_tokens: int
    eval_tokens: int
    prompt_s: float
    eval_s: float


class Execution:
    """One use of a runner."""

    def __init__(self, engine: Engine, runner: Runner, prompt_tokens: int) -> None:
        self._engine = engine
        self._runner = runner
        self._prompt_tokens = prompt_tokens

    async def speak(self, plan: ReplyPlan, say: Say | None, *, dies_after: float = math.inf) -> Measured:
        """Say every piece of `plan` when it is due; the slot is held until the last one has been taken.

        Args:
            say: takes a piece; None where the answer is sent whole at the end.
            dies_after: pieces after which the runner's process ends, at the latest after the last; infinity for never.

        Raises `RunnerDied` when the runner's process ends meanwhile.
        """
        async with self._engine.slot(self._runner) as use:
            clock = self._engine.clock
            began_at = clock.monotonic()
            first_at = await self._read(use)
            spoke_at = clock.monotonic()
            dies_at = dies_after if dies_after == math.inf else min(dies_after, len(plan.pieces))
            for place, piece in enumerate(plan.pieces):
                await self._until(first_at + self._decode_s(place))
                if say is not None:
                    await say(piece)
                    use.streams = True
                if place + 1 == dies_at:
                    self._runner.died.set()
            await self._until(first_at + self._decode_s(max(0, plan.eval_tokens - 1)))
            return self._measured(plan, spoke_at - began_at, clock.monotonic() - spoke_at)

    async def read(self) -> None:
        """Read the prompt without an answer: one embedding."""
        async with self._engine.slot(self._runner) as use:
            await self._read(use)

    async def _read(self, use: SlotUse) -> float:
        """Returns the instant at which the first piece is due."""
        name, engine = self._runner.model.profile.name, self._engine
        use.reads_until = engine.clock.monotonic() + engine.service.prompt_s(name, self._prompt_tokens) * self._runner.slowdown
        await self._until(use.reads_until)
        return use.reads_until

    def _decode_s(self, tokens: int) -> float:
        return self._engine.service.decode_s(self._runner.model.profile.name, tokens) * self._runner.slowdown

    def _measured(self, plan: ReplyPlan, prompt_s: float, eval_s: float) -> Measured:
        return Measured(prompt_tokens=self._prompt_tokens, eval_tokens=plan.eval_tokens, prompt_s=prompt_s, eval_s=eval_s)

    async def _until(self, due_at: float) -> None:
        ahead_s = due_at - self._engine.clock.monotonic()
        if ahead_s > _TIMER_RESOLUTION_S:
            await _sleep_unless(self._runner.died, ahead_s)
        else:
            await asyncio.sleep(0)
        if self._runner.died.is_set():
            raise RunnerDied


async def _sleep_unless(event: asyncio.Event, duration_s: float) -> None:
    try:
        async with asyncio.timeout(duration_s):
            await event.wait()
    except TimeoutError:
        return
