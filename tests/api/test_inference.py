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
    QueueSettings,
    RateLimitSettings,
)
from hearth.dialects.gojson import LARGE_BYTES
from hearth.errors import QueueFull, ShuttingDown
from hearth.events import ItemQueued, RequestRejected
from hearth.types import BATCH_JOB_PREFIX, JOB_PREFIX, Sequence
from tests.api.house import (
    ADMIN_KEY,
    DONE,
    FINISHING,
    KEYS,
    LOW_KEY,
    NDJSON,
    HttpHouse,
    answering,
)
from tests.support.fake_exchange import CallFault, Ending
from tests.support.fake_ollama import FakeModel, Service
from tests.support.fields import Fields
from tests.support.house import within
from tests.support.keys import key_of
from tests.support.virtual_time import LoopClock

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


def limited(**limits: Any) -> RateLimitSettings:
    return RateLimitSettings(default=CallerLimits(**limits))


def sent(house: HttpHouse) -> Any:
    """The body that the model server was sent last."""
    return json.loads(house.ollama.calls[-1].body)


@pytest.mark.parametrize("path", BODIES)
async def test_every_inference_route_goes_through_the_queue_with_its_bytes_untouched(house, path):
    body = json.dumps({**BODIES[path], "stream": False}, indent=1).encode()
    assert (await house.ask("POST", path, body, **JSON)).status == 200
    (call,) = house.ollama.calls
    assert (call.method, call.path, call.body) == ("POST", path, body)
    item = house.item(1)
    assert (item["model"], item["caller"], item["type"]) == ("m:latest", "local", "external")
    assert item["prompt_tokens"] > 0


@within(HttpHouse)
async def test_chunks_headers_and_status_come_back_as_the_backend_sent_them(house):
    lines = [b'{"n":%d}\n' % number for number in range(5)]
    house.service = answering(*lines, DONE, headers=NDJSON)
    got = await house.ask("POST", "/api/chat", CHAT)
    # for a slow caller they pile up, and are not joined
    assert (got.chunks, got.complete) == ((*lines, DONE), True)
    own = {
        "x-queue-position": "0",
        "x-estimated-wait-seconds": "0.0",
        "x-wait-bound-seconds": "0.0",
        "x-hearth-rewrote": "seed",
    }
    theirs = {name.decode(): value.decode() for name, value in NDJSON}
    (queued,) = house.events.of(ItemQueued)
    assert got.headers == {**theirs, "x-request-id": queued.request_id, **own}


@within(HttpHouse)
async def test_who_waits_is_told_for_how_long_and_how_sure_that_is(house):
    house.service = Service(service_s=10.0)
    _, got = await asyncio.gather(*[house.ask("POST", "/api/chat", CHAT) for _ in range(2)])
    assert got.headers["x-queue-position"] == "0"
    assert got.headers["x-estimated-wait-rough"] == "true"
    wait_s, bound_s = (
        float(got.headers[name]) for name in ("x-estimated-wait-seconds", "x-wait-bound-seconds")
    )
    assert 0.0 < wait_s <= bound_s


async def test_a_resumable_stream_without_a_seed_is_given_one(house):
    seeds = set()
    for path in ("/api/chat", "/api/generate", "/v1/chat/completions") * 2:
        got = await house.ask("POST", path, {**BODIES[path], "stream": True})
        assert got.headers["x-hearth-rewrote"].rpartition(",")[2] == "seed"
        seeds.add((sent(house) if path.startswith("/v1") else sent(house)["options"])["seed"])
    assert len(seeds) == 6


@pytest.mark.parametrize("settings", [{}, {"scheduling": FINISHING}])
async def test_a_stream_that_has_a_seed_is_sent_as_it_came(settings):
    body = json.dumps({**CHAT, "options": {"seed": 0}}).encode()
    async with HttpHouse(**settings) as house:
        got = await house.ask("POST", "/api/chat", body, **JSON)
        assert house.ollama.calls[0].body == body
    assert "x-hearth-rewrote" not in got.headers


@pytest.mark.parametrize(
    ("settings", "rewrote"),
    [({}, "stream_options,seed"), ({"scheduling": FINISHING}, "stream_options")],
)
async def test_openai_streams_ask_for_usage_that_callers_see_only_if_they_asked(settings, rewrote):
    path = "/v1/chat/completions"
    async with HttpHouse(**settings) as house:
        got = await house.ask("POST", path, {**CHAT, "stream": True})
        assert (got.headers["x-hearth-rewrote"], b"usage" in got.body) == (rewrote, False)
        usage = {"stream_options": {"include_usage": True}}
        assert sent(house).items() >= usage.items()
        got = await house.ask("POST", path, {**CHAT, "stream": True, **usage})
        assert b"usage" in got.body
        got = await house.ask("POST", path, {**CHAT, "stream": False})
        assert "usage" in got.json


