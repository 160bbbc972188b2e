"""From the owner's file to the configuration in force: when the file is looked at, what was found,
and its replacement in one piece.

`ReloadPlan` is a pure state machine: it learns of touches, looks, tries and orders with their
instants, and says what comes next. A content is tried only after two looks have found it alike with
quiet before them, and only if it differs from what was tried last: a file that is half written, or
replaced in several steps, is never read as a configuration.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from hearth.clock import Clock
from hearth.config.loading import digest_of, load_gateway_config, parse_bytes, read_bytes
from hearth.config.origins import Origin, SettingPath, origins_shown
from hearth.config.rendering import Change, as_values, compare, differences, fingerprints
from hearth.config.settings import GatewayConfig, Settings
from hearth.errors import ConfigError, HearthError, ShuttingDown
from hearth.events import ConfigRejected, ConfigReloaded, InternalFault, OwnerWarned
from hearth.ports import EventSink
from hearth.types import JsonDict

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

    Observe = Callable[[list[str], Callable[[FileSystemEvent], None]], BaseObserver]

QUIET_S = 0.3
"""A file counts as written when nothing has happened to it for this long."""
RESTLESS_S = 0.6
"""Where something happens in its directory all the time, it is looked at this long after the first
touch all the same.
"""
WRITING_S = 5.0
"""The longest that a program which holds the file open and writes to it is waited for."""
CONFIRM_S = 0.1
"""Between the two looks that have to find the same."""
GONE_S = 1.0
"""The same for a file that cannot be read: a program that deletes a file and writes it anew gets
this long.
"""
POLL_S = 10.0
"""Between looks that nothing gave a reason for; some file systems report no changes."""
BLIND_POLL_S = 0.5
"""The same while no changes are reported."""
ORDER_GAP_S = 1.0
"""Orders that come faster than this share one try."""
CLOSE_TIMEOUT_S = 2.0
_BY_COMMAND = Origin("command line")
_CAUSED_BY_READING = ("opened", "closed_no_write")

T = TypeVar("T")
MakeWatch = Callable[[Path, Callable[[bool], None], asyncio.AbstractEventLoop], "FileWatch"]
"""A watch of a file that calls back on the loop, with whether its writer still holds it open."""
Vet = Callable[[GatewayConfig, GatewayConfig], str | None]
"""Why a configuration cannot follow another; None where it can. Called in a thread."""


class ReloadPlan:
    """What comes next for one file.

    `tried`: the token of the content in force, or empty; `polls`: whether to look without a reason
    too.
    """

    def __init__(self, tried: str, now: float, *, polls: bool) -> None:
        self._tried = tried
        self._seen: str | None = None
        self._polls = polls
        self._poll_at = now if polls else inf
        self._due_at = inf
        self._first_at = now
        self._writing = False
        self._has_reason = False
        self._ordered = False
        self._obeyed_at = -inf

    def touched(self, now: float, *, writing: bool = False) -> None:
        """Something happened at the file or around it; `writing` says that its writer has not
        closed it yet.
        """
        # A burst of touches is measured from its first one, and from when the writer has closed the
        # file: what came before is over then.
        if self._due_at == inf or (self._writing and not writing):
            self._first_at = now
        self._writing = writing
        self._due_at = self._first_at + WRITING_S
        if not writing:
            self._due_at = min(now + QUIET_S, self._first_at + RESTLESS_S)

    def ordered(self) -> None:
        """The owner wants the file tried, changed or not."""
        self._ordered = True

    def step(self, now: float) -> Literal["look", "obey"] | None:
        """What is to be done at `now`: look and say what was found, or look and try whatever was
        found. A step is given once.
        """
        if self._ordered and now >= self._obeyed_at + ORDER_GAP_S:
            self._ordered = False
            self._obeyed_at = now
            return "obey"
        if now < min(self._poll_at, self._due_at):
            return None
        self._has_reason = now >= self._due_at
        if self._has_reason:
            self._due_at = inf
            self._writing = False
        self._poll_at = inf
        return "look"

    def looked(self, token: str, now: float, *, gone: bool, blind: bool) -> bool:
        """Take note of what a look has found; `blind` says that no changes are reported at present.

        True where it is to be tried now.
        """
        if self._polls:
            self._poll_at = now + (BLIND_POLL_S if blind else POLL_S)
        # Found alike twice, with quiet between: it is written. What was tried last is not tried
        # again, however often it is found.
        if token in {self._tried, self._seen}:
            self._seen = None
            return token != self._tried
        self._seen = token
        # A touch that has come meanwhile brings the second look anyway.
        if self._due_at == inf:
            wait_s = CONFIRM_S if self._has_reason and not blind else QUIET_S
            self._first_at = now
            self._due_at = now + (GONE_S if gone else wait_s)
        return False

    def tried(self, token: str) -> None:
        """The content with this token has been tried; it is not tried again before something else
        was.
        """
        self._tried = token

    def wake_at(self) -> float:
        """The next instant at which `step` may say something new; infinity where only a touch or an
        order can bring it.
        """
        return min(
            self._poll_at, self._due_at, self._obeyed_at + ORDER_GAP_S if self._ordered else inf
        )


class ConfigInForce:
    """The one configuration that everybody reads, and its replacement, in one piece on the loop.
    `watch`: how changes of the file are seen: by `events` of the operating system, by `polling`, or
    `off` where only orders count.
    """

    def __init__(self, config: GatewayConfig, *, clock: Clock, events: EventSink) -> None:
        self.config = config
        self.watch = "off"
        self.command_line: dict[SettingPath, str | int] = {}
        """What options of the command say instead of the configuration."""
        self._file = config
        self._clock = clock
        self._events = events
        self._started_with = config.settings
        self._listeners: list[Callable[[GatewayConfig], None]] = []
        self._generation = 1
        self._loaded_wall_s = clock.wall()
        self._tried_wall_s = self._loaded_wall_s
        self._accepted = 0
        self._rejected = 0
        self._pending: tuple[str, ...] = ()
        self._problems: tuple[str, ...] = ()

    def on_reload(self, take: Callable[[GatewayConfig], None]) -> None:
        """Have `take` get every configuration that comes into force after the present one."""
        self._listeners.append(take)

    def take(self, fresh: GatewayConfig | ConfigError) -> bool:
        """Put a configuration in force, or say why it is none; True where it is in force."""
        now = self._clock.monotonic()
        self._tried_wall_s = self._clock.wall()
        self._problems = fresh.problems if isinstance(fresh, ConfigError) else ()
        if isinstance(fresh, ConfigError):
            self._rejected += 1
            self._events.emit(ConfigRejected(at=now, problems=fresh.problems))
            return False
        self._pending = tuple(
            path for path, hot in differences(self._started_with, fresh.settings).items() if not hot
        )
        self._accepted += 1
        self._loaded_wall_s = self._tried_wall_s
        mode = self.config.mode
        if mode is not None and mode not in fresh.settings.modes:
            text = f"the mode {mode} is no longer in the configuration, so no mode is in force"
            self._events.emit(OwnerWarned(at=now, text=text))
            mode = None
        self._file = fresh
        changed = self._put(fresh.in_mode(mode))
        self._generation += bool(changed)
        self._events.emit(
            ConfigReloaded(
                at=now, generation=self._generation, changed=changed, needs_restart=self._pending
            )
        )
        return True

    @property
    def file(self) -> GatewayConfig:
        """The same as it is without any mode."""
        return self._file

    def switch(self, mode: str | None) -> tuple[str, ...]:
        """Put another mode in force over the same file. Returns the paths of what that changes."""
        return self._put(self._file.in_mode(mode))

    def _put(self, fresh: GatewayConfig) -> tuple[str, ...]:
        changed = tuple(differences(self.config.settings, fresh.settings))
        self.config = fresh
        for listener in self._listeners:
            try:
                listener(fresh)
            except Exception as error:  # noqa: BLE001
                # Supervision point: one part's defect must not keep the others from hearing.
                where = f"reload: {getattr(listener, '__qualname__', type(listener).__name__)}"
                self._events.emit(
                    InternalFault(
                        at=self._clock.monotonic(), where=where, detail=type(error).__name__
                    )
                )
        return changed

    def difference(self, fresh: GatewayConfig) -> list[Change]:
        """What another configuration would change, in the mode in force: at once, against what is
        in force, and with a restart, against what this process was started with.
        """
        wanted = fresh.in_mode(self.config.mode).settings
        hot = [each for each in _compared(self.config.settings, wanted) if each.hot]
        started = _compared(self._started_with, fresh.settings)
        return [*hot, *(each for each in started if not each.hot)]

    def summary(self) -> JsonDict:
        """How the configuration came to be, as status and health show it."""
        return {
            "generation": self._generation,
            "source": str(self.config.source or "defaults"),
            "problems": list(self._problems),
            "loaded_wall": round(self._loaded_wall_s, 3),
            "last_attempt": round(self._tried_wall_s, 3),
            "reload_count": self._accepted,
            "rejected_count": self._rejected,
            "restart_pending": list(self._pending),
            "watch": self.watch,
        }

    def shown(self) -> JsonDict:
        """The same with every setting in force as it would stand in the file, secrets shortened."""
        settings = self.config.settings
        origins = {**self.config.origins, **dict.fromkeys(self.command_line, _BY_COMMAND)}
        return self.summary() | {
            "mode": self.config.mode,
            "origins": origins_shown(origins),
            "command_line": {".".join(path): each for path, each in self.command_line.items()},
            "settings": as_values(settings),
            "secrets": fingerprints(settings),
        }


def _compared(old: Settings, new: Settings) -> tuple[Change, ...]:
    return compare(
        as_values(old),
        as_values(new),
        old_secrets=fingerprints(old),
        new_secrets=fingerprints(new),
    )


def attempt(read: Callable[[], T]) -> T | ConfigError:
    """What `read` gives, or why it gives nothing."""
    try:
        return read()
    except ConfigError as error:
        return error


class Reloader:
    """The way from the file to the configuration in force; without `watching`, which makes its
    watch, it is tried on orders only.
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
        self._path = in_force.config.source
        self._in_force = in_force
        self._clock = clock
        self._watching = None if self._path is None else watching
        self._watch: FileWatch | None = None
        self._plan = ReloadPlan(
            in_force.config.digest, clock.monotonic(), polls=self._watching is not None
        )
        self._wake = asyncio.Event()
        self._order: asyncio.Future[bool | HearthError] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hearth-config")
        self._ended = False

    # positional, as a watch calls it with its one fact
    def touched(self, writing: bool = False) -> None:  # noqa: FBT001, FBT002
        """Something happened at the file; `writing` while its writer has not closed it."""
        self._plan.touched(self._clock.monotonic(), writing=writing)
        self._wake.set()

    def request(self) -> None:
        """Try the file soon, changed or not; many requests at once are one."""
        self._plan.ordered()
        self._wake.set()

    async def reload(self) -> bool:
        """Try the file, changed or not, and say whether it is in force now; orders that meet share
        one try. Raises ShuttingDown.
        """
        if self._ended:
            raise ShuttingDown
        self._order = self._order or asyncio.get_running_loop().create_future()
        self.request()
        outcome = await asyncio.shield(self._order)
        if isinstance(outcome, HearthError):
            raise outcome
        return outcome

    async def pending(self) -> GatewayConfig | ConfigError:
        """What the file says now, tried as a reload would try it and not put in force. Raises
        ShuttingDown.
        """
        if self._ended:
            raise ShuttingDown
        path = self._path
        found = None
        if path is not None:
            found = await self._in_thread(partial(attempt, partial(read_bytes, path)))
        return await self._in_thread(partial(attempt, partial(self._read, found)))

    async def run(self) -> None:
        """Look, try and apply until cancelled."""
        if self._watching is not None and self._path is not None:
            self._watch = self._watch or self._watching(
                self._path, self.touched, asyncio.get_running_loop()
            )
            self.touched()
        while True:
            step = self._plan.step(self._clock.monotonic())
            if step is None or self._ended:
                await self._sleep()
            elif step == "obey":
                await self._obey()
            elif self._path is not None:
                await self._look(self._path)

    def end(self) -> None:
        """Put nothing in force any more, and refuse who waits for it."""
        self._ended = True
        if self._order is not None and not self._order.done():
            self._order.set_result(ShuttingDown())

    async def close(self) -> None:
        """Let go of file and thread; `run` must have ended."""
        self.end()
        if self._watch is not None:
            await asyncio.wait({self._in_thread(self._watch.close)}, timeout=CLOSE_TIMEOUT_S)
        self._thread.shutdown(wait=False)

    async def _sleep(self) -> None:
        wait_s = self._plan.wake_at() - self._clock.monotonic()
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self._ended or wait_s == inf else max(wait_s, 0.0)):
                await self._wake.wait()

    async def _look(self, path: Path) -> None:
        def find() -> tuple[bytes | ConfigError, bool]:
            # The watch first, or a change between is lost.
            blind = self._watch is None or not self._watch.refresh()
            return attempt(partial(read_bytes, path)), blind

        found, blind = await self._in_thread(find)
        self._in_force.watch = "polling" if blind else "events"
        gone = isinstance(found, ConfigError)
        if self._plan.looked(_token(found), self._clock.monotonic(), gone=gone, blind=blind):
            await self._try(found)

    async def _obey(self) -> None:
        order = self._order
        self._order = None
        outcome: bool | HearthError = ShuttingDown()
        try:
            found = None
            if self._path is not None:
                found = await self._in_thread(partial(attempt, partial(read_bytes, self._path)))
            outcome = await self._try(found)
        except Exception:
            outcome = HearthError()
            raise
        finally:
            if order is not None:
                order.set_result(outcome)

    async def _try(self, found: bytes | ConfigError | None) -> bool | HearthError:
        """Whether it is in force now.

        Of a gateway that was started without a file, the default path is tried, else the defaults.
        """
        fresh = await self._in_thread(partial(attempt, partial(self._read, found)))
        if self._ended:
            return ShuttingDown()
        if found is not None:
            self._plan.tried(_token(found))
        return self._in_force.take(fresh)

    def _read(self, found: bytes | ConfigError | None) -> GatewayConfig:
        """The configuration that was found. Raises ConfigError."""
        if isinstance(found, ConfigError):
            raise found
        if found is None or self._path is None:
            fresh = load_gateway_config()
        else:
            fresh = parse_bytes(found, self._path)
        if self._vet is not None and (problem := self._vet(fresh, self._in_force.config)):
            raise ConfigError([problem])
        return fresh

    def _in_thread(self, run: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, run)


