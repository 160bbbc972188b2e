"""The scheduler of the emulated server: one loop loads, everybody else waits, a loaded model bypasses the queue.

Mirrors ollama/ollama `server/sched.go` with its traps (a waiting eviction blocks every other load; an explicit keep_alive on the victim
revives it; a caller that leaves during a load kills the load) and with those bugs of `quirks` that are switched on. A reply is paced by an
absolute schedule, so a fast emulator is not limited by the resolution of timers.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from hearth.clock import Clock
from hearth.dialects.writers import Said, Text
from hearth.emulator.models import BUSY_TEXT, GIB, EmulatedModel, Installed, OllamaError, RunnerDied
from hearth.emulator.prompts import LoadKey
from hearth.emulator.quirks import Faults

_LOGGED_LOADS = 10_000
_CACHED_PROMPTS = 8
_TIMER_RESOLUTION_S = 0.001
_KEEP_ALIVE_S = 300.0
"""Ollama's own, OLLAMA_KEEP_ALIVE unset."""

Say = Callable[[Said], Awaitable[None]]


@dataclass(slots=True, kw_only=True, eq=False)
class SlotUse:
    """What a request does with its slot; its execution writes it, and it matters when the caller leaves.

    Attributes:
        reads_until: monotonic instant at which its prompt has been read.
        streams: pieces of the answer are on their way to the caller.
        left: the caller has gone.
    """

    reads_until: float = 0.0
    streams: bool = False
    left: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Runner:
    """A model in memory.

    Attributes:
        keep_alive_s: how long it stays after its last request; 0 marks it for eviction, infinity keeps it.
        references: requests attached, waiting for a slot included.
        expires_wall: refreshed only when the runner goes idle.
        died: set when its process has ended; nobody notices before the next request.
        slowdown: how many times slower than the model's profile it runs.
        evicting: another model waits for this one to go.
        executions: requests that have held a slot and ended.
        orphans: prompts that are still read though their callers have left, each holding a slot.
        cached: the prompts that it read last: what begins with one of them finds a warm prompt cache.
    """

    model: EmulatedModel
    name: str
    digest: str
    key: LoadKey
    vram_bytes: int
    keep_alive_s: float
    slots: asyncio.Semaphore
    expires_wall: float
    references: int = 0
    died: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    slowdown: float = 1.0
    evicting: bool = False
    executions: int = 0
    orphans: int = 0
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

    def expires_at_wall(self, now_wall: float) -> float:
        return math.inf if self.keep_alive_s == math.inf else now_wall + self.keep_alive_s


@dataclass(slots=True, kw_only=True, eq=False)
class _Pending:
    installed: Installed
    key: LoadKey
    keep_alive_s: float | None
    answer: asyncio.Future[Runner]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the emulated server was started with.

    Attributes:
        speed: divides every service time.
        parallel: slots per model (OLLAMA_NUM_PARALLEL); waiting: length of the load queue (OLLAMA_MAX_QUEUE).
        loaded: models in memory at most (OLLAMA_MAX_LOADED_MODELS).
        vram_gib: 0 means no GPU and no limit.
    """

    speed: float
    parallel: int
    waiting: int
    loaded: int
    vram_gib: float

    @property
    def default_context_tokens(self) -> int:
        """Ollama's tiers by total GPU memory (since v0.17)."""
        if self.vram_gib < 23:
            return 4096
        return 32768 if self.vram_gib < 47 else 262144