async def test_what_only_the_owner_may_decide_is_rewritten_and_said(house):
    asked = {**CHAT, "keep_alive": -1, "options": {"num_ctx": 9, "seed": 1}}
    got = await house.ask("POST", "/api/chat", asked)
    assert got.headers["x-hearth-rewrote"] == "keep_alive,options.num_ctx"
    assert sent(house) == {**CHAT, "options": {"seed": 1}}


@pytest.mark.parametrize(
    "name", ["llama3", "llama3:latest", "registry.ollama.ai/library/llama3", "llama"]
)
async def test_the_owners_context_length_goes_with_every_name_of_a_model(name):
    models = [FakeModel(name=each, load_s=0.0, digest="one") for each in ("llama3", "llama")]
    async with HttpHouse(*models, models={"llama3": ModelSettings(num_ctx=4096)}) as house:
        await house.ask("POST", "/api/chat", {**CHAT, "model": name, "stream": False})
        assert (sent(house)["model"], sent(house)["options"]) == (name, {"num_ctx": 4096})


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
    (call,) = keyed.ollama.calls
    said = {name.decode().replace("-", "_"): value.decode() for name, value in call.headers}
    assert (call.path, said) == ("/v1/messages?beta=true", {**JSON, **kept})
    assert keyed.events.of(ItemQueued)[0].caller == "owner"


@pytest.mark.parametrize(
    "own", ["abc-123_X", "x" * 64, "job_17", "batch_req_17", f"job_{'0' * 33}"]
)
async def test_a_well_formed_request_id_is_kept(house, own):
    got = await house.ask("POST", "/api/chat", CHAT, x_request_id=own)
    assert got.headers["x-request-id"] == own == house.events.of(ItemQueued)[0].request_id


# The rate limits are rebuilt from rows with other ids than those of jobs, which were counted when
# they were taken.
@pytest.mark.parametrize(
    "other",
    [
        *("", "x" * 65, "a b", "a\nb", "a\x1b[31m", '{"level":1}'),
        new_id(JOB_PREFIX),
        new_id(BATCH_JOB_PREFIX),
    ],
    ids=lambda other: repr(other[:4]),
)
async def test_any_other_request_id_is_replaced(house, other):
    got = await house.ask("POST", "/api/chat", CHAT, x_request_id=other)
    assert (got.headers["x-request-id"][:4], len(got.headers["x-request-id"])) == ("req_", 36)


async def test_the_chat_that_a_program_names_is_the_conversation_of_its_turns(house):
    title = {
        "model": "m",
        "messages": [
            {"role": "user", "content": '### Task:\nTitle.\n{ "title": 1 }\n<chat_history>'}
        ],
    }
    house.gateway.orders.pause()
    for path, asked, chat_id in [
        ("/api/chat", CHAT, ""),
        ("/api/chat", CHAT, "one"),
        ("/v1/chat/completions", {"model": "m", "messages": [*CHAT["messages"]] * 3}, "one"),
        ("/api/chat", CHAT, "two"),
        ("/api/chat", CHAT, "no id"),
        ("/api/chat", title, "one"),
        ("/api/embed", INPUT, "one"),
    ]:
        await house.begin(asked, path=path, x_openwebui_chat_id=chat_id)
    told, first, later, other, none, beside, embedded = [
        house.worker.registry.live(number).item.conversation for number in range(1, 8)
    ]
    assert (first == later, told == none, embedded) == (True, True, "")
    assert len({told, first, other, beside}) == 4


async def test_two_users_who_begin_alike_have_conversations_of_their_own():
    key = key_of("webui", "hearth_webui", users_from="x-user")
    async with HttpHouse(keys=(key,)) as house:
        house.gateway.orders.pause()
        for user in ("ann", "ann", "bob", ""):
            await house.begin(CHAT, key="hearth_webui", x_user=user)
        works = [house.worker.registry.live(Sequence(number)) for number in range(1, 5)]
        ann, again, bob, nobody = [work.item.conversation for work in works if work is not None]
        assert (ann, len({ann, bob, nobody})) == (again, 3)
        house.gateway.orders.resume()


