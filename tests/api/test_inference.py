"""The shared path: read, parse, admit, submit, stream; and the routes without a queue, there and
back as they are.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hearth.clock import new_id
from hearth.config.settings import (
    CallerLimits,
    ModelSettings,
    RateLimitSettings,
    SchedulingSettings,
)
from hearth.dialects.gojson import LARGE_BYTES
from hearth.errors import BackendGone, CallerGone, QueueFull, ShuttingDown
from hearth.events import RequestRejected
from hearth.scheduling import inputs
from hearth.types import BATCH_JOB_PREFIX, JOB_PREFIX, Lane
from tests.api.house import (
    ADMIN_KEY,
    KEYS,
    LOW_KEY,
    NDJSON,
    FakeGateway,
    ScriptedExchange,
    begins_and_breaks,
    scripted,
)
from tests.support.fields import Fields

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi there"}]}
PROMPT = {"model": "m", "prompt": "hi"}
INPUT = {"model": "m", "input": "hi"}
BODIES: dict[str, Fields] = {
    **dict.fromkeys(("/api/chat", "/v1/chat/completions"), CHAT),
    **dict.fromkeys(("/api/generate", "/api/embeddings", "/v1/completions"), PROMPT),
    **dict.fromkeys(("/api/embed", "/v1/embeddings", "/v1/responses"), INPUT),
    "/v1/messages": {**CHAT, "max_tokens": 5},
}
DIALECTS = ("/api/chat", "/v1/chat/completions", "/v1/messages")
JSON = {"content_type": "application/json"}


async def test_every_inference_route_goes_through_the_queue_with_its_bytes_untouched(gateway):
    for path, asked in BODIES.items():
        body = json.dumps({**asked, "stream": False}, indent=1).encode()
        assert (
            await gateway.ask("POST", path, body, content_type="application/json")
        ).status == 200
        call = gateway.worker.calls[-1]
        new = gateway.worker.submitted[-1]
        assert (call.method, call.path, call.body) == ("POST", path, body)
        assert (new.model, new.caller, new.lane, new.prompt_tokens > 0) == (
            "m",
            "local",
            Lane.EXTERNAL,
            True,
        )
    assert len(gateway.worker.submitted) == len(BODIES)


async def test_chunks_headers_and_status_come_back_as_the_backend_sent_them(gateway):
    got = await gateway.ask("POST", "/api/chat", CHAT)
    assert (got.chunks, got.complete) == ((b'{"n":1}\n', b'{"n":2}\n', b'{"done":true}\n'), True)
    own = {
        "x-queue-position": "0",
        "x-estimated-wait-seconds": "7.4",
        "x-estimated-wait-rough": "true",
        "x-wait-bound-seconds": "15.0",
        "x-hearth-rewrote": "seed",
    }
    theirs = {name.decode(): value.decode() for name, value in NDJSON}
    assert got.headers == {**theirs, "x-request-id": gateway.worker.submitted[0].request_id, **own}
    # for a slow caller they pile up, and are not joined
    gateway.worker.serve = scripted(*(b"%d\n" % n for n in range(5)))
    assert (await gateway.ask("POST", "/api/chat", CHAT)).chunks == (
        b"0\n",
        b"1\n",
        b"2\n",
        b"3\n",
        b"4\n",
    )


async def test_a_resumable_stream_without_a_seed_is_given_one(gateway):
    seeds = set()
    for path in ("/api/chat", "/api/generate", "/v1/chat/completions") * 2:
        got = await gateway.ask("POST", path, {**BODIES[path], "stream": True})
        assert got.headers["x-hearth-rewrote"].rpartition(",")[2] == "seed"
        sent = json.loads(gateway.worker.calls[-1].body)
        seeds.add((sent if path.startswith("/v1") else sent["options"])["seed"])
    assert len(seeds) == 6
    assert all(new.ways == ("continued", "replayed") for new in gateway.worker.submitted)
    body = json.dumps({**CHAT, "options": {"seed": 0}}).encode()
    finishing = FakeGateway(scheduling=SchedulingSettings(started_streams="finish"))
    for each, ways in ((gateway, ("replayed", "continued")), (finishing, ())):
        got = await each.ask("POST", "/api/chat", body, **JSON)
        assert (
            each.worker.calls[-1].body,
            "x-hearth-rewrote" in got.headers,
            each.worker.submitted[-1].ways,
        ) == (body, False, ways)


async def test_openai_streams_ask_for_usage_that_callers_see_only_if_they_asked(gateway):
    path = "/v1/chat/completions"
    frames = (b'data: {"choices":[{}]}\n\n', b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n')
    gateway.worker.serve = scripted(*frames)
    finishing = FakeGateway(scheduling=SchedulingSettings(started_streams="finish"))
    for each, rewrote in ((gateway, "stream_options,seed"), (finishing, "stream_options")):
        got = await each.ask("POST", path, {**BODIES[path], "stream": True})
        call = each.worker.calls[-1]
        assert (got.headers["x-hearth-rewrote"], call.hides_usage) == (rewrote, True)
        assert json.loads(call.body)["stream_options"] == {"include_usage": True}
    for more in ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": False}):
        await gateway.ask("POST", path, {**BODIES[path], **more})
        assert not gateway.worker.calls[-1].hides_usage


async def test_what_only_the_owner_may_decide_is_rewritten_and_said():
    gateway = FakeGateway(models={"llama3": ModelSettings(num_ctx=4096)})
    got = await gateway.ask(
        "POST", "/api/chat", {**CHAT, "keep_alive": -1, "options": {"num_ctx": 9, "seed": 1}}
    )
    assert got.headers["x-hearth-rewrote"] == "keep_alive,options.num_ctx"
    assert json.loads(gateway.worker.calls[0].body) == {**CHAT, "options": {"seed": 1}}
    gateway.one_name["llama"] = "llama3:latest"
    for name in ("llama3", "llama3:latest", "registry.ollama.ai/library/llama3", "llama"):
        await gateway.ask("POST", "/api/chat", {**CHAT, "model": name, "stream": False})
        sent = json.loads(gateway.worker.calls[-1].body)
        assert (sent["model"], sent["options"]) == (name, {"num_ctx": 4096})


async def test_the_query_is_forwarded_and_credentials_cookies_and_origins_are_not(keyed):
    kept = {
        "accept": "text/event-stream",
        "user_agent": "claude-code",
        "anthropic_version": "2023-06-01",
        "anthropic_beta": "one,two",
    }
    more = {"cookie": "a=b", "x_forwarded_for": "6.6.6.6", **JSON}
    await keyed.ask(
        "POST", "/v1/messages?beta=true", BODIES["/v1/messages"], key=ADMIN_KEY, **kept, **more
    )
    (call,) = keyed.worker.calls
    sent = {name.decode().replace("-", "_"): value.decode() for name, value in call.headers}
    assert (call.path, sent) == ("/v1/messages?beta=true", {**JSON, **kept})
    assert keyed.worker.submitted[0].caller == "owner"


async def test_a_well_formed_request_id_is_kept_and_any_other_replaced(gateway):
    for own in ("abc-123_X", "x" * 64, "job_17", "batch_req_17", f"job_{'0' * 33}"):
        got = await gateway.ask("POST", "/api/chat", CHAT, x_request_id=own)
        assert got.headers["x-request-id"] == own == gateway.worker.submitted[-1].request_id
    # The rate limits are rebuilt from rows with other ids than those of jobs, which were counted
    # when they were taken.
    for other in (
        "",
        "x" * 65,
        "a b",
        "a\nb",
        "a\x1b[31m",
        '{"level":1}',
        new_id(JOB_PREFIX),
        new_id(BATCH_JOB_PREFIX),
    ):
        got = await gateway.ask("POST", "/api/chat", CHAT, x_request_id=other)
        assert (got.headers["x-request-id"][:4], len(got.headers["x-request-id"])) == (
            "req_",
            36,
        ), other


async def test_the_chat_that_a_program_names_is_the_conversation_of_its_turns(gateway):
    title = {
        "model": "m",
        "messages": [
            {"role": "user", "content": '### Task:\nTitle.\n{ "title": 1 }\n<chat_history>'}
        ],
    }
    for path, asked, chat_id in [
        ("/api/chat", CHAT, ""),
        ("/api/chat", CHAT, "one"),
        ("/v1/chat/completions", {"model": "m", "messages": [*CHAT["messages"]] * 3}, "one"),
        ("/api/chat", CHAT, "two"),
        ("/api/chat", CHAT, "no id"),
        ("/api/chat", title, "one"),
        ("/api/embed", INPUT, "one"),
    ]:
        await gateway.ask("POST", path, asked, x_openwebui_chat_id=chat_id)
    told, first, later, other, none, beside, embedded = [
        new.conversation for new in gateway.worker.submitted
    ]
    assert (first == later, told == none, embedded) == (True, True, "")
    assert len({told, first, other, beside}) == 4


async def test_a_load_goes_through_the_queue_and_the_rest_is_answered_at_once(keyed):
    gateway = FakeGateway()
    await gateway.ask("POST", "/api/generate", {"model": "m"})
    assert gateway.worker.submitted.pop().kind == "load"
    for path, field in (("/api/chat", "message"), ("/api/generate", "response")):
        got = await gateway.ask("POST", path, {"model": "m", "keep_alive": 0}, x_request_id="mine")
        assert (
            got.status,
            got.json["done_reason"],
            field in got.json,
            got.headers["x-request-id"],
        ) == (200, "unload", True, "mine")
        assert got.json["created_at"].endswith("Z")
        for stream, media, end in (
            (True, "application/x-ndjson", b"}\n"),
            (False, "application/json", b"}"),
        ):
            got = await gateway.ask(
                "POST", path, {**BODIES[path], "stream": stream, "options": {"num_predict": 0}}
            )
            assert (got.status, got.json["done"], got.json["done_reason"]) == (200, True, "length")
            assert (got.headers["content-type"].startswith(media), got.body.endswith(end)) == (
                True,
                True,
            )
    assert gateway.worker.submitted == []
    for body in (CHAT, {"model": "m", "keep_alive": 0}):
        got = await keyed.ask("POST", "/api/chat", body, key=LOW_KEY)
        assert (got.status, got.json) == (403, {"error": 'this key may not use the model "m"'})


async def test_an_external_caller_over_its_rate_gets_429_and_the_house_has_no_limit():
    gateway = FakeGateway(
        rate_limits=RateLimitSettings(default=CallerLimits(requests_per_minute=10))
    )
    for _ in range(10):
        assert (await gateway.ask("POST", "/api/chat", CHAT)).status == 200
    got = await gateway.ask("POST", "/v1/chat/completions", CHAT)
    assert (got.status, got.headers["retry-after"], got.json["error"]["type"]) == (
        429,
        "60",
        "rate_limit_error",
    )
    for _ in range(12):
        assert (await gateway.ask("POST", "/api/chat", CHAT, x_task_type="reply")).status == 200
        assert (gateway.worker.submitted[-1].lane, gateway.worker.submitted[-1].task_type) == (
            Lane.INTERNAL,
            "reply",
        )


async def test_what_is_answered_at_once_or_names_no_model_counts_too():
    unload = {"model": "m", "keep_alive": 0}
    nothing = {**BODIES["/api/chat"], "options": {"num_predict": 0}}
    for path, body, status in (
        ("/api/generate", unload, 200),
        ("/api/chat", nothing, 200),
        ("/api/embed", {"model": "x", "input": "a"}, 404),
    ):
        gateway = FakeGateway(
            rate_limits=RateLimitSettings(
                default=CallerLimits(requests_per_minute=3, embeddings_per_minute=3)
            )
        )
        gateway.missing.add("x")
        seen = [(await gateway.ask("POST", path, body)).status for _ in range(4)]
        assert seen == [status] * 3 + [429], path


async def test_an_unload_of_a_model_that_stays_is_answered_with_the_reason(gateway):
    gateway.worker.post(inputs.Loaded(model="m"))
    await gateway.orders.pin("m")
    for body in (
        {"model": "m", "keep_alive": 0},
        {"model": "m", "prompt": "", "keep_alive": "0s", "stream": False},
    ):
        got = await gateway.ask("POST", "/api/generate", body)
        assert (got.status, got.json["done_reason"], got.headers["x-hearth-kept"]) == (
            200,
            "unload",
            "pinned",
        )
    gateway.orders.unpin()
    got = await gateway.ask("POST", "/api/generate", {"model": "m", "keep_alive": 0})
    assert (got.status, "x-hearth-kept" in got.headers) == (200, False)


async def test_embeddings_have_a_limit_of_their_own():
    limits = CallerLimits(requests_per_minute=2, embeddings_per_minute=3)
    gateway = FakeGateway(rate_limits=RateLimitSettings(default=limits))
    for path in ("/api/embed", "/v1/embeddings", "/api/embeddings"):
        assert (await gateway.ask("POST", path, BODIES[path])).status == 200
    got = await gateway.ask("POST", "/api/embed", BODIES["/api/embed"])
    assert got.status == 429
    assert (
        "local may make 3 embedding calls in any minute (rate_limits.default.embeddings_per_minute)"
        in got.error
    )
    assert [(await gateway.ask("POST", "/api/chat", CHAT)).status for _ in range(3)] == [
        200,
        200,
        429,
    ]


LONG_CHAT = {**CHAT, "messages": [{"role": "user", "content": "hi" * LARGE_BYTES}]}


async def test_a_caller_of_requests_that_take_long_to_read_is_refused_for_a_while():
    gateway = FakeGateway(
        rate_limits=RateLimitSettings(default=CallerLimits(reading_s_per_minute=2.0))
    )
    gateway.clock.cpu_step_s = 1.0
    for body in (CHAT, LONG_CHAT):
        assert (await gateway.ask("POST", "/api/chat", body)).status == 200
        gateway.clock.advance(10.0)
    for path in ("/api/chat", "/api/embed", "/v1/messages"):
        got = await gateway.ask("POST", path, BODIES[path])
        assert (got.status, got.headers["retry-after"]) == (429, "40")
        assert (
            "reading the requests of local may take 2 s of CPU in any minute "
            "(rate_limits.default.reading_s_per_minute)"
        ) in got.error
    assert (await gateway.ask("POST", "/api/chat", LONG_CHAT, x_task_type="reply")).status == 200, (
        "internal requests have no limits"
    )
    gateway.clock.advance(40.0)
    assert (await gateway.ask("POST", "/api/chat", b"{" * 2 * LARGE_BYTES)).status == 400
    assert (await gateway.ask("POST", "/api/chat", CHAT)).status == 429, (
        "what was refused took as long"
    )


async def test_a_long_body_of_a_caller_over_its_rate_is_not_parsed():
    gateway = FakeGateway(
        rate_limits=RateLimitSettings(default=CallerLimits(requests_per_minute=1))
    )
    broken = b'{"model":"m","messages":' + b"[" * 2 * LARGE_BYTES
    first, second = await asyncio.gather(
        gateway.ask("POST", "/api/chat", LONG_CHAT), gateway.ask("POST", "/api/chat", broken)
    )
    assert (first.status, second.status) == (200, 429)


async def test_a_full_or_closing_queue_is_503_with_a_time_to_come_back(gateway):
    for refusal in (QueueFull(retry_after_s=7.2), ShuttingDown(retry_after_s=7.2)):
        gateway.worker.refusal = refusal
        got = await gateway.ask("POST", "/api/chat", CHAT)
        assert (got.status, got.headers["retry-after"]) == (503, "8")
        assert gateway.events.all.pop().reason == refusal.reason


@pytest.mark.parametrize(
    ("path", "kind", "frame"),
    [
        ("/api/chat", None, b'{"error":"it broke off"}\n'),
        ("/v1/chat/completions", "api_error", b'\n\ndata: {"error":{"message":"it broke off"'),
        ("/v1/messages", "api_error", b"\n\nevent: error\ndata: "),
    ],
)
async def test_a_failure_has_a_status_before_the_first_byte_and_then_a_frame(path, kind, frame):
    gateway = FakeGateway()
    gateway.worker.serve = scripted(BackendGone("the model server broke off"))
    got = await gateway.ask("POST", path, BODIES[path])
    assert (got.status, got.headers["x-queue-position"]) == (502, "0")
    assert isinstance(got.json["error"], str) if kind is None else got.json["error"]["type"] == kind
    assert got.headers["x-request-id"] == gateway.worker.submitted[0].request_id
    gateway.worker.serve = begins_and_breaks
    first, error = (got := await gateway.ask("POST", path, {**BODIES[path], "stream": True})).chunks
    assert (first, error[: len(frame)], got.complete) == (b"first\n", frame, kind is not None)
    assert gateway.events.of(RequestRejected) == []


async def test_what_has_no_room_for_an_error_stays_unfinished(gateway):
    sized = scripted(b"first\n", BackendGone(), headers=((b"content-length", b"100"),))
    for path, serve in (("/v1/chat/completions", begins_and_breaks), ("/api/chat", sized)):
        gateway.worker.serve = serve
        got = await gateway.ask("POST", path, CHAT)
        assert (got.chunks, got.complete) == ((b"first\n",), False)
    assert gateway.worker.cancelled == [1, 2]
    gateway.worker.serve = scripted(CallerGone())  # cancelled in the queue
    assert (await gateway.ask("POST", "/api/chat", CHAT)).status == 499
    body = b'{"error":"model \'m\' not found"}'
    gateway.worker.serve = scripted(
        body, status=404, headers=((b"content-length", b"%d" % len(body)),)
    )
    got = await gateway.ask("POST", "/api/chat", CHAT)
    assert (got.status, got.body, got.complete) == (404, body, True)
    for path in DIALECTS:
        assert (await gateway.ask("POST", path, b"", content_length="9" * 400)).status == 413
        assert (
            await gateway.ask("POST", path, b"\x1f\x8b", content_encoding="gzip", **JSON)
        ).status == 415


async def test_a_large_body_is_parsed_while_others_are_served(gateway):
    large = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi" * 100}] * 9_000}
    ).encode()
    asking = asyncio.ensure_future(gateway.ask("POST", "/api/chat", large))
    for _ in range(5):  # until it has reached the thread
        await asyncio.sleep(0)
    assert (await gateway.ask("POST", "/api/chat", CHAT)).status == 200
    assert (await asking).status == 200
    assert [len(call.body) > 1_000_000 for call in gateway.worker.calls] == [False, True]


# Without a queue.

NO_LISTS: tuple[Any, ...] = ("not a list", {"models": None}, {"models": [7]}, [])
PLAIN = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"17"),
    (b"date", b"Sat, 21 Nov 2026 02:09:14 GMT"),
)


async def test_what_the_backend_says_without_a_queue_comes_back_unchanged():
    paths = (
        "/",
        "/api/version",
        "/api/tags",
        "/api/ps",
        "/v1/models",
        "/v1/models/llama3.1%3A8b",
        "/v1/models/hf.co/someone/model",
    )
    for method, path in (
        *(("HEAD", path) for path in paths[:3]),
        *(("GET", path) for path in paths),
    ):
        gateway = FakeGateway()
        gateway.engine.answer = ScriptedExchange(200, PLAIN, (b"Ollama is", b" running"))
        got = await gateway.ask(
            method, path, accept="application/json", user_agent="x", cookie="a=b"
        )
        assert (got.status, got.chunks, got.headers["x-request-id"][:4]) == (
            200,
            (b"Ollama is", b" running"),
            "req_",
        )
        assert [(name.encode(), value.encode()) for name, value in got.headers.items()][:3] == [
            *PLAIN
        ]
        (call,) = gateway.engine.calls
        assert (call.method, call.path, call.body) == (method, path, b"")
        assert dict(call.headers) == {b"accept": b"application/json", b"user-agent": b"x"}
        assert gateway.engine.answer.closed.is_set()


@pytest.mark.parametrize(
    ("path", "listed", "left"),
    [
        (
            "/api/tags",
            {"models": [{"name": "A:cloud"}, {"name": "a:latest", "size": 7}]},
            {"models": [{"name": "a:latest", "size": 7}]},
        ),
        (
            "/v1/models",
            {"object": "list", "data": [{"id": "a:cloud"}, {"id": "ä"}]},
            {"object": "list", "data": [{"id": "ä"}]},
        ),
        *(("/api/tags", odd, odd) for odd in NO_LISTS),
    ],
)
async def test_models_of_ollamas_own_cloud_are_not_offered(path, listed, left):
    gateway = FakeGateway()
    said = json.dumps(listed).encode()
    gateway.models_elsewhere = frozenset({"a:cloud"})
    gateway.engine.answer = ScriptedExchange(
        200, ((b"content-length", b"%d" % len(said)),), (said[:20], said[20:])
    )
    got = await gateway.ask("GET", path)
    assert (got.status, got.json, got.headers["content-length"]) == (200, left, str(len(got.body)))


@pytest.mark.parametrize(
    ("method", "path", "media"),
    [
        *(
            (*each, "json")
            for each in (
                ("POST", "/api/show?verbose=1"),
                ("POST", "/api/pull"),
                ("DELETE", "/api/delete"),
            )
        ),
        *(
            (*each, "octet-stream")
            for each in (("HEAD", "/api/blobs/sha256:a"), ("POST", "/api/blobs/sha256:a"))
        ),
    ],
)
async def test_a_body_and_a_query_go_along_and_an_admin_key_manages_models(method, path, media):
    gateway = FakeGateway(keys=KEYS)
    gateway.engine.answer = ScriptedExchange(
        404, (), (b'{"error":"model \'x:latest\' not found"}',)
    )
    got = await gateway.ask(
        method, path, b"\x00\xff", key=ADMIN_KEY, content_type=f"application/{media}"
    )
    assert (got.status, got.error) == (404, "model 'x:latest' not found")
    (call,) = gateway.engine.calls
    assert (call.method, call.path, call.headers) == (
        method,
        path,
        ((b"content-type", f"application/{media}".encode()),),
    )
    assert call.body == (b"" if method == "HEAD" else b"\x00\xff")


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_what_a_proxy_says_in_place_of_the_model_server_is_an_error_in_json(gateway, status):
    gateway.engine.answer = ScriptedExchange(
        status, ((b"content-type", b"text/html"),), (b"<html>Bad Gateway</html>",)
    )
    for path in ("/api/tags", "/v1/models"):
        got = await gateway.ask("GET", path)
        assert (got.status, got.error) == (
            status,
            f"A proxy before the model server answered {status} in its place.",
        )
    assert gateway.engine.answer.closed.is_set()


async def test_a_backend_that_is_down_is_503_and_a_broken_answer_stays_unfinished(gateway):
    for path in ("/api/tags", "/v1/models"):
        got = await gateway.ask("GET", path)
        assert (got.status, got.headers["retry-after"], "cannot be reached" in got.error) == (
            503,
            "5",
            True,
        )
    gateway.engine.answer = ScriptedExchange(200, (), (b"half", BackendGone()))
    got = await gateway.ask("GET", "/api/tags")
    assert (got.chunks, got.complete, gateway.engine.answer.closed.is_set()) == (
        (b"half",),
        False,
        True,
    )
