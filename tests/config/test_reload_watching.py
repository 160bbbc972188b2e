"""A real file under a real watch, and a whole gateway under load while its file is edited."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from watchdog.events import DirModifiedEvent, FileClosedEvent, FileModifiedEvent, FileMovedEvent
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from hearth.bootstrap import running_gateway
from hearth.config.loading import load_gateway_config
from hearth.config.reload import FileWatch, observe
from hearth.config.settings import BackendMode
from hearth.errors import ShuttingDown
from hearth.events import ConfigRejected, ConfigReloaded, InternalFault, ItemEnded, ItemQueued
from tests.config.keeping import depth, keeping
from tests.support.examples import EXAMPLES
from tests.support.fields import Fields
from tests.support.home import HELLO, LLAMA, LONG, SLOW, new_emulator
from tests.support.patience import in_time
from tests.support.recorder import Recorder

Save = Callable[[Path, str], object]


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


@pytest.mark.parametrize(
    "save", [in_place, in_three_pieces, renamed_over, vim, deleted_and_made_anew]
)
async def test_every_way_of_saving_is_noticed_again_and_again(save: Save, file):
    async with keeping(file, watching=FileWatch) as kept:
        for number in (2, 3, 4):
            save(file, depth(number))
            await kept.reloaded(number)
        assert kept.in_force.summary()["watch"] == "events"
        assert [event.changed for event in kept.of(ConfigReloaded)] == [
            ("queue.max_external_depth",)
        ] * 3


async def test_a_swapped_symlink_as_of_kubernetes_is_noticed_every_time(tmp_path: Path):
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
async def test_a_file_behind_a_symlink_is_noticed_where_it_lies(
    file, tmp_path, monkeypatch, relative
):
    link = tmp_path / "elsewhere" / "hearth.yaml"
    link.parent.mkdir()
    link.symlink_to(file)
    (tmp_path / "linked").symlink_to(file.parent)
    monkeypatch.chdir(tmp_path)
    async with keeping(
        Path("linked") / file.name if relative else link, watching=FileWatch
    ) as kept:
        for number, save in enumerate((in_place, renamed_over), start=2):
            save(file, depth(number))
            await kept.reloaded(number)


async def test_a_file_that_is_gone_is_refused_once_and_a_good_one_counts(file):
    async with keeping(file, watching=FileWatch) as kept:

        def is_refused(count: int) -> bool:
            return len(kept.of(ConfigRejected)) == count

        for refused, lose in enumerate(
            (lambda: in_place(file, depth(-1)), file.unlink, lambda: shutil.rmtree(file.parent)),
            start=1,
        ):
            lose()
            await kept.until(partial(is_refused, refused))
            file.parent.mkdir(exist_ok=True)
            for number in (2 * refused, 2 * refused + 1):
                in_place(file, depth(number))
                await kept.reloaded(number)
        said = [problem for event in kept.of(ConfigRejected) for problem in event.problems]
        assert said == [
            f"{file}:2: queue.max_external_depth: must be at least 1, not -1",
            *[f"{file}: cannot be read: No such file or directory"] * 2,
        ]
        assert len(kept.all) == 9


async def test_where_the_system_has_no_watches_left_changes_are_found_by_looking(file):
    def refuse(directories: list[str], hear: Callable[[Any], None]) -> Any:
        raise OSError(28, "inotify watch limit reached")

    async with keeping(
        file, watching=lambda path, touched, loop: FileWatch(path, touched, loop, observing=refuse)
    ) as kept:
        for number in (2, 3):
            renamed_over(file, depth(number))
            await kept.reloaded(number)
        assert kept.in_force.summary()["watch"] == "polling"


async def test_what_was_saved_before_the_watch_is_not_lost_and_a_touch_is_nothing(file):
    def late(
        path: Path, touched: Callable[[bool], None], loop: asyncio.AbstractEventLoop
    ) -> FileWatch:
        path.write_text(depth(2))
        return FileWatch(path, touched, loop)

    async with keeping(file, watching=late) as kept:
        await kept.reloaded(2)
        file.read_bytes()
        file.touch()
        in_place(file, depth(2))
        in_place(file.with_name("other.yaml"), depth(7))
        in_place(file, depth(3))
        await kept.reloaded(3)
        assert len(kept.all) == 2


async def test_a_watch_tells_of_a_writer_that_has_not_closed_the_file(file):
    told: asyncio.Queue[bool] = asyncio.Queue()
    watch = FileWatch(file, told.put_nowait, asyncio.get_running_loop())
    assert await asyncio.to_thread(watch.refresh)
    async with in_time():
        with file.open("a") as stream:
            stream.write("#")
            stream.flush()
            assert await told.get() is True
        while await told.get():
            pass
    await asyncio.to_thread(watch.close)


async def test_another_file_is_news_once_closed_and_a_burst_is_reported_once(file):
    """The database may lie there, and is written to all the time."""
    reported = list[bool]()
    heard = list[Callable[[Any], None]]()

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


async def test_a_watch_that_is_closed_or_fails_to_start_leaves_nothing(file):
    def used() -> tuple[set[str], int]:
        return {thread.name for thread in threading.enumerate()}, len(
            list(Path("/proc/self/fd").iterdir())
        )

    before = used()
    watch = FileWatch(file, lambda writing: None, asyncio.get_running_loop())
    for _ in range(3):
        assert watch.refresh()
        assert used() != before
        watch.close()
        assert used() == before
    with pytest.raises(OSError, match="No such file"):
        observe([str(file.parent), str(file.parent / "missing")], lambda event: None)
    assert threading.active_count() == len(before[0])


def config_text(per_hour: int) -> str:
    """Settings under which nothing but the limit refuses anybody."""
    return (
        "scheduling: {active_hours: '00:00-24:00'}\nqueue: {max_external_depth: 1000}\n"
        "gpu: {home_model: '', vram_gb: 24}\n"
        f"rate_limits: {{default: {{requests_per_minute: 1000000, requests_per_hour: "
        f"{per_hour}}}}}\nserver: {{shutdown_grace_s: 0}}\n"
    )


async def test_edits_under_load_drop_nothing_and_hold_on_the_next_request(file):
    file.write_text(config_text(100_000))
    emulator = new_emulator()
    model_server = await emulator.start()
    events = Recorder()
    answers = Counter[int]()
    ending = asyncio.Event()
    options: Fields = {
        "port": 0,
        "backend_mode": BackendMode.OLLAMA,
        "backend_url": model_server,
        "sinks": (events,),
        "watch": True,
    }

    async def ended(more: int) -> None:
        goal = len(events.of(ItemEnded)) + more
        await events.until(lambda: len(events.of(ItemEnded)) >= goal)

    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        running_gateway(load_gateway_config(file, {}), **options) as (gateway, url),
    ):

        async def ask() -> int:
            body = {
                "model": LLAMA,
                "messages": HELLO,
                "stream": False,
                "options": {"num_predict": 1},
            }
            async with session.post(f"{url}/api/chat", json=body) as got:
                await got.read()
                return got.status

        async def caller() -> None:
            while not ending.is_set():
                answers[await ask()] += 1

        async def told(method: str, path: str) -> tuple[int, Any]:
            async with session.request(method, url + path) as got:
                return got.status, await got.json()

        slow = {
            "model": SLOW,
            "messages": HELLO,
            "stream": True,
            "options": LONG | {"num_predict": 20},
        }
        async with (
            asyncio.TaskGroup() as tasks,
            session.post(f"{url}/api/chat", json=slow) as stream,
        ):
            await stream.content.readline()
            for _ in range(6):
                tasks.create_task(caller())
            await ended(5)
            file.write_text("rate_limits: {default: {requests_per_hour: none}}\n")
            await events.until(lambda: events.of(ConfigRejected))
            status, said = await told("POST", "/llm/admin/reload")
            assert (status, said["reloaded"], said["generation"], said["rejected_count"]) == (
                422,
                False,
                1,
                2,
            )
            assert said["problems"] == list(events.of(ConfigRejected)[0].problems)
            assert (await told("GET", "/llm/queue/status"))[1]["config"]["problems"] == said[
                "problems"
            ]
            assert gateway.config.settings.rate_limits.default.requests_per_hour == 100_000
            rounds = 30 * EXAMPLES
            for number in range(rounds):
                good = number % 3 != 2
                file.write_text(config_text(99_999 - number) if good else "queue: [")
                assert gateway.reload() is good
                await ended(1)
            assert set(answers) == {200}
            file.write_text(config_text(20))
            await events.until(
                lambda: gateway.config.settings.rate_limits.default.requests_per_hour == 20
            )
            answers_before = answers[200]
            assert await ask() == 429
            ending.set()
            rest = (await stream.content.read()).splitlines()
        assert (b'"done":true' in rest[-1], b'"eval_count":20' in rest[-1]) == (True, True)
        # Requests that were admitted before the edit may have ended after it.
        assert (answers[200] <= answers_before + 6, set(answers) <= {200, 429}) == (True, True)
        shown = (await told("GET", "/llm/queue/status"))[1]
        assert shown["rate_limits"]["local"]["hour"] == f"{len(events.of(ItemQueued))}/20"
        assert shown["config"]["generation"] == 1 + sum(
            bool(each.changed) for each in events.of(ConfigReloaded)
        )
        await gateway.stop()
        file.write_text(config_text(7))
        with pytest.raises(ShuttingDown):
            await gateway.reload_file()
        with pytest.raises(ShuttingDown):
            gateway.reload()
        assert gateway.config.settings.rate_limits.default.requests_per_hour == 20
    await emulator.stop()
    assert events.of(InternalFault) == []
    assert len(events.of(ItemEnded)) == len(events.of(ItemQueued))
