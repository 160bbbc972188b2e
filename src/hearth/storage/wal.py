"""What a write-ahead log holds, before SQLite opens it. Reads only.

SQLite takes the frames up to the last commit before the first frame that does not fit, and drops
the rest without a word. Some rest is normal: frames of before the last reset, which have other
salts, and the frames of a commit that was under way when the process or the power was cut.

Sources: https://www.sqlite.org/fileformat2.html#walformat, https://www.sqlite.org/walformat.html
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hearth.types import frozen

Checksum = tuple[int, int]

_HEADER = struct.Struct(">4I 8s 2I")
_MAGIC = 0x377F0682
"""With its last bit set, the checksums take the bytes in big-endian order."""
_VERSION = 3007000
_FRAME = struct.Struct(">2I 8s 2I")
_FRAME_CHECKED_BYTES = 8
"""Of a frame's header; its page follows. Salt and checksum are not in the checksum."""
_INDEX = struct.Struct("=I 4x I ? 3x I 12x 8s 2I")
_INDEX_CHECKED_BYTES = 40
_BACKFILLED = struct.Struct("=I")
_BACKFILLED_AT = 96
_MASK = 0xFFFFFFFF
_DEFAULT_PAGE_BYTES = 4096


@frozen
class WalAudit:
    """What SQLite will find in a log.

    Attributes:
        readable: frames up to the last commit that can be read.
        unreadable: frames behind it that were committed and cannot be read.
        certain: False where that may be a commit that was cut off and never acknowledged.
        has_old_commits: there are commits behind the readable ones. The next start would find them
            again, unless the log is begun anew.
    """

    readable: int = 0
    unreadable: int = 0
    certain: bool = True
    has_old_commits: bool = False


class Header(NamedTuple):
    """The first 32 bytes of a log, as they are."""

    head: bytes
    magic: int
    version: int
    page_bytes: int
    salts: bytes
    checksum: Checksum

    @property
    def byte_order(self) -> str:
        return ">" if self.magic & 1 else "<"

    @property
    def is_sound(self) -> bool:
        """Whether SQLite takes it; where not, it takes the whole log for empty."""
        has_page_size = 512 <= self.page_bytes <= 65536 and self.page_bytes.bit_count() == 1
        if self.magic & ~1 != _MAGIC or self.version != _VERSION or not has_page_size:
            return False
        return self.checksum == checksum_of(self.head[:24], self.byte_order)


class WalFrame(NamedTuple):
    """A page as a transaction left it. `database_pages` is 0 but in the last frame of each."""

    page: int
    database_pages: int
    salts: bytes
    checksum: Checksum
    checked: bytes

    def follows(self, before: Checksum, byte_order: str) -> bool:
        """Whether it was written behind the frame, or header, that has this checksum."""
        return self.checksum == checksum_of(self.checked, byte_order, before)


class Index(NamedTuple):
    """What the last process knew of the log. It notes a commit once that is synced.

    `changes` counts the commits since the index was made; what made it may have been a recovery.
    """

    changes: int
    committed: int
    backfilled: int
    salts: bytes


def checksum_of(data: bytes, byte_order: str, before: Checksum = (0, 0)) -> Checksum:
    """The checksum of a whole number of 8 bytes, which goes on from the one before."""
    first, second = before
    words = iter(struct.unpack(f"{byte_order}{len(data) // 4}I", data))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second


def beside(database: Path, suffix: str) -> Path:
    """A file named after another, such as the log of a database (`-wal`) and its index (`-shm`)."""
    return database.with_name(database.name + suffix)


def audit(database: Path) -> WalAudit:
    """Look at the log of a database that nobody has open. Raises OSError."""
    index = _read_index(beside(database, "-shm"))
    try:
        with beside(database, "-wal").open("rb") as file:
            header = _read_header(file)
            if header is None:
                return _without_frames(index)
            if not header.is_sound:
                return _behind_broken_header(file, header, _page_bytes(database), index)
            return _audited(file, header, index)
    except FileNotFoundError:
        return _without_frames(index)


def _audited(file: BinaryIO, header: Header, index: Index | None) -> WalAudit:
    readable, is_broken, commits = _followed(file, header)
    last = commits[-1] if commits else readable
    if index is not None and index.salts == header.salts:
        if index.committed > readable:
            unreadable = max(index.committed, last) - readable
            return WalAudit(readable=readable, unreadable=unreadable, has_old_commits=bool(commits))
        if index.committed == readable and index.changes > 0:
            is_broken = False  # its writer went on from there: nothing behind it was committed
    unreadable = last - readable if is_broken else 0
    # Each commit is synced before the next one begins: of two, the first was acknowledged.
    return WalAudit(
        readable=readable,
        unreadable=unreadable,
        certain=unreadable == 0 or len(commits) > 1,
        has_old_commits=bool(commits),
    )


