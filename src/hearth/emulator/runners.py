"""One loaded model: its slots, its references and the moment it may leave.

State only; the engine is the sole writer. Terms follow ollama/ollama `server/sched.go`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from hearth.dialects.gojson import JsonValue
from hearth.emulator.durations import FOREVER_S
from hearth.emulator.models import EmulatedModel

CACHED_PROMPTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadKey:
    """The options that decide how a model is loaded; another value means a reload.

    Attributes:
        num_ctx: context of one slot after clamping.
        others: the remaining load-time options that were given, sorted by name.
    """

    num_ctx: int
    others: tuple[tuple[str, JsonValue], ...] = ()


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
    cached: deque[str] = field(default_factory=lambda: deque(maxlen=CACHED_PROMPTS))

    @property
    def eviction_rank(self) -> tuple[float, str]:
        """Ollama's order of victims: own keep_alive, then the path of the weights. Not least recently used."""
        return (self.keep_alive_s, self.model.weights)

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
        return FOREVER_S if self.keep_alive_s == FOREVER_S else now_wall + self.keep_alive_s