async def test_a_load_goes_through_the_queue(house):
    assert (await house.ask("POST", "/api/generate", {"model": "m"})).status == 200
    assert house.item(1)["kind"] == "load"


@pytest.mark.parametrize(
    ("path", "field"), [("/api/chat", "message"), ("/api/generate", "response")]
)
@within(HttpHouse)
async def test_what_needs_no_model_is_answered_at_once(house, path, field):
    got = await house.ask("POST", path, {"model": "m", "keep_alive": 0}, x_request_id="mine")
    assert (got.status, got.json["done_reason"], got.headers["x-request-id"]) == (
        200,
        "unload",
        "mine",
    )
    assert (field in got.json, got.json["created_at"][-1]) == (True, "Z")
    nothing = {**BODIES[path], "options": {"num_predict": 0}}
    for stream, media, end in ((True, "x-ndjson", b"}\n"), (False, "json", b"}")):
        got = await house.ask("POST", path, {**nothing, "stream": stream})
        assert (got.status, got.json["done"], got.json["done_reason"]) == (200, True, "length")
        assert got.headers["content-type"].startswith(f"application/{media}")
        assert got.body.endswith(end)
    assert house.reached == []


@pytest.mark.parametrize("body", [CHAT, {"model": "m", "keep_alive": 0}])
async def test_a_key_is_refused_a_model_that_it_may_not_use(keyed, body):
    got = await keyed.ask("POST", "/api/chat", body, key=LOW_KEY)
    assert (got.status, got.json) == (403, {"error": 'this key may not use the model "m"'})


@within(lambda: HttpHouse(rate_limits=limited(requests_per_minute=10)))
async def test_an_external_caller_over_its_rate_gets_429_and_the_house_has_no_limit(house):
    for _ in range(10):
        assert (await house.ask("POST", "/api/chat", CHAT)).status == 200
    got = await house.ask("POST", "/v1/chat/completions", CHAT)
    assert (got.status, got.headers["retry-after"], got.json["error"]["type"]) == (
        429,
        "60",
        "rate_limit_error",
    )
    for _ in range(12):
        assert (await house.ask("POST", "/api/chat", CHAT, x_task_type="reply")).status == 200
    item = house.item(11)
    assert (item["type"], item["task_type"]) == ("internal", "reply")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/generate", {"model": "m", "keep_alive": 0}, 200),
        ("/api/chat", {**CHAT, "options": {"num_predict": 0}}, 200),
        ("/api/embed", {"model": "x", "input": "a"}, 404),
    ],
)
@within(lambda: HttpHouse(rate_limits=limited(requests_per_minute=3, embeddings_per_minute=3)))
async def test_what_is_answered_at_once_or_names_no_model_counts_too(house, path, body, status):
    seen = [(await house.ask("POST", path, body)).status for _ in range(4)]
    assert seen == [status] * 3 + [429]


@within(HttpHouse)
async def test_an_unload_of_a_model_that_stays_is_answered_with_the_reason(house):
    await house.gateway.orders.pin("m")
    unload = {"model": "m", "keep_alive": 0}
    for body in (unload, {"model": "m", "prompt": "", "keep_alive": "0s", "stream": False}):
        got = await house.ask("POST", "/api/generate", body)
        assert (got.status, got.json["done_reason"], got.headers["x-hearth-kept"]) == (
            200,
            "unload",
            "pinned",
        )
    house.gateway.orders.unpin()
    got = await house.ask("POST", "/api/generate", unload)
    assert (got.status, "x-hearth-kept" in got.headers) == (200, False)


@within(lambda: HttpHouse(rate_limits=limited(requests_per_minute=2, embeddings_per_minute=3)))
async def test_embeddings_have_a_limit_of_their_own(house):
    for path in ("/api/embed", "/v1/embeddings", "/api/embeddings"):
        assert (await house.ask("POST", path, BODIES[path])).status == 200
    got = await house.ask("POST", "/api/embed", INPUT)
    assert got.status == 429
    assert (
        "local may make 3 embedding calls in any minute, and has reached that limit; try again in"
    ) in got.error
    chats = [(await house.ask("POST", "/api/chat", CHAT)).status for _ in range(3)]
    assert chats == [200, 200, 429]


