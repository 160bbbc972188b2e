"""A gateway with a store: what a restart remembers, who may read the log, and a disk that fails
without stopping anybody.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hearth.bootstrap import open_store
from hearth.cli.simulate import _instant
from hearth.config.settings import (
    CallerLimits,
    GatewayConfig,
    RateLimitSettings,
    Settings,
    StorageSettings,
)
from hearth.errors import StorageUnavailable
from hearth.events import InternalFault, ItemEnded, StorageFailed, StorageRecovered
from hearth.gateway import Gateway
from hearth.observability.fanout import EventFanout
from hearth.queue.learned import SAVE_INTERVAL_S, LearnedEstimates
from hearth.scheduling.estimates import Estimates
from hearth.types import JsonDict
from tests.storage.house import Fuse, ended
from tests.support.fake_ollama import FakeModel, FakeOllama
from tests.support.fields import Fields
from tests.support.home import (
    ADMIN_KEY,
    EMBEDDER,
    FRIEND_KEY,
    GUEST_KEY,
    HOUSE_KEY,
    KEYS,
    LLAMA,
    Home,
    house_settings,
    open_home,
)
from tests.support.house import body_of, gateway_over, new_item
from tests.support.http import Got
from tests.support.recorder import Recorder
from tests.support.stopped_clock import WALL, StoppedClock
from tests.support.virtual_time import in_virtual_time, sleep_until

CHAT = {"model": LLAMA, "prompt": "hi", "stream": False, "options": {"num_predict": 2}}
NO_LOG = {"error": "there is no request log (storage.enabled is off)"}
DAY_S = 86_400.0


@dataclass
class Life(Home):
    """One process's time with the file."""

    async def chat(self, key: str | None = None) -> Got:
        return await self.ask("POST", "/api/generate", CHAT, key=key)

    async def get(self, path: str, key: str | None = None) -> Any:
        got = await self.ask("GET", path, key=key)
        assert got.status == 200, got.body
        return got.json

    async def logged(self, key: str | None = None, query: str = "") -> list[Fields]:
        items: list[Fields] = (await self.get(f"/llm/log{query}", key))["items"]
        return items


@asynccontextmanager
async def live(settings: Settings, *, store: bool = True) -> AsyncIterator[Life]:
    """A gateway for the time of a block; what it posted is on the disk when the block has ended."""
    async with open_home(settings, store=store) as home:
        yield Life(**vars(home))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return house_settings().replace(
        storage=StorageSettings(path=str(tmp_path / "hearth.db"), reserve_mib=0)
    )


def limited(settings: Settings, per_hour: int) -> Settings:
    return settings.replace(
        rate_limits=RateLimitSettings(
            default=CallerLimits(requests_per_minute=100, requests_per_hour=per_hour)
        )
    )


async def test_limits_counts_and_the_log_go_on_where_the_last_process_ended(settings):
    limits = limited(settings, 3)
    async with live(limits) as first:
        assert [(await first.chat()).status for _ in range(2)] == [200, 200]
    async with live(limits) as second:
        counts = (await second.get("/llm/queue/status"))["stats_24h"]
        assert {name: count for name, count in counts.items() if count} == {"external_completed": 2}
        old = await second.logged()
        assert [(await second.chat()).status for _ in range(2)] == [200, 429]
        await second.events.first(ItemEnded)
        assert (await second.get("/llm/queue/status"))["stats_24h"]["external_completed"] == 3
    async with live(limits) as third:
        refused = await third.chat()
        assert (refused.status, 3500 < int(refused.headers["retry-after"]) <= 3600) == (429, True)
        assert (await third.get("/llm/queue/status"))["rate_limits"]["local"] == {
            "minute": "3/100",
            "hour": "3/3",
            "embeddings_minute": "0/600",
            "embeddings_hour": "0/20000",
        }
        listed = await third.logged()
    assert ([item["epoch"] for item in listed], listed[1:]) == ([2, 1, 1], old)
    latest = listed[0]
    assert (latest["caller"], latest["model"], latest["outcome"]) == ("local", LLAMA, "completed")
    assert latest["total_s"] >= latest["backend_s"] > 0
    assert "hi" not in json.dumps(listed)
    # after the stop unavailable, and not broken
    assert (await third.ask("GET", "/llm/log")).status == 503
    assert third.events.of(InternalFault) == []


