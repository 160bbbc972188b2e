"""The adapter before a llama-server that says what a real one was recorded to say, and worse."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.dialects.request import is_model_name
from hearth.dialects.routes import Endpoint
from hearth.dialects.stream import proxy_failure
from hearth.engines.llama_server.control import name_in, served_in
from hearth.engines.llama_server.engine import LlamaServer
from hearth.errors import BackendError, BackendGone, BackendProtocolError, BadRequest
from hearth.types import JSON_BODY, BackendCall, LoadOptions
from tests.dialects.test_any_value import with_odd_values
from tests.engines.stub_server import LAST_CHUNK, Peer, StubServer, chunked, read
from tests.support.fields import Fields
from tests.support.llama_server_wire import recorded

MODEL = "tiny.gguf"
"""The recorded server lists `/models/tiny.gguf`."""
KEY = "key-of-the-server"
UNPINNED = LoadOptions()
HI: Any = [{"role": "user", "content": "hi"}]
Answer = tuple[int, bytes, str]
"""Status, body and content type."""
SSE = "text/event-stream"
JSON = "application/json; charset=utf-8"


def as_recorded(name: str) -> Answer:
    answer = recorded(name)
    return answer.status, answer.body, answer.headers["content-type"]


ABOUT = {"/props": as_recorded("props"), "/v1/models": as_recorded("route_v1_models")}


class Script:
    """What the server answers, by path, and what it was asked."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = {**ABOUT, **answers}
        self.asked: list[Peer] = []

    async def __call__(self, peer: Peer) -> None:
        self.asked.append(peer)
        status, body, kind = self.answers[peer.path]
        head = f"HTTP/1.1 {status} Whatever\r\nContent-Type: {kind}\r\n"
        if kind == SSE:
            await peer.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            await peer.send(chunked(*[one + b"\n\n" for one in body.split(b"\n\n") if one]))
            await peer.send(LAST_CHUNK)
        else:
            await peer.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    @property
    def calls(self) -> list[Peer]:
        """Without the questions about the server itself."""
        return [peer for peer in self.asked if peer.path not in ABOUT]


def engine_at(url: str, **options: Any) -> LlamaServer:
    times: Any = {"connect_timeout_s": 30.0, "control_timeout_s": 30.0}
    return LlamaServer(url, clock=SystemClock(), **times, **options)


@asynccontextmanager
async def before(
    answers: Mapping[str, Answer] | None = None, **options: Any
) -> AsyncIterator[tuple[LlamaServer, Script]]:
    script = Script(answers or {})
    async with StubServer(script) as server:
        engine = engine_at(server.url, **options)
        async with aclosing(engine):
            yield engine, script


def post(path: str, **fields: Any) -> BackendCall:
    body = json.dumps({"model": MODEL, **fields}).encode()
    return BackendCall(method="POST", path=path, headers=JSON_BODY, body=body)


async def whole(engine: LlamaServer, call: BackendCall) -> tuple[int, Fields]:
    exchange = await engine.open(call)
    body = b"".join(await read(exchange))
    return exchange.status, json.loads(body)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("tiny", "tiny"),
        ("ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"),
        ("/models/tiny.gguf", "tiny.gguf"),
        ("C:\\models\\tiny.gguf", "tiny.gguf"),
        ("/models/my model (1).gguf", "my-model-1-.gguf"),
        ("...", "model"),
    ],
)
def test_a_model_goes_by_the_name_of_the_server_or_of_its_file(written: str, name: str):
    assert name_in(written) == name


async def test_what_the_server_says_of_its_model_is_listed():
    async with before() as (engine, _):
        [model] = await engine.installed()
        assert (model.name, model.slots) == (MODEL, 2)
        assert len(model.digest) == 64
        [resident] = await engine.resident()
        assert (resident.name, resident.context_tokens) == (MODEL, 2048)
        assert await engine.version() == "b0-unknown"


@pytest.mark.parametrize("name", ["props", "route_v1_models"])
def test_no_value_in_any_place_breaks_what_is_said_of_a_model(name: str):
    props = recorded("props").answered
    models = recorded("route_v1_models").answered
    for odd in with_odd_values(recorded(name).answered):
        said = (odd, models) if name == "props" else (props, odd)
        served = served_in(*said)
        assert served.names
        assert all(is_model_name(each) for each in served.names)
        assert served.slots >= 1