class Engine:
    """Runners and the loop that loads them. `start` before use, `stop` once; both on one event loop."""

    def __init__(self, limits: Limits, clock: Clock, faults: Faults) -> None:
        self.limits = limits
        self.clock = clock
        self.faults = faults
        self.loads: deque[tuple[str, float]] = deque(maxlen=_LOGGED_LOADS)
        self.running: Counter[str] = Counter()
        self.leaked: Counter[str] = Counter()
        self.max_running = 0
        self._loaded: dict[str, Runner] = {}
        self._queue: asyncio.Queue[_Pending] = asyncio.Queue(maxsize=max(1, limits.waiting))
        self._unloading: set[asyncio.Task[None]] = set()
        self._unloaded = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop_task = asyncio.create_task(self._load_loop())

    async def stop(self) -> None:
        for runner in self._loaded.values():
            runner.stop_timer()
        self._loaded.clear()
        tasks = [*self._unloading, *([self._loop_task] if self._loop_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def resident(self) -> tuple[Runner, ...]:
        """Loaded runners, latest expiry first; one that is being loaded is absent."""
        return tuple(sorted(self._loaded.values(), key=lambda runner: -runner.expires_wall))

    @asynccontextmanager
    async def lease(self, installed: Installed, key: LoadKey, keep_alive_s: float | None) -> AsyncIterator[Runner]:
        """A loaded runner for the time of the block; raises `OllamaError` 503 when too many loads wait."""
        if self.faults.busy():
            raise OllamaError(503, BUSY_TEXT)
        runner = await self._acquire(
            _Pending(installed=installed, key=key, keep_alive_s=keep_alive_s, answer=asyncio.get_running_loop().create_future())
        )
        try:
            yield runner
        finally:
            self._release(runner)

    async def speak(
        self,
        runner: Runner,
        prompt_tokens: int,
        pieces: Sequence[Text],
        eval_tokens: int,
        say: Say | None,
        *,
        dies_after: float = math.inf,
    ) -> tuple[float, float]:
        """Say every piece when it is due, and hold a slot until the last one has been taken; how long prompt and answer took, in seconds.

        Args:
            say: takes a piece; None where the answer is sent whole at the end.
            dies_after: pieces after which the runner's process ends, at the latest after the last; infinity for never.

        Raises `RunnerDied` when the runner's process ends meanwhile.
        """
        async with self._slot(runner) as use:
            began_at = self.clock.monotonic()
            first_at = await self._read(runner, use, prompt_tokens)
            spoke_at = self.clock.monotonic()
            token_s = runner.slowdown / runner.model.decode_tokens_per_s / self.limits.speed
            dies_at = dies_after if dies_after == math.inf else min(dies_after, len(pieces))
            for place, piece in enumerate(pieces):
                await self._until(runner, first_at + place * token_s)
                if say is not None:
                    await say(piece)
                    use.streams = True
                if place + 1 == dies_at:
                    runner.died.set()
            await self._until(runner, first_at + max(0, eval_tokens - 1) * token_s)
            return spoke_at - began_at, self.clock.monotonic() - spoke_at

    async def read(self, runner: Runner, prompt_tokens: int) -> None:
        """Read a prompt without an answer: one embedding."""
        async with self._slot(runner) as use:
            await self._read(runner, use, prompt_tokens)

    async def _read(self, runner: Runner, use: SlotUse, prompt_tokens: int) -> float:
        """Returns the instant at which the first piece is due."""
        read_s = prompt_tokens / runner.model.prompt_tokens_per_s / self.limits.speed * runner.slowdown
        use.reads_until = self.clock.monotonic() + read_s
        await self._until(runner, use.reads_until)
        return use.reads_until

    async def _until(self, runner: Runner, due_at: float) -> None:
        ahead_s = due_at - self.clock.monotonic()
        if ahead_s > _TIMER_RESOLUTION_S:
            with suppress(TimeoutError):
                async with asyncio.timeout(ahead_s):
                    await runner.died.wait()
        else:
            await asyncio.sleep(0)
        if runner.died.is_set():
            raise RunnerDied

    @asynccontextmanager
    async def _slot(self, runner: Runner) -> AsyncIterator[SlotUse]:
        """One of the runner's slots, in order of arrival."""
        await runner.slots.acquire()
        self.running[runner.name] += 1
        self.max_running = max(self.max_running, self.running.total())
        use = SlotUse()
        try:
            yield use
        except (asyncio.CancelledError, ConnectionError):
            use.left = True
            raise
        finally:
            self._end_execution(runner, use)

    def expire(self, installed: Installed) -> None:
        """Mark the model for unloading: now if idle, else after its last request. Nothing happens if it is not loaded."""
        runner = self._loaded.get(installed.model.weights)
        if runner is None:
            return
        runner.keep_alive_s = 0.0
        runner.expires_wall = self.clock.wall()
        if runner.references == 0:
            self._begin_unload(runner)

    def let_go(self) -> None:
        """End every unload that is stuck."""
        for runner in tuple(self._loaded.values()):
            if runner.keep_alive_s <= 0 and runner.references == 0:
                self._unload_now(runner)

    def kill(self, weights: str) -> None:
        """End the runner's process as a crash would; it stays listed until somebody needs it."""
        runner = self._loaded.get(weights)
        if runner is not None:
            runner.died.set()

    async def _acquire(self, pending: _Pending) -> Runner:
        runner = self._loaded.get(pending.installed.model.weights)
        if runner is not None and runner.serves(pending.key):
            self._attach(runner, pending)
            return runner
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
        if pending.keep_alive_s is not None and (self.faults.wedges or not runner.evicting):
            runner.keep_alive_s = pending.keep_alive_s

    def _release(self, runner: Runner) -> None:
        runner.references -= 1
        if runner.references > 0 or self._loaded.get(runner.model.weights) is not runner:
            return
        runner.expires_wall = runner.expires_at_wall(self.clock.wall())
        if runner.keep_alive_s <= 0:
            self._begin_unload(runner)
        elif runner.expires_wall != math.inf:
            runner.timer = asyncio.get_running_loop().call_later(runner.keep_alive_s, self._begin_unload, runner)

    async def _load_loop(self) -> None:
        while True:
            pending = await self._queue.get()
            if not pending.answer.done():
                await self._serve(pending)

    async def _serve(self, pending: _Pending) -> None:
        while True:
            runner = self._loaded.get(pending.installed.model.weights)
            if runner is not None and runner.serves(pending.key):
                self._hand_over(runner, pending)
                return
            victim = runner or self._victim(pending)
            if victim is None:
                break
            await self._evict(victim)
        await self._load(pending)

    def _victim(self, pending: _Pending) -> Runner | None:
        """Whom to evict before the load may begin; None when there is room (or nothing to evict)."""
        if not self._loaded:
            return None
        if len(self._loaded) < self.limits.loaded and self._fits_beside(pending):
            return None
        # Ollama's order of victims: own keep_alive, then the path of the weights. Not least recently used.
        ranked = sorted(self._loaded.values(), key=lambda runner: (runner.keep_alive_s, runner.model.weights))
        return next((runner for runner in ranked if runner.references == 0), ranked[0])

    def _fits_beside(self, pending: _Pending) -> bool:
        if self.limits.vram_gib == 0:
            return True
        used = sum(runner.vram_bytes for runner in self._loaded.values())
        return pending.installed.model.vram_gib * GIB <= 0.8 * (self.limits.vram_gib * GIB - used)

    async def _evict(self, victim: Runner) -> None:
        self._unloaded.clear()
        victim.keep_alive_s, victim.evicting = 0.0, True
        if victim.references == 0:
            self._begin_unload(victim)
        await self._unloaded.wait()

    async def _load(self, pending: _Pending) -> None:
        if self._unloading:
            await asyncio.wait(self._unloading)
        if pending.answer.done():
            return
        model = pending.installed.model
        endless = self.faults.load_never_ends(pending.installed.name.short, model.name)
        await asyncio.wait({pending.answer}, timeout=None if endless else model.load_s / self.limits.speed)
        if pending.answer.done():
            return
        runner = self._new_runner(pending)
        self._loaded[model.weights] = runner
        self.loads.append((runner.name, self.clock.monotonic()))
        self._hand_over(runner, pending)

    def _hand_over(self, runner: Runner, pending: _Pending) -> None:
        if not pending.answer.done():
            self._attach(runner, pending)
            pending.answer.set_result(runner)

    def _new_runner(self, pending: _Pending) -> Runner:
        model = pending.installed.model
        runner = Runner(
            model=model,
            name=pending.installed.name.short,
            digest=pending.installed.digest,
            key=pending.key,
            vram_bytes=int(min(self.limits.vram_gib, model.vram_gib) * GIB),
            keep_alive_s=_KEEP_ALIVE_S if pending.keep_alive_s is None else pending.keep_alive_s,
            slots=asyncio.Semaphore(1 if model.can("embedding") else self.limits.parallel),
            expires_wall=0.0,
            slowdown=self.faults.slowdown(model.vram_gib, self.limits.vram_gib),
        )
        runner.expires_wall = runner.expires_at_wall(self.clock.wall())
        return runner

    def _end_execution(self, runner: Runner, use: SlotUse) -> None:
        runner.executions += 1
        if self.faults.kills_after(runner.executions):
            runner.died.set()
        ahead_s = use.reads_until - self.clock.monotonic()
        if use.left and ahead_s > 0 and self.faults.ignores_disconnect:
            runner.orphans += 1
            asyncio.get_running_loop().call_later(ahead_s, self._end_orphan, runner)
            return
        self.running[runner.name] -= 1
        if use.left and use.streams and self.faults.leaks_a_slot():
            self.leaked[runner.name] += 1
        else:
            runner.slots.release()

    def _end_orphan(self, runner: Runner) -> None:
        """A prompt that nobody waits for has been read, or its process has ended before."""
        if runner.orphans:
            runner.orphans -= 1
            self.running[runner.name] -= 1
            runner.slots.release()

    def _begin_unload(self, runner: Runner) -> None:
        runner.stop_timer()
        stuck_s = self.faults.stuck_s
        if stuck_s == 0:
            self._unload_now(runner)
        elif stuck_s != math.inf:
            runner.timer = asyncio.get_running_loop().call_later(stuck_s, self._unload_now, runner)

    def _unload_now(self, runner: Runner) -> None:
        runner.stop_timer()
        while runner.orphans:
            self._end_orphan(runner)
        del self.leaked[runner.name]
        del self._loaded[runner.model.weights]
        task = asyncio.create_task(self._unload(runner))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload(self, runner: Runner) -> None:
        await asyncio.sleep(runner.model.unload_s / self.limits.speed)
        self._unloaded.set()
