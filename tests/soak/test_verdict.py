"""The judge of the soak: it sees a leak through the noise, a late timer in its interval, and an answer that broke off."""

from __future__ import annotations

import math
import random

import pytest

from hearth.observability.metrics import Metrics, render
from tests.soak.callers import REQUESTS, End, judged
from tests.soak.verdict import MB, Sample, climb, lags_s, lows, mb_per_10k, sample_of
from tests.support.cases import for_each
from tests.support.virtual_time import in_virtual_time
from tests.worker.house import House

BY_NAME = {request.name: request for request in REQUESTS}


def sample(at: float, *, asked: int = 0, rss_mb: float = 100.0, descriptors: float = 20, tasks: float = 20, **late: float) -> Sample:
    beats = {0.1: late.get("soon", 0.0), 0.25: late.get("late", 0.0), math.inf: late.get("all", 0.0)}
    return Sample(at=at, asked=asked, rss_bytes=rss_mb * MB, descriptors=descriptors, tasks=tasks, late=beats)


@for_each("leak_mb", [0.0, 1.0, 5.0])
def test_the_slope_is_that_of_the_leak_whatever_the_noise(leak_mb: float) -> None:
    chance = random.Random(1)
    noisy = [sample(at, asked=20 * at, rss_mb=100 + leak_mb * 20 * at / 10_000 + chance.gauss(0, 1)) for at in range(3600)]
    assert mb_per_10k(noisy) == pytest.approx(leak_mb, abs=0.1)


def test_a_quiet_moment_is_the_lowest_of_each_whole_interval() -> None:
    samples = [sample(at, tasks=30 + at % 7, descriptors=20 + at // 10) for at in range(25)]
    assert [(low.at, low.tasks) for low in lows(samples, 10)] == [(0, 30), (14, 30)]


def test_a_leak_of_one_in_each_interval_is_a_climb() -> None:
    assert climb([20, 21, 20, 21, 20, 21]) < 1
    assert climb([20, 21, 22, 23, 24, 25]) == pytest.approx(5)


def test_the_latest_timer_of_an_interval_is_found_in_that_interval_alone() -> None:
    beats = [(0, 5, 5, 5), (5, 30, 30, 30), (10, 50, 50, 51), (15, 70, 70, 71), (20, 90, 91, 92), (25, 110, 111, 112)]
    samples = [sample(at, soon=soon, late=late, all=total) for at, soon, late, total in beats]
    assert lags_s(samples, 10) == [math.inf, 0.25, 0.1]


@in_virtual_time
async def test_a_look_reads_what_the_gateway_says() -> None:
    async with House("a") as house:
        tallies = Metrics()
        tallies.note_loop_lag(0.2)
        lag = [each for each in tallies.metrics() if each.name == "hearth_loop_lag_seconds"]
        others = [each for each in house.gateway.metrics() if each.name != "hearth_loop_lag_seconds"]
        seen = sample_of(render([*others, *lag]).decode(), at=1.0, asked=2)
    assert seen.rss_bytes > MB
    assert seen.descriptors > 2
    assert seen.tasks >= 1
    assert (seen.late[0.1], seen.late[0.25], seen.late[math.inf]) == (0, 1, 1)


@for_each(
    ("name", "text", "end"),
    [
        ("native stream", '{"response":"a"}\n{"response":"","done":true}\n', End.WHOLE),
        ("native stream", '{"response":"a"}\n{"error":"gone"}\n', End.TOLD),
        ("native stream", '{"response":"a"}\n{"respo', End.BROKEN),
        ("openai stream", 'data: {"choices":[]}\n\ndata: [DONE]\n\n', End.WHOLE),
        ("openai stream", 'data: {"choices":[]}\n\n', End.BROKEN),
        ("anthropic stream", 'event: ping\ndata: {}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n', End.WHOLE),
        ("anthropic stream", 'event: error\ndata: {"type":"error"}\n\n', End.TOLD),
        ("openai whole", '{"choices":[]}', End.WHOLE),
    ],
)
def test_an_answer_that_is_not_whole_must_say_so(name: str, text: str, end: End) -> None:
    assert judged(BY_NAME[name], text)[0] is end
