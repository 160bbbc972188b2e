"""Hearth's own pages, and the status as a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from hearth.admission.auth import Identity
from hearth.api.status_stream import (
    ADMIN_ROOM,
    HEARTBEAT_S,
    MAX_OF_ONE,
    MAX_SUBSCRIBERS,
    MIN_INTERVAL_S,
    Listener,
    Listeners,
    StatusStream,
)
from hearth.config.settings import AuthSettings, CallerLimits, ModelSettings, RateLimitSettings
from hearth.errors import CapacityError, RateLimited
from hearth.events import ItemEnded, ItemQueued, RequestRejected
from hearth.types import Lane, Outcome, Priority
from tests.api.conftest import serving
from tests.api.house import ADMIN_KEY, HOUSE_KEY, KEYS, LOW_KEY, HttpHouse, answering
from tests.support.fake_exchange import CallFault
from tests.support.fake_ollama import Service
from tests.support.fields import Fields
from tests.support.house import settle, within
from tests.support.http import Caller
from tests.support.patience import until

CHAT = {"model": "allowed", "messages": [{"role": "user", "content": "hi"}]}
LONG = Service(service_s=600.0)


async def begin(house: HttpHouse, *names: str, key: str | None = LOW_KEY) -> None:
    """Requests that take long: the first runs, the others wait."""
    house.service = LONG
    for name in names:
        await house.begin(CHAT, key=key, x_request_id=name)


@within(lambda: HttpHouse(keys=KEYS))
async def test_pages_show_what_the_gateway_says_and_no_whole_digest(house):
    async def said(path: str, method: str = "GET") -> object:
        got = await house.ask(method, path, key=ADMIN_KEY, x_request_id="mine")
        assert (got.status, got.headers["x-request-id"]) == (200, "mine")
        return got.json

    def shown(value: object) -> object:
        return json.loads(json.dumps(value))

    await begin(house, "one")
    assert await said("/llm/queue/status") == shown(house.status)
    assert await said("/llm/health") == shown(house.gateway.health())
    assert await said("/llm/admin/preempt", "POST") == {"preempted": 1}
    settings: Any = await said("/llm/admin/config")
    assert settings["settings"]["queue"]["max_external_depth"] == 20
    assert [(key["name"], key["sha256"]) for key in settings["settings"]["auth"]["keys"]] == [
        (key.name, key.sha256[:8] + "…") for key in KEYS
    ]


class CountingPool(ThreadPoolExecutor):
    """Threads, and how often work was given to them."""

    given = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given += 1
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize("number", [0, 1, 999, 1000, 1001, 3000])
async def test_models_however_many_are_rendered_beside_the_loop(house, number):
    names = [f"{n} é:latest" for n in range(number)]
    house.ollama.gpu.models.clear()
    house.ollama.gpu.clear()
    for name in names:
        house.ollama.install(name)
    await house.worker.watch.look()
    await settle()
    asyncio.get_running_loop().set_default_executor(pool := CountingPool())
    shown = (await house.ask("GET", "/llm/models")).json["models"]
    assert [model["name"] for model in shown] == sorted(names)
    assert all(model["home"] is False for model in shown)
    assert pool.given > 0


async def test_life_is_public_and_names_the_emulator_and_readiness_has_a_reason(house):
    assert (await house.ask("GET", "/healthz", peer="10.0.0.9")).json == {
        "service": "hearth",
        "status": "ok",
        "emulator": False,
    }
    house.gateway.identity = replace(house.gateway.identity, emulator=True)
    said = (await house.ask("GET", "/healthz", peer="10.0.0.9")).json
    assert (said["emulator"], "EMULATOR" in said["warning"]) == (True, True)
    assert (await house.ask("GET", "/readyz")).json == {"ready": True}
    house.gateway.cannot_write = lambda: "disk_full"
    assert "disk_full" in (await house.ask("GET", "/readyz")).error
    house.ollama.go_down()
    await house.worker.watch.look()
    got = await house.ask("GET", "/readyz")
    assert (got.status, got.error, got.headers["retry-after"]) == (
        503,
        "the model server at http://fake does not answer",
        "5",
    )


async def test_an_item_is_shown_to_its_caller_and_admins_and_hidden_from_others(keyed):
    await begin(keyed, "one", "two", "two", "cancel")
    for method, *paths in (
        ("GET", "/llm/queue/item/1", "/llm/queue/item/9"),
        ("POST", "/llm/queue/item/1/cancel", "/llm/queue/item/9/cancel"),
        ("POST", "/llm/requests/one/cancel", "/llm/requests/none/cancel"),
    ):
        others, unknown = [
            await keyed.ask(method, path, key=HOUSE_KEY, x_request_id="q") for path in paths
        ]
        assert others == unknown
        assert (others.status, others.error.startswith("there is no such ")) == (404, True)
    assert keyed.events.of(ItemEnded) == []
    for key in (LOW_KEY, ADMIN_KEY):
        assert (await keyed.ask("GET", "/llm/queue/item/1", key=key)).json["request_id"] == "one"
        got = await keyed.ask("POST", "/llm/queue/item/3/cancel", key=key)
        assert (got.status, got.json) == (
            200,
            {"sequence": 3, "request_id": "two", "cancelled": True},
        )
    for key, name in ((LOW_KEY, "one"), (LOW_KEY, "one"), (ADMIN_KEY, "two"), (LOW_KEY, "cancel")):
        got = await keyed.ask("POST", f"/llm/requests/{name}/cancel", key=key)
        assert (got.status, got.json) == (200, {"request_id": name, "cancelled": True})
    ended = keyed.events.of(ItemEnded)
    assert [event.sequence for event in ended] == [3, 1, 2, 4]
    assert {event.outcome for event in ended} == {Outcome.CANCELLED}
    for method, path in (("GET", "/llm/queue/item/abc"), ("POST", "/llm/queue/item/abc/cancel")):
        got = await keyed.ask(method, path, key=LOW_KEY)
        assert (got.status, got.error[:10]) == (400, "sequence: ")


async def test_a_key_cancels_all_of_its_own_and_an_admin_those_of_anybody(keyed):
    await begin(keyed, "one", "two")
    await begin(keyed, "theirs", key=HOUSE_KEY)
    for caller in ("owner", "house", "nobody", ""):
        got = await keyed.ask("POST", f"/llm/requests/cancel?caller={caller}", key=LOW_KEY)
        assert (got.status, "its own requests" in got.error) == (403, True)
    got = await keyed.ask("POST", "/llm/requests/cancel?name=low", key=ADMIN_KEY)
    assert (got.status, "name: unknown field" in got.error) == (400, True)
    assert keyed.events.of(ItemEnded) == []
    for key, query, caller, requests in (
        (ADMIN_KEY, "", "owner", []),
        (LOW_KEY, "", "low", ["one", "two"]),
        (LOW_KEY, "?caller=low", "low", []),
        (ADMIN_KEY, "?caller=house", "house", ["theirs"]),
        (ADMIN_KEY, "?caller=nobody", "nobody", []),
    ):
        got = await keyed.ask("POST", f"/llm/requests/cancel{query}", key=key)
        expected = {
            "caller": caller,
            "cancelled": len(requests),
            "requests": requests,
            "jobs": 0,
            "batches": 0,
        }
        assert got.status == 200
        assert got.json | {"requests": sorted(got.json["requests"])} == expected
    assert len(keyed.events.of(ItemEnded)) == 3


@pytest.mark.parametrize("at", ["2030-01-01T08:00:00+01:00", 1893481200])
async def test_an_owner_announces_a_task_in_either_form(house, at):
    asked = {"task_type": "digest", "at": at}
    assert (await house.ask("POST", "/llm/admin/announce", asked)).status == 200
    ((due_at, task_type),) = house.worker.runtime.view.announced
    in_s = 1893481200.0 - house.clock.wall()
    assert (due_at - house.clock.monotonic(), task_type) == (pytest.approx(in_s, abs=1.0), "digest")


async def test_an_owner_reloads_the_file_and_is_told_what_is_wrong_with_it(house):
    got = await house.ask("POST", "/llm/admin/reload")
    assert (got.status, got.json["reloaded"], got.json["problems"]) == (200, True, [])
    assert got.json["reload_count"] == 1
    house.gateway.config.source.write_text("queue: {depth: 1}\ngpu: {what: 1}\n")
    got = await house.ask("POST", "/llm/admin/reload")
    assert (got.status, got.json["reloaded"], len(got.json["problems"])) == (422, False, 2)
    assert got.json["problems"] == house.gateway.config_summary()["problems"]
    assert "nothing was changed" in got.error
    await house.gateway.stop()
    assert (await house.ask("POST", "/llm/admin/reload")).status == 503


DIGEST = {"task_type": "digest", "at": 1893481200}
WRONG: dict[str, tuple[tuple[object, str], ...]] = {
    "/llm/admin/announce": (
        ({**DIGEST, "at": "2030-01-01T08:00:00"}, "at: "),
        ({**DIGEST, "at": "2020-01-01T08:00:00Z"}, "at: this time has passed"),
        ({"task_type": "digest"}, "at: Field required"),
        ({**DIGEST, "task_type": ""}, "task_type: "),
        ({**DIGEST, "when": 1}, "when: unknown field; leave it out"),
        # a refusal is not as long as whatever was sent
        ({f"{number}{'x' * 1000}": 1 for number in range(50)}, "; and 42 more"),
        *((b"{", "JSON"), (b"", "body"), (b"[" * 50_000, "JSON")),
    ),
    "/llm/completions": (
        ({}, "prompt: Field required"),
        ({"prompt": ""}, "prompt: "),
        *(({"prompt": "x", "max_tokens": limit}, "max_tokens: ") for limit in (0, 2**63, "5")),
        ({"prompt": "x", "stream": True}, "stream: unknown field; leave it out"),
        ({"prompt": "x", "caller": "owner"}, "caller: unknown field; leave it out"),
        ({"prompt": "x", "task_type": "two words"}, "a task type is"),
        ({"prompt": "x", "model": "a\nb"}, "invalid model name"),
        (
            b'{"prompt": Say hello}',
            "the body is not valid JSON: invalid character 'S' looking for beginning of value",
        ),
    ),
}


@pytest.mark.parametrize(
    ("path", "body", "words"), [(path, *row) for path, rows in WRONG.items() for row in rows]
)
async def test_a_wrong_body_is_a_400_that_says_what_to_do(house, path, body, words):
    got = await house.ask("POST", path, body)
    assert (got.status, words in got.error, len(got.error) < 10 * 500 + 50) == (400, True, True), (
        got.error
    )
    assert (house.worker.runtime.view.announced, house.reached) == ((), [])


LIMITED = RateLimitSettings(default=CallerLimits(requests_per_minute=10))


@within(lambda: HttpHouse("m", rate_limits=LIMITED))
async def test_a_completion_goes_through_the_queue_and_counts_against_the_rate(house):
    asked = {
        "prompt": "Say hello",
        "model": "m",
        "max_tokens": 9,
        "json_mode": True,
        "allow_cloud": True,
    }
    # as `curl -d` has it
    got = await house.ask(
        "POST", "/llm/completions", asked, content_type="application/x-www-form-urlencoded"
    )
    assert got.status == 200
    assert got.json == {
        "output": " alpha beta gamma",
        "model": "m:latest",
        "parsed": None,
        "cost_usd": 0.0,
        "emulator": False,
        "tokens_in": 10,
        "tokens_out": 3,
        "latency_ms": 0,
    }
    (queued,) = house.events.of(ItemQueued)
    assert got.headers["x-queue-position"] == "0"
    assert got.headers["x-estimated-wait-seconds"] == "0.0"
    assert got.headers["x-wait-bound-seconds"] == "0.0"
    assert got.headers["x-request-id"] == queued.request_id
    (call,) = house.ollama.calls
    sent = json.loads(call.body)
    assert (call.path, sent["stream"], sent["format"]) == ("/api/generate", False, "json")
    assert sent["options"] == {"num_predict": 9}
    got = await house.ask("POST", "/llm/completions", {"prompt": "Say hello"})
    assert house.ollama.calls[1].model == got.json["model"] == "m:latest", "it is resident"
    statuses = [
        (await house.ask("POST", "/llm/completions", {"prompt": "x"})).status for _ in range(9)
    ]
    assert statuses == [200] * 8 + [429]
    assert [event.reason for event in house.events.of(RequestRejected)] == [RateLimited.reason]


@within(
    lambda: HttpHouse(
        "m",
        keys=KEYS,
        priority_map={"digest": Priority.BACKGROUND},
        models={"m": ModelSettings(num_ctx=2048)},
    )
)
async def test_a_completion_has_its_models_options_and_its_task_types_band(house):
    asked = {"prompt": "x", "model": "m", "max_tokens": 3, "task_type": "digest"}
    assert (await house.ask("POST", "/llm/completions", asked, key=HOUSE_KEY)).status == 200
    item = house.item(1)
    assert (item["type"], item["priority"], item["task_type"], item["streaming"]) == (
        "internal",
        "background",
        "digest",
        False,
    )
    (call,) = house.ollama.calls
    assert json.loads(call.body)["options"] == {"num_predict": 3, "num_ctx": 2048}


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        (
            answering(b'{"error":"model \'m\' not found"}', status=404),
            404,
            "model 'm:latest' not found",
        ),
        (
            answering(b'{"error":"\\"m\\" does not support generate"}', status=400),
            400,
            '"m" does not support generate',
        ),
        (answering(b'{"error":"out of memory"}', status=500), 502, "answered 500: out of memory"),
        (answering(b"<html>", status=500), 502, "answered 500: no reason given"),
        (answering(b'{"response":"Hel","done":false}'), 502, "closed the connection before"),
    ],
)
async def test_a_completion_that_comes_to_nothing_says_why_and_is_no_refusal(
    house, said, status, words
):
    house.service = said
    got = await house.ask("POST", "/llm/completions", {"prompt": "x", "model": "m"})
    assert (got.status, words in got.error) == (status, True), got.error
    assert house.events.of(RequestRejected) == []


async def test_a_completion_whose_model_server_breaks_off_says_so(house):
    house.ollama.next_calls(*[CallFault.GONE_BEFORE_HEAD] * 10)
    got = await house.ask("POST", "/llm/completions", {"prompt": "x", "model": "m"})
    assert (got.status, "closed the connection" in got.error) == (502, True)
    assert house.events.of(RequestRejected) == []


# The status as a stream.


def one(caller: str = "owner", *, peer: str | None = None, **rights: Any) -> Listener:
    known: Fields = {
        "lane": Lane.EXTERNAL,
        "max_priority": Priority.NORMAL,
        "models": (),
        "authenticated": True,
        "admin": False,
    }
    return Listener(identity=Identity(caller=caller, **{**known, **rights}), peer=peer)


def paused(frame: bytes) -> list[str]:
    """The lanes that are paused, as a frame says."""
    # no `event:`, so that `EventSource.onmessage` hears it
    (data,) = frame.decode().removesuffix("\n\n").split("\n")
    lanes: list[str] = json.loads(data.removeprefix("data: "))["orders"]["paused"]
    return lanes


@within(HttpHouse)
async def test_the_present_status_comes_first_then_a_heartbeat_and_changes(house):
    frames = StatusStream(house.worker).frames(one())
    assert paused(await anext(frames)) == []
    assert (await anext(frames)).startswith(b":")
    assert house.now == pytest.approx(MIN_INTERVAL_S + HEARTBEAT_S)
    for order, expected in (
        (house.gateway.orders.pause, ["external"]),
        (house.gateway.orders.resume, []),
    ):
        following = asyncio.ensure_future(anext(frames))
        await asyncio.sleep(1)
        assert not following.done()
        order()
        assert paused(await following) == expected
    await frames.aclose()


async def all_of(frames: AsyncGenerator[bytes]) -> list[bytes]:
    return [frame async for frame in frames]


@pytest.mark.parametrize("ending", ["stream", "gateway"])
@within(HttpHouse)
async def test_a_storm_of_changes_is_ten_frames_a_second_until_the_end(house, ending):
    stream = StatusStream(house.worker)
    listening = asyncio.ensure_future(all_of(stream.frames(one())))
    await asyncio.sleep(0.5)
    for _ in range(999):
        house.worker.preempt_external()
        await asyncio.sleep(0.001)
    house.gateway.orders.pause()
    await asyncio.sleep(1)
    if ending == "stream":
        stream.listeners.end()
    else:
        await house.gateway.stop()
    seen = await listening
    if ending == "gateway":
        assert b'"draining":true' in seen.pop(), "its own end is a change"
    assert paused(seen[-1]) == ["external"], "the last state is always shown"
    assert len(seen[1:]) == pytest.approx(1 / MIN_INTERVAL_S, abs=2)


async def test_one_caller_has_a_share_of_the_streams_and_admins_their_own_room():
    listeners = Listeners()
    owner = one("owner", admin=True)
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
        listeners.check_room(owner)
        listeners.add(owner)
    with pytest.raises(CapacityError):
        listeners.check_room(owner)
    without_keys = Listeners()
    for _ in range(MAX_OF_ONE):
        without_keys.add(one("local", peer="::1", authenticated=False))
    without_keys.check_room(one("local", peer="127.0.0.1", authenticated=False))


async def listen(
    url: str, path: str = "/llm/queue/stream", key: str = ""
) -> tuple[Caller, int, dict[str, str]]:
    caller = await Caller.to(url)
    await caller.send(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    )
    return caller, *await caller.head()


async def test_listeners_over_http_leave_room_when_they_go_and_one_too_many_is_503(url, house):
    listeners = house.app.routes.status._stream.listeners
    caller, status, headers = await listen(url)
    assert (status, headers["cache-control"], headers["content-type"][:17]) == (
        200,
        "no-store",
        "text/event-stream",
    )
    await caller.reader.readuntil(b"data: ")
    house.gateway.orders.pause()
    await caller.reader.readuntil(b'"paused":["external"]')
    assert len(listeners) == 1
    caller.leave()
    await until(lambda: not listeners)
    for _ in range(MAX_SUBSCRIBERS):
        listeners.add(one())
    refused, status, headers = await listen(url)
    assert (status, headers["retry-after"]) == (503, "5")
    refused.leave()


async def test_a_key_that_is_removed_or_loses_a_right_loses_its_open_streams(keyed):
    listeners = keyed.app.routes.status._stream.listeners
    async with serving(keyed) as url:
        paths = ("/llm/queue/stream", "/llm/dashboard/stream")
        opened = [await listen(url, path, key) for path in paths for key in (ADMIN_KEY, HOUSE_KEY)]
        assert {status for _, status, _ in opened} == {200}
        fewer = tuple(key.replace(admin=False) if key.admin else key for key in KEYS)
        keyed.reload(auth=AuthSettings(keys=fewer))
        await until(lambda: len(listeners) == 1)
        keyed.reload(auth=AuthSettings(keys=KEYS[-1:]))
        await until(lambda: not listeners)
        for caller, _, _ in opened:
            caller.leave()
