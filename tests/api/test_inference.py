"""The shared path: read, parse, admit, submit, stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hearth.clock import new_id
from hearth.config.settings import CallerLimits, ModelSettings, RateLimitSettings, SchedulingSettings, ServerSettings, StartedStreams
from hearth.errors import BackendGone, CallerGone, QueueFull, ShuttingDown
from hearth.events import RequestRejected
from hearth.execution.request import Reply, ReplyHead, Submission
from hearth.types import BATCH_JOB_PREFIX, JOB_PREFIX, Dialect, Lane, Way, WorkKind
from tests.api.house import ADMIN_KEY, LOW_KEY, NDJSON, FakeGateway, ask, begins_and_breaks

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi there"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/api/chat": CHAT,
    "/api/generate": {"model": "m", "prompt": "hi"},
    "/api/embed": {"model": "m", "input": "hi"},
    "/api/embeddings": {"model": "m", "prompt": "hi"},
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/embeddings": {"model": "m", "input": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 5},
}


@pytest.mark.parametrize("path", BODIES)
async def test_every_inference_route_goes_through_the_queue_with_its_bytes_untouched(path, gateway, app):
    body = json.dumps({**BODIES[path], "stream": False}, indent=1).encode()
    got = await ask(app, "POST", path, body, content_type="application/json")
    assert got.status == 200
    (call,) = gateway.worker.calls
    assert call.body == body
    assert call.path == path
    assert call.method == "POST"
    (new,) = gateway.worker.submitted
    assert new.model == "m"
    assert new.caller == "local"
    assert new.lane is Lane.EXTERNAL
    assert new.prompt_tokens > 0


async def test_chunks_headers_and_status_come_back_as_the_backend_sent_them(gateway, app):
    got = await ask(app, "POST", "/api/chat", CHAT)
    assert got.chunks == (b'{"n":1}\n', b'{"n":2}\n', b'{"done":true}\n')
    assert got.complete
    assert got.headers["content-type"] == "application/x-ndjson"
    assert got.headers["date"] == "Sat, 21 Nov 2026 02:09:14 GMT"
    assert got.headers["x-queue-position"] == "0"
    assert got.headers["x-estimated-wait-seconds"] == "7.4"
    assert got.headers["x-request-id"] == gateway.worker.submitted[0].request_id
    assert got.headers["x-hearth-rewrote"] == "seed"


@pytest.mark.parametrize(("path", "place"), [("/api/chat", "options"), ("/api/generate", "options"), ("/v1/chat/completions", "")])
async def test_a_stream_without_a_seed_is_given_one_so_that_it_can_be_resumed(path, place, gateway, app):
    for _ in range(2):
        got = await ask(app, "POST", path, {**BODIES[path], "stream": True})
        assert got.headers["x-hearth-rewrote"] == "seed"
    bodies = [json.loads(call.body) for call in gateway.worker.calls]
    seeds = {(body[place] if place else body)["seed"] for body in bodies}
    assert len(seeds) == 2
    assert all(new.ways == (Way.CONTINUE, Way.REPLAY) for new in gateway.worker.submitted)


async def test_a_seed_of_the_callers_own_is_left_alone(gateway, app):
    body = json.dumps({**CHAT, "options": {"seed": 0}}).encode()
    got = await ask(app, "POST", "/api/chat", body, content_type="application/json")
    assert gateway.worker.calls[0].body == body
    assert "x-hearth-rewrote" not in got.headers
    assert gateway.worker.submitted[0].ways == (Way.REPLAY, Way.CONTINUE)


async def test_streams_that_are_to_finish_are_given_no_seed():
    gateway = FakeGateway(scheduling=SchedulingSettings(started_streams=StartedStreams.FINISH))
    got = await ask(gateway.app(), "POST", "/api/chat", CHAT)
    assert "x-hearth-rewrote" not in got.headers
    assert gateway.worker.submitted[0].ways == ()


async def test_chunks_that_pile_up_for_a_slow_caller_are_not_joined(gateway, app):
    async def at_once(new: Submission, reply: Reply) -> None:
        reply.start(ReplyHead(status=200, headers=NDJSON))
        for n in range(5):
            reply.push(b"%d\n" % n)
        reply.finish()

    gateway.worker.serve = at_once
    assert (await ask(app, "POST", "/api/chat", CHAT)).chunks == (b"0\n", b"1\n", b"2\n", b"3\n", b"4\n")


async def test_the_query_is_forwarded_and_credentials_cookies_and_origins_are_not(keyed, keyed_app):
    await ask(
        keyed_app,
        "POST",
        "/v1/messages?beta=true",
        BODIES["/v1/messages"],
        key=ADMIN_KEY,
        cookie="a=b",
        anthropic_version="2023-06-01",
        x_forwarded_for="6.6.6.6",
        anthropic_beta="one,two",
        accept="text/event-stream",
        user_agent="claude-code",
        content_type="application/json",
    )
    (new,), (call,) = keyed.worker.submitted, keyed.worker.calls
    assert call.path == "/v1/messages?beta=true"
    assert dict(call.headers) == {
        b"content-type": b"application/json",
        b"accept": b"text/event-stream",
        b"user-agent": b"claude-code",
        b"anthropic-version": b"2023-06-01",
        b"anthropic-beta": b"one,two",
    }
    assert new.caller == "owner"


async def test_a_well_formed_request_id_of_the_caller_is_kept_and_any_other_is_replaced(gateway, app):
    for own in ("abc-123_X", "x" * 64, "job_17", "batch_req_17", f"job_{'0' * 33}"):
        got = await ask(app, "POST", "/api/chat", CHAT, x_request_id=own)
        assert got.headers["x-request-id"] == own == gateway.worker.submitted[-1].request_id
    for other in ("", "x" * 65, "a b", "a\nb", "a\x1b[31m", '{"level":1}'):
        got = await ask(app, "POST", "/api/chat", CHAT, x_request_id=other)
        assert got.headers["x-request-id"].startswith("req_"), other
        assert len(got.headers["x-request-id"]) == 36


async def test_no_request_goes_by_the_id_of_a_job(gateway, app):
    """The rate limits are rebuilt from rows with other ids: jobs were counted when they were taken."""
    for prefix in (JOB_PREFIX, BATCH_JOB_PREFIX):
        await ask(app, "POST", "/api/chat", CHAT, x_request_id=new_id(prefix))
        assert gateway.worker.submitted[-1].request_id.startswith("req_")


async def test_what_was_rewritten_is_said(gateway, app):
    got = await ask(app, "POST", "/api/chat", {**CHAT, "keep_alive": -1, "options": {"num_ctx": 9, "seed": 1}})
    assert got.headers["x-hearth-rewrote"] == "keep_alive,options.num_ctx"
    assert json.loads(gateway.worker.calls[0].body) == {**CHAT, "options": {"seed": 1}}


async def test_a_pinned_context_length_goes_into_native_requests_whatever_the_spelling_of_the_name():
    gateway = FakeGateway(models={"llama3": ModelSettings(num_ctx=4096)})
    for name in ("llama3", "llama3:latest", "registry.ollama.ai/library/llama3"):
        await ask(gateway.app(), "POST", "/api/chat", {**CHAT, "model": name, "stream": False})
        assert json.loads(gateway.worker.calls[-1].body)["options"] == {"num_ctx": 4096}


async def test_a_pinned_context_length_goes_into_requests_that_call_the_model_by_another_of_its_names():
    gateway = FakeGateway(models={"llama3.1:8b": ModelSettings(num_ctx=4096)})
    gateway.one_name["llama3.1"] = "llama3.1:8b"
    await ask(gateway.app(), "POST", "/api/chat", {**CHAT, "model": "llama3.1", "stream": False})
    sent = json.loads(gateway.worker.calls[-1].body)
    assert (sent["model"], sent["options"]) == ("llama3.1", {"num_ctx": 4096})


async def test_streaming_defaults_are_those_of_the_dialect(gateway, app):
    await ask(app, "POST", "/api/chat", CHAT)
    await ask(app, "POST", "/v1/chat/completions", CHAT)
    await ask(app, "POST", "/v1/messages", {**BODIES["/v1/messages"], "stream": True})
    assert [(new.dialect, new.streaming) for new in gateway.worker.submitted] == [
        (Dialect.OLLAMA, True),
        (Dialect.OPENAI, False),
        (Dialect.ANTHROPIC, True),
    ]


@pytest.mark.parametrize(("path", "field"), [("/api/chat", "message"), ("/api/generate", "response")])
async def test_an_unload_is_answered_at_once_and_reaches_no_queue(path, field, gateway, app):
    got = await ask(app, "POST", path, {"model": "m", "keep_alive": 0}, x_request_id="mine")
    assert got.status == 200
    assert got.json["done_reason"] == "unload"
    assert got.json["created_at"].endswith("Z")
    assert field in got.json
    assert got.headers["x-request-id"] == "mine"
    assert gateway.worker.submitted == []


@pytest.mark.parametrize(
    ("path", "ask_for"), [("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}), ("/api/generate", {"prompt": "hi"})]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_no_tokens_are_an_empty_answer_at_once_and_none_that_never_ends(path, ask_for, stream, gateway, app):
    got = await ask(app, "POST", path, {"model": "m", **ask_for, "stream": stream, "options": {"num_predict": 0}})
    assert (got.status, got.json["done"], got.json["done_reason"]) == (200, True, "length")
    assert got.headers["content-type"].startswith("application/x-ndjson" if stream else "application/json")
    assert got.body.endswith(b"}\n" if stream else b"}")
    assert gateway.worker.submitted == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/api/chat", lambda said: said["error"] == "model 'm' not found"),
        ("/api/embed", lambda said: said["error"] == 'model "m" not found, try pulling it first'),
        ("/v1/chat/completions", lambda said: said["error"]["message"] == "model 'm' not found"),
        ("/v1/messages", lambda said: said["error"]["type"] == "not_found_error"),
    ],
)
async def test_a_model_that_is_not_installed_is_404_in_the_words_of_ollama_and_reaches_no_queue(path, text, gateway, app):
    gateway.missing = {"m"}
    got = await ask(app, "POST", path, BODIES[path])
    assert got.status == 404
    assert text(got.json)
    assert gateway.worker.submitted == []


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_an_unload_of_a_model_that_is_not_installed_is_404_as_at_ollama(path, gateway, app):
    gateway.missing = {"m"}
    got = await ask(app, "POST", path, {"model": "m", "keep_alive": 0})
    assert got.status == 404
    assert got.json == {"error": "model 'm' not found"}


async def test_a_load_goes_through_the_queue(gateway, app):
    await ask(app, "POST", "/api/generate", {"model": "m"})
    assert gateway.worker.submitted[0].kind is WorkKind.LOAD


async def test_a_model_that_the_key_does_not_allow_is_named(keyed, keyed_app):
    got = await ask(keyed_app, "POST", "/api/chat", CHAT, key=LOW_KEY)
    assert got.status == 403
    assert got.json == {"error": 'this key may not use the model "m"'}
    assert keyed.worker.submitted == []
    unload = await ask(keyed_app, "POST", "/api/chat", {"model": "m", "keep_alive": 0}, key=LOW_KEY)
    assert unload.status == 403


async def test_an_external_caller_over_its_rate_gets_429_with_a_time_to_come_back():
    gateway = FakeGateway(rate_limits=RateLimitSettings(default=CallerLimits(requests_per_minute=10)))
    app = gateway.app()
    for _ in range(10):
        assert (await ask(app, "POST", "/api/chat", CHAT)).status == 200
    got = await ask(app, "POST", "/v1/chat/completions", CHAT)
    assert got.status == 429
    assert got.headers["retry-after"] == "60"
    assert got.json["error"]["type"] == "rate_limit_error"
    assert len(gateway.worker.submitted) == 10


async def test_the_local_caller_claims_the_internal_lane_and_its_work_is_not_limited(gateway, app):
    for _ in range(12):
        assert (await ask(app, "POST", "/api/chat", CHAT, x_task_type="reply")).status == 200
    assert {(new.lane, new.task_type) for new in gateway.worker.submitted} == {(Lane.INTERNAL, "reply")}


@pytest.mark.parametrize("refusal", [QueueFull(retry_after_s=7.2), ShuttingDown(retry_after_s=7.2)])
async def test_a_full_or_closing_queue_is_503_with_a_time_to_come_back(refusal, gateway, app):
    gateway.worker.refusal = refusal
    got = await ask(app, "POST", "/api/chat", CHAT)
    assert got.status == 503
    assert got.headers["retry-after"] == "8"
    assert [event.reason for event in gateway.events.seen if isinstance(event, RequestRejected)] == [refusal.reason]


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/api/chat", lambda said: isinstance(said["error"], str)),
        ("/v1/chat/completions", lambda said: said["error"]["type"] == "api_error"),
        ("/v1/messages", lambda said: said["type"] == "error" and said["error"]["type"] == "api_error"),
    ],
)
async def test_a_failure_before_the_first_byte_has_a_real_status_in_the_shape_of_the_dialect(path, shape, gateway, app):
    async def fails(new: Submission, reply: Reply) -> None:
        raise BackendGone("the model server broke off")

    gateway.worker.serve = fails
    got = await ask(app, "POST", path, BODIES[path])
    assert got.status == 502
    assert shape(got.json)
    assert got.headers["x-queue-position"] == "0"
    assert got.headers["x-request-id"] == gateway.worker.submitted[0].request_id
    assert not any(isinstance(event, RequestRejected) for event in gateway.events.seen)


@pytest.mark.parametrize(
    ("path", "frame"),
    [
        ("/api/chat", b'{"error":"it broke off"}\n'),
        ("/v1/chat/completions", b'\n\ndata: {"error":{"message":"it broke off"'),
        ("/v1/messages", b"\n\nevent: error\ndata: "),
    ],
)
async def test_a_stream_that_fails_ends_with_an_error_in_a_frame_of_its_own(path, frame, gateway, app):
    gateway.worker.serve = begins_and_breaks
    got = await ask(app, "POST", path, {**BODIES[path], "stream": True})
    assert got.chunks[0] == b"first\n"
    assert got.chunks[1].startswith(frame)
    assert len(got.chunks) == 2
    assert got.complete


async def test_a_whole_answer_that_fails_stays_unfinished_since_it_has_no_room_for_an_error(gateway, app):
    gateway.worker.serve = begins_and_breaks
    got = await ask(app, "POST", "/v1/chat/completions", CHAT)
    assert got.chunks == (b"first\n",)
    assert not got.complete
    assert gateway.worker.cancelled == [1]


async def test_a_declared_length_is_never_exceeded_by_an_error_frame(gateway, app):
    async def sized(new: Submission, reply: Reply) -> None:
        reply.start(ReplyHead(status=200, headers=((b"content-length", b"100"),)))
        reply.push(b"first\n")
        raise BackendGone

    gateway.worker.serve = sized
    got = await ask(app, "POST", "/api/chat", CHAT)
    assert got.chunks == (b"first\n",)
    assert not got.complete


async def test_a_request_cancelled_in_the_queue_is_answered_with_499(gateway, app):
    async def cancelled(new: Submission, reply: Reply) -> None:
        raise CallerGone

    gateway.worker.serve = cancelled
    assert (await ask(app, "POST", "/api/chat", CHAT)).status == 499


async def test_an_error_status_of_the_backend_passes_through(gateway, app):
    async def missing(new: Submission, reply: Reply) -> None:
        body = b'{"error":"model \'m\' not found"}'
        reply.start(ReplyHead(status=404, headers=((b"content-length", b"%d" % len(body)),)))
        reply.push(body)
        reply.finish()

    gateway.worker.serve = missing
    got = await ask(app, "POST", "/api/chat", CHAT)
    assert got.status == 404
    assert got.json == {"error": "model 'm' not found"}
    assert got.complete


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/api/chat", lambda said: said["error"]),
        ("/v1/chat/completions", lambda said: said["error"]["message"]),
        ("/v1/messages", lambda said: said["error"]["message"]),
    ],
)
@pytest.mark.parametrize(
    "body", [b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"model":', b"", b"null", b"[]", b'{"model": 3}']
)
async def test_hostile_json_is_a_400_in_the_shape_of_the_dialect(path, text, body, gateway, app):
    got = await ask(app, "POST", path, body)
    assert got.status == 400
    assert text(got.json)
    assert gateway.worker.submitted == []


async def test_a_body_above_the_cap_is_refused_however_it_is_sent():
    gateway = FakeGateway(server=ServerSettings(max_body_mib=0.001))
    got = await ask(gateway.app(), "POST", "/api/chat", b"x" * 2000)
    assert got.status == 413
    declared = await ask(gateway.app(), "POST", "/api/chat", b"", content_length="2000")
    assert declared.status == 413
    absurd = await ask(gateway.app(), "POST", "/v1/messages", b"", content_length="9" * 400)
    assert absurd.status == 413
    assert absurd.json["error"]["type"] == "request_too_large"


async def test_a_large_body_is_parsed_while_others_are_served(gateway, app):
    large = json.dumps({**CHAT, "messages": [{"role": "user", "content": "x" * 3_000_000}]}).encode()
    asking = asyncio.ensure_future(ask(app, "POST", "/api/chat", large))
    got = await ask(app, "POST", "/api/chat", CHAT)
    assert got.status == 200
    assert (await asking).status == 200
    assert [len(call.body) > 1_000_000 for call in gateway.worker.calls] == [False, True]


async def test_a_compressed_body_is_415_in_each_dialect(app):
    for path in ("/api/chat", "/v1/chat/completions", "/v1/messages"):
        got = await ask(app, "POST", path, b"\x1f\x8b", content_encoding="gzip", content_type="application/json")
        assert got.status == 415
        assert "error" in got.json
