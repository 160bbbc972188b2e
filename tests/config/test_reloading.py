"""From the file to the configuration in force: what is refused, what overlaps, and what a reload must not hold up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hearth.config.reload import FileWatch
from hearth.config.settings import GatewayConfig, ServerSettings, Settings
from hearth.errors import ShuttingDown
from hearth.events import ConfigRejected, ConfigReloaded, InternalFault
from tests.config.keeping import depth, keeping
from tests.support.cases import for_each
from tests.support.virtual_time import LoopClock, in_virtual_time


class DeafWatch(FileWatch):
    """A file system that reports nothing: the watch is told of changes by the test alone, or of none."""

    def refresh(self) -> bool:
        return False


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "llm_gateway.yaml"
    path.write_text(depth(1))
    return path


@for_each(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"queue: [", "is not YAML"),
        (b"queue:\n  max_external_depht: 2\n", "did you mean max_external_depth"),
        (b"- queue\n", "must be a mapping"),
        (b"\xff\xfe\x00q\x00u", "is not UTF-8 text"),
        (b"#" * 10 * 1024 * 1024, "is larger than 256 KiB"),
        (b"queue: " + b"[" * 100_000, "nested deeper"),
        (None, "is not a regular file"),
    ],
)
@in_virtual_time
async def test_a_bad_content_changes_nothing_and_the_good_one_after_it_counts(file, content, says):
    file.write_text(depth(1))
    async with keeping(file, clock=LoopClock()) as kept:
        before = kept.in_force.config
        file.unlink()
        file.mkdir() if content is None else file.write_bytes(content)
        assert await kept.reloader.reload() is False
        (rejected,) = kept.of(ConfigRejected)
        assert all(says in problem and str(file) in problem for problem in rejected.problems), rejected.problems
        assert kept.in_force.config is before
        if content is None:
            file.rmdir()
        file.write_bytes(b"\xef\xbb\xbfqueue:\r\n  max_external_depth: 2")
        assert await kept.reloader.reload() is True
        assert kept.depth == 2


@in_virtual_time
async def test_orders_that_come_together_share_a_try_and_who_gives_up_waiting_takes_nobody_along(file):
    async with keeping(file, clock=LoopClock()) as kept:
        leaving, *staying = (asyncio.ensure_future(kept.reloader.reload()) for _ in range(100))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await asyncio.gather(*staying) == [True] * 99
        assert len(kept.of(ConfigReloaded)) == 1


@in_virtual_time
async def test_orders_without_a_file_put_the_defaults_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    async with keeping(None, clock=LoopClock()) as kept:
        assert await kept.reloader.reload() is True
        assert kept.in_force.config == GatewayConfig()


@in_virtual_time
async def test_on_the_way_out_nothing_is_put_in_force_and_nobody_is_left_waiting(file):
    async with keeping(file, clock=LoopClock()) as kept:
        assert await kept.reloader.reload()
        file.write_text(depth(2))
        waiting = asyncio.ensure_future(kept.reloader.reload())
        await asyncio.sleep(0.5)
        kept.reloader.end()
        for order in (waiting, kept.reloader.reload()):
            with pytest.raises(ShuttingDown):
                await order
        await asyncio.sleep(60.0)
        assert kept.depth == 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_order_that_is_being_obeyed_on_the_way_out_is_refused_as_well(file, cancelled: bool):
    async with keeping(file) as kept:
        file.write_text(depth(2))
        order = asyncio.ensure_future(kept.reloader.reload())
        for _ in range(2):
            await asyncio.sleep(0)
        assert kept.reloader._order is None, "a thread is at work on it"
        kept.reloader.end()
        if not cancelled:
            await asyncio.wait({order})
    with pytest.raises(ShuttingDown):
        await order
    assert kept.depth == 1


@in_virtual_time
async def test_a_listener_that_breaks_keeps_no_other_from_hearing(file):
    async with keeping(file, clock=LoopClock()) as kept:
        heard: list[GatewayConfig] = []

        def breaks(fresh: GatewayConfig) -> None:
            raise ZeroDivisionError

        kept.in_force.on_reload(breaks)
        kept.in_force.on_reload(heard.append)
        assert await kept.reloader.reload() is True
        assert heard == [kept.in_force.config]
        (fault,) = kept.of(InternalFault)
        assert (fault.detail, "breaks" in fault.where) == ("ZeroDivisionError", True)


@in_virtual_time
async def test_a_change_while_the_last_one_is_parsed_is_not_lost(file):
    async with keeping(file, clock=LoopClock(), watching=DeafWatch) as kept:

        def save_again(fresh: GatewayConfig) -> None:
            if fresh.settings.queue.max_external_depth == 2:
                file.write_text(depth(3))
                kept.reloader.touched()

        kept.in_force.on_reload(save_again)
        file.write_text(depth(2))
        await kept.reloaded(3)
        assert [event.generation for event in kept.of(ConfigReloaded)] == [2, 3]


async def test_a_file_of_the_largest_size_does_not_hold_the_loop_up(file):
    """The loop runs on while a thread reads and parses; only what is applied takes its time."""
    callers = "".join(f"    caller-{n}: {{requests_per_minute: {n + 1}}}\n" for n in range(5500))
    async with keeping(file) as kept:
        file.write_text("rate_limits:\n  callers:\n" + callers)
        turns, order = 0, asyncio.ensure_future(kept.reloader.reload())
        while not order.done():
            turns += 1
            await asyncio.sleep(0)
        assert order.result() is True
        assert len(kept.in_force.config.settings.rate_limits.callers) == 5500
        assert turns > 20


@in_virtual_time
async def test_keys_that_wait_for_a_restart_are_named_until_they_are_back(file):
    async with keeping(file, clock=LoopClock()) as kept:
        for port, number, pending in ((9000, 1, ["server.port"]), (9000, 2, ["server.port"]), (8411, 2, [])):
            settings = Settings().replace(server=ServerSettings(port=port))
            queue = settings.queue.replace(max_external_depth=number)
            kept.in_force.take(GatewayConfig(settings=settings.replace(queue=queue), source=file))
            assert kept.in_force.summary()["restart_pending"] == pending
            assert kept.of(ConfigReloaded)[-1].needs_restart == tuple(pending)


@in_virtual_time
async def test_the_summary_counts_and_dates_what_became_of_the_file(file):
    clock = LoopClock()
    async with keeping(file, clock=clock) as kept:
        began = clock.wall()
        first = kept.in_force.summary()
        assert (first["loaded_wall"], first["last_attempt"], first["reload_count"]) == (began, began, 0)
        await asyncio.sleep(10.0)
        file.write_text(depth(2))
        await kept.reloader.reload()
        assert await kept.reloader.reload(), "what is unchanged is accepted and no new generation"
        await asyncio.sleep(10.0)
        file.write_text("nonsense")
        await kept.reloader.reload()
        assert kept.in_force.summary() | {"problems": []} == {
            "generation": 2,
            "source": str(file),
            "problems": [],
            "loaded_wall": began + 11,
            "last_attempt": began + 21,
            "reload_count": 2,
            "rejected_count": 1,
            "restart_pending": [],
            "watch": "off",
        }
