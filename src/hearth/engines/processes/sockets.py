"""Who listens on a port of this machine, as Linux tells in /proc."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from hearth.types import frozen

PROC = Path("/proc")
_LISTENS = b" 0A "
"""The state, among thousands of lines of other connections."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@frozen
class Listening:
    """What is known of a tree of processes and the sockets of this machine.

    Attributes:
        is_ours: the port is listened on by the tree alone, since programs may share one
        (SO_REUSEPORT): None where it is by nobody. others: ports that the tree listens on beside
        it.
    """

    is_ours: bool | None
    others: tuple[int, ...]


def listening(port: int, tree: Callable[[], Iterable[int]], proc: Path = PROC) -> Listening | None:
    """None where it cannot be seen: another system, or processes of another user. Takes some
    milliseconds. A tree that changes meanwhile may be seen in part.

    Args:
        tree: the processes of the tree, asked for once the sockets are known.
    """
    try:
        by_inode = _listeners(proc)
        own = {inode for process in tree() for inode in _sockets(proc / str(process))}
    except OSError:
        return None
    ports = {by_inode[inode] for inode in own if inode in by_inode}
    takers = {inode for inode, listened in by_inode.items() if listened == port}
    return Listening(
        is_ours=takers <= own if takers else None, others=tuple(sorted(ports - {port}))
    )


def _listeners(proc: Path) -> dict[str, int]:
    """The port of each listening socket, by its inode. Raises OSError."""
    found: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        file = proc / "net" / table
        if table == "tcp" or file.exists():  # a system without IPv6 has no other one
            for line in file.read_bytes().splitlines()[1:]:
                if _LISTENS in line:
                    fields = line.decode("ascii").split()
                    found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def _sockets(process: Path) -> list[str]:
    """The inodes of a process's sockets; none of one that has ended. Raises PermissionError."""
    found: list[str] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in (process / "fd").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                named = _SOCKET.fullmatch(str(entry.readlink()))
                if named:
                    found.append(named[1])
    return found
