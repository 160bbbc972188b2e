"""The status as a stream."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest

from hearth.api.status_stream import HEARTBEAT_S, MAX_SUBSCRIBERS, MIN_INTERVAL_S, StatusStream
from hearth.queue import LLMQueueWorker
from tests.api.house import Caller, FakeWorker
from tests.emulator.waiting import until
from tests.support.virtual_time import run_virtual


def revision(frame: bytes) -> int:
    name, data = frame.decode().removesuffix("\n\n").split("\n")
    assert name == "event: status"
    return int(json.loads(data.removeprefix("data: "))["revision"])


def stream_of(worker: FakeWorker) -> StatusStream:
    return StatusStream(cast("LLMQueueWorker", worker))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_present_status_comes_first_and_then_one_for_each_change():
    async def scenario() -> None:
        worker = FakeWorker()
        frames = stream_of(worker).frames()
        assert revision(await anext(frames)) == 0
        for expected in (1, 2):
            following = asyncio.ensure_future(anext(frames))
            await asyncio.sleep(1)
            assert not following.done()
            worker.change()
            assert revision(await following) == expected
        await frames.aclose()

    run_virtual(scenario)


def test_a_storm_of_changes_is_ten_frames_a_second_and_the_last_state_is_always_shown():
    async def scenario() -> None:
        worker = FakeWorker()
        stream = stream_of(worker)
        seen = []

        async def listen() -> None:
            seen.extend([revision(frame) async for frame in stream.frames()])

        listening = asyncio.ensure_future(listen())
        await settle()
        for _ in range(1000):
            worker.change()
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        stream.end()
        await listening
        assert seen[-1] == 1000
        assert len(seen) == pytest.approx(1 / MIN_INTERVAL_S, abs=2)

    run_virtual(scenario)


def test_a_quiet_stream_has_a_heartbeat():
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        frames = stream_of(FakeWorker()).frames()
        await anext(frames)
        for heartbeats in (1, 2):
            assert (await anext(frames)).startswith(b":")
            assert loop.time() == pytest.approx(MIN_INTERVAL_S + heartbeats * HEARTBEAT_S)
        await frames.aclose()

    run_virtual(scenario)


@pytest.mark.parametrize("ending", ["stream", "worker"])
def test_a_stream_ends_with_the_server_and_with_the_worker(ending):
    async def scenario() -> None:
        worker = FakeWorker()
        stream = stream_of(worker)
        frames = stream.frames()
        await anext(frames)
        following = asyncio.ensure_future(anext(frames))
        await settle()
        if ending == "stream":
            stream.end()
        else:
            worker.close()
        with pytest.raises(StopAsyncIteration):
            await following

    run_virtual(scenario)


async def test_listeners_over_http_get_frames_and_leave_room_when_they_leave(url, gateway, app):
    caller = await Caller.to(url)
    await caller.send(b"GET /llm/queue/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    status, headers = await caller.head()
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-store"
    await caller.reader.readuntil(b"data: ")
    gateway.worker.change()
    await caller.reader.readuntil(b'"revision":1')
    stream = app._control._stream
    assert stream._subscribers == 1
    caller.leave()
    await until(lambda: not stream._subscribers)


async def test_one_listener_too_many_is_503(url, app):
    stream = app._control._stream
    stream._subscribers = MAX_SUBSCRIBERS - 1
    stream.check_room()
    stream._subscribers = MAX_SUBSCRIBERS
    caller = await Caller.to(url)
    await caller.send(b"GET /llm/queue/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    status, headers = await caller.head()
    assert status == 503
    assert headers["retry-after"] == "5"
    caller.leave()
