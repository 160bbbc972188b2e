"""Brings the owner's file into force while the gateway runs: one task that looks, tries and applies, so that no two reloads ever overlap.

`config.reload` decides when; a thread reads and parses, so that the loop goes on; the result is applied on the loop in one piece. Changes
that come while a file is being parsed lead to another look. Never ends the gateway and never delays a request. Run by the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from hearth.clock import Clock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.reload import Attempt, Look, ReloadHistory, ReloadPlan, Step, attempt, look_at, read_attempt
from hearth.config.rendering import as_values, fingerprints
from hearth.errors import HearthError, ShuttingDown
from hearth.events import ConfigRejected, ConfigReloaded, InternalFault
from hearth.ports import EventSink

T = TypeVar("T")

CLOSE_TIMEOUT_S = 2.0


class Watch(Protocol):
    """Hears of changes around one file; both methods may block."""

    def refresh(self) -> bool:
        """Watch what has to be watched now; False where changes cannot be heard of."""

    def close(self) -> None:
        """Hear of nothing any more."""


MakeWatch = Callable[[Path, Callable[[bool], None], asyncio.AbstractEventLoop], Watch]
"""A watch of a file that calls back on the loop, with whether its writer still holds it open."""


Vet = Callable[[GatewayConfig, GatewayConfig], str | None]
"""Why a configuration cannot follow another; None where it can."""


class ConfigInForce:
    """The one configuration that everybody reads, and its replacement: all of it or nothing, in one piece on the loop.

    Attributes:
        config: the configuration in force.
        watch: how changes of the file are found: `events` of the operating system, `polling`, or `off` where only orders count.
    """

    def __init__(self, config: GatewayConfig, *, clock: Clock, events: EventSink) -> None:
        self.config = config
        self.watch = "off"
        self._clock = clock
        self._events = events
        self._history = ReloadHistory(config, clock.wall())
        self._listeners: list[Callable[[GatewayConfig], None]] = []

    def on_reload(self, take: Callable[[GatewayConfig], None]) -> None:
        """Have `take` hear of every configuration that comes into force after the present one."""
        self._listeners.append(take)

    def take(self, attempt: Attempt) -> bool:
        """Put a configuration in force, or say why it is none; True where it is in force."""
        now, wall_s, fresh = self._clock.monotonic(), self._clock.wall(), attempt.config
        if fresh is None:
            self._history.rejected(attempt.problems, wall_s)
            self._events.emit(ConfigRejected(at=now, problems=attempt.problems))
            return False
        replaced = self._history.accepted(self.config, fresh, wall_s)
        self.config = fresh
        for take in self._listeners:
            self._tell(take, fresh)
        generation = self._history.generation
        self._events.emit(ConfigReloaded(at=now, generation=generation, changed=replaced.changed, needs_restart=replaced.pending))
        return True

    def _tell(self, take: Callable[[GatewayConfig], None], fresh: GatewayConfig) -> None:
        try:
            take(fresh)
        except Exception as error:  # noqa: BLE001 - supervision point: one part's defect must not keep the others from hearing
            where = f"reload: {getattr(take, '__qualname__', type(take).__name__)}"
            self._events.emit(InternalFault(at=self._clock.monotonic(), where=where, detail=type(error).__name__))

    def summary(self) -> dict[str, object]:
        """How the configuration came to be, as status and health show it."""
        return self._history.shown(self.config) | {"watch": self.watch}

    def shown(self) -> dict[str, object]:
        """The same with every setting in force as it would stand in the file, secrets shortened."""
        settings = self.config.settings
        return self.summary() | {"settings": as_values(settings), "secrets": fingerprints(settings)}


class Reloader:
    """Owns the way from the file to the configuration in force.

    Args:
        in_force: what takes the attempts.
        watching: makes the watch of the file; None to try it on orders only.
        vet: what speaks against a configuration beside the one in force; called in the thread that reads.
    """

    def __init__(
        self,
        *,
        in_force: ConfigInForce,
        clock: Clock,
        watching: MakeWatch | None = None,
        vet: Vet | None = None,
    ) -> None:
        self._vet = vet
        config = in_force.config
        self._path = config.source
        self._in_force = in_force
        self._clock = clock
        self._watching = None if self._path is None else watching
        self._watch: Watch | None = None
        self._plan = ReloadPlan(config.digest, clock.monotonic(), polls=self._watching is not None)
        self._wake = asyncio.Event()
        self._orders: list[asyncio.Future[bool]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hearth-config")
        self._ended = False

    def touched(self, writing: bool = False) -> None:  # noqa: FBT001, FBT002 - the one fact that a watch reports
        """Something happened at the file; `writing` while its writer has not closed it."""
        self._plan.touched(self._clock.monotonic(), writing=writing)
        self._wake.set()

    def request(self) -> None:
        """Try the file soon, changed or not; many requests at once are one."""
        self._plan.ordered()
        self._wake.set()

    async def reload(self) -> bool:
        """Try the file, changed or not; orders that come together share one try. `run` has to be running.

        Returns:
            False where it was not usable; then everything stays as it was.

        Raises:
            ShuttingDown: the gateway is about to end.
        """
        if self._ended:
            raise ShuttingDown
        order: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._orders.append(order)
        self.request()
        return await order

    async def run(self) -> None:
        """Look, try and apply until cancelled."""
        if self._watching is not None and self._path is not None:
            self._watch = self._watch or self._watching(self._path, self.touched, asyncio.get_running_loop())
            self.touched()
        while True:
            step = self._plan.step(self._clock.monotonic())
            if step is Step.WAIT or self._ended:
                await self._sleep()
            elif step is Step.LOOK:
                await self._look()
            else:
                await self._obey()

    def end(self) -> None:
        """Put nothing in force any more, and refuse who waits for it."""
        self._ended = True
        _settle(self._orders, ShuttingDown())

    async def close(self) -> None:
        """Let go of file and thread; `run` must have ended."""
        self.end()
        closing = None if self._watch is None else asyncio.get_running_loop().run_in_executor(self._thread, self._watch.close)
        if closing is not None:
            await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        self._thread.shutdown(wait=False)

    async def _sleep(self) -> None:
        wait_s = self._plan.wake_at() - self._clock.monotonic()
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self._ended or wait_s == float("inf") else max(wait_s, 0.0)):
                await self._wake.wait()

    async def _look(self) -> None:
        if self._path is None:
            return
        look, blind = await self._in_thread(partial(self._find, self._path))
        self._in_force.watch = "polling" if blind else "events"
        if self._plan.looked(look, self._clock.monotonic(), blind=blind):
            await self._try(look)

    async def _obey(self) -> None:
        orders, self._orders = self._orders, []
        try:
            look = None if self._path is None else await self._in_thread(partial(look_at, self._path))
            accepted = await self._try(look)
        except asyncio.CancelledError:
            _settle(orders, ShuttingDown())
            raise
        except Exception:
            _settle(orders, HearthError())
            raise
        _settle(orders, ShuttingDown() if accepted is None else accepted)

    async def _try(self, look: Look | None) -> bool | None:
        """Whether it is in force now; None where the gateway is about to end."""
        whole = partial(read_attempt, None) if look is None or self._path is None else partial(attempt, look, self._path)
        found = await self._in_thread(partial(self._vetted, whole, self._in_force.config))
        if self._ended:
            return None
        if look is not None:
            self._plan.tried(look.token)
        return self._in_force.take(found)

    def _vetted(self, read: Callable[[], Attempt], old: GatewayConfig) -> Attempt:
        found = read()
        problem = None if found.config is None or self._vet is None else self._vet(found.config, old)
        return found if problem is None else Attempt(config=None, problems=(problem,))

    def _find(self, path: Path) -> tuple[Look, bool]:
        """In the thread: what is there now, and whether we would not hear of changes. The watch first, or a change between is lost."""
        blind = self._watch is None or not self._watch.refresh()
        return look_at(path), blind

    def _in_thread(self, run: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, run)


def _settle(orders: list[asyncio.Future[bool]], outcome: bool | HearthError) -> None:  # noqa: FBT001 - it is the value that is passed on
    for order in orders:
        if order.done():
            continue
        if isinstance(outcome, HearthError):
            order.set_exception(outcome)
        else:
            order.set_result(outcome)