def _followed(file: BinaryIO, header: Header) -> tuple[int, bool, list[int]]:
    """How many frames SQLite will read, whether one of this log made it stop, and the numbers of
    the commits behind them.
    """
    readable = 0
    commits = list[int]()
    is_broken = False
    has_stopped = False
    before = header.checksum
    was_ours = True
    for number, frame in enumerate(_frames(file, header.page_bytes), 1):
        has_salts = frame.salts == header.salts
        # Where only the salts are damaged, the checksums still go on.
        is_looked_at = not has_stopped or (was_ours and not has_salts)
        fits = is_looked_at and frame.follows(before, header.byte_order)
        is_ours = has_salts or (was_ours and fits)
        has_stopped = has_stopped or not (has_salts and fits and frame.page)
        is_broken = is_broken or (has_stopped and is_ours)
        if is_ours and frame.database_pages:
            if has_stopped:
                commits.append(number)
            else:
                readable = number
        before = frame.checksum
        was_ours = is_ours
    return readable, is_broken, commits


def _behind_broken_header(
    file: BinaryIO, header: Header, page_bytes: int, index: Index | None
) -> WalAudit:
    """SQLite takes none of the frames; which of them were of this log only they can tell."""
    if index is not None and index.committed <= index.backfilled:
        return WalAudit()  # all that was committed is in the database
    frames = _frames(file, page_bytes)
    first = next(frames, None)
    if first is None:
        return _without_frames(index)
    heads = [(first.salts, first.database_pages)]
    heads += [(frame.salts, frame.database_pages) for frame in frames]
    salts = _first_shared([salts for salts, _ in heads]) if index is None else index.salts
    commits = [n for n, head in enumerate(heads, 1) if head[0] == salts and head[1]]
    backfilled = 0 if index is None else index.backfilled
    committed = max(0 if index is None else index.committed, *commits, 0)
    seeds = (
        header.checksum,
        checksum_of(header.head[:24], "<"),
        checksum_of(header.head[:24], ">"),
    )
    is_followed = any(first.follows(seed, order) for seed in seeds for order in "<>")
    return WalAudit(
        unreadable=committed - backfilled,
        certain=index is not None or is_followed or not commits,
    )


def _first_shared(salts: list[bytes]) -> bytes:
    """What two neighbours have: the frames of the newest log come first."""
    pairs = pairwise(salts)
    return next((one for one, other in pairs if one == other), salts[0])


def _without_frames(index: Index | None) -> WalAudit:
    """The log is gone, or cut down to nothing; the index may be left from before a power cut."""
    lost = 0 if index is None else index.committed - index.backfilled
    return WalAudit(unreadable=max(0, lost), certain=lost <= 0)


def _read_header(file: BinaryIO) -> Header | None:
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return None
    magic, version, page_bytes, _, salts, *checksum = _HEADER.unpack(head)
    return Header(head, magic, version, page_bytes, salts, (checksum[0], checksum[1]))


def _frames(file: BinaryIO, page_bytes: int) -> Iterator[WalFrame]:
    """All that are whole; one that was cut off is none."""
    while len(data := file.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
        page, database_pages, salts, *checksum = _FRAME.unpack_from(data)
        checked = data[:_FRAME_CHECKED_BYTES] + data[_FRAME.size :]
        yield WalFrame(page, database_pages, salts, (checksum[0], checksum[1]), checked)


def _read_index(path: Path) -> Index | None:
    """One of its two copies may have been cut off while it was written."""
    try:
        with path.open("rb") as file:
            head = file.read(_BACKFILLED_AT + _BACKFILLED.size)
    except FileNotFoundError:
        return None
    if len(head) < _BACKFILLED_AT + _BACKFILLED.size:
        return None
    (backfilled,) = _BACKFILLED.unpack_from(head, _BACKFILLED_AT)
    native = "<" if sys.byteorder == "little" else ">"
    found = list[Index]()
    for at in (0, _INDEX.size):
        version, changes, is_made, committed, salts, *checksum = _INDEX.unpack_from(head, at)
        computed = checksum_of(head[at : at + _INDEX_CHECKED_BYTES], native)
        if version == _VERSION and is_made and computed == (checksum[0], checksum[1]):
            found.append(Index(changes, committed, backfilled, salts))
    return max(found, key=lambda each: each.changes, default=None)


def _page_bytes(database: Path) -> int:
    """As the database's own header says."""
    with database.open("rb") as file:
        head = file.read(18)
    page_bytes = int.from_bytes(head[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    return page_bytes if page_bytes >= 512 else _DEFAULT_PAGE_BYTES