async def test_the_end_of_a_whole_answer_says_how_long_it_was_written(settings):
    async with live(settings) as first:
        assert (await first.chat()).status == 200
        ended = await first.events.first(ItemEnded)
        assert (ended.output_tokens, (ended.decode_s or 0.0) > 0.0) == (2, True)


async def test_the_log_says_which_engine_answered_and_what_was_waited_for(settings):
    async with live(settings) as first:
        assert (await first.chat()).status == 200
    async with live(settings) as second:
        (row,) = await second.logged()
        assert row["engine"] == "main"
        assert row["waited_for"]["load"] == pytest.approx(row["swap_s"], abs=0.1)
        assert sum(row["waited_for"].values()) == pytest.approx(row["queue_s"], abs=0.1)


async def test_the_hour_of_swaps_waits_and_overhead_goes_on_after_a_restart(settings):
    async with live(settings) as first:
        assert (await first.chat()).status == 200
        before = (await first.get("/llm/queue/status"))["gpu"]
    names = ("swaps_this_hour", "executions_1h", "last_swap_ms", "swap_overhead_pct_1h")
    async with live(settings) as second:
        after = (await second.get("/llm/queue/status"))["gpu"]
        assert before["swaps_this_hour"] == 1
        assert [after[name] for name in names] == pytest.approx(
            [before[name] for name in names], rel=0.05
        )
        timeline = second.gateway.records.timeline
        now = second.gateway.clock.monotonic()
        assert max(step.external for step in timeline.depths(now)) == 1
        (unknown, stopped) = timeline.gaps(now)
        assert unknown[1] < stopped[0] < stopped[1] <= now


@pytest.mark.parametrize("store", [True, False])
async def test_the_hour_before_the_first_start_is_unknown(settings, store):
    async with live(settings, store=store) as first:
        now = first.gateway.clock.monotonic()
        ((began, ended),) = first.gateway.records.timeline.gaps(now)
        assert ended - began == pytest.approx(3600.0)
        assert ended <= now


async def test_embedding_calls_are_counted_apart_after_a_restart(settings):
    several = [{"model": EMBEDDER, "input": text} for text in "abcdefg"]
    async with live(limited(settings, 100)) as first:
        got = await asyncio.gather(*(first.ask("POST", "/api/embed", body) for body in several))
        assert {each.status for each in got} == {200}
        shown = (await first.get("/llm/queue/status"))["rate_limits"]["local"]
        assert (shown["hour"], shown["embeddings_hour"]) == ("0/100", "2/20000")
    async with live(limited(settings, 100)) as second:
        assert (await second.get("/llm/queue/status"))["rate_limits"]["local"] == shown


@pytest.mark.parametrize("asked_for", [True, False])
async def test_without_a_store_no_file_is_written_and_no_log_kept(settings, tmp_path, asked_for):
    async with live(
        settings.replace(storage=settings.storage.replace(enabled=False))
        if asked_for
        else settings,
        store=asked_for,
    ) as life:
        await life.chat()
        got, swaps = [await life.ask("GET", path) for path in ("/llm/log", "/llm/swaps")]
    assert (got.status, got.json, swaps.status, list(tmp_path.iterdir())) == (404, NO_LOG, 404, [])