async def test_another_model_is_another_list_and_another_digest():
    async with before() as (engine, script):
        [before_it] = await engine.installed()
        other = recorded("route_v1_models").answered
        other["data"][0]["meta"]["size"] += 1
        script.answers["/v1/models"] = (200, json.dumps(other).encode(), JSON)
        [after_it] = await engine.installed()
        assert (after_it.name, after_it.digest != before_it.digest) == (MODEL, True)


HTML = (200, b"<html>", "text/html")


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("/props", as_recorded("loading_503_props"), "GET /props answered 503: Loading model"),
        ("/props", as_recorded("key_none"), "engines.main.api_key is not the key of this server"),
        ("/props", as_recorded("router_props"), "a router of several models"),
        ("/props", HTML, "engines.main.url must lead to llama-server"),
        ("/props", (404, b"{}", JSON), "answered 404; 200 with an object with `total_slots`"),
        ("/v1/models", (200, b"[]", JSON), "200 with an object with the list `data`"),
    ],
)
async def test_a_server_that_is_not_as_it_should_be_is_described(
    path: str, answer: Answer, says: str
):
    async with before({path: answer}) as (engine, _):
        with pytest.raises(BackendProtocolError) as caught:
            await engine.installed()
        assert says in caught.value.message


async def test_the_key_goes_with_every_call_and_a_callers_own_fields_do_not():
    answers = {Endpoint.OPENAI_CHAT.value: as_recorded("oai_chat_stream")}
    async with before(answers, api_key=KEY) as (engine, script):
        await engine.version()
        headers = (*JSON_BODY, (b"x-conversation-id", b"1"), (b"authorization", b"Bearer theirs"))
        call = post(Endpoint.OPENAI_CHAT, messages=HI, stream=True)
        await read(await engine.open(BackendCall(**{**_fields(call), "headers": headers})))
        for peer in script.asked:
            given = dict(peer.fields)
            assert given[b"authorization"] == f"Bearer {KEY}".encode()
            assert b"x-conversation-id" not in given


def _fields(call: BackendCall) -> Fields:
    return {"method": call.method, "path": call.path, "body": call.body}


async def test_a_refused_key_is_no_fault_of_the_caller():
    async with before({Endpoint.OPENAI_CHAT.value: as_recorded("key_none")}) as (engine, _):
        with pytest.raises(BackendProtocolError, match=r"engines\.main\.api_key"):
            await engine.open(post(Endpoint.OPENAI_CHAT, messages=HI, stream=True))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (Endpoint.OPENAI_CHAT, "oai_chat_stream"),
        (Endpoint.OPENAI_COMPLETIONS, "oai_completions_stream"),
        (Endpoint.ANTHROPIC_MESSAGES, "messages_stream"),
        (Endpoint.OPENAI_RESPONSES, "responses_stream"),
    ],
)
async def test_a_stream_of_its_own_routes_goes_through_as_bytes(path: Endpoint, name: str):
    async with before({path.value: as_recorded(name)}) as (engine, script):
        call = post(path, messages=HI, stream=True)
        exchange = await engine.open(call)
        assert b"".join(await read(exchange)).strip() == recorded(name).body.strip()
        assert [peer.body for peer in script.calls] == [call.body]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (Endpoint.OPENAI_CHAT, "oai_chat_stream_usage"),
        (Endpoint.OPENAI_COMPLETIONS, "oai_completions_stream"),
        (Endpoint.ANTHROPIC_MESSAGES, "messages_stream"),
        (Endpoint.OPENAI_RESPONSES, "responses_stream"),
        (Endpoint.CHAT, "oai_chat_stream_usage"),
        (Endpoint.GENERATE, "oai_chat_stream_usage"),
    ],
)
async def test_a_whole_answer_is_asked_for_as_a_stream(path: Endpoint, name: str):
    upstream = Endpoint.OPENAI_CHAT.value if path.startswith("/api") else path.value
    async with before({upstream: as_recorded(name)}) as (engine, script):
        status, answer = await whole(engine, post(path, messages=HI, prompt="hi", stream=False))
        [peer] = script.calls
        assert (status, peer.path, peer.json["stream"]) == (200, upstream, True)
        assert "window" in json.dumps(answer) or "the opens" in json.dumps(answer)


