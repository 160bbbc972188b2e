"""Hears from the operating system that something has changed where the owner's file lies.

Directories are watched, not the file: editors replace it, and Kubernetes swaps a symlink beside it, so that no event names it. watchdog
works on threads of its own; `touched` is called on the event loop. `refresh` and `close` block for moments and are meant for one thread
that is not the loop's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

    Observe = Callable[[list[str], Callable[[FileSystemEvent], None]], BaseObserver]

_CAUSED_BY_READING = ("opened", "closed_no_write")


class FileWatch:
    """Watches the directories of one file: the one it is named in and the one it really lies in.

    Args:
        touched: called on `loop` after something happened there; True while a program writes to the file and has not closed it.
    """

    def __init__(
        self, path: Path, touched: Callable[[bool], None], loop: asyncio.AbstractEventLoop, *, observing: Observe | None = None
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
        """Watch what has to be watched now, since directories are replaced; False where one is missing or the system refuses."""
        self._files = {os.path.realpath(self._path), str(Path(os.path.realpath(self._path.parent)) / self._path.name)}
        places = _places_of(self._path)
        if places == self._places and self._observer is not None:
            return True
        self.close()
        self._places = places
        if not places:
            return False
        try:
            self._observer = self._observing(sorted({name for name, _, _ in places}), self._on_event)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Watch nothing any more."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join()

    def _on_event(self, event: FileSystemEvent) -> None:
        """On watchdog's thread. At most one call is on its way to the loop, however much happens."""
        if event.event_type in _CAUSED_BY_READING:
            return
        modified = event.event_type == "modified"
        if os.fsdecode(event.src_path) in self._files or os.fsdecode(event.dest_path) in self._files:
            self._writing = modified
        elif modified and not event.is_directory:  # a file that is kept open for writing, as the database's
            return
        if not self._posted:
            self._posted = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        self._posted = False
        self._touched(self._writing)


def _places_of(path: Path) -> set[tuple[str, int, int]]:
    """The directories of a file by real name, device and inode: another one under the same name is another place.

    Empty where one is missing or cannot be listed: watchdog says nothing where the system refuses to watch for want of rights.
    """
    names = {os.path.realpath(path.parent), os.path.realpath(os.path.dirname(os.path.realpath(path)))}  # noqa: PTH120
    try:
        found = {(name, status.st_dev, status.st_ino) for name in names for status in [Path(name).stat()]}
    except OSError:
        return set()
    return found if all(os.access(name, os.R_OK) for name in names) else set()


def observe(directories: list[str], on_event: Callable[[FileSystemEvent], None]) -> BaseObserver:
    """A running observer. Raises OSError where the system has no more of what it takes (inotify instances and watches are limited)."""
    from watchdog.events import FileSystemEventHandler  # noqa: PLC0415 - paid for by gateways that have a file
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
