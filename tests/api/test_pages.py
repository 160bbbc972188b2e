"""Hearth's own pages, and the status as a stream."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any, ClassVar, cast

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
from hearth.config.settings import CallerLimits, ModelSettings, RateLimitSettings
from hearth.errors import BackendGone, CapacityError, RateLimited
from hearth.events import RequestRejected
from hearth.queue.worker import LLMQueueWorker
from hearth.types import JsonDict, Lane, Priority
from tests.api.conftest import serving
from tests.api.house import (
    ADMIN_KEY,
    HOUSE_KEY,
    KEYS,
    LOW_KEY,
    RESIDENT,
    Caller,
    FakeGateway,
    FakeWorker,
    scripted,
)
from tests.support.fields import Fields
from tests.support.patience import until
from tests.support.virtual_time import in_virtual_time

CHAT = {"model": "allowed", "messages": [{"role": "user", "content": "hi"}]}


async def begin(keyed: FakeGateway, *names: str, key: str = LOW_KEY) -> None:
    for name in names:
        await keyed.ask("POST", "/api/chat", CHAT, key=key, x_request_id=name)


async def test_pages_show_what_the_gateway_says_and_no_whole_digest():
    gateway = FakeGateway(keys=KEYS)

    async def said(path: str, method: str = "GET") -> object:
        got = await gateway.ask(method, path, key=ADMIN_KEY, x_request_id="mine")
        assert (got.status, got.headers["x-request-id"]) == (200, "mine")
        return got.json

    assert await said("/llm/queue/status") == gateway.worker.get_status()
    assert await said("/llm/models") == {"models": [{"name": "m", "resident": True}]}
    assert await said("/llm/health") == gateway.health()
    assert await said("/llm/admin/preempt", "POST") == {"preempted": 2}
    shown = (await gateway.ask("GET", "/llm/admin/config", key=ADMIN_KEY)).json["settings"]
    assert shown["queue"]["max_external_depth"] == 20
    assert [(key["name"], key["sha256"]) for key in shown["auth"]["keys"]] == [
        (key.name, key.sha256[:8] + "…") for key in KEYS
    ]


class NotedModel(JsonDict):
    """A model that notes in which threads it is rendered."""

    threads: ClassVar[set[int]] = set()

    def items(self) -> Any:
        self.threads.add(threading.get_ident())
        return super().items()


@pytest.mark.parametrize("number", [0, 1, 999, 1000, 1001, 3000])
async def test_models_however_many_are_rendered_beside_the_loop(gateway, number):
    gateway.shown_models = [NotedModel(name=f"m{n} é", home=None) for n in range(number)]
    NotedModel.threads.clear()
    assert (await gateway.ask("GET", "/llm/models")).json == {
        "models": [{"name": f"m{n} é", "home": None} for n in range(number)]
    }
    assert bool(NotedModel.threads) == bool(number)
    assert threading.get_ident() not in NotedModel.threads


async def test_life_is_public_and_names_the_emulator_and_readiness_has_a_reason(gateway):
    assert (await gateway.ask("GET", "/healthz", peer="10.0.0.9")).json == {
        "service": "hearth",
        "status": "ok",
        "emulator": False,
    }
    gateway.identity = replace(gateway.identity, emulator=True)
    said = (await gateway.ask("GET", "/healthz", peer="10.0.0.9")).json
    assert (said["emulator"], "EMULATOR" in said["warning"]) == (True, True)
    assert (await gateway.ask("GET", "/readyz")).json == {"ready": True}
    gateway.store_fault = "disk_full"
    assert "disk_full" in (await gateway.ask("GET", "/readyz")).error
    gateway.not_ready = "the model server is down"
    got = await gateway.ask("GET", "/readyz")
    assert (got.status, got.error, got.headers["retry-after"]) == (
        503,
        "the model server is down",
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
    assert keyed.worker.cancelled == []
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
    assert keyed.worker.cancelled == [3, 3, 1, 1, 2, 4]
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
    assert keyed.worker.cancelled == []
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
        assert (got.status, got.json) == (200, expected)
    assert keyed.worker.cancelled == [1, 2, 3]


async def test_an_owner_announces_a_task_in_either_form_and_reloads_the_file(gateway):
    for at in ("2030-01-01T08:00:00+01:00", 1893481200):
        assert (
            await gateway.ask("POST", "/llm/admin/announce", {"task_type": "digest", "at": at})
        ).status == 200
    assert gateway.worker.announced == [("digest", 1893481200.0)] * 2
    got = await gateway.ask("POST", "/llm/admin/reload")
    assert (got.status, got.json) == (200, {"reloaded": True, "generation": 2, "problems": []})
    gateway.problems = [
        "f.yaml:1: queue: what, and what to do",
        "f.yaml:2: gpu: what, and what to do",
    ]
    got = await gateway.ask("POST", "/llm/admin/reload")
    assert (got.status, got.json["reloaded"], got.json["problems"]) == (
        422,
        False,
        gateway.problems,
    )
    assert "nothing was changed" in got.error
    gateway.stopping = True
    assert (await gateway.ask("POST", "/llm/admin/reload")).status == 503


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
            "the body is not valid JSON: invalid JSON near character 11: Expecting value",
        ),
    ),
}


@pytest.mark.parametrize(
    ("path", "body", "words"), [(path, *row) for path, rows in WRONG.items() for row in rows]
)
async def test_a_wrong_body_is_a_400_that_says_what_to_do(path, body, words):
    gateway = FakeGateway()
    got = await gateway.ask("POST", path, body)
    assert (got.status, words in got.error, len(got.error) < 10 * 500 + 50) == (400, True, True), (
        got.error
    )
    assert (gateway.worker.announced, gateway.worker.submitted) == ([], [])


def answer(**fields: object) -> bytes:
    return json.dumps(
        {
            "model": "m",
            "response": "Hello!",
            "done": True,
            "prompt_eval_count": 7,
            "eval_count": 3,
            **fields,
        }
    ).encode()


async def test_a_completion_goes_through_the_queue_and_counts_against_the_rate():
    gateway = FakeGateway(
        rate_limits=RateLimitSettings(default=CallerLimits(requests_per_minute=10))
    )
    gateway.worker.serve = scripted(answer(), headers=())
    asked = {
        "prompt": "Say hello",
        "model": "m",
        "max_tokens": 9,
        "json_mode": True,
        "allow_cloud": True,
    }
    # as `curl -d` has it
    got = await gateway.ask(
        "POST", "/llm/completions", asked, content_type="application/x-www-form-urlencoded"
    )
    assert got.status == 200
    counts = {"tokens_in": 7, "tokens_out": 3, "latency_ms": 0}
    assert got.json == {
        "output": "Hello!",
        "model": "m",
        "parsed": None,
        "cost_usd": 0.0,
        "emulator": False,
        **counts,
    }
    headers = (
        "x-queue-position",
        "x-estimated-wait-seconds",
        "x-estimated-wait-rough",
        "x-wait-bound-seconds",
        "x-request-id",
    )
    (new,) = gateway.worker.submitted
    assert [got.headers[name] for name in headers] == [
        "0",
        "7.4",
        "true",
        "15.0",
        new.request_id,
    ]
    assert (new.kind, new.streaming, new.model, new.max_tokens) == ("generate", False, "m", 9)
    assert json.loads(gateway.worker.calls[0].body)["format"] == "json"
    gateway.worker.serve = scripted(answer(model=RESIDENT), headers=())
    got = await gateway.ask("POST", "/llm/completions", {"prompt": "Say hello"})
    assert gateway.worker.submitted[1].model is None, "it runs on whatever is resident"
    assert json.loads(gateway.worker.calls[1].body)["model"] == got.json["model"] == RESIDENT
    statuses = [
        (await gateway.ask("POST", "/llm/completions", {"prompt": "x"})).status for _ in range(9)
    ]
    assert statuses == [200] * 8 + [429]
    assert [event.reason for event in gateway.events.of(RequestRejected)] == [RateLimited.reason]


async def test_a_completion_has_its_models_options_and_its_task_types_band():
    gateway = FakeGateway(
        keys=KEYS,
        priority_map={"digest": Priority.BACKGROUND},
        models={"m": ModelSettings(num_ctx=2048)},
    )
    gateway.worker.serve = scripted(answer(), headers=())
    asked = {"prompt": "x", "model": "m", "max_tokens": 3, "task_type": "digest"}
    assert (await gateway.ask("POST", "/llm/completions", asked, key=HOUSE_KEY)).status == 200
    assert json.loads(gateway.worker.calls[0].body)["options"] == {
        "num_predict": 3,
        "num_ctx": 2048,
    }
    (new,) = gateway.worker.submitted
    assert (new.lane, new.priority, new.task_type) == (Lane.INTERNAL, Priority.BACKGROUND, "digest")


@pytest.mark.parametrize(
    ("serve", "status", "words"),
    [
        (scripted(BackendGone()), 502, "closed the connection"),
        (scripted(b'{"error":"model \'m\' not found"}', status=404), 404, "model 'm' not found"),
        (
            scripted(b'{"error":"\\"m\\" does not support generate"}', status=400),
            400,
            '"m" does not support generate',
        ),
        (scripted(b'{"error":"out of memory"}', status=500), 502, "answered 500: out of memory"),
        (scripted(b"<html>", status=500), 502, "answered 500: no reason given"),
        (scripted(b'{"response":"Hel","done":false}'), 502, "ended the answer early"),
    ],
)
async def test_a_completion_that_comes_to_nothing_says_why_and_is_no_refusal(serve, status, words):
    gateway = FakeGateway()
    gateway.worker.serve = serve
    got = await gateway.ask("POST", "/llm/completions", {"prompt": "x", "model": "m"})
    assert (got.status, words in got.error, gateway.events.all) == (status, True, []), got.error


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


def revision(frame: bytes) -> int:
    # no `event:`, so that `EventSource.onmessage` hears it
    (data,) = frame.decode().removesuffix("\n\n").split("\n")
    return int(json.loads(data.removeprefix("data: "))["revision"])


def stream_of(worker: FakeWorker) -> StatusStream:
    return StatusStream(cast("LLMQueueWorker", worker))


@in_virtual_time
async def test_the_present_status_comes_first_then_changes_and_heartbeats():
    worker = FakeWorker()
    loop = asyncio.get_running_loop()
    frames = stream_of(worker).frames(one())
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


@pytest.mark.parametrize("ending", ["stream", "worker"])
@in_virtual_time
async def test_a_storm_of_changes_is_ten_frames_a_second_until_the_end(ending):
    worker = FakeWorker()
    stream = stream_of(worker)

    async def listen() -> list[int]:
        return [revision(frame) async for frame in stream.frames(one())]

    listening = asyncio.ensure_future(listen())
    await asyncio.sleep(0.5)
    for _ in range(1000):
        worker.counter.note()
        await asyncio.sleep(0.001)
    await asyncio.sleep(1)
    (stream.listeners if ending == "stream" else worker.counter).end()
    seen = await listening
    if ending == "worker":
        assert seen.pop() == 1001, "its own end is a change"
    assert seen[-1] == 1000, "the last state is always shown"
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


async def test_listeners_over_http_leave_room_when_they_go_and_one_too_many_is_503(
    url, gateway, app
):
    listeners = app.routes.status._stream.listeners
    caller, status, headers = await listen(url)
    assert (status, headers["cache-control"], headers["content-type"][:17]) == (
        200,
        "no-store",
        "text/event-stream",
    )
    await caller.reader.readuntil(b"data: ")
    gateway.worker.counter.note()
    await caller.reader.readuntil(b'"revision":1')
    assert len(listeners) == 1
    caller.leave()
    await until(lambda: not listeners)
    for _ in range(MAX_SUBSCRIBERS):
        listeners.add(one())
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
