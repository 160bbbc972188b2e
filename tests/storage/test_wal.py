"""What the audit of a log says, beside what SQLite itself then finds in it."""

from __future__ import annotations

import random
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hearth.storage.wal import WalAudit, audit

HEADER_BYTES = 32
FRAME_BYTES = 24 + 4096
SUFFIXES = ("", "-wal", "-shm")


@dataclass(frozen=True)
class Files:
    """The files of a database as they are at one instant; None where there is none."""

    database: bytes
    wal: bytes | None
    index: bytes | None

    @classmethod
    def of(cls, path: Path) -> Files:
        found = [path.with_name(path.name + suffix) for suffix in SUFFIXES]
        contents = [file.read_bytes() if file.exists() else None for file in found]
        return cls(contents[0] or b"", contents[1], contents[2])

    def put(self, directory: Path) -> Path:
        path = directory / "copy.db"
        for suffix, content in zip(SUFFIXES, (self.database, self.wal, self.index), strict=True):
            file = path.with_name(path.name + suffix)
            file.unlink(missing_ok=True)
            if content is not None:
                file.write_bytes(content)
        return path

    def flipped(self, at: int, bit: int = 0) -> Files:
        assert self.wal is not None
        changed = bytearray(self.wal)
        changed[at] ^= 1 << bit
        return replace(self, wal=bytes(changed))

    @property
    def frames(self) -> int:
        return (len(self.wal or b"") - HEADER_BYTES) // FRAME_BYTES


class Books:
    """A database under work, with a row per commit; each leaves a frame or more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("CREATE TABLE book (id INTEGER PRIMARY KEY, text TEXT)")
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("PRAGMA wal_autocheckpoint = 0")

    def commit(self, commits: int = 1, *, text: str = "x" * 900) -> None:
        for _ in range(commits):
            self.rows += 1
            self.connection.execute("INSERT INTO book VALUES (?, ?)", (self.rows, text))

    def begin_log_anew(self) -> None:
        """The next commit writes over the frames of this log from the first one on."""
        self.connection.execute("PRAGMA wal_checkpoint(RESTART)")

    def roll_back(self, rows: int) -> None:
        """A transaction too large for the cache leaves frames that were never committed."""
        self.connection.execute("PRAGMA cache_size = 3")
        self.connection.execute("BEGIN")
        for row in range(rows):
            self.connection.execute("INSERT INTO book VALUES (?, ?)", (10_000 + row, "y" * 3000))
        self.connection.execute("ROLLBACK")

    def files(self) -> Files:
        return Files.of(self.path)


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    (tmp_path / "living").mkdir()
    made = Books(tmp_path / "living" / "books.db")
    with closing(made.connection):
        yield made


def recovered(path: Path) -> tuple[int, int]:
    """The last frame that SQLite takes, as its own index then says, and the rows it finds."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        (rows,) = connection.execute("SELECT COUNT(*) FROM book").fetchone()
        (frames,) = struct.unpack_from("=I", path.with_name(path.name + "-shm").read_bytes(), 16)
    return frames, rows


def places(files: Files, frames: tuple[int, ...]) -> Iterator[int]:
    """Every byte of the header and of the heads of some frames, and some of their pages."""
    yield from range(HEADER_BYTES)
    for frame in set(frames):
        start = HEADER_BYTES + (frame - 1) * FRAME_BYTES
        yield from range(start, start + 24)
        yield from range(start + 24, start + FRAME_BYTES, 1511)
    assert files.frames >= max(frames)


def test_a_sound_log_is_read_to_its_end_whatever_was_there_before(books, tmp_path):
    books.commit(40)
    for commits in (1, 3, 10):
        books.begin_log_anew()
        books.commit(commits)
        path = books.files().put(tmp_path)
        found = audit(path)
        assert found == WalAudit(readable=found.readable)
        assert (found.readable, books.rows) == recovered(path)
        assert found.readable > 0


def test_a_database_without_a_log_has_lost_nothing(books, tmp_path):
    books.connection.close()
    files = books.files()
    assert files.wal is None
    assert audit(files.put(tmp_path)) == WalAudit()