async def test_a_stream_that_ends_early_is_no_whole_answer():
    cut = recorded("oai_chat_stream_usage").body.partition(b"data: [DONE]")[0]
    answers = {Endpoint.OPENAI_CHAT.value: (200, cut, SSE)}
    async with before(answers) as (engine, _):
        with pytest.raises(BackendGone):
            await engine.open(post(Endpoint.OPENAI_CHAT, messages=HI))


ERROR = {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}}
IN_DIALECT = {
    Endpoint.CHAT: {"error": "too long"},
    Endpoint.GENERATE: {"error": "too long"},
    Endpoint.OPENAI_CHAT: ERROR,
    Endpoint.ANTHROPIC_MESSAGES: {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "too long"},
    },
}


@pytest.mark.parametrize("path", list(IN_DIALECT))
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_an_error_is_in_the_words_of_who_asked(path: Endpoint, is_streamed: bool):
    refusal = (400, json.dumps(ERROR).encode(), JSON)
    paths = (Endpoint.OPENAI_CHAT, Endpoint.ANTHROPIC_MESSAGES)
    async with before(dict.fromkeys(map(str, paths), refusal)) as (engine, _):
        call = post(path, messages=HI, prompt="hi", stream=is_streamed)
        assert await whole(engine, call) == (400, IN_DIALECT[path])


@pytest.mark.parametrize("path", [Endpoint.OPENAI_CHAT, Endpoint.CHAT])
async def test_an_error_within_the_stream_of_a_whole_answer_is_that_answer(path: Endpoint):
    body = b"data: " + json.dumps(ERROR).encode() + b"\n\n"
    async with before({Endpoint.OPENAI_CHAT.value: (200, body, SSE)}) as (engine, _):
        status, answer = await whole(engine, post(path, messages=HI, stream=False))
        assert (status, answer) == (400, IN_DIALECT[path])


async def test_a_model_that_is_loading_is_busy_for_everybody():
    loading = as_recorded("loading_503_v1_chat_completions")
    async with before({Endpoint.OPENAI_CHAT.value: loading}) as (engine, _):
        for path in (Endpoint.OPENAI_CHAT, Endpoint.CHAT):
            status, answer = await whole(engine, post(path, messages=HI))
            assert (status, answer["error"]["message"]) == (503, "Loading model")


@pytest.mark.parametrize("path", [Endpoint.OPENAI_CHAT, Endpoint.CHAT])
async def test_a_page_of_a_proxy_stays_one(path: Endpoint):
    async with before({Endpoint.OPENAI_CHAT.value: (502, b"<html>", "text/html")}) as (engine, _):
        exchange = await engine.open(post(path, messages=HI))
        assert proxy_failure(exchange.status, exchange.headers) is not None
        exchange.close()


async def test_vectors_are_asked_for_once_in_both_words():
    answers = {Endpoint.OPENAI_EMBEDDINGS.value: as_recorded("embeddings")}
    async with before(answers) as (engine, script):
        _, native = await whole(engine, post(Endpoint.EMBED, input=["hi", "the house"]))
        _, openai = await whole(engine, post(Endpoint.OPENAI_EMBEDDINGS, input=["hi", "b"]))
        assert native["embeddings"] == [one["embedding"] for one in openai["data"]]
        assert script.calls[0].json == {"model": MODEL, "input": ["hi", "the house"]}


async def test_an_answer_without_vectors_is_named():
    answers = {Endpoint.OPENAI_EMBEDDINGS.value: (200, b'{"data":[{"index":0}]}', JSON)}
    async with before(answers) as (engine, _):
        with pytest.raises(BackendProtocolError, match="an embedding for each input"):
            await engine.open(post(Endpoint.EMBED, input="hi"))


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (Endpoint.CHAT, {"done": True, "done_reason": "load"}),
        (Endpoint.GENERATE, {"done": True, "done_reason": "load"}),
        (Endpoint.EMBED, {"embeddings": []}),
        (Endpoint.EMBEDDINGS, {"embedding": []}),
    ],
)
async def test_a_request_for_nothing_asks_the_server_nothing(path: Endpoint, answer: Fields):
    async with before() as (engine, script):
        status, said = await whole(engine, post(path))
        assert (status, answer.items() <= said.items()) == (200, True)
        assert script.calls == []


