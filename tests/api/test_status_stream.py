"""The status as a stream."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import cast

import pytest

from hearth.api.status_stream import ADMIN_ROOM, HEARTBEAT_S, MAX_OF_ONE, MAX_SUBSCRIBERS, MIN_INTERVAL_S, Listener, Listeners, StatusStream
from hearth.errors import CapacityError
from hearth.queue.worker import LLMQueueWorker
from tests.api.conftest import serving
from tests.api.house import ADMIN_KEY, HOUSE_KEY, KEYS, Caller, FakeWorker
from tests.dashboard.listening import guest
from tests.emulator.waiting import until
from tests.support.cases import for_each
from tests.support.virtual_time import in_virtual_time

SOMEBODY = guest()


def revision(frame: bytes) -> int:
    (data,) = frame.decode().removesuffix("\n\n").split("\n")  # no `event:`, so that `EventSource.onmessage` hears it
    return int(json.loads(data.removeprefix("data: "))["revision"])


def stream_of(worker: FakeWorker) -> StatusStream:
    return StatusStream(cast("LLMQueueWorker", worker))


@in_virtual_time
async def test_the_present_status_comes_first_then_one_for_each_change_and_heartbeats_when_there_is_none():
    worker, loop = FakeWorker(), asyncio.get_running_loop()
    frames = stream_of(worker).frames(SOMEBODY)
    assert revision(await anext(frames)) == 0
    for expected in (1, 2):
        following = asyncio.ensure_future(anext(frames))
        await asyncio.sleep(1)
        assert not following.done()
        worker.counter.note()
        assert revision(await following) == expected
    began_at = loop.time()
    for heartbeats in (1, 2):
        assert (await anext(frames)).startswith(b":")
        assert loop.time() - began_at == pytest.approx(heartbeats * (MIN_INTERVAL_S + HEARTBEAT_S))
    await frames.aclose()


@in_virtual_time
async def test_a_storm_of_changes_is_ten_frames_a_second_and_the_last_state_is_always_shown():
    worker = FakeWorker()
    stream, seen = stream_of(worker), list[int]()

    async def listen() -> None:
        seen.extend([revision(frame) async for frame in stream.frames(SOMEBODY)])

    listening = asyncio.ensure_future(listen())
    await asyncio.sleep(0.5)
    for _ in range(1000):
        worker.counter.note()
        await asyncio.sleep(0.001)
    await asyncio.sleep(1)
    stream.listeners.end()
    await listening
    assert seen[-1] == 1000
    assert len(seen[1:]) == pytest.approx(1 / MIN_INTERVAL_S, abs=2)


@for_each("ending", ["stream", "worker"])
@in_virtual_time
async def test_a_stream_ends_with_the_server_and_with_the_worker(ending):
    worker = FakeWorker()
    stream = stream_of(worker)
    frames, heard = stream.frames(SOMEBODY), list[bytes]()

    async def listen() -> None:
        heard.extend([frame async for frame in frames])

    listening = asyncio.ensure_future(listen())
    await asyncio.sleep(1)
    if ending == "stream":
        stream.listeners.end()
    else:
        worker.counter.end()
    await listening
    assert len(heard) == (1 if ending == "stream" else 2)  # the worker's last state is shown


async def test_one_caller_has_a_share_of_the_streams_and_admins_have_room_of_their_own():
    def one(caller: str, *, admin: bool = False, peer: str | None = None, authenticated: bool = True) -> Listener:
        identity = replace(SOMEBODY.identity, caller=caller, admin=admin, authenticated=authenticated)
        return Listener(identity=identity, peer=peer)

    listeners = Listeners()
    streams = [listeners.add(one("greedy")) for _ in range(MAX_OF_ONE + 1)]
    assert [over.is_set() for over in streams] == [False] * MAX_OF_ONE + [True]
    listeners._open.pop(streams.pop())
    with pytest.raises(CapacityError, match="this caller"):
        listeners.check_room(one("greedy"))
    for number in range(MAX_SUBSCRIBERS - ADMIN_ROOM - MAX_OF_ONE):
        listeners.add(one(f"other {number}"))
    with pytest.raises(CapacityError, match="are open"):
        listeners.check_room(one("latecomer"))
    for _ in range(ADMIN_ROOM):
        listeners.check_room(one("owner", admin=True))
        listeners.add(one("owner", admin=True))
    with pytest.raises(CapacityError):
        listeners.check_room(one("owner", admin=True))
    without_keys = Listeners()
    for _ in range(MAX_OF_ONE):
        without_keys.add(one("local", peer="::1", authenticated=False))
    without_keys.check_room(one("local", peer="127.0.0.1", authenticated=False))


async def listen(url: str, path: str = "/llm/queue/stream", key: str = "") -> tuple[Caller, int, dict[str, str]]:
    caller = await Caller.to(url)
    await caller.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    return caller, *await caller.head()


async def test_listeners_over_http_get_frames_leave_room_when_they_leave_and_one_too_many_is_503(url, gateway, app):
    listeners = app.routes.status._stream.listeners
    caller, status, headers = await listen(url)
    assert (status, headers["cache-control"]) == (200, "no-store")
    assert headers["content-type"].startswith("text/event-stream")
    await caller.reader.readuntil(b"data: ")
    gateway.worker.counter.note()
    await caller.reader.readuntil(b'"revision":1')
    assert len(listeners) == 1
    caller.leave()
    await until(lambda: not listeners)
    for _ in range(MAX_SUBSCRIBERS):
        listeners.add(SOMEBODY)
    refused, status, headers = await listen(url)
    assert (status, headers["retry-after"]) == (503, "5")
    refused.leave()


async def test_a_key_that_is_removed_or_loses_a_right_loses_its_open_streams(keyed):
    app = keyed.app()
    listeners = app.routes.status._stream.listeners
    async with serving(keyed, app) as url:
        paths = ("/llm/queue/stream", "/llm/dashboard/stream")
        opened = [await listen(url, path, key) for path in paths for key in (ADMIN_KEY, HOUSE_KEY)]
        assert {status for _, status, _ in opened} == {200}
        keyed.use_keys(*(key.replace(admin=False) if key.admin else key for key in KEYS))
        await until(lambda: len(listeners) == 1)
        keyed.use_keys(KEYS[-1])
        await until(lambda: not listeners)
        for caller, _, _ in opened:
            caller.leave()