def _token(found: bytes | ConfigError) -> str:
    """Equal for equal findings: the digest of the content, or why there is none."""
    return "; ".join(found.problems) if isinstance(found, ConfigError) else digest_of(found)


class FileWatch:
    """Watches the directories of one file: the one it is named in and the one it really lies in, as
    editors replace a file and Kubernetes a symlink beside it. Calls `touched` on `loop`, with True
    while a program has the file open and writes; `refresh` and `close` block.
    """

    def __init__(
        self,
        path: Path,
        touched: Callable[[bool], None],
        loop: asyncio.AbstractEventLoop,
        *,
        observing: Observe | None = None,
    ) -> None:
        self._path = path.absolute()
        self._observing = observing or observe
        self._touched = touched
        self._loop = loop
        self._observer: BaseObserver | None = None
        self._places: set[tuple[str, int, int]] = set()
        self._files: set[str] = set()
        self._writing = False
        self._posted = False

    def refresh(self) -> bool:
        """Watch what has to be watched now, since directories are replaced; False where one is
        missing or the system refuses.
        """
        self._files = {
            os.path.realpath(self._path),
            str(Path(os.path.realpath(self._path.parent)) / self._path.name),
        }
        places = _places_of(self._path)
        if places == self._places and self._observer is not None:
            return True
        self.close()
        self._places = places
        if not places:
            return False
        try:
            self._observer = self._observing(
                sorted({name for name, _, _ in places}), self._on_event
            )
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Watch nothing any more."""
        observer = self._observer
        self._observer = None
        if observer is not None:
            observer.stop()
            observer.join()

    def _on_event(self, event: FileSystemEvent) -> None:
        """On watchdog's thread.

        At most one call is on its way to the loop, however much happens.
        """
        if event.event_type in _CAUSED_BY_READING:
            return
        modified = event.event_type == "modified"
        if (
            os.fsdecode(event.src_path) in self._files
            or os.fsdecode(event.dest_path) in self._files
        ):
            self._writing = modified
        elif (
            modified and not event.is_directory
        ):  # a file that is kept open for writing, as the database's
            return
        if not self._posted:
            self._posted = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        self._posted = False
        self._touched(self._writing)


def _places_of(path: Path) -> set[tuple[str, int, int]]:
    """The directories of a file by real name, device and inode; empty where one is missing, or may
    not be listed: watchdog says nothing.
    """
    names = {
        os.path.realpath(path.parent),
        os.path.realpath(os.path.dirname(os.path.realpath(path))),  # noqa: PTH120
    }
    try:
        found = {
            (name, status.st_dev, status.st_ino) for name in names for status in [Path(name).stat()]
        }
    except OSError:
        return set()
    return found if all(os.access(name, os.R_OK) for name in names) else set()


def observe(directories: list[str], on_event: Callable[[FileSystemEvent], None]) -> BaseObserver:
    """A running observer.

    Raises OSError where the system has no more of what it takes (inotify instances and watches are
    limited).
    """
    # imported only by a gateway that has a file to watch
    from watchdog.events import FileSystemEventHandler  # noqa: PLC0415
    from watchdog.observers import Observer  # noqa: PLC0415

    handler = FileSystemEventHandler()
    handler.on_any_event = on_event  # type: ignore[assignment, method-assign]
    # It reports a harmless race in its own stop as an error.
    logging.getLogger("watchdog.observers.inotify").setLevel(logging.CRITICAL)
    observer = Observer()
    try:
        for directory in directories:
            observer.schedule(handler, directory)
        observer.start()
    except OSError:
        observer.stop()
        raise
    return observer