async def test_a_page_is_not_sent_to_who_asks_for_its_head_alone():
    async with before() as (engine, _):
        exchange = await engine.open(BackendCall(method="HEAD", path="/api/tags"))
        assert (exchange.status, await read(exchange)) == (200, [])


async def test_a_sign_of_life_while_a_prompt_is_read_is_passed_on_as_nothing():
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {SSE}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    stream = recorded("oai_chat_stream_usage").body
    alive = asyncio.Event()

    async def serve(peer: Peer) -> None:
        if peer.path in ABOUT:
            await Script({})(peer)
            return
        await peer.send(head, chunked(b":\n\n"))
        await alive.wait()
        await peer.send(chunked(stream), LAST_CHUNK)

    async with StubServer(serve) as server, aclosing(engine_at(server.url)) as engine:
        exchange = await engine.open(post(Endpoint.CHAT, messages=HI))
        assert await exchange.take() == (b"",)
        alive.set()
        lines = [json.loads(line) for line in await read(exchange)]
        assert [line["done"] for line in lines] == [False, False, True]


async def test_comments_while_a_prompt_is_read_are_no_beginning_of_an_answer():
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {SSE}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    stream = recorded("oai_chat_stream_usage").body
    alive = asyncio.Event()

    async def serve(peer: Peer) -> None:
        if peer.path in ABOUT:
            await Script({})(peer)
            return
        await peer.send(head, chunked(b":\n\n:"))
        await alive.wait()
        await peer.send(chunked(b" reads\n\n" + stream, b": kept\n\n"), LAST_CHUNK)

    async with StubServer(serve) as server, aclosing(engine_at(server.url)) as engine:
        exchange = await engine.open(post(Endpoint.OPENAI_CHAT, messages=HI, stream=True))
        assert await exchange.take() == (b"",)
        alive.set()
        assert b"".join(await read(exchange)) == stream + b": kept\n\n"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("comment", [b"", b":\n\n"])
async def test_a_message_begins_where_the_server_leaves_its_beginning_out(
    comment: bytes, *, streams: bool
):
    """As its build of October 2026 does where the first sign of a text, such as an emoji, comes in
    several tokens.
    """
    start, _, rest = recorded("messages_stream").body.partition(b"\n\n")
    assert start.startswith(b"event: message_start")
    path = Endpoint.ANTHROPIC_MESSAGES
    async with before({path: (200, comment + rest, SSE)}) as (engine, _):
        call = post(path, messages=HI, max_tokens=2, stream=streams)
        body = b"".join(await read(await engine.open(call)))
        if streams:
            assert body.endswith(b"\n\n" + rest)
            assert body.count(b"event: message_start") == 1
        first = body.split(b"data: ")[1].partition(b"\n")[0] if streams else body
        message = json.loads(first)["message"] if streams else json.loads(first)
        assert (message["role"], message["model"], message["type"]) == (
            "assistant",
            MODEL,
            "message",
        )
        assert message["usage"]["input_tokens"] > 0


async def test_the_beginning_of_a_message_is_made_beside_the_loop():
    """It is read from the whole request, and how the answer begins is up to its caller."""
    _, _, rest = recorded("messages_stream").body.partition(b"\n\n")
    path = Endpoint.ANTHROPIC_MESSAGES
    said = [{"role": "user", "content": [{"type": "text", "text": "x"}] * 45_000}]
    async with before({path: (200, rest, SSE)}) as (engine, _):
        exchange = await engine.open(post(path, messages=said, max_tokens=2, stream=True))
        began_s = time.thread_time()
        chunks = await exchange.take()
        assert time.thread_time() - began_s < 0.2
        assert chunks[0].startswith(b"event: message_start")
        exchange.close()


