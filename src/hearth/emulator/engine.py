"""The scheduler of the emulated server: one loop loads, everybody else waits, a loaded model
bypasses the queue.

Mirrors ollama/ollama `server/sched.go` with its traps (a waiting eviction blocks every other load;
an explicit keep_alive on the victim revives it; a caller that leaves during a load kills the load)
and with those bugs of `quirks` that are switched on. A reply is paced by an absolute schedule, so a
fast emulator is not limited by the resolution of timers.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from hearth.clock import Clock
from hearth.dialects.writers import AnswerPart, TextPart
from hearth.emulator.models import (
    BUSY_TEXT,
    DIED_TEXT,
    GIB,
    Catalogue,
    EmulatedModel,
    Installed,
    OllamaError,
)
from hearth.emulator.prompts import LoadKey
from hearth.emulator.quirks import Faults
from hearth.emulator.text_cache import TextCache
from hearth.types import entity

_LOGGED = 10_000
_CACHED_PROMPTS = 8
_TIMER_RESOLUTION_S = 0.001
_KEEP_ALIVE_S = 300.0
"""Ollama's own, OLLAMA_KEEP_ALIVE unset."""

SendPiece = Callable[[AnswerPart], Awaitable[None]]


@dataclass(slots=True, kw_only=True, eq=False)
class Runner:
    """A model in memory."""

    model: EmulatedModel
    name: str
    digest: str
    key: LoadKey
    vram_bytes: int
    # how long it stays after its last request; 0 marks it for eviction, infinity keeps it
    keep_alive_s: float
    slots: asyncio.Semaphore
    slowdown: float  # how many times slower than the model's profile it runs
    prompts: TextCache
    expires_wall: float = 0.0  # refreshed only when the runner goes idle
    references: int = 0  # requests attached, waiting for a slot included
    # its process has ended; nobody notices before the next request
    died: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    evicting: bool = False  # another model waits for this one to go
    executions: int = 0  # requests that have held a slot and ended
    # prompts that are still read though their callers have left, each holding a slot
    orphans: int = 0
    # what begins with one finds a warm prompt cache
    cached: deque[str] = field(default_factory=lambda: deque(maxlen=_CACHED_PROMPTS))

    def reads(self, prompt: str) -> bool:
        """Whether the cache is warm for this prompt, which is in it from now on."""
        warm = any(prompt.startswith(known) for known in self.cached)
        self.cached.append(prompt)
        return warm

    def serves(self, key: LoadKey) -> bool:
        return self.key == key and not self.died.is_set()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(slots=True)
class _SlotUse:
    """What a request does with its slot: until when (monotonic) its prompt is read, and whether its
    caller is being sent pieces.
    """

    reads_until: float = 0.0
    streams: bool = False


@entity
class _Pending:
    installed: Installed
    key: LoadKey
    keep_alive_s: float | None
    answer: asyncio.Future[Runner]


class LoggedRequest(NamedTuple):
    """A request as it arrived, before any check."""

    method: str
    path: str
    body: bytes


DEFAULT_VRAM_GIB = 24.0