async def test_callers_see_their_own_items_and_admins_see_all(settings):
    with_keys = settings.replace(auth=settings.auth.replace(keys=KEYS))
    async with live(with_keys) as life:
        for key in (FRIEND_KEY, GUEST_KEY, HOUSE_KEY):
            assert (await life.chat(key)).status == 200
    async with live(with_keys) as life:
        asked = [
            (ADMIN_KEY, "", ["house", "guest", "friend"]),
            (ADMIN_KEY, "?caller=guest", ["guest"]),
        ]
        asked += [(GUEST_KEY, query, ["guest"]) for query in ("", "?caller=guest")]
        asked += [(GUEST_KEY, query, []) for query in ("?caller=friend", "?caller=")]
        for key, query, seen in asked:
            assert [item["caller"] for item in await life.logged(key, query)] == seen
        assert (await life.ask("GET", "/llm/log")).status == 401
        for key, seen in ((ADMIN_KEY, ["friend", "guest", "house"]), (GUEST_KEY, ["guest"])):
            found = (await life.ask("GET", "/llm/history", key=key)).json
            assert sorted(each["caller"] for each in found["callers"]) == seen
            assert (
                found["total"]["requests"]
                == sum(each["requests"] or 0 for each in found["buckets"])
                == len(seen)
            )
        others = await life.ask("GET", "/llm/history?caller=friend&group=caller", key=GUEST_KEY)
        assert (others.json["total"]["requests"], others.json["groups"]) == (0, [])


async def test_a_file_that_vanishes_stops_nobody_and_nothing_is_lost_once_it_is_back(
    settings, tmp_path
):
    path = tmp_path / "hearth.db"
    elsewhere = tmp_path / "elsewhere.db"
    async with live(settings) as life:
        path.rename(elsewhere)
        assert (await life.chat()).status == 200
        assert (await life.events.first(StorageFailed)).reason == "file_moved"
        assert (await life.ask("GET", "/llm/log")).status == 503
        elsewhere.rename(path)
        assert (await life.chat()).status == 200
        assert (await life.events.first(StorageRecovered)).dropped == 0
    async with live(settings) as life:
        assert len(await life.logged()) == 2


class Wired:
    """Gateways over a fake Ollama whose store is opened by the wiring, with a disk and a clock of
    the test's own.
    """

    def __init__(self, settings: Settings) -> None:
        self.events = Recorder()
        self.clock = StoppedClock()
        self._config = GatewayConfig(settings=settings)

    @asynccontextmanager
    async def running(self, fuse: Fuse | None = None) -> AsyncIterator[Gateway]:
        ollama = FakeOllama(FakeModel(name="a:latest", load_s=0.001))
        events = EventFanout((self.events,))
        async with AsyncExitStack() as stack:
            connect = {} if fuse is None else {"connect": fuse.connect}
            store = await open_store(
                self._config, clock=self.clock, events=events, closing=stack, **connect
            )
            gateway = gateway_over(
                ollama,
                self._config,
                clock=self.clock,
                events=events,
                history=store.invocations,
            )
            gateway.events.subscribe(store.invocations)
            async with gateway:
                yield gateway


async def test_a_disk_that_fails_stops_nobody_and_is_admitted_when_hearth_stops(settings):
    fuse = Fuse()
    wired = Wired(settings)
    async with wired.running(fuse) as gateway:
        fuse.fail_always()
        await body_of(gateway.worker.submit(new_item("a", service_s=0.001, first_byte_s=0.0)))
        await wired.events.first(StorageFailed)
    assert [event.reason for event in wired.events.of(StorageFailed)] == ["io_error", "closed"]
    assert wired.events.of(InternalFault) == []


@pytest.mark.parametrize(("moved_s", "is_free"), [(-DAY_S, False), (7200.0, True)])
async def test_a_restart_remembers_nothing_that_has_run_out(settings, moved_s, is_free):
    wired = Wired(limited(settings, 1))
    async with wired.running() as gateway:
        gateway.events.emit(ended(1, caller="webui", total_s=1.0, interrupt_count=2))
    wired.clock.wall_s = WALL + moved_s
    async with wired.running() as gateway:
        assert gateway.rate_limiter.check("webui", wired.clock.monotonic()) is is_free
        assert gateway.rate_limiter.retry_after_s("webui", wired.clock.monotonic()) == 3600.0
        for after_s, expected in ((0.0, (1, 2)), (DAY_S, (0, 0))):
            wired.clock.advance(after_s)
            stats: Any = gateway.worker.get_status()["stats_24h"]
            assert (stats["external_completed"], stats["external_interrupted"]) == expected


