"""The gateway's own log over HTTP: the last lines, and each new one."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from hearth.admission.auth import Keyring
from hearth.admission.http_checks import RequestHeaders
from hearth.api.gateway_log import LINES_IN_FRAME, LogsQuery, _LinesFeed
from hearth.api.status_stream import Listener, Listeners
from hearth.config.settings import AuthSettings
from hearth.observability.logs import LogLine
from hearth.observability.recent_lines import KEPT, RecentLines
from tests.support.fields import Fields
from tests.support.home import ADMIN_KEY, FRIEND_KEY, KEYS, Home, house_settings, open_home
from tests.support.stopped_clock import StoppedClock

OWNER = Listener(
    identity=Keyring(AuthSettings(keys=KEYS)).identify(
        RequestHeaders.of([(b"x-api-key", ADMIN_KEY.encode())]), None
    )
)
SECRET = "sk-ant-0123456789abcdef"


def line(event: str, level: int = logging.INFO, **fields: Any) -> LogLine:
    return LogLine(wall_at=1_767_571_200.0, level=level, event=event, fields=fields)


def filled(*lines: LogLine) -> RecentLines:
    recent = RecentLines()
    for each in lines:
        recent.add(each)
    return recent


def numbered(count: int) -> RecentLines:
    return filled(*(line("tick", number=number) for number in range(1, count + 1)))


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    async with open_home(house_settings(keys=KEYS)) as home:
        yield home


async def logs(home: Home, query: str = "") -> Fields:
    got = await home.ask("GET", f"/llm/admin/logs?{query}", key=ADMIN_KEY)
    assert got.status == 200, got.body
    return dict(got.json)


def feed_of(recent: RecentLines, **query: Any) -> _LinesFeed:
    return _LinesFeed(recent, LogsQuery(**query), Listeners(), StoppedClock())


def frames(recent: RecentLines, **query: Any) -> AsyncGenerator[bytes]:
    return feed_of(recent, **query).frames(OWNER)


async def said(stream: AsyncGenerator[bytes]) -> list[Fields]:
    """What the next frame says."""
    texts = (await anext(stream)).decode().split("\n\n")[:-1]
    return [json.loads(text.removeprefix("data: ")) for text in texts]


@pytest.mark.parametrize(
    ("query", "events"),
    [
        ("", ["a", "b", "c", "d"]),
        ("lines=2", ["c", "d"]),
        ("level=warning", ["b"]),
        ("event=a&event=d", ["a", "d"]),
        ("caller=n8n", ["a", "c"]),
        ("request_id=req_1", ["c"]),
        ("caller=n8n&request_id=req_2", []),
        ("lines=0", []),
    ],
)
async def test_the_last_lines_are_chosen_by_level_event_caller_and_request(
    home: Home, query: str, events: list[str]
):
    home.gateway.recent_lines = filled(
        line("a", caller="n8n"),
        line("b", logging.WARNING),
        line("c", caller="n8n", request_id="req_1"),
        line("d"),
    )
    assert [each["event"] for each in (await logs(home, query))["lines"]] == events


async def test_a_reader_goes_on_after_the_place_that_it_has_seen(home: Home):
    home.gateway.recent_lines = recent = numbered(3)
    seen = await logs(home)
    recent.add(line("new"))
    later = await logs(home, f"after={seen['next']}")
    assert [each["event"] for each in later["lines"]] == ["new"]
    assert later["next"] == later["lines"][0]["id"]
    home.gateway.recent_lines = numbered(2)  # another process
    assert len((await logs(home, f"after={later['next']}"))["lines"]) == 2


async def test_lines_are_cleaned_as_those_of_the_output(home: Home):
    home.gateway.recent_lines = filled(
        line("a", detail=f"Bearer {SECRET}", url="https://user:pass@host/"),
        line("b", detail="x" * 10_000),
    )
    first, second = (await logs(home))["lines"]
    assert (first["detail"], first["url"]) == ("Bearer ***", "https://***@host/")
    assert len(second["detail"]) == 500


async def test_only_admins_see_the_log_and_a_gateway_may_have_none(home: Home):
    for address in ("/llm/admin/logs", "/llm/admin/logs/stream"):
        assert (await home.ask("GET", address, key=FRIEND_KEY)).status == 403
        got = await home.ask("GET", address, key=ADMIN_KEY)
        assert (got.status, "keeps no lines" in got.json["error"]) == (404, True)


async def test_a_stream_begins_with_the_last_lines_and_goes_on_with_each_new_one():
    recent = numbered(5)
    stream = frames(recent, lines=2, level="info")
    assert [each["number"] for each in await said(stream)] == [4, 5]
    following = asyncio.ensure_future(said(stream))
    recent.add(line("quiet", logging.DEBUG))
    recent.add(line("loud", logging.ERROR))
    (loud,) = await following
    assert (loud["event"], loud["level"], loud["id"]) == ("loud", "error", recent.place(7))
    await stream.aclose()


async def test_a_slow_reader_is_told_how_many_lines_it_has_missed():
    recent = numbered(1)
    stream = frames(recent)
    await said(stream)
    for number in range(KEPT + 10):
        recent.add(line("flood", number=number))
    missed, *flood = await said(stream)
    assert (missed["event"], missed["level"], missed["count"]) == ("lines_missed", "warning", 10)
    while flood[-1]["number"] < KEPT + 9:
        more = await said(stream)
        assert len(more) <= LINES_IN_FRAME
        flood += more
    assert [each["number"] for each in flood] == list(range(10, KEPT + 10))
    await stream.aclose()


async def test_a_stream_ends_with_what_the_gateway_says_as_it_stops():
    recent = numbered(1)
    feed = feed_of(recent)
    stream = feed.frames(OWNER)
    await said(stream)
    recent.add(line("gateway_stopping"))
    feed.listeners.end()
    assert [each["event"] for each in await said(stream)] == ["gateway_stopping"]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