class EmulatedServer:
    """Runners, the loop that loads them, and what tests may look at. Must live on one event loop.

    Args:
        profiles: installed models. speed: divides every service time (load, unload, prompt,
        decode); keep_alive times are not scaled. seed: makes ids and the seeds of requests without
        one repeatable; None is different on each run. num_parallel: slots per model
        (OLLAMA_NUM_PARALLEL); max_queue: loads that may wait before 503 (OLLAMA_MAX_QUEUE).
        max_loaded: models in memory at most (OLLAMA_MAX_LOADED_MODELS). vram_gib: memory of the
        emulated card; 0 is a machine without one, and no limit. quirks: known bugs of a real Ollama
        to show, each as `parse_quirk` reads it; raises `ConfigError`. marked: each answer has a
        header by which it is known to be made up, the only difference from Ollama's.
    """

    def __init__(
        self,
        profiles: Sequence[EmulatedModel],
        *,
        clock: Clock,
        speed: float = 1.0,
        seed: int | None = None,
        num_parallel: int = 1,
        max_queue: int = 512,
        max_loaded: int = 3,
        vram_gib: float = DEFAULT_VRAM_GIB,
        quirks: Iterable[str] = (),
        marked: bool = True,
    ) -> None:
        if speed <= 0:
            raise ValueError("speed must be positive")
        self.clock = clock
        self.catalogue = Catalogue(profiles, now_wall=clock.wall())
        self.marked = marked
        # ids, texts and which request a quirk hits: no secrets
        self.rng = random.Random(seed)  # noqa: S311
        self.faults = Faults(quirks, self.rng)
        self._speed = speed
        self._num_parallel = num_parallel
        self._max_loaded = max_loaded
        self._vram_gib = vram_gib
        # Ollama's tiers by total GPU memory (since v0.17).
        self.default_context_tokens = 4096 if vram_gib < 23 else 32768 if vram_gib < 47 else 262144
        self.max_concurrent = 0
        """The most executions that ever held slots at the same time."""
        self.leaked_slots: Counter[str] = Counter()
        """Slots that callers took with them, by name of the loaded model."""
        self._requests: deque[LoggedRequest] = deque(maxlen=_LOGGED)
        self._loads: deque[tuple[str, float]] = deque(maxlen=_LOGGED)
        self._running: Counter[str] = Counter()
        self._loaded: dict[str, Runner] = {}
        self._queue: asyncio.Queue[_Pending] = asyncio.Queue(maxsize=max(1, max_queue))
        self._unloading: set[asyncio.Task[None]] = set()
        self._unloaded = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Executions that hold a slot now, by model name with tag."""
        return {name: count for name, count in self._running.items() if count}

    @property
    def resident(self) -> tuple[str, ...]:
        """Names of the models in memory."""
        return tuple(runner.name for runner in self.runners())

    @property
    def loads(self) -> tuple[tuple[str, float], ...]:
        """The latest completed loads, oldest first: model name with tag, and the instant on the
        monotonic clock.
        """
        return tuple(self._loads)

    @property
    def requests(self) -> tuple[LoggedRequest, ...]:
        """The latest requests, oldest first."""
        return tuple(self._requests)

    def hex_id(self, prefix: str, digits: int) -> str:
        return f"{prefix}{self.rng.getrandbits(digits * 4):0{digits}x}"

    async def _end(self) -> None:
        for runner in self._loaded.values():
            runner.stop_timer()
        self._loaded.clear()
        tasks = [*self._unloading, *([self._loop_task] if self._loop_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def runners(self) -> list[Runner]:
        """Loaded runners, latest expiry first; one that is being loaded is absent."""
        return sorted(self._loaded.values(), key=lambda runner: -runner.expires_wall)

    @asynccontextmanager
    async def lease(
        self, installed: Installed, key: LoadKey, keep_alive_s: float | None
    ) -> AsyncIterator[Runner]:
        """A loaded runner for the time of the block; raises `OllamaError` 503 when too many loads
        wait.
        """
        if self.faults.strikes("busy-503"):
            raise OllamaError(503, BUSY_TEXT)
        pending = _Pending(installed, key, keep_alive_s, asyncio.get_running_loop().create_future())
        runner = self._loaded.get(installed.model.weights)
        if runner is not None and runner.serves(key):
            self._attach(runner, pending)
        else:
            runner = await self._wait_for_load(pending)
        try:
            yield runner
        finally:
            self._release(runner)

    async def generate(
        self,
        runner: Runner,
        prompt_tokens: int,
        pieces: Sequence[tuple[TextPart, int]] = (),
        eval_tokens: int = 0,
        send_piece: SendPiece | None = None,
        *,
        prompt: str = "",
        dies_after: float = inf,
    ) -> tuple[float, float]:
        """Read the prompt and send every piece when it is due, holding a slot until the last one
        has been taken.

        Args:
            pieces: each with the number of the token with which it is sent, from 1. send_piece:
            None where the answer is sent whole at the end. prompt: its text, of which is not read
            what is cached. dies_after: pieces after which the runner's process ends, at the latest
            after the last; infinity for never.

        Returns how long prompt and answer took, in seconds. Raises `OllamaError` 500 when the
        runner's process ends meanwhile.
        """
        speed = self._speed / runner.slowdown
        model = runner.model
        async with self._slot(runner) as use:
            began_at = self.clock.monotonic()
            prompt_token_s = 1 / model.prompt_tokens_per_s / speed
            await self._read(runner, use, prompt, prompt_tokens, prompt_token_s)
            first_at = use.reads_until
            read_at = self.clock.monotonic()
            token_s = 1 / model.decode_tokens_per_s / speed
            dies_at = dies_after if dies_after == inf else min(dies_after, len(pieces))
            for place, (piece, token) in enumerate(pieces):
                await self._until(runner, first_at + (token - 1) * token_s)
                if send_piece is not None:
                    await send_piece(piece)
                    use.streams = True
                if place + 1 == dies_at:
                    runner.died.set()
            await self._until(runner, first_at + max(0, eval_tokens - 1) * token_s)
            written = "".join(piece.text for piece, _ in pieces)
            runner.prompts.keep(prompt + written, prompt_tokens + eval_tokens)
            return read_at - began_at, self.clock.monotonic() - read_at

    async def _read(
        self, runner: Runner, use: _SlotUse, prompt: str, tokens: int, token_s: float
    ) -> None:
        """Read what is not cached of a prompt."""
        began_at = self.clock.monotonic()
        cached_tokens = runner.prompts.cached(prompt, tokens)
        use.reads_until = began_at + (tokens - cached_tokens) * token_s
        try:
            await self._until(runner, use.reads_until)
        except asyncio.CancelledError:
            new_tokens = int((self.clock.monotonic() - began_at) / token_s)
            runner.prompts.keep_part(prompt, tokens, cached_tokens, new_tokens)
            raise
        runner.prompts.keep(prompt, tokens)

    async def _until(self, runner: Runner, due_at: float) -> None:
        ahead_s = due_at - self.clock.monotonic()
        if ahead_s > _TIMER_RESOLUTION_S:
            with suppress(TimeoutError):
                async with asyncio.timeout(ahead_s):
                    await runner.died.wait()
        else:
            await asyncio.sleep(0)
        if runner.died.is_set():
            raise OllamaError(500, DIED_TEXT)

    @asynccontextmanager
    async def _slot(self, runner: Runner) -> AsyncIterator[_SlotUse]:
        """One of the runner's slots, in order of arrival."""
        await runner.slots.acquire()
        self._running[runner.name] += 1
        self.max_concurrent = max(self.max_concurrent, self._running.total())
        use = _SlotUse()
        left = False
        try:
            yield use
        except (asyncio.CancelledError, ConnectionError):
            left = True
            raise
        finally:
            runner.executions += 1
            if runner.executions == self.faults.number("dead-runner"):
                runner.died.set()
            ahead_s = use.reads_until - self.clock.monotonic()
            if left and ahead_s > 0 and self.faults.number("ignores-disconnect"):
                runner.orphans += 1
                asyncio.get_running_loop().call_later(ahead_s, self._end_orphan, runner)
            elif left and use.streams and self.faults.leaks_a_slot():
                self._running[runner.name] -= 1
                self.leaked_slots[runner.name] += 1
            else:
                self._free_slot(runner)

    def _free_slot(self, runner: Runner) -> None:
        self._running[runner.name] -= 1
        runner.slots.release()

    def _end_orphan(self, runner: Runner) -> None:
        """A prompt that nobody waits for has been read, or its process has ended before."""
        if runner.orphans:
            runner.orphans -= 1
            self._free_slot(runner)

    def expire(self, installed: Installed) -> None:
        """Mark the model for unloading: now if idle, else after its last request.

        Nothing happens if it is not loaded.
        """
        runner = self._loaded.get(installed.model.weights)
        if runner is None:
            return
        runner.keep_alive_s = 0.0
        runner.expires_wall = self.clock.wall()
        if runner.references == 0:
            self._begin_unload(runner)

    def let_go(self) -> None:
        """End every unload that is stuck (quirk `stuck-unload`)."""
        for runner in tuple(self._loaded.values()):
            if runner.keep_alive_s <= 0 and runner.references == 0:
                self._unload(runner)

    def kill_runner(self, model: str) -> None:
        """End the process that runs `model` as a crash would: streams break off, and it stays
        listed until somebody needs it.
        """
        weights = self.catalogue.require(model).model.weights
        if weights in self._loaded:
            self._loaded[weights].died.set()

    # Loading.

    async def _wait_for_load(self, pending: _Pending) -> Runner:
        try:
            self._queue.put_nowait(pending)
        except asyncio.QueueFull:
            raise OllamaError(503, BUSY_TEXT) from None
        try:
            return await pending.answer
        except asyncio.CancelledError:
            if pending.answer.done() and not pending.answer.cancelled():
                self._release(pending.answer.result())
            raise

    def _attach(self, runner: Runner, pending: _Pending) -> None:
        runner.references += 1
        runner.stop_timer()
        wedges = bool(self.faults.number("eviction-wedge", 1.0))
        if pending.keep_alive_s is not None and (wedges or not runner.evicting):
            runner.keep_alive_s = pending.keep_alive_s

    def _release(self, runner: Runner) -> None:
        runner.references -= 1
        if runner.references > 0 or self._loaded.get(runner.model.weights) is not runner:
            return
        runner.expires_wall = self.clock.wall() + runner.keep_alive_s
        if runner.keep_alive_s <= 0:
            self._begin_unload(runner)
        elif runner.keep_alive_s != inf:
            runner.timer = asyncio.get_running_loop().call_later(
                runner.keep_alive_s, self._begin_unload, runner
            )

    async def _load_in_order(self) -> None:
        while True:
            pending = await self._queue.get()
            if pending.answer.done():
                continue
            runner = await self._room_and_load(pending)
            if runner is not None and not pending.answer.done():
                self._attach(runner, pending)
                pending.answer.set_result(runner)

    async def _room_and_load(self, pending: _Pending) -> Runner | None:
        """The runner that a request waits for, loaded once others have made room; None where its
        caller has left before.
        """
        while True:
            runner = self._loaded.get(pending.installed.model.weights)
            if runner is not None and runner.serves(pending.key):
                return runner
            victim = runner or self._victim(pending)
            if victim is None:
                return await self._load(pending)
            self._unloaded.clear()
            victim.keep_alive_s = 0.0
            victim.evicting = True
            if victim.references == 0:
                self._begin_unload(victim)
            await self._unloaded.wait()

    def _victim(self, pending: _Pending) -> Runner | None:
        """Whom to evict before the load may begin; None when there is room (or nothing to
        evict).
        """
        loaded = self._loaded.values()
        free_bytes = inf
        if self._vram_gib:
            free_bytes = self._vram_gib * GIB - sum(runner.vram_bytes for runner in loaded)
        fits = pending.installed.model.vram_gib * GIB <= 0.8 * free_bytes
        if not loaded or (fits and len(loaded) < self._max_loaded):
            return None
        # Ollama's order of victims: own keep_alive, then the path of the weights. Not least
        # recently used.
        ranked = sorted(loaded, key=lambda runner: (runner.keep_alive_s, runner.model.weights))
        return next((runner for runner in ranked if runner.references == 0), ranked[0])

    async def _load(self, pending: _Pending) -> Runner | None:
        """The new runner; None where its caller has left before it was ready."""
        if self._unloading:
            await asyncio.wait(self._unloading)
        if pending.answer.done():
            return None
        model = pending.installed.model
        name = pending.installed.name.short
        load_s = model.load_s / self._speed
        if self.faults.load_never_ends(name, model.name):
            load_s = inf
        await asyncio.wait({pending.answer}, timeout=None if load_s == inf else load_s)
        if pending.answer.done():
            return None
        keep_alive_s = _KEEP_ALIVE_S if pending.keep_alive_s is None else pending.keep_alive_s
        card_gib = self._vram_gib
        slowdown = 1.0
        if 0 < card_gib < model.vram_gib:
            slowdown = self.faults.number("cpu-offload", 1.0)
        runner = Runner(
            model=model,
            name=name,
            digest=pending.installed.digest,
            key=pending.key,
            vram_bytes=int(min(card_gib, model.vram_gib) * GIB),
            keep_alive_s=keep_alive_s,
            slots=asyncio.Semaphore(1 if model.can("embedding") else self._num_parallel),
            slowdown=slowdown,
            prompts=TextCache(self._num_parallel),
            expires_wall=self.clock.wall() + keep_alive_s,
        )
        self._loaded[model.weights] = runner
        self._loads.append((name, self.clock.monotonic()))
        return runner

    # Unloading.

    def _begin_unload(self, runner: Runner) -> None:
        runner.stop_timer()
        stuck_s = self.faults.number("stuck-unload")
        if stuck_s == 0:
            self._unload(runner)
        elif stuck_s != inf:
            runner.timer = asyncio.get_running_loop().call_later(stuck_s, self._unload, runner)

    def _unload(self, runner: Runner) -> None:
        runner.stop_timer()
        while runner.orphans:
            self._end_orphan(runner)
        del self.leaked_slots[runner.name]
        del self._loaded[runner.model.weights]
        task = asyncio.create_task(self._free_memory(runner.model.unload_s / self._speed))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _free_memory(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._unloaded.set()