async def test_a_query_stays_here():
    answers = {Endpoint.ANTHROPIC_MESSAGES.value: as_recorded("messages_stream")}
    async with before(answers) as (engine, script):
        call = post(f"{Endpoint.ANTHROPIC_MESSAGES}?beta=true", messages=HI, stream=True)
        await read(await engine.open(call))
        assert [peer.path for peer in script.calls] == [Endpoint.ANTHROPIC_MESSAGES]


async def test_a_page_for_a_browser_is_no_answer():
    answers = {Endpoint.OPENAI_CHAT.value: (200, b"<html>", "text/html; charset=utf-8")}
    async with before(answers) as (engine, _):
        for path in (Endpoint.OPENAI_CHAT, Endpoint.CHAT):
            with pytest.raises(BackendProtocolError, match=r"web page.*engines\.main\.url"):
                await engine.open(post(path, messages=HI))


async def test_pages_of_ollama_tell_of_the_one_model():
    async with before() as (engine, _):

        async def page(path: str, method: str = "GET", **fields: Any) -> tuple[int, Fields]:
            body = json.dumps(fields).encode()
            return await whole(engine, BackendCall(method=method, path=path, body=body))

        _, tags = await page("/api/tags")
        [model] = tags["models"]
        assert (model["name"], model["size"]) == (MODEL, 2949632)
        assert (await page("/api/version"))[1] == {"version": "b0-unknown"}
        _, resident = await page("/api/ps")
        [loaded] = resident["models"]
        assert (loaded["name"], loaded["context_length"]) == (MODEL, 2048)
        _, listed = await page("/v1/models")
        assert [one["id"] for one in listed["data"]] == [MODEL]
        assert (await page(f"/v1/models/{MODEL}"))[1]["id"] == MODEL
        assert (await page("/v1/models/none"))[0] == 404
        status, shown = await page("/api/show", "POST", model=MODEL)
        assert (status, shown["capabilities"]) == (200, ["completion"])
        [known] = await engine.installed()
        assert known.abilities == frozenset({"completion"})
        assert await page("/api/show", "POST", model="x") == (404, {"error": "model 'x' not found"})


async def test_a_prompt_is_shown_as_the_server_renders_it():
    shown = (200, b'{"prompt":"<user>hi"}', JSON)
    async with before({"/apply-template": shown}) as (engine, script):
        for path in (Endpoint.CHAT, Endpoint.OPENAI_CHAT):
            said = {"role": "assistant", "content": "yes"}
            thought = {"thinking": "hm"} if path is Endpoint.CHAT else {"reasoning": "hm"}
            asked = post(path, messages=[*HI, {**said, **thought}], _debug_render_only=True)
            status, answer = await whole(engine, asked)
            assert (status, answer["_debug_info"]) == (200, {"rendered_template": "<user>hi"})
        for peer in script.calls:
            assert peer.json["messages"][-1]["reasoning_content"] == "hm"


async def test_what_cannot_be_carried_is_refused_before_anybody_waits():
    async with before() as (engine, script):
        refused: tuple[tuple[Endpoint, Fields], ...] = (
            (Endpoint.GENERATE, {"prompt": "a", "suffix": "b"}),
            (Endpoint.CHAT, {"messages": HI, "options": {"tfs_z": 1}}),
        )
        for path, fields in refused:
            with pytest.raises(BadRequest):
                engine.check_request(path, {"model": MODEL, **fields})
        engine.check_request(Endpoint.CHAT, {"model": MODEL, "messages": HI})
        engine.check_request(Endpoint.CHAT, {"model": MODEL})
        engine.check_request(Endpoint.OPENAI_CHAT, {"suffix": "b"})
        assert script.asked == []


async def test_a_call_that_is_left_ends_its_connection():
    began = asyncio.Event()
    left = asyncio.Event()

    async def serve(peer: Peer) -> None:
        if peer.path in ABOUT:
            await Script({})(peer)
            return
        began.set()
        await peer.left()
        left.set()

    async with StubServer(serve) as server:
        engine = engine_at(server.url)
        async with aclosing(engine):
            waiting = asyncio.create_task(_open(engine))
            await began.wait()
            waiting.cancel()
            await left.wait()


async def _open(engine: LlamaServer) -> None:
    await engine.open(post(Endpoint.OPENAI_CHAT, messages=HI))


