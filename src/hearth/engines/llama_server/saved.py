"""Conversations that were saved to the disk when their server was stopped.

Each is two files: `hearth-ID.slot`, which llama.cpp's server has written, and `hearth-ID.json`,
which says whose it is. A file without its other half is removed at the start. The texts of the
conversations can be read from these files, so only the owner of the process may read them.

All methods may be called from any thread; those that touch the disk take some milliseconds.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from threading import RLock

from hearth.types import frozen

OWN = "hearth-"
SLOT = ".slot"
INDEX = ".json"
ONLY_OWNER = 0o600
MAX_INDEX_BYTES = 64 * 1024
DRAFT = ".new"
_OWN_FILE = re.compile(r"hearth-[0-9a-f]{16}\.(?:slot|json|new)")


@frozen
class SavedConversation:
    """One conversation on the disk.

    Attributes:
        name: of its file. conversation: its key. signature: of the server that wrote it; no other
        may read it. tokens: that the file holds; prompt_tokens: those of the last prompt.
        size_bytes: as the server reported it; modified_ns: of the file. used_at: seconds since
        1970.
    """

    name: str
    conversation: str
    model: str
    signature: str
    tokens: int
    prompt_tokens: int
    size_bytes: int
    modified_ns: int
    used_at: float


class SavedConversations:
    """The files in one directory, and the index of them.

    Args:
        quota_bytes: of all files together; those that were not used for longest go first. keep_s:
        how long one is kept after its last use.
    """

    def __init__(self, directory: Path, quota_bytes: float, keep_s: float) -> None:
        self.directory = directory
        self._quota_bytes = quota_bytes
        self._keep_s = keep_s
        self._entries: dict[str, SavedConversation] = {}
        """By name, the one that was not used for longest first."""
        self._lock = RLock()

    def prepare(self) -> None:
        """Make the directory where it is missing. Raises OSError: nothing can be written there, or
        others could put files of theirs in place of those that a server writes.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.directory.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, "others may write to it")
        self.discard_unknown(self.new_file())

    def read(self, wall_s: float) -> None:
        """Know what is in the directory, and remove what is not known; before anything is saved."""
        with self._lock:
            found = [self._read(path) for path in self.directory.glob(f"{OWN}*{INDEX}")]
            known = sorted(filter(None, found), key=lambda entry: entry.used_at)
            self._entries = {entry.name: entry for entry in known}
            for path in self.directory.iterdir():
                is_known = path.suffix != DRAFT and path.with_suffix(SLOT).name in self._entries
                if _OWN_FILE.fullmatch(path.name) and not is_known:
                    _remove(path)
            self.expire(wall_s)

    def _read(self, index: Path) -> SavedConversation | None:
        """What an index file says; None where that is no index of ours."""
        try:
            if _status(index).st_size > MAX_INDEX_BYTES:
                return None
            entry = SavedConversation(**json.loads(index.read_bytes()))
            kinds = SavedConversation.__annotations__
            is_sound = all(
                type(value).__name__ == kinds[name] for name, value in asdict(entry).items()
            )
            names_itself = entry.name == index.with_suffix(SLOT).name
            if not (is_sound and names_itself):
                return None
            _status(self.directory / entry.name)
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return entry

    def new_file(self) -> str:
        """The name of a new, empty file for a server to write into. Raises OSError."""
        name = f"{OWN}{secrets.token_hex(8)}{SLOT}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        os.close(os.open(self.directory / name, flags, ONLY_OWNER))
        return name

    def discard_unknown(self, name: str) -> None:
        """Remove a file, unless it is in the index."""
        with self._lock:
            if name not in self._entries:
                _remove(self.directory / name)

    def make_room(self, size_bytes: float) -> None:
        """Remove what has to go for another file of this size."""
        with self._lock:
            for entry in self._over_quota(size_bytes):
                self.remove(entry)

    def _over_quota(self, more_bytes: float) -> Iterator[SavedConversation]:
        over_bytes = self.size_bytes + more_bytes - self._quota_bytes
        for entry in tuple(self._entries.values()):
            if over_bytes <= 0:
                return
            over_bytes -= entry.size_bytes
            yield entry

    def add(self, entry: SavedConversation) -> SavedConversation:
        """Take a file that was written into the index, in place of older ones of this conversation.

        Returns it with what its file shows. Raises OSError: it is not there, has another size, is
        too large for the quota, or the index cannot be written.
        """
        status = _status(self.directory / entry.name)
        if status.st_size != entry.size_bytes:
            raise OSError(f"{status.st_size} of {entry.size_bytes} bytes were written")
        if entry.size_bytes > self._quota_bytes:
            raise OSError(f"{entry.size_bytes} bytes do not fit in conversations.quota_gb")
        entry = replace(entry, modified_ns=status.st_mtime_ns)
        with self._lock:
            for older in self._of(entry.conversation, entry.signature):
                self.remove(older)
            self.make_room(entry.size_bytes)
            self._write(entry)
        return entry

    def _write(self, entry: SavedConversation) -> None:
        """Write the index of an entry, which is there as a whole or not at all."""
        index = (self.directory / entry.name).with_suffix(INDEX)
        draft = index.with_suffix(DRAFT)
        _remove(draft)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        try:
            with os.fdopen(os.open(draft, flags, ONLY_OWNER), "w") as file:
                json.dump(asdict(entry), file)
            draft.replace(index)
        except OSError:
            _remove(draft)
            raise
        self._entries.pop(entry.name, None)
        self._entries[entry.name] = entry

    def find(self, conversation: str, signature: str, wall_s: float) -> SavedConversation | None:
        """What a server with this signature may read of a conversation."""
        with self._lock:
            self.expire(wall_s)
            return next(self._of(conversation, signature), None)

    def _of(self, conversation: str, signature: str) -> Iterator[SavedConversation]:
        for entry in tuple(self._entries.values()):
            if (entry.conversation, entry.signature) == (conversation, signature):
                yield entry

    def is_whole(self, entry: SavedConversation) -> bool:
        """Its file is as it was written: a server that reads a cut one ends."""
        try:
            status = _status(self.directory / entry.name)
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (entry.size_bytes, entry.modified_ns)

    def used(self, entry: SavedConversation, wall_s: float) -> None:
        """It was read."""
        with self._lock, suppress(OSError):
            if entry.name in self._entries:
                self._write(replace(entry, used_at=wall_s))

    def remove(self, entry: SavedConversation) -> None:
        with self._lock:
            self._entries.pop(entry.name, None)
            path = self.directory / entry.name
            _remove(path.with_suffix(INDEX))
            _remove(path)

    def expire(self, wall_s: float) -> None:
        """Remove what was not used for `keep_s`; to be called now and then."""
        with self._lock:
            for entry in tuple(self._entries.values()):
                if not abs(wall_s - entry.used_at) < self._keep_s:  # ahead: the clock was set back
                    self.remove(entry)

    @property
    def size_bytes(self) -> int:
        with self._lock:
            return sum(entry.size_bytes for entry in self._entries.values())

    def all(self) -> tuple[SavedConversation, ...]:
        """The one that was not used for longest first."""
        with self._lock:
            return tuple(self._entries.values())


def _status(path: Path) -> os.stat_result:
    """Of a file, no link to one. Raises OSError."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no file")
    return status


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