@within(lambda: HttpHouse(keys=KEYS, rate_limits=limited(requests_per_minute=1)))
async def test_only_an_admin_reads_which_setting_refuses_a_request(house):
    asked = {**CHAT, "model": "allowed"}
    for key, setting in (
        (LOW_KEY, ""),
        (ADMIN_KEY, " (rate_limits.default.requests_per_minute)"),
    ):
        assert (await house.ask("POST", "/api/chat", asked, key=key)).status == 200
        got = await house.ask("POST", "/api/chat", asked, key=key)
        assert got.status == 429
        assert got.error.endswith(f"has reached that limit; try again in 60 s{setting}")


@within(
    lambda: HttpHouse(
        rate_limits=limited(requests_per_minute=2, embeddings_per_minute=2, when_exceeded="wait")
    )
)
async def test_a_burst_of_requests_waits_for_its_limit_where_the_owner_wants_that(house):
    async def ask(path: str) -> tuple[int, float]:
        got = await house.ask("POST", path, BODIES[path])
        return got.status, house.clock.monotonic() - began_at

    for path in ("/api/chat", "/v1/chat/completions", "/api/embed", "/v1/messages"):
        began_at = house.clock.monotonic()
        answered = await asyncio.gather(*(ask(path) for _ in range(4)))
        assert [status for status, _ in answered] == [200] * 4
        assert sorted(after_s for _, after_s in answered) == [0.0, 0.0, 60.0, 60.0]
        await asyncio.sleep(600)


ASKS_FOR_8192 = {**CHAT, "options": {"num_ctx": 8192}, "keep_alive": "10m"}


@pytest.mark.parametrize(("has", "sizes"), [(4096, {}), (2048, {"m": ModelSettings(num_ctx=2048)})])
async def test_a_context_that_a_caller_does_not_get_is_shown_once_for_it_and_the_model(has, sizes):
    async with HttpHouse(models=sizes) as house:
        await house.gateway.worker.watch.look()
        for asked in (ASKS_FOR_8192, {**CHAT, "options": {"num_ctx": 1024}}, ASKS_FOR_8192):
            got = await house.ask("POST", "/api/chat", asked)
            assert (got.status, "options.num_ctx" in got.headers["x-hearth-rewrote"]) == (200, True)
        status = (await house.ask("GET", "/llm/queue/status")).json
        (warning,) = status["warnings"]
        assert warning == (
            f"local asked for a context of 8,192 tokens of m:latest, which has {has:,}"
            " (models.m:latest.num_ctx)"
        )
        house.reload(models={"m": ModelSettings(num_ctx=8192)})
        await house.ask("POST", "/api/chat", ASKS_FOR_8192)
        await house.gateway.worker.watch.look()
        assert (await house.ask("GET", "/llm/queue/status")).json["warnings"] == []


LONG_CHAT = {**CHAT, "messages": [{"role": "user", "content": "hi" * LARGE_BYTES}]}


class BusyClock(LoopClock):
    """A thread computes for a second from one reading to the next."""

    cpu_s = 0.0

    def thread_cpu(self) -> float:
        self.cpu_s += 1.0
        return self.cpu_s


@within(lambda: HttpHouse(clock=BusyClock(), rate_limits=limited(reading_s_per_minute=2.0)))
async def test_a_caller_of_requests_that_take_long_to_read_is_refused_for_a_while(house):
    for body in (CHAT, LONG_CHAT):
        assert (await house.ask("POST", "/api/chat", body)).status == 200
        await asyncio.sleep(10.0)
    for path in ("/api/chat", "/api/embed", "/v1/messages"):
        got = await house.ask("POST", path, BODIES[path])
        assert (got.status, got.headers["retry-after"]) == (429, "40")
        assert got.error == (
            "reading the requests of local may take 2 s of CPU in any minute, and has taken that"
            " long; try again in 40 s (rate_limits.default.reading_s_per_minute)"
        )
    assert (await house.ask("POST", "/api/chat", LONG_CHAT, x_task_type="reply")).status == 200, (
        "internal requests have no limits"
    )
    await asyncio.sleep(40.0)
    assert (await house.ask("POST", "/api/chat", b"{" * 2 * LARGE_BYTES)).status == 400
    assert (await house.ask("POST", "/api/chat", CHAT)).status == 429, (
        "what was refused took as long"
    )


@within(lambda: HttpHouse(rate_limits=limited(requests_per_minute=1)))
async def test_a_long_body_of_a_caller_over_its_rate_is_not_parsed(house):
    broken = b'{"model":"m","messages":' + b"[" * 2 * LARGE_BYTES
    first, second = await asyncio.gather(
        house.ask("POST", "/api/chat", LONG_CHAT), house.ask("POST", "/api/chat", broken)
    )
    assert (first.status, second.status) == (200, 429)