@pytest.mark.parametrize(
    ("answer", "works"),
    [(as_recorded("oai_completions_stream"), True), ((500, b"{}", JSON), True)],
)
async def test_a_probe_asks_for_one_token(answer: Answer, works: bool):
    async with before({Endpoint.OPENAI_COMPLETIONS.value: answer}) as (engine, script):
        assert await engine.probe(MODEL, UNPINNED, 30.0) is works
        assert script.calls[0].json["max_tokens"] == 1


async def test_a_probe_without_an_answer_tells_that_nothing_works():
    async with StubServer(_silent) as server:
        engine = engine_at(server.url)
        async with aclosing(engine):
            assert await engine.probe(MODEL, UNPINNED, 0.05) is False


async def test_a_server_that_is_not_there_is_unreachable():
    engine = engine_at("http://127.0.0.1:9")
    async with aclosing(engine):
        asks: tuple[Callable[[], Any], ...] = (engine.version, engine.installed)
        for ask in asks:
            with pytest.raises(BackendError):
                await ask()


async def _silent(peer: Peer) -> None:
    await peer.left()


async def test_what_makes_no_line_yet_is_a_sign_of_life():
    """A long tool call makes none for minutes."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {SSE}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    part = {"index": 0, "function": {"name": "f", "arguments": "{"}}
    chunk = json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [part]}}]}).encode()

    async def serve(peer: Peer) -> None:
        if peer.path in ABOUT:
            await Script({})(peer)
            return
        await peer.send(head, chunked(b"data: " + chunk + b"\n\n"))
        await asyncio.Event().wait()

    async with StubServer(serve) as server, aclosing(engine_at(server.url)) as engine:
        exchange = await engine.open(post(Endpoint.CHAT, messages=HI))
        assert await exchange.take() == (b"",)
        exchange.close()


BAD_TOOLS = b'{"error":{"code":500,"message":"Failed to parse tools: 5","type":"server_error"}}'
TOO_LARGE = b'{"error":{"code":500,"message":"input (9 tokens) is too large to process"}}'
NO_IMAGES = b'{"error":{"code":500,"message":"image input is not supported - hint: if","type":"x"}}'
BROKEN = b'{"error":{"code":500,"message":"Compute error.","type":"server_error"}}'


@pytest.mark.parametrize(
    ("path", "sent", "body", "status"),
    [
        (Endpoint.CHAT, Endpoint.OPENAI_CHAT, BAD_TOOLS, 400),
        (Endpoint.OPENAI_CHAT, Endpoint.OPENAI_CHAT, BAD_TOOLS, 400),
        (Endpoint.ANTHROPIC_MESSAGES, Endpoint.ANTHROPIC_MESSAGES, BAD_TOOLS, 400),
        (Endpoint.OPENAI_EMBEDDINGS, Endpoint.OPENAI_EMBEDDINGS, TOO_LARGE, 400),
        (Endpoint.CHAT, Endpoint.OPENAI_CHAT, NO_IMAGES, 400),
        (Endpoint.OPENAI_CHAT, Endpoint.OPENAI_CHAT, NO_IMAGES, 400),
        (Endpoint.OPENAI_CHAT, Endpoint.OPENAI_CHAT, BROKEN, 500),
    ],
)
async def test_a_mistake_of_the_caller_is_no_fault_of_the_server(
    path: Endpoint, sent: Endpoint, body: bytes, status: int
):
    async with before({str(sent): (500, body, JSON)}) as (engine, _):
        answered = await whole(engine, post(path, messages=HI, input="a"))
        assert answered[0] == status
        assert json.loads(body)["error"]["message"] in json.dumps(answered[1])


async def test_a_field_of_the_name_within_another_one_makes_no_stream():
    answers = {str(Endpoint.OPENAI_CHAT): as_recorded("oai_chat_stream_usage")}
    async with before(answers) as (engine, script):
        call = post(Endpoint.OPENAI_CHAT, messages=HI, metadata={"stream": True}, stream=False)
        assert (await whole(engine, call))[1]["object"] == "chat.completion"
        assert json.loads(script.calls[0].body)["stream"] is True
