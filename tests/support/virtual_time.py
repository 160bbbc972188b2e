"""An event loop whose clock jumps to the next timer instead of waiting for it, so that hours of
queueing take milliseconds.

A timer never runs before `loop.time()` has reached its due time, not even by a rounding error.
Never sleeps itself; while work that it knows of goes on in a thread, time stands still. For code
without real sockets: data on its way through the kernel does not hold the clock. Used by tests
only.

    def test_something():
        async def scenario() -> None: ...
        run_virtual(scenario)

or, on the coroutine function itself, `@in_virtual_time`.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")

WALL_AT_START = 1_767_571_200.0
"""Monday, 2026-01-05 00:00:00 UTC."""
HORIZON_S = 7 * 86_400.0
STALL_S = 60.0
"""Real seconds that a thread unknown to the loop gets to wake it before the scenario counts as
stuck.
"""


class Stuck(AssertionError):
    """Everything waits and no timer is set, or virtual time ran past the horizon: what is awaited
    will never come.
    """


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop, stall_s: float) -> None:
        super().__init__()
        self._loop = loop
        self._stall_s = stall_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._loop.is_held:
            return super().select(None)
        if timeout is not None:
            self._loop.jump()
            return []
        ready = super().select(self._stall_s)
        if not ready:
            raise Stuck("nothing is ready and no timer is set")
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time 0.0.

    With a `seed`, callbacks that are ready together run in a shuffled order that the seed repeats.
    """

    _scheduled: list[asyncio.TimerHandle]
    _ready: deque[asyncio.Handle]
    _clock_resolution: float

    def __init__(
        self, *, seed: int | None = None, horizon_s: float = HORIZON_S, stall_s: float = STALL_S
    ) -> None:
        self._now = 0.0
        self._held = 0
        self._horizon_s = horizon_s
        self._order = None if seed is None else random.Random(seed)
        super().__init__(_JumpingSelector(self, stall_s))
        self._clock_resolution = math.ulp(self._now)

    def time(self) -> float:
        return self._now

    @property
    def is_held(self) -> bool:
        return self._held > 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Time stands still inside: some thread is at work and will wake the loop."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def jump(self) -> None:
        """Move the clock to the next timer. asyncio runs what is due before `time + resolution`, so
        one ulp means `<= time`.
        """
        self._now = max(self._now, self._scheduled[0].when())
        self._clock_resolution = math.ulp(self._now)
        if self._now > self._horizon_s:
            raise Stuck(f"virtual time ran past {self._horizon_s} s")

    def stand_still(self, seconds: float) -> None:
        self._now += seconds
        self._clock_resolution = math.ulp(self._now)

    def _run_once(self) -> None:
        if self._order is not None and len(self._ready) > 1:
            self._order.shuffle(self._ready)
        super()._run_once()  # type: ignore[misc]  # not in the stubs: asyncio's own inner step

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._held += 1
        future.add_done_callback(self._release)
        return future

    def _release(self, _: asyncio.Future[Any]) -> None:
        self._held -= 1

    async def shutdown_default_executor(self, *args: float | None) -> None:
        with self.held():
            await super().shutdown_default_executor(*args)


def loop_s() -> float:
    """What the clock of the running loop shows."""
    return asyncio.get_running_loop().time()


def run_virtual(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    seed: int | None = None,
    horizon_s: float = HORIZON_S,
    stall_s: float = STALL_S,
) -> T:
    """Run `main()` to its end in virtual time; `seed` shuffles the order of what is ready together.

    Raises:
        Stuck: nothing can happen any more, or `horizon_s` virtual seconds have passed.
    """
    with asyncio.Runner(
        loop_factory=lambda: VirtualTimeLoop(seed=seed, horizon_s=horizon_s, stall_s=stall_s)
    ) as runner:
        return runner.run(main())


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Turn an asynchronous test into one that runs in virtual time; fixtures and parameters still
    work.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(lambda: test(*args, **kwargs))

    return run


def hold_up(seconds: float) -> None:
    """The running loop stands still: time passes and nothing runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.stand_still(seconds)


async def sleep_until(instant: float) -> None:
    """Wait until `loop.time()` is exactly `instant` or later. (`sleep(instant - now)` may be a
    rounding error short.)
    """
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    timer = loop.call_at(instant, _wake, woken)
    try:
        await woken
    finally:
        timer.cancel()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class LoopClock:
    """The `Clock` port over the running loop's time; the wall clock starts at `wall_at_start` when
    the loop's time is 0.
    """

    def __init__(self, *, wall_at_start: float = WALL_AT_START) -> None:
        self._wall_at_start = wall_at_start
        self.slept_s = 0.0
        """That the machine slept: the wall clock has gone on, the loop's time has not."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self._wall_at_start + self.monotonic() + self.slept_s

    def thread_cpu(self) -> float:
        return 0.0

    def asleep(self) -> float:
        return self.slept_s


class AtOnce(ThreadPoolExecutor):
    """Has no threads: what would be done in one is done at once, so that one seed stays one
    story.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever waits for it is to have it
            done.set_exception(error)
        return done
