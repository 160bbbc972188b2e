"""Where the file lies, and that only one Hearth uses it. Touches names and permissions, never the database itself.

Used by `database` at start; `database_path` by `bootstrap`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from hearth.errors import StorageBusy, StorageRefused

ADVICE = "Set `storage.path` to a file in a directory that Hearth may write."


def database_path(configured: str, environ: Mapping[str, str]) -> Path:
    """The file that `storage.path` names (`~/` is the user's home); `$XDG_STATE_HOME/hearth/hearth.db` where it is empty.

    Source: XDG Base Directory Specification 0.8 (state is what should persist, but is not important enough for the data directory).
    """
    if configured:
        return _home(environ) / configured.removeprefix("~/") if configured.startswith("~/") else Path(configured)
    state = Path(environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = _home(environ) / ".local" / "state"
    return state / "hearth" / "hearth.db"


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or "~").expanduser()


def prepare_directory(path: Path) -> None:
    """Make sure that the file's directory exists (0700 where it is made here) and can be written.

    Raises:
        StorageRefused: it cannot be made or written.
    """
    directory = path.parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageRefused(f"{directory} cannot be made: {error.strerror}. {ADVICE}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StorageRefused(f"{directory} cannot be written. {ADVICE}")


def tighten_own_directory(configured: str, path: Path) -> None:
    """Close the default directory to other users, where an earlier umask left it open. One that the owner chose stays as it is.

    Raises:
        StorageRefused: it belongs to somebody else.
    """
    directory = path.parent
    if configured or not directory.is_dir() or directory.stat().st_mode & 0o077 == 0:
        return
    try:
        directory.chmod(0o700)
    except OSError as error:
        raise StorageRefused(f"{directory} is open to other users and cannot be closed: {error.strerror}. {ADVICE}") from error


def open_directory(configured: str, path: Path) -> tuple[str, ...]:
    """What to tell the owner where a directory of their choice is open to other users."""
    directory = path.parent
    if not configured or not directory.is_dir() or not (mode := directory.stat().st_mode & 0o777) & 0o077:
        return ()
    return (f"storage.path: {directory} is open to other users of this machine (mode {mode:o}): chmod 700 {directory}",)


def sync_directory(directory: Path) -> None:
    """Make names that were added to or changed in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class InstanceLock:
    """Held for as long as a process uses the database: two that schedule one GPU and write one file would both be wrong.

    An advisory lock on a file beside the database (never on the database, whose POSIX locks would be dropped with the descriptor); the
    kernel takes it back when the process ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            StorageBusy: another process holds it.
            StorageRefused: the file cannot be made.
        """
        lock = path.with_name(path.name + ".lock")
        try:
            self._descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageRefused(f"{lock} cannot be written: {error.strerror}. {ADVICE}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise self._refusal(path) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def _refusal(self, path: Path) -> StorageBusy:
        holder = os.read(self._descriptor, 32).decode(errors="replace").strip()
        os.close(self._descriptor)
        whom = f"process {holder}" if holder.isdecimal() else "another process"
        return StorageBusy(f"{path} is in use by {whom}. Stop it, or give this Hearth a `storage.path` of its own.")

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would let two processes lock two files of one name."""
        os.close(self._descriptor)
