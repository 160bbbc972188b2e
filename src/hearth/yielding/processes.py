"""The programs of this machine that are to have the card: games, and those with a name that the
owner has listed, as Linux tells in /proc.

Once a second only what is new is read: processes that have appeared, for some seconds (a launcher
is a shell before it is one), and those that were found. All of them are read again now and then, so
that nothing that was missed stays so. What a process says of itself is bounded, and vanishes at any
moment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

from hearth.types import GpuProcess, frozen
from hearth.yielding.games import game_of, script_of
from hearth.yielding.programs import key_of, name_of, named_by, names_of, shown

PROC = Path("/proc")
FULL_S = 30.0
YOUNG_S = 5.0
"""For so long after it was first seen, a process may become another program."""
READ_BYTES = 4096
"""Of a command line; a launcher says what it is at its beginning."""
MAX_READS = 2000
"""In a second in which thousands of processes appear. The others are read in the next."""
MAX_DEPTH = 64

Hidden: TypeAlias = Literal["", "no_proc", "container", "hidden"]
"""Why programs cannot be seen: this is not Linux; a container has processes of its own; those of
other users are hidden (`hidepid`, `ProtectProc`). Empty where they can.
"""


@frozen
class Program:
    """One that is to have the card. `key` is the same for all processes of one program."""

    source: Literal["games", "named"]
    key: str
    title: str


@frozen
class _Process:
    program: Program
    parent: int


class ProcessScan:
    """What is remembered of processes from one look to the next; blocks, and belongs to one thread
    at a time.

    Args:
        own: found in the names of the model servers' processes, which are no others. Neither are
        this process and what it has started.
    """

    def __init__(self, own: re.Pattern[str], proc: Path = PROC) -> None:
        self._own = own
        self._proc = str(proc)
        self._young_until: dict[int, float] = {}
        self._found: dict[int, _Process] = {}
        self._patterns: tuple[str, ...] = ()
        self._full_at = float("-inf")

    def look(
        self, now_s: float, patterns: tuple[str, ...], on_card: Iterable[GpuProcess] = ()
    ) -> frozenset[Program]:
        """What runs at `now_s` on the monotonic clock.

        Args:
            patterns: of names of programs that count beside games. on_card: what the driver lists,
            which counts by the same patterns.
        """
        present = self._listed()
        is_full = now_s >= self._full_at or patterns != self._patterns
        if is_full:
            self._full_at = now_s + FULL_S
            self._patterns = patterns
        for gone in self._young_until.keys() - present:
            del self._young_until[gone]
            self._found.pop(gone, None)
        for process in self._to_read(present, now_s, is_full=is_full):
            self._young_until.setdefault(process, now_s + YOUNG_S)
            found = self._read(process)
            if found is None:
                self._found.pop(process, None)
            else:
                self._found[process] = found
        return self._outermost(self._found | self._named_on_card(on_card))

    def _listed(self) -> set[int]:
        try:
            names = os.listdir(self._proc)  # noqa: PTH208 - no path is made of each
        except OSError:
            return set()
        return {int(name) for name in names if name.isdecimal()}

    def _to_read(self, present: set[int], now_s: float, *, is_full: bool) -> Iterable[int]:
        if is_full:
            return present
        known = self._young_until
        new = present - known.keys()
        young = [each for each, until in known.items() if until > now_s and each not in self._found]
        return [*self._found, *sorted(new), *young][: len(self._found) + MAX_READS]

    def _read(self, process: int) -> _Process | None:
        """What is to have the card of it; None for another program, and for one that has ended."""
        status = self._status(process)
        if status is None or status.state in {"Z", "X"}:
            return None
        raw = self._bytes(f"{process}/cmdline")
        arguments = tuple(raw.rstrip(b"\0").decode(errors="replace").split("\0")) if raw else ()
        game = game_of(arguments)
        if game is not None:
            program = Program(source="games", key=game.key, title=game.title)
            return _Process(program=program, parent=status.parent)
        if not self._patterns or not arguments:
            return None
        script = next(iter(script_of(arguments)), "")
        return self._named(names_of(status.comm, arguments, script), status.parent)

    def _named(self, names: Iterable[str], parent: int) -> _Process | None:
        foreign = [name for name in names if not self._own.search(name)]
        name = named_by(self._patterns, foreign)
        if not name:
            return None
        program = Program(source="named", key=key_of(name) or "program", title=shown(name))
        return _Process(program=program, parent=parent)

    def _named_on_card(self, on_card: Iterable[GpuProcess]) -> dict[int, _Process]:
        listed: dict[int, _Process] = {}
        for process in on_card:
            if process.pid not in self._found and not self._own.search(process.name):
                found = self._named([name_of(process.name)], self._parent(process.pid))
                if found is not None:
                    listed[process.pid] = found
        return listed

    def _outermost(self, found: Mapping[int, _Process]) -> frozenset[Program]:
        """Without those that a game has started, which are that game, and without our own."""
        me = os.getpid()
        return frozenset(
            each.program
            for number, each in found.items()
            if number != me and not self._is_of_another(each, found, me)
        )

    def _is_of_another(self, process: _Process, found: Mapping[int, _Process], me: int) -> bool:
        """Has another game started it, or have we started what has a listed name?"""
        parent = process.parent
        for _ in range(MAX_DEPTH):
            if parent <= 1:
                break
            if parent == me:
                return process.program.source == "named"
            above = found.get(parent)
            if above is None:
                parent = self._parent(parent)
                continue
            if above.program.source == "games" and above.program != process.program:
                return True
            parent = above.parent
        return False

    def _parent(self, process: int) -> int:
        status = self._status(process)
        return 0 if status is None else status.parent

    def _status(self, process: int) -> _Status | None:
        with suppress(ValueError, IndexError):
            # the name is in parentheses, and may have some itself
            name, _, rest = self._bytes(f"{process}/stat").decode(errors="replace").rpartition(")")
            fields = rest.split()
            return _Status(comm=name.partition("(")[2], state=fields[0], parent=int(fields[1]))
        return None

    def _bytes(self, file: str) -> bytes:
        """The beginning of a file in /proc; empty where it is gone, or may not be read."""
        try:
            handle = os.open(f"{self._proc}/{file}", os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.read(handle, READ_BYTES)
        except OSError:
            return b""
        finally:
            os.close(handle)


@frozen
class _Status:
    comm: str
    state: str
    parent: int


def what_is_hidden(proc: Path = PROC) -> Hidden:
    """Whether the programs of this machine can be seen at all."""
    if not (proc / "self").exists():
        return "no_proc"
    try:
        (proc / "1/cmdline").read_bytes()
    except OSError:
        return "hidden"
    # the kernel's own processes have these numbers, and no container sees them
    with suppress(OSError):
        if (proc / "2/comm").read_text().strip() == "kthreadd":
            return ""
    return "container"
