"""Files of a database that are damaged: what the owner is told, and what is kept."""

from __future__ import annotations

import re
import resource
import shutil
import stat
from pathlib import Path

import pytest

from hearth.errors import StorageRefused
from hearth.events import WalDamaged
from hearth.storage.database import set_aside
from tests.storage.house import ended, open_database, opened, written
from tests.support.recorder import Recorder


def killed(path: Path, left: Path) -> Path:
    """What a process that has `path` open would leave if it died now."""
    left.mkdir()
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(f"{path}{suffix}", left)
    return left / path.name


async def test_a_damaged_log_is_reported_once_and_kept_beside_the_database(tmp_path, clock):
    async with opened(tmp_path / "hearth.db", clock) as store:
        for number in range(20):
            store.invocations.emit(ended(number))
            await written(store)
        path = killed(tmp_path / "hearth.db", tmp_path / "left")
    log = path.with_name("hearth.db-wal")
    frames = (log.stat().st_size - 32) // 4120
    with log.open("r+b") as file:
        file.seek(32 + (frames // 2) * 4120 + 2000)
        file.write(b"\xa5" * 64)
    before = path.read_bytes(), log.read_bytes()
    events = Recorder()
    async with opened(path, clock, events=events) as store:
        (damaged,) = events.of(WalDamaged)
        assert (damaged.certain, damaged.readable_frames + damaged.unreadable_frames) == (True, frames)
        assert 0 < damaged.readable_frames <= frames // 2
        kept = Path(damaged.copy)
        assert store.shown() == store.shown() | {"wal_frames_unreadable": damaged.unreadable_frames, "damaged_copy": kept.name}
        copies = sorted(path.parent.glob("*.damaged-*"))
        assert copies == [kept, kept.with_name(f"{kept.name}-wal")]
        assert tuple(map(Path.read_bytes, copies)) == before
        assert {stat.S_IMODE(copy.stat().st_mode) for copy in copies} == {0o600}
        assert 0 < len(await store.invocations.find(limit=50)) < 20
        store.invocations.emit(ended(99))
        await written(store)
        again = killed(path, tmp_path / "again")
    for each in (path, again):
        async with opened(each, clock, events=Recorder()) as store:
            assert store.shown()["wal_frames_unreadable"] == 0
            assert [row.sequence for row in await store.invocations.find(limit=1)] == [99]
        assert len(list(each.parent.glob("*.damaged-*"))) == (2 if each is path else 0)


def test_a_log_that_is_damaged_still_is_kept_once(tmp_path):
    path = tmp_path / "hearth.db"
    for content in (b"one", b"one", b"another", b"one"):
        path.write_bytes(b"database")
        path.with_name("hearth.db-wal").write_bytes(content)
        set_aside(path)
    kept = {file.name: file.read_bytes() for file in tmp_path.glob("*.damaged-*-wal")}
    assert kept == {"hearth.db.damaged-1-wal": b"one", "hearth.db.damaged-2-wal": b"another"}


def test_a_copy_of_a_damaged_log_that_finds_no_room_leaves_nothing(tmp_path):
    path = tmp_path / "hearth.db"
    path.write_bytes(b"x" * 3000)
    path.with_name("hearth.db-wal").write_bytes(b"y" * 9000)
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            set_aside(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hearth.db", "hearth.db-wal"]


def test_a_schema_whose_text_is_damaged_anywhere_is_refused_or_harmless_and_never_a_defect(tmp_path):
    path = tmp_path / "hearth.db"
    open_database(path).close()
    whole, refused = path.read_bytes(), 0
    words = [found.start() for found in re.finditer(rb"CREATE|invocation_log|INTEGER|jobs", whole)]
    for at in words[::3]:
        path.write_bytes(whole[:at] + b"\xff\xfe\x80" + whole[at + 3 :])
        says = ""
        try:
            open_database(path).close()
        except StorageRefused as error:
            says = error.message
            refused += 1
        assert not says or "Restore a backup" in says
    assert refused > 20