@within(HttpHouse)
async def test_a_refusal_names_the_model_once_the_body_was_read(house):
    await house.ask("POST", "/api/chat", CHAT | {"model": "none:1b"})
    await house.ask("POST", "/v1/chat/completions", CHAT | {"model": "n/o:1b"})
    await house.ask("POST", "/api/generate", {"model": "none:1b", "keep_alive": 0})
    await house.ask("POST", "/llm/completions", {"model": "none:1b", "prompt": "hi"})
    await house.ask("POST", "/api/chat", b"{")
    refused = house.events.of(RequestRejected)
    assert [each.model for each in refused] == ["none:1b", "n/o:1b", "none:1b", "none:1b", ""]


@pytest.mark.parametrize("refusal", [QueueFull, ShuttingDown])
@within(lambda: HttpHouse(queue=QueueSettings(max_external_depth=1)))
async def test_a_full_or_closing_queue_is_503_with_a_time_to_come_back(house, refusal):
    if refusal is QueueFull:
        house.service = Service(service_s=10.0)
        await house.begin(CHAT, CHAT)
    else:
        await house.gateway.stop(0.0)
    got = await house.ask("POST", "/api/chat", CHAT)
    assert (got.status, int(got.headers["retry-after"]) > 0) == (503, True)
    assert house.events.of(RequestRejected)[-1].reason == refusal.reason


@pytest.mark.parametrize(
    ("path", "kind", "frame"),
    [
        ("/api/chat", None, b'{"error":"The model server closed'),
        ("/v1/chat/completions", "api_error", b'\n\ndata: {"error":{"message":"The model server'),
        ("/v1/messages", "api_error", b"\n\nevent: error\ndata: "),
    ],
)
@within(lambda: HttpHouse(scheduling=FINISHING))
async def test_a_failure_has_a_status_before_the_first_byte_and_then_a_frame(
    house, path, kind, frame
):
    house.ollama.next_calls(*[CallFault.GONE_BEFORE_HEAD] * 3)
    got = await house.ask("POST", path, BODIES[path])
    assert (got.status, got.headers["x-queue-position"]) == (502, "0")
    assert isinstance(got.json["error"], str) if kind is None else got.json["error"]["type"] == kind
    assert got.headers["x-request-id"] == house.events.of(ItemQueued)[0].request_id
    house.break_after(b"first\n")
    usage = {"stream_options": {"include_usage": True}}
    got = await house.ask("POST", path, {**BODIES[path], **usage, "stream": True})
    first, error = got.chunks
    assert (first, error[: len(frame)], got.complete) == (b"first\n", frame, kind is not None)
    assert house.events.of(RequestRejected) == []


async def test_a_stream_whose_length_was_declared_stays_unfinished_where_it_breaks():
    async with HttpHouse(scheduling=FINISHING) as house:
        house.break_after(b"first\n", headers=((b"content-length", b"100"),))
        got = await house.ask("POST", "/api/chat", CHAT)
        assert (got.chunks, got.complete) == ((b"first\n",), False)


@within(HttpHouse)
async def test_who_is_cancelled_in_the_queue_is_answered_499(house):
    house.service = Service(service_s=10.0)
    await house.begin(CHAT, CHAT)
    house.worker.cancel(2)
    assert (await house.background[1]).status == 499


async def test_a_refusal_of_the_model_server_has_its_status_and_its_body(house):
    body = b'{"error":"model \'m\' not found"}'
    house.service = answering(body, status=404, headers=((b"content-length", b"%d" % len(body)),))
    got = await house.ask("POST", "/api/chat", CHAT)
    assert (got.status, got.body, got.complete) == (404, body, True)


@pytest.mark.parametrize("path", DIALECTS)
async def test_a_body_too_long_or_in_a_coding_is_refused_in_every_dialect(house, path):
    assert (await house.ask("POST", path, b"", content_length="9" * 400)).status == 413
    got = await house.ask("POST", path, b"\x1f\x8b", content_encoding="gzip", **JSON)
    assert got.status == 415


async def test_a_large_body_is_parsed_while_others_are_served(house):
    large = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi" * 100}] * 9_000}
    ).encode()
    asking = asyncio.ensure_future(house.ask("POST", "/api/chat", large))
    for _ in range(5):  # until it has reached the thread
        await asyncio.sleep(0)
    assert (await house.ask("POST", "/api/chat", CHAT)).status == 200
    assert (await asking).status == 200
    assert [len(call.body) > 1_000_000 for call in house.ollama.calls] == [False, True]