@pytest.mark.parametrize("old_commits", [0, 30])
def test_a_bit_anywhere_that_costs_a_row_is_noticed_and_no_other(books, tmp_path, old_commits):
    """The index of the log is there, as after a kill."""
    if old_commits:
        books.commit(old_commits)
        books.begin_log_anew()
    books.commit(12)
    files = books.files()
    whole = audit(files.put(tmp_path)).readable
    is_costly = set[bool]()
    for at in places(files, (1, whole // 2, whole, files.frames)):
        damaged = files.flipped(at, at % 8)
        found = audit(damaged.put(tmp_path))
        readable, rows = recovered(damaged.put(tmp_path))
        assert found.readable == readable
        lost = books.rows - rows
        is_costly.add(lost > 0)
        assert (found.unreadable > 0) is (lost > 0), (at, found)
        assert found.unreadable in {0, whole - found.readable}
        assert found.certain
    assert True in is_costly
    assert (False in is_costly) is (old_commits > 0)


def test_without_an_index_what_lies_behind_tells_but_for_the_last_commit(books, tmp_path):
    books.commit(12)
    files = replace(books.files(), index=None)
    whole = files.frames
    for at in places(files, (1, 2, whole // 2, whole - 2)):
        found = audit(files.flipped(at, at % 8).put(tmp_path))
        assert found.readable + found.unreadable == whole, (at, found)
        assert found.certain
    for at in range(len(files.wal) - FRAME_BYTES, len(files.wal), 97):
        found = audit(files.flipped(at, at % 8).put(tmp_path))
        assert found.unreadable == 0 or not found.certain


@pytest.mark.parametrize("size", [0, 1, 31, 32, 2000, HEADER_BYTES + FRAME_BYTES])
def test_a_log_that_was_cut_off_is_known_by_its_index(books, tmp_path, size):
    books.commit(5)
    files = books.files()
    cut = replace(files, wal=files.wal[:size])
    found = audit(cut.put(tmp_path))
    assert found.readable + found.unreadable == files.frames
    assert found.certain is (size >= HEADER_BYTES)
    assert audit(replace(cut, index=None).put(tmp_path)).unreadable == 0


def test_a_deleted_log_is_known_by_its_index_unless_all_was_folded_in(books, tmp_path):
    books.commit(5)
    files = books.files()
    found = audit(replace(files, wal=None).put(tmp_path))
    assert (found.readable, found.unreadable, found.certain) == (0, files.frames, False)
    books.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    assert audit(replace(books.files(), wal=None).put(tmp_path)) == WalAudit()


def around_a_commit(books: Books, tmp_path: Path) -> Any:
    """The files before a commit, how many frames are readable in them, and the files after it."""
    books.commit(3)
    before = books.files()
    whole = audit(before.put(tmp_path)).readable
    books.commit(text="z" * 9000)
    return before, whole, books.files()


@pytest.mark.parametrize("old_commits", [0, 30])
def test_a_commit_that_a_kill_cut_off_anywhere_is_no_damage(books, tmp_path, old_commits):
    """What was written in order up to some byte; behind it is what was there before."""
    if old_commits:
        books.commit(old_commits)
        books.begin_log_anew()
    before, whole, after = around_a_commit(books, tmp_path)
    start = HEADER_BYTES + whole * FRAME_BYTES
    for written in range(start, audit(after.put(tmp_path)).readable * FRAME_BYTES, 509):
        wal = after.wal[:written] + before.wal[written:]
        found = audit(replace(before, wal=wal).put(tmp_path))
        assert found == WalAudit(readable=whole, has_old_commits=found.has_old_commits)


@pytest.mark.parametrize("seed", range(20))
def test_a_commit_cut_by_a_power_loss_is_never_called_lost_for_certain(books, tmp_path, seed):
    """Sectors reach the disk in any order until they are synced; the index is gone, or old."""
    draw = random.Random(seed)
    books.commit(20)
    books.begin_log_anew()
    before, whole, after = around_a_commit(books, tmp_path)
    sectors = [
        draw.choice((before, after)).wal[at : at + 512] for at in range(0, len(after.wal), 512)
    ]
    for index in (None, before.index):
        torn = replace(after, wal=b"".join(sectors), index=index)
        found = audit(torn.put(tmp_path))
        assert found.readable >= whole
        assert not found.unreadable or not found.certain
        assert index is None or found.readable > whole or not found.unreadable


def test_frames_of_what_was_rolled_back_are_no_damage(books, tmp_path):
    books.commit(3)
    books.roll_back(60)
    size = books.path.with_name("books.db-wal").stat().st_size
    books.commit(2)
    files = books.files()
    assert len(files.wal) == size, "the commit went over frames that were rolled back"
    for each in (files, replace(files, index=None)):
        found = audit(each.put(tmp_path))
        assert found == WalAudit(readable=found.readable)
        assert recovered(each.put(tmp_path)) == (found.readable, 5)


def test_an_earlier_find_is_not_found_again_once_something_was_written(books, tmp_path):
    books.commit(20)
    files = books.files().flipped(HEADER_BYTES + 5 * FRAME_BYTES + 100)
    path = files.put(tmp_path)
    assert audit(path).unreadable > 10
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("SELECT COUNT(*) FROM book").fetchone()
        (tmp_path / "again").mkdir()
        again = Files.of(path).put(tmp_path / "again")
        assert audit(again).unreadable > 10, "SQLite has made an index of what it could read"
        connection.execute("INSERT INTO book VALUES (999, '')")
        found = audit(Files.of(path).put(tmp_path / "again"))
    assert (found.unreadable, found.has_old_commits) == (0, True)


def test_a_log_without_right_to_read_it_is_an_error_of_the_disk(tmp_path):
    (tmp_path / "copy.db").write_bytes(b"")
    (tmp_path / "copy.db-wal").mkdir()
    with pytest.raises(OSError, match=r"copy\.db-wal"):
        audit(tmp_path / "copy.db")
