"""From the owner's file to the configuration in force: when the file is looked at, what was found, and its replacement in one piece.

`ReloadPlan` is a pure state machine: it learns of touches, looks, tries and orders with their instants, and says what comes next. A content
is tried only after two looks have found it alike with quiet before them, and only if it differs from what was tried last: a file that is
half written, or replaced in several steps, is never read as a configuration. `look_at` reads the file and never raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from hearth.clock import Clock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.loading import digest_of, load_gateway_config, parse_bytes, read_bytes
from hearth.config.rendering import as_values, differences, fingerprints
from hearth.errors import ConfigError, HearthError, ShuttingDown
from hearth.events import ConfigRejected, ConfigReloaded, InternalFault
from hearth.ports import EventSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """What a new configuration has changed: `changed` since the one before, `pending` (restart keys) since the start."""

    changed: tuple[str, ...]
    pending: tuple[str, ...]


class ReloadHistory:
    """Counts and names; instants are seconds since 1970-01-01 UTC.

    Attributes:
        generation: 1 at the start, one more with each configuration that differs from the one before.
        pending: changed keys that wait for a restart.
        problems: why the last file was refused; empty where it was not.
    """

    def __init__(self, config: GatewayConfig, wall_s: float) -> None:
        self._started_with = config.settings
        self._loaded_wall_s = wall_s
        self._tried_wall_s = wall_s
        self._accepted = 0
        self._rejected = 0
        self.generation = 1
        self.pending: tuple[str, ...] = ()
        self.problems: tuple[str, ...] = ()

    def accepted(self, old: GatewayConfig, new: GatewayConfig, wall_s: float) -> Replaced:
        """`new` has taken the place of `old`."""
        changed = tuple(differences(old.settings, new.settings))
        self.pending = tuple(path for path, hot in differences(self._started_with, new.settings).items() if not hot)
        self.generation += bool(changed)
        self.problems = ()
        self._accepted += 1
        self._loaded_wall_s = self._tried_wall_s = wall_s
        return Replaced(changed=changed, pending=self.pending)

    def rejected(self, problems: tuple[str, ...], wall_s: float) -> None:
        """A file was not usable."""
        self.problems = problems
        self._rejected += 1
        self._tried_wall_s = wall_s

    def shown(self, config: GatewayConfig) -> dict[str, object]:
        """The history as status and health show it, with where `config`, the one in force, comes from."""
        return {
            "generation": self.generation,
            "source": str(config.source or "defaults"),
            "problems": list(self.problems),
            "loaded_wall": round(self._loaded_wall_s, 3),
            "last_attempt": round(self._tried_wall_s, 3),
            "reload_count": self._accepted,
            "rejected_count": self._rejected,
            "restart_pending": list(self.pending),
        }


QUIET_S = 0.3
"""A file counts as written when nothing has happened to it for this long."""
RESTLESS_S = 0.6
"""Where something happens in its directory all the time, it is looked at this long after the first touch all the same."""
WRITING_S = 5.0
"""The longest that a program which holds the file open and writes to it is waited for."""
CONFIRM_S = 0.1
"""Between the two looks that have to find the same."""
GONE_S = 1.0
"""The same for a file that cannot be read: a program that deletes a file and writes it anew gets this long."""
POLL_S = 10.0
"""Between looks that nothing gave a reason for; some file systems report no changes."""
BLIND_POLL_S = 0.5
"""The same while no changes are reported."""
ORDER_GAP_S = 1.0
"""Orders that come faster than this share one try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was found at a path.

    Attributes:
        token: equal for equal findings: the digest of the content, or why there is none.
        content: the bytes, at most one more than a configuration may have; None where it could not be read, and `problems` say why.
    """

    token: str
    content: bytes | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A configuration, or the problems of what was found."""

    config: GatewayConfig | None
    problems: tuple[str, ...] = ()


def look_at(path: Path) -> Look:
    """Read the file at `path`, whatever is there."""
    try:
        content = read_bytes(path)
    except ConfigError as error:
        return Look(token="; ".join(error.problems), problems=error.problems)
    return Look(token=digest_of(content), content=content)


def attempt(look: Look, path: Path, environ: Mapping[str, str] | None = None) -> Attempt:
    """The configuration in what was found; parsing takes a while, so callers on an event loop use a thread."""
    if look.content is None:
        return Attempt(config=None, problems=look.problems)
    try:
        return Attempt(config=parse_bytes(look.content, path, environ))
    except ConfigError as error:
        return Attempt(config=None, problems=error.problems)


def read_attempt(path: Path | None, environ: Mapping[str, str] | None = None) -> Attempt:
    """Look and try in one; for a gateway that was started without a file, the default path where there is one by now, else the defaults."""
    try:
        return Attempt(config=load_gateway_config(path, environ))
    except ConfigError as error:
        return Attempt(config=None, problems=error.problems)


class Step(Enum):
    """What is to be done now: nothing; look, and say what was found; look and try, whatever was found."""

    WAIT = auto()
    LOOK = auto()
    OBEY = auto()


class ReloadPlan:
    """What comes next for one file.

    Args:
        tried: the token of the content that is in force; empty where it is unknown.
        polls: whether to look without a reason; the first such look comes at once.
    """

    def __init__(self, tried: str, now: float, *, polls: bool) -> None:
        self._tried = tried
        self._seen: str | None = None
        self._poll_at = now if polls else float("inf")
        self._polls = polls
        self._due_at: float | None = None
        self._first_at = now
        self._writing = False
        self._told = False
        self._ordered = False
        self._obeyed_at = float("-inf")

    def touched(self, now: float, *, writing: bool = False) -> None:
        """Something happened at the file or around it; `writing` says that its writer has not closed it yet."""
        if self._due_at is None or (self._writing and not writing):
            self._first_at = now
        self._writing = writing
        self._due_at = self._first_at + WRITING_S if writing else min(now + QUIET_S, self._first_at + RESTLESS_S)

    def ordered(self) -> None:
        """The owner wants the file tried, changed or not."""
        self._ordered = True

    def step(self, now: float) -> Step:
        """What is to be done at `now`; a step is given once."""
        if self._ordered and now >= self._obeyed_at + ORDER_GAP_S:
            self._ordered, self._obeyed_at = False, now
            return Step.OBEY
        if now < self._look_at():
            return Step.WAIT
        self._told = self._due_at is not None and now >= self._due_at
        if self._told:
            self._due_at, self._writing = None, False
        self._poll_at = float("inf")
        return Step.LOOK

    def looked(self, look: Look, now: float, *, blind: bool) -> bool:
        """Take note of what a look has found; `blind` says that no changes are reported at present.

        Returns:
            Whether this content is to be tried now.
        """
        if self._polls:
            self._poll_at = now + (BLIND_POLL_S if blind else POLL_S)
        if look.token in {self._tried, self._seen}:
            self._seen = None
            return look.token != self._tried
        self._seen = look.token
        if self._due_at is None:
            wait_s = CONFIRM_S if self._told and not blind else QUIET_S
            self._first_at, self._due_at = now, now + (GONE_S if look.content is None else wait_s)
        return False

    def tried(self, token: str) -> None:
        """The content with this token has been tried; it is not tried again before something else was."""
        self._tried = token

    def wake_at(self) -> float:
        """The next instant at which `step` may say something new; infinity where only a touch or an order can bring it."""
        return min(self._look_at(), self._obeyed_at + ORDER_GAP_S) if self._ordered else self._look_at()

    def _look_at(self) -> float:
        return self._poll_at if self._due_at is None else min(self._poll_at, self._due_at)


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