# Without a queue.

NO_LISTS: tuple[Any, ...] = ("not a list", {"models": None}, {"models": [7]}, [])
PLAIN = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"17"),
    (b"date", b"Sat, 21 Nov 2026 02:09:14 GMT"),
)
UNQUEUED = (
    *("/", "/api/version", "/api/tags", "/api/ps", "/v1/models"),
    *("/v1/models/llama3.1%3A8b", "/v1/models/hf.co/someone/model"),
)


@pytest.mark.parametrize(
    ("method", "path"),
    [*(("HEAD", path) for path in UNQUEUED[:3]), *(("GET", path) for path in UNQUEUED)],
)
async def test_what_the_backend_says_without_a_queue_comes_back_unchanged(house, method, path):
    house.list_as(b"Ollama is", b" running", headers=PLAIN)
    got = await house.ask(method, path, accept="application/json", user_agent="x", cookie="a=b")
    chunks = () if method == "HEAD" else (b"Ollama is", b" running")
    assert (got.status, got.chunks, got.headers["x-request-id"][:4]) == (200, chunks, "req_")
    assert [(name.encode(), value.encode()) for name, value in got.headers.items()][:3] == [*PLAIN]
    (call,) = house.ollama.calls
    assert (call.method, call.path, call.body) == (method, path, b"")
    assert dict(call.headers) == {b"accept": b"application/json", b"user-agent": b"x"}
    assert call.ending is not None


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
@within(lambda: HttpHouse(FakeModel(name="a:cloud", remote_host="https://ollama.com:443")))
async def test_models_of_ollamas_own_cloud_are_not_offered(house, path, listed, left):
    said = json.dumps(listed).encode()
    length = (b"content-length", b"%d" % len(said))
    house.list_as(said[:20], said[20:], headers=(length,))
    got = await house.ask("GET", path)
    assert (got.status, got.json, got.headers["content-length"]) == (200, left, str(len(got.body)))


@pytest.mark.parametrize(
    ("method", "path", "media"),
    [
        ("POST", "/api/show?verbose=1", "json"),
        ("POST", "/api/pull", "json"),
        ("DELETE", "/api/delete", "json"),
        ("HEAD", "/api/blobs/sha256:a", "octet-stream"),
        ("POST", "/api/blobs/sha256:a", "octet-stream"),
    ],
)
async def test_a_body_and_a_query_go_along_and_an_admin_key_manages_models(
    keyed, method, path, media
):
    keyed.list_as(b'{"error":"model \'x:latest\' not found"}', status=404)
    got = await keyed.ask(
        method, path, b"\x00\xff", key=ADMIN_KEY, content_type=f"application/{media}"
    )
    assert got.status == 404
    (call,) = keyed.ollama.calls
    assert (call.method, call.path, call.headers) == (
        method,
        path,
        ((b"content-type", f"application/{media}".encode()),),
    )
    if method == "HEAD":
        assert (call.body, got.body) == (b"", b"")
    else:
        assert (call.body, got.error) == (b"\x00\xff", "model 'x:latest' not found")


@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("path", ["/api/tags", "/v1/models"])
async def test_what_a_proxy_says_in_place_of_the_model_server_is_an_error_in_json(
    house, path, status
):
    html = ((b"content-type", b"text/html"),)
    house.list_as(b"<html>Bad Gateway</html>", status=status, headers=html)
    got = await house.ask("GET", path)
    assert (got.status, got.error) == (
        status,
        f"A proxy before the model server answered {status} in its place.",
    )
    assert house.ollama.calls[0].ending is Ending.CLOSED


@pytest.mark.parametrize("path", ["/api/tags", "/v1/models"])
async def test_a_backend_that_is_down_is_503(house, path):
    house.ollama.go_down()
    got = await house.ask("GET", path)
    assert (got.status, got.headers["retry-after"]) == (503, "5")
    assert "cannot be reached" in got.error


async def test_an_answer_without_a_queue_that_breaks_stays_unfinished(house):
    house.list_as(b"half", b"")
    house.ollama.next_calls(CallFault.GONE_MID_STREAM)
    got = await house.ask("GET", "/api/tags")
    assert (got.chunks, got.complete) == ((b"half",), False)
    assert house.ollama.calls[0].ending is Ending.BROKEN