@pytest.mark.parametrize(
    "document",
    [
        None,
        "{",
        "[]",
        '{"format": 1, "swap_s": [["", 3], 7], "decode_tps": {"x": "fast"}}',
        '{"format": 99}',
    ],
)
async def test_what_was_learned_survives_a_restart_and_damage_stops_no_start(settings, document):
    async with live(settings) as first:
        await first.chat()
        await first.events.first(ItemEnded)
        learned = first.gateway.worker.scheduler.device.estimates.export()
    if document is not None:
        with closing(sqlite3.connect(settings.storage.path)) as connection, connection:
            connection.execute("UPDATE estimates SET document = ?", (document,))
    async with live(settings) as second:
        estimates = second.gateway.worker.scheduler.device.estimates
        assert (estimates.export() == learned) == (document is None)
        assert (estimates.swap_s("", LLAMA) == settings.gpu.swap_cost_prior_s) == (
            document is not None
        )
        assert (await second.chat()).status == 200


# The log page by page, swaps, and history.

FOUND = {
    3: "model=llama3.1:8b outcome=completed since=1h since=2d until=2100-01-01T00:00:00Z",
    2: "limit=2",
    0: "model=other outcome=failed since=0s since=2100-01-01T00:00:00Z until=1h",
}
"""How many items of three each question finds."""
SENSELESS = {
    ": must be an age": "until=soon since=yesterday since=9999999999d since=2030-01-01T00:00:00",
    ": ": "outcome=lost limit=0 limit=1001",
    ": unknown field": "name=guest",
}
"""What is said behind the name of the field."""


async def test_the_log_is_filtered_and_paged_and_swaps_and_history_have_windows(settings):
    async with live(settings) as life:
        for _ in range(3):
            await life.chat()
    async with live(settings) as life:
        for count, queries in FOUND.items():
            assert {
                query: len(await life.logged(query=f"?{query}")) for query in queries.split()
            } == dict.fromkeys(queries.split(), count)
        latest_first = [item["ended_wall_s"] for item in await life.logged()]
        until = str(_instant({"ended_wall_s": latest_first[1]})).replace("+", "%2B")
        page = await life.logged(query=f"?limit=10&until={until}")
        assert [item["ended_wall_s"] for item in page] == latest_first[1:], (
            "a page can end at the instant at which the last one ended"
        )
        (swap,) = (await life.get("/llm/swaps"))["swaps"]
        assert {
            "from_models",
            "to_model",
            "swap_s",
            "failed",
            "vram_mib",
            "ended_wall_s",
            "offloaded",
            "reason",
            "engine",
        } == set(swap)
        assert swap["swap_s"] > 0
        assert [
            len((await life.get(f"/llm/swaps?{query}"))["swaps"])
            for query in ("until=1h", "limit=1&since=1h")
        ] == [0, 1]
        used = await life.get("/llm/history")
        assert (used["window"], used["bucket_s"], len(used["buckets"])) == ("24h", 3600, 24)
        assert [(each["caller"], each["requests"], each["failed"]) for each in used["callers"]] == [
            ("local", 3, 0)
        ]
        assert [
            (len((await life.get(f"/llm/history?window={window}"))["buckets"]))
            for window in ("7d", "30d", "90d")
        ] == [28, 30, 90]
        assert used["kept_days"] == 90.0
        assert used["buckets"][0]["requests"] is None, "Hearth did not run"
        (group,) = (await life.get("/llm/history?group=engine"))["groups"]
        assert (group["engine"], group["requests"][-1]) == ("main", 3)
        for query, count in (
            ("caller=local", 3),
            ("caller=nobody", 0),
            ("engine=main", 3),
            ("engine=vllm", 0),
            (f"model={LLAMA}", 3),
            ("model=none", 0),
        ):
            found = await life.get(f"/llm/history?{query}")
            assert found["total"]["requests"] == count, query
        assert (await life.ask("GET", "/llm/history?group=lane")).status == 400
        assert (await life.ask("GET", "/llm/history?window=1y")).status == 400
        for path in ("/llm/log", "/llm/swaps"):
            for says, queries in SENSELESS.items():
                for query in queries.split():
                    got = await life.ask("GET", f"{path}?{query}")
                    assert (got.status, query.split("=")[0] + says in got.json["error"]) == (
                        400,
                        True,
                    ), query


