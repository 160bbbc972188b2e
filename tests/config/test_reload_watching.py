"""A real file under a real watch: every way in which programs save, lose and bring back a file."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from watchdog.events import DirModifiedEvent, FileClosedEvent, FileModifiedEvent, FileMovedEvent
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from hearth.config.reload import FileWatch, observe
from hearth.events import ConfigRejected, ConfigReloaded
from tests.config.keeping import depth, keeping
from tests.support.patience import WITHIN_S

Save = Callable[[Path, str], None]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "llm_gateway.yaml"
    path.parent.mkdir()
    path.write_text(depth(1))
    return path


def in_place(path: Path, text: str) -> None:
    path.write_text(text)


def in_three_pieces(path: Path, text: str) -> None:
    """Half of it would be a valid file without the depth."""
    with path.open("w") as stream:
        for piece in ("# a comment\n", text[: len(text) // 2], text[len(text) // 2 :]):
            stream.write(piece)
            stream.flush()


def renamed_over(path: Path, text: str) -> None:
    """sed -i, ansible, most editors that are careful."""
    beside = path.with_name(".tmp-1234")
    beside.write_text(text)
    beside.rename(path)


def vim(path: Path, text: str) -> None:
    """backupcopy=no: the old file becomes the backup, a new one takes its name."""
    path.rename(path.with_name(path.name + "~"))
    path.write_text(text)
    path.with_name(path.name + "~").unlink()


def deleted_and_made_anew(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


@pytest.mark.parametrize("save", [in_place, in_three_pieces, renamed_over, vim, deleted_and_made_anew])
async def test_every_way_of_saving_is_noticed_again_and_again(save: Save, file):
    async with keeping(file, watching=FileWatch) as kept:
        for number in (2, 3, 4):
            save(file, depth(number))
            await kept.reloaded(number)
        assert kept.in_force.summary()["watch"] == "events"
        assert [event.changed for event in kept.of(ConfigReloaded)] == [("queue.max_external_depth",)] * 3


async def test_a_swapped_symlink_in_the_style_of_kubernetes_is_noticed_again_and_again(tmp_path: Path):
    def publish(number: int) -> None:
        version = tmp_path / f"..{number}"
        version.mkdir()
        (version / "llm_gateway.yaml").write_text(depth(number))
        (tmp_path / "..data_tmp").symlink_to(version.name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    publish(1)
    (tmp_path / "llm_gateway.yaml").symlink_to("..data/llm_gateway.yaml")
    async with keeping(tmp_path / "llm_gateway.yaml", watching=FileWatch) as kept:
        for number in (2, 3):
            publish(number)
            await kept.reloaded(number)


@pytest.mark.parametrize("relative", [False, True])
async def test_a_file_behind_a_symlink_or_in_a_linked_directory_is_noticed_where_it_lies(file, tmp_path, monkeypatch, relative):
    link = tmp_path / "elsewhere" / "hearth.yaml"
    link.parent.mkdir()
    link.symlink_to(file)
    (tmp_path / "linked").symlink_to(file.parent)
    monkeypatch.chdir(tmp_path)
    async with keeping(Path("linked") / file.name if relative else link, watching=FileWatch) as kept:
        for number, save in enumerate((in_place, renamed_over), start=2):
            save(file, depth(number))
            await kept.reloaded(number)


async def test_a_bad_edit_and_a_file_that_is_gone_are_refused_once_and_the_good_one_after_them_counts(file):
    async with keeping(file, watching=FileWatch) as kept:
        in_place(file, "queue:\n  max_external_depth: many\n")
        (problem,) = await kept.rejected()
        assert problem.startswith(f"{file}:2: queue.max_external_depth: must be a whole number")
        in_place(file, depth(2))
        await kept.reloaded(2)
        away = file.with_name("away")
        file.rename(away)
        await kept.until(lambda: len(kept.of(ConfigRejected)) == 2)
        assert "cannot be read: No such file" in kept.of(ConfigRejected)[1].problems[0]
        away.write_text(depth(3))
        away.rename(file)
        await kept.reloaded(3)
        assert len(kept.all) == 4
        shutil.rmtree(file.parent)
        await kept.until(lambda: len(kept.of(ConfigRejected)) == 3)
        file.parent.mkdir()
        for number in (4, 5):
            in_place(file, depth(number))
            await kept.reloaded(number)


async def test_where_the_system_has_no_watches_left_changes_are_found_by_looking(file):
    def refuse(directories: list[str], hear: Callable[[Any], None]) -> Any:
        raise OSError(28, "inotify watch limit reached")

    async with keeping(file, watching=lambda path, touched, loop: FileWatch(path, touched, loop, observing=refuse)) as kept:
        for number in (2, 3):
            renamed_over(file, depth(number))
            await kept.reloaded(number)
        assert kept.in_force.summary()["watch"] == "polling"


async def test_what_was_saved_between_the_start_and_the_watch_is_not_lost(file):
    def late(path: Path, touched: Callable[[bool], None], loop: asyncio.AbstractEventLoop) -> FileWatch:
        path.write_text(depth(2))
        return FileWatch(path, touched, loop)

    async with keeping(file, watching=late) as kept:
        await kept.reloaded(2)


async def test_our_own_reading_and_a_touch_lead_to_no_reload(file):
    async with keeping(file, watching=FileWatch) as kept:
        file.read_bytes()
        file.touch()
        file.chmod(0o600)
        in_place(file, depth(1))
        in_place(file.with_name("other.yaml"), depth(7))
        in_place(file, depth(2))
        await kept.reloaded(2)
        assert len(kept.all) == 1


async def test_a_watch_tells_of_a_writer_that_has_not_closed_the_file(file):
    told: asyncio.Queue[bool] = asyncio.Queue()
    watch = FileWatch(file, told.put_nowait, asyncio.get_running_loop())
    assert await asyncio.to_thread(watch.refresh)
    with file.open("a") as stream:
        stream.write("#")
        stream.flush()
        async with asyncio.timeout(WITHIN_S):
            assert await told.get() is True
    async with asyncio.timeout(WITHIN_S):
        while await told.get():
            pass
    await asyncio.to_thread(watch.close)


async def test_what_is_written_to_another_file_is_news_only_when_it_is_closed_and_what_happens_at_once_is_reported_once(file):
    """The database may lie there, and is written to all the time."""
    reported, heard = list[bool](), list[Callable[[Any], None]]()

    def observing(_directories: list[str], hear: Callable[[Any], None]) -> BaseObserver:
        heard.append(hear)
        return Observer()

    watch = FileWatch(file, reported.append, asyncio.get_running_loop(), observing=observing)
    assert watch.refresh()
    for event, news in [
        (FileModifiedEvent(str(file.with_name("hearth.db-wal"))), 0),
        (FileClosedEvent(str(file.with_name("other.yaml"))), 1),
        (FileMovedEvent(str(file.with_name("..data_tmp")), str(file.with_name("..data"))), 2),
        (DirModifiedEvent(str(file.parent)), 3),
        (FileModifiedEvent(str(file)), 4),
        (FileClosedEvent(str(file)), 5),
    ]:
        for _ in range(100):
            heard[0](event)
        await asyncio.sleep(0)
        assert len(reported) == news
    assert reported[-2:] == [True, False]


async def test_a_closed_watch_leaves_no_thread_and_no_descriptor(file):
    def used() -> tuple[set[str], int]:
        ours = {thread.name for thread in threading.enumerate()}
        return ours, len(list(Path("/proc/self/fd").iterdir()))

    before = used()
    watch = FileWatch(file, lambda writing: None, asyncio.get_running_loop())
    for _ in range(3):
        assert watch.refresh()
        assert used() != before
        watch.close()
        assert used() == before


def test_an_observer_that_cannot_start_leaves_no_thread(tmp_path: Path):
    before = threading.active_count()
    with pytest.raises(OSError, match="No such file"):
        observe([str(tmp_path), str(tmp_path / "missing")], lambda event: None)
    assert threading.active_count() == before