# What was learned is written down when there is something new, now and then and at the end, and
# read by the next process.


class Shelf:
    """Documents in memory, which cannot be read once `burnt`."""

    def __init__(self, *, burnt: bool = False) -> None:
        self.saved: dict[str, Mapping[str, object]] = {}
        self.writes = 0
        self.burnt = burnt

    def save(self, name: str, document: Mapping[str, object]) -> None:
        self.saved[name] = dict(document)
        self.writes += 1

    async def keep(self, name: str, document: Mapping[str, object]) -> None:
        self.save(name, document)

    async def load(self, name: str) -> JsonDict | None:
        if self.burnt:
            raise StorageUnavailable("corrupt")
        found = self.saved.get(name)
        return None if found is None else dict(found)


async def learned_of(
    estimates: Estimates, shelf: Shelf, name: str = "scheduler"
) -> LearnedEstimates:
    learned = LearnedEstimates(shelf, name, estimates)
    await learned.recall()
    return learned


@in_virtual_time
async def test_only_news_are_written_and_known_to_the_next_process_of_the_server():
    old = Estimates(swap_prior_s=10.0)
    shelf = Shelf()
    running = asyncio.create_task((await learned_of(old, shelf)).run())
    await sleep_until(SAVE_INTERVAL_S + 1)
    old.learn_swap("a", "b", 4.0)
    assert shelf.writes == 0
    await sleep_until(5 * SAVE_INTERVAL_S + 1)
    assert shelf.writes == 1
    old.learn_swap("a", "b", 5.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (shelf.writes, shelf.saved["scheduler"]) == (2, old.export())
    known, emulated, forgotten = (Estimates(swap_prior_s=10.0) for _ in range(3))
    (await learned_of(known, shelf)).save()
    await learned_of(emulated, shelf, "scheduler.emulator")
    await learned_of(forgotten, Shelf(burnt=True))
    assert [each.swap_s("a", "b") for each in (known, emulated, forgotten)] == [
        old.swap_s("a", "b"),
        10.0,
        10.0,
    ]
    assert shelf.writes == 2, "nothing was new"


@in_virtual_time
async def test_what_cannot_be_read_at_the_start_is_read_later_never_overwritten():
    old = Estimates(swap_prior_s=10.0)
    new = Estimates(swap_prior_s=10.0)
    shelf = Shelf()
    old.learn_swap("a", "b", 4.0)
    (await learned_of(old, shelf)).save()
    shelf.save("scheduler", old.export())
    shelf.burnt = True
    running = asyncio.create_task((await learned_of(new, shelf)).run())
    new.learn_swap("b", "a", 7.0)
    await sleep_until(SAVE_INTERVAL_S + 1)
    assert shelf.saved["scheduler"] == old.export()
    shelf.burnt = False
    await sleep_until(2 * SAVE_INTERVAL_S + 1)
    assert (new.swap_s("a", "b"), new.swap_s("b", "a")) == (4.0, 7.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert shelf.saved["scheduler"] == new.export()
