"""The adapter before servers with OpenAI's API that say what is scripted, and worse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.stream import StreamTail
from hearth.engines.openai_server.engine import OpenAiServer
from hearth.errors import (
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendUnreachable,
    BadRequest,
    LoadError,
)
from hearth.types import BackendCall, LoadOptions
from tests.engines.openai_server.scripted import (
    JSON,
    SSE,
    Answer,
    Scripted,
    events,
    post,
    said,
    whole,
)
from tests.engines.stub_server import LAST_CHUNK, Peer, StubServer, chunked, read
from tests.support.fields import Fields

KEY = "key-of-the-server"
HI: Any = [{"role": "user", "content": "hi"}]
CHAT = Endpoint.OPENAI_CHAT.value


def delta(reason: str | None = None, **fields: Any) -> Fields:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}
HELLO: Answer = (
    200,
    events(delta(reasoning="hm"), delta(content="he"), delta("stop", content="y"), USAGE),
    SSE,
)


def listing(*names: str, **fields: Any) -> Answer:
    return said(200, object="list", data=[{"id": name, **fields} for name in names])


@asynccontextmanager
async def before(
    answers: Mapping[str, Answer] | None = None, *names: str, **options: Any
) -> AsyncIterator[tuple[OpenAiServer, Scripted]]:
    script = Scripted({"/v1/models": listing(*(names or ("m",))), **(answers or {})})
    async with StubServer(script) as server, aclosing(engine_at(server.url, **options)) as engine:
        yield engine, script


def engine_at(url: str, **options: Any) -> OpenAiServer:
    times: Any = {"connect_timeout_s": 30.0, "control_timeout_s": 30.0}
    return OpenAiServer(url, clock=SystemClock(), **times, **options)


async def test_what_is_listed_is_there_and_takes_nothing_of_the_card():
    async with before({}, "gpt-x", "org/Big") as (engine, _):
        installed = await engine.installed()
        assert [(model.name, model.slots) for model in installed] == [
            ("gpt-x", None),
            ("org/Big", None),
        ]
        assert [model.name for model in await engine.resident()] == ["gpt-x", "org/Big"]
        assert (engine.on_card, engine.loads_on_request) == (False, False)
        assert engine.continuations() is None
        assert await engine.installed() is installed
        with pytest.raises(LoadError):
            await engine.unload("gpt-x")


async def test_a_list_that_changes_is_another_one():
    async with before({}, "a") as (engine, script):
        assert [model.name for model in await engine.installed()] == ["a"]
        script.answers["/v1/models"] = listing("b")
        assert [model.name for model in await engine.installed()] == ["b"]
        assert (await whole(engine, post(CHAT, "a", messages=HI)))[0] == 404
        assert script.sent_to(CHAT) == []


@pytest.mark.parametrize(
    ("upstream", "name"),
    [
        ("gpt-x", "gpt-x"),
        ("org/Big-1B", "org/Big-1B"),
        ("accounts/one/models/big", "big"),
        ("/models/my file.gguf", "my-file.gguf"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, Endpoint.CHAT, Endpoint.ANTHROPIC_MESSAGES])
async def test_a_model_is_asked_for_by_the_servers_own_name(upstream: str, name: str, path: str):
    async with before({CHAT: HELLO}, upstream) as (engine, script):
        assert [model.name for model in await engine.installed()] == [name]
        for written in (name, name.upper()):
            call = post(path, written, messages=HI, max_tokens=5, metadata={"model": "no"})
            assert (await whole(engine, changed(call, stream=False)))[0] == 200
        assert [peer.json["model"] for peer in script.sent_to(CHAT)] == [upstream] * 2


@pytest.mark.parametrize("path", [CHAT, Endpoint.SPEECH.value])
@pytest.mark.parametrize(
    "names",
    [
        '"model":"secret","Model":"m"',
        '"model":"secret","Mod\\u0065l":"m"',
        '"mod\\u0065l":"secret","MODEL":"m"',
        '"model":"secret","model":"m"',
        '"model":"secret","mod\\u0065l":"m"',
    ],
)
async def test_the_server_goes_by_the_name_that_rights_were_checked_by(names: str, path: str):
    async with before({CHAT: HELLO, path: HELLO}, "m", "secret") as (engine, script):
        asked = f'{{{names},"messages":[],"stream":true}}'.encode()
        exchange = await engine.open(BackendCall(method="POST", path=path, body=asked))
        await read(exchange)
        [peer] = script.sent_to(path)
        assert {key: peer.json[key] for key in peer.json if key.lower() == "model"} == {
            "model": "m"
        }
        assert b"secret" not in peer.body  # of two keys, some servers go by the first


@pytest.mark.parametrize("streams", [None, True])
async def test_only_the_requests_own_field_asks_for_a_stream(streams: bool | None):
    async with before({CHAT: HELLO}, "m") as (engine, script):
        own = {} if streams is None else {"stream": streams}
        call = post(
            CHAT, "m", **own, messages=HI, metadata={"a": 1} if streams else {"stream": True}
        )
        exchange = await engine.open(call)
        assert dict(exchange.headers)[b"content-type"].startswith(
            b"text/event-stream" if streams else b"application/json"
        )
        await read(exchange)
        [peer] = script.sent_to(CHAT)
        assert peer.json["stream"] is True


def asking(path: str, **fields: Any) -> BackendCall:
    own: Fields = {"input": "hi"} if path == Endpoint.OPENAI_RESPONSES else {"messages": HI}
    own |= {"max_tokens": 5} if path == Endpoint.ANTHROPIC_MESSAGES else {}
    return post(path, "m", **own, **fields)


def changed(call: Any, **fields: Any) -> Any:
    return post(call.path, **{**json.loads(call.body), **fields})


async def test_names_that_would_be_one_are_told_apart():
    async with before({}, "a/b/c/big", "d/e/f/big") as (engine, _):
        assert [model.name for model in await engine.installed()] == ["big", "d-e-f-big"]


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("/v1/models", said(401, error="Unauthorized"), "engines.main.api_key is not the key"),
        ("/v1/models", (200, b"<html>", "text/html"), "engines.main.url must lead to"),
        ("/v1/models", said(404, detail="Not Found"), "answered 404; 200 with an object"),
    ],
)
async def test_a_server_that_is_not_as_it_should_be_is_described(
    path: str, answer: Answer, says: str
):
    async with before({path: answer}) as (engine, _):
        for ask in (engine.installed, engine.version):
            with pytest.raises(BackendProtocolError) as caught:
                await ask()
            assert says in caught.value.message


async def test_the_key_goes_with_every_call():
    async with before({CHAT: HELLO}, api_key=KEY) as (engine, script):
        await engine.installed()
        await whole(engine, post(CHAT, "m", messages=HI))
        assert {dict(peer.fields)[b"authorization"] for peer in script.asked} == {
            f"Bearer {KEY}".encode()
        }


@pytest.mark.parametrize("path", [CHAT, Endpoint.CHAT, Endpoint.ANTHROPIC_MESSAGES])
async def test_a_refused_key_is_no_fault_of_the_caller(path: str):
    async with before({CHAT: said(401, error="Unauthorized")}) as (engine, _):
        with pytest.raises(BackendProtocolError, match=r"engines\.main\.api_key"):
            await engine.open(post(path, "m", messages=HI, max_tokens=5))


@pytest.mark.parametrize(
    "answer",
    [said(400, error={"message": "no model"}), said(422, detail=[{"msg": "Field required"}])],
)
async def test_a_route_that_reads_bodies_is_used_as_it_is(answer: Answer):
    path = Endpoint.ANTHROPIC_MESSAGES.value
    async with before({path: answer}) as (engine, script):
        await engine.installed()
        message = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        script.answers[path] = (200, message, SSE)
        call = post(path, "m", messages=HI, max_tokens=5, stream=True, mcp_servers=[1])
        engine.check_request(path, json.loads(call.body))
        assert b"".join(await read(await engine.open(call))) == message
        assert [peer.body for peer in script.sent_to(path)] == [call.body]


@pytest.mark.parametrize(
    "answer", [said(404), said(405), (200, b"<html>", "text/html"), (400, b"", JSON)]
)
async def test_a_route_that_is_not_there_is_translated(answer: Answer):
    path = Endpoint.ANTHROPIC_MESSAGES.value
    async with before({path: answer, CHAT: HELLO}) as (engine, script):
        await engine.installed()
        status, message = await whole(engine, post(path, "m", messages=HI, max_tokens=5))
        assert (status, message["content"][-1]) == (200, {"type": "text", "text": "hey"})
        assert len(script.sent_to(CHAT)) == 1


async def test_a_route_that_breaks_off_takes_no_model_away():
    async with before({CHAT: HELLO}) as (engine, script):
        script.answers["/v1/responses"] = (200, b"data: x\n\n", SSE)
        assert [model.name for model in await engine.installed()] == ["m"]
        call = post(Endpoint.OPENAI_RESPONSES, "m", input="hi", stream=None)
        status, answer = await whole(engine, call)
        assert (status, answer["object"]) == (200, "response")


async def test_a_refusal_is_told_as_one():
    refused = events(delta(content=None, refusal="I must not"), delta("content_filter"), USAGE)
    async with before({CHAT: (200, refused, SSE)}) as (engine, _):
        call = post(Endpoint.ANTHROPIC_MESSAGES, "m", messages=HI, max_tokens=5)
        _, message = await whole(engine, call)
        assert (message["content"], message["stop_reason"]) == (
            [{"type": "text", "text": "I must not"}],
            "refusal",
        )


async def test_a_server_that_comes_back_is_asked_for_its_routes_again():
    path = Endpoint.ANTHROPIC_MESSAGES.value
    async with before({CHAT: HELLO}) as (engine, script):
        await engine.installed()
        listed = script.answers.pop("/v1/models")
        with pytest.raises(BackendProtocolError):
            await engine.installed()
        script.answers |= {"/v1/models": listed, path: said(400, error="x")}
        await engine.installed()
        engine.check_request(path, {"model": "m", "mcp_servers": [1]})


async def test_a_message_is_told_whole_and_streamed_alike():
    path = Endpoint.ANTHROPIC_MESSAGES.value
    async with before({CHAT: HELLO}) as (engine, script):
        _, message = await whole(engine, post(path, "m", messages=HI, max_tokens=5))
        assert message["content"] == [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "hey"},
        ]
        assert message["usage"] == {
            "input_tokens": 5,
            "output_tokens": 2,
            "cache_read_input_tokens": 4,
        }
        exchange = await engine.open(post(path, "m", messages=HI, max_tokens=5, stream=True))
        assert dict(exchange.headers)[b"content-type"] == b"text/event-stream"
        tail = StreamTail(INFERENCE_ROUTES[path])
        tail.feed(b"".join(await read(exchange)))
        ending = tail.ending()
        assert (ending.complete, ending.usage.prompt_tokens, ending.usage.cached_tokens) == (
            True,
            9,
            4,
        )
        assert {peer.json["stream"] for peer in script.sent_to(CHAT)} == {True}


IN_DIALECT: dict[str, Callable[[str], Fields]] = {
    Endpoint.CHAT.value: lambda text: {"error": text},
    Endpoint.ANTHROPIC_MESSAGES.value: lambda text: {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": text},
    },
    Endpoint.OPENAI_RESPONSES.value: lambda text: {
        "error": {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    },
    CHAT: lambda text: {
        "error": {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    },
}


@pytest.mark.parametrize("path", IN_DIALECT)
@pytest.mark.parametrize("shape", ["error", "message", "detail"])
async def test_an_error_of_any_shape_is_in_the_words_of_who_asked(path: str, shape: str):
    async with before({CHAT: said(400, **{shape: "cannot be loaded"})}) as (engine, _):
        call = asking(path)
        assert await whole(engine, call) == (400, IN_DIALECT[path]("cannot be loaded"))


@pytest.mark.parametrize("path", IN_DIALECT)
async def test_a_server_that_dies_within_an_answer_has_not_answered(path: str):
    cut = (200, events(delta(content="a"), done=False), SSE)
    async with before({CHAT: cut}) as (engine, _):
        call = asking(path, stream=False)
        with pytest.raises(BackendGone):
            await engine.open(call)
        exchange = await engine.open(changed(call, stream=True))
        with pytest.raises(BackendGone):
            await read(exchange)


@pytest.mark.parametrize("path", IN_DIALECT)
async def test_an_error_within_a_stream_ends_it(path: str):
    broken = (200, events(delta(content="a"), {"error": {"message": "it broke"}}), SSE)
    async with before({CHAT: broken}) as (engine, _):
        call = asking(path, stream=True)
        stream = b"".join(await read(await engine.open(call)))
        assert b"it broke" in stream
        tail = StreamTail(INFERENCE_ROUTES[path])
        tail.feed(stream.removesuffix(b"data: [DONE]\n\n"))
        assert tail.ending().reported_error


@pytest.mark.parametrize("path", IN_DIALECT)
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("size", [1, 10_000])
async def test_lines_may_end_with_crlf(path: str, *, streams: bool, size: int):
    stream = HELLO[1].replace(b"\n", b"\r\n")

    async def serve(peer: Peer) -> None:
        if peer.path != CHAT:
            await Scripted({"/v1/models": listing("m")})(peer)
            return
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        await peer.send(head + b"Transfer-Encoding: chunked\r\n\r\n", chunked(*pieces), LAST_CHUNK)

    async with StubServer(serve) as server, aclosing(engine_at(server.url)) as engine:
        call = asking(path, stream=streams)
        body = b"".join(await read(await engine.open(call)))
        assert b"\r" not in body
        assert b"he" in body
        if streams:
            tail = StreamTail(INFERENCE_ROUTES[path])
            tail.feed(body)
            assert tail.ending().complete
        else:
            assert b"hey" in body


WHOLE: Fields = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
}


@pytest.mark.parametrize("path", IN_DIALECT)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_server_that_streams_nothing_is_answered_from(path: str, *, streams: bool):
    answer = json.loads(json.dumps(WHOLE))
    answer["choices"][0]["message"] |= {"content": "hey", "reasoning_content": "hm"}
    async with before({CHAT: said(200, **answer)}) as (engine, _):
        call = asking(path, stream=streams)
        exchange = await engine.open(call)
        body = b"".join(await read(exchange))
        assert (exchange.status, b"hey" in body, b"hm" in body) == (200, True, True)
        if streams:
            tail = StreamTail(INFERENCE_ROUTES[path])
            tail.feed(body)
            assert (tail.ending().complete, tail.ending().usage.output_tokens) == (True, 2)


async def test_calls_of_a_server_that_streams_nothing_are_numbered():
    calls = [{"id": one, "function": {"name": one, "arguments": "{}"}} for one in "fg"]
    answer = json.loads(json.dumps(WHOLE))
    answer["choices"][0]["message"] |= {"content": None, "tool_calls": calls}
    async with before({CHAT: said(200, **answer)}) as (engine, _):
        stream = b"".join(await read(await engine.open(post(CHAT, "m", messages=HI, stream=True))))
        first = json.loads(stream.split(b"\n\n")[0].removeprefix(b"data: "))
        assert [one["index"] for one in first["choices"][0]["delta"]["tool_calls"]] == [0, 1]
        assert first["object"] == "chat.completion.chunk"
        status, native = await whole(engine, post(Endpoint.CHAT, "m", messages=HI, stream=False))
        named = [one["function"]["name"] for one in native["message"]["tool_calls"]]
        assert (status, named) == (200, ["f", "g"])


@pytest.mark.parametrize("path", IN_DIALECT)
@pytest.mark.parametrize("streams", [False, True])
async def test_an_error_with_status_200_is_one(path: str, *, streams: bool):
    error = {"message": "the provider is away", "code": 503}
    async with before({CHAT: said(200, error=error)}) as (engine, script):
        call = asking(path, stream=streams)
        status, answer = await whole(engine, call)
        assert (status, "the provider is away" in json.dumps(answer)) == (503, True)
        assert len(script.sent_to(CHAT)) == 1


async def test_json_that_is_no_answer_is_described():
    async with before({CHAT: said(200, fine=True)}) as (engine, _):
        with pytest.raises(BackendProtocolError, match="neither a stream nor an answer"):
            await engine.open(post(CHAT, "m", messages=HI))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((500, b"Internal Server Error", "text/plain"), "Internal Server Error"),
        ((400, b"<html>no</html>", "text/html"), "HTML"),
        ((500, b"", "text/plain"), "the model server reported an error"),
        (
            said(422, detail=[{"loc": ["body", "messages", 0], "msg": "Field required"}]),
            "messages.0: Field required",
        ),
    ],
)
async def test_an_error_that_has_no_form_is_quoted(answer: Answer, says: str):
    async with before({CHAT: answer}) as (engine, _):
        for path in (CHAT, Endpoint.CHAT):
            status, error = await whole(engine, post(path, "m", messages=HI))
            assert (status, says in json.dumps(error)) == (answer[0], True)


@pytest.mark.parametrize("path", IN_DIALECT)
async def test_a_part_that_cannot_be_read_leaves_no_hole_in_a_text(path: str):
    broken = events(delta(content="a"), done=False) + b"data: {oops\n\n" + events(delta("stop"))
    async with before({CHAT: (200, broken, SSE)}) as (engine, _):
        call = asking(path, stream=False)
        status, error = await whole(engine, call)
        said_ = error["error"] if path == Endpoint.CHAT else error["error"]["message"]
        assert (status, "is no JSON" in said_) == (500, True)


async def test_a_stream_without_its_last_word_has_an_end():
    frames = events(delta("stop", content="a"), done=False)

    async def serve(peer: Peer) -> None:
        if peer.path != CHAT:
            await Scripted({"/v1/models": listing("m")})(peer)
            return
        await peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            + f"Content-Length: {len(frames)}\r\n\r\n".encode(),
            frames,
        )

    async with StubServer(serve) as server, aclosing(engine_at(server.url)) as engine:
        lines = await read(await engine.open(post(Endpoint.CHAT, "m", messages=HI)))
        assert [json.loads(line)["done"] for line in lines] == [False, True]


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (Endpoint.CHAT, {"messages": HI, "options": {"top_k": 1}}, "options.top_k"),
        (Endpoint.CHAT, {"messages": HI, "_debug_render_only": True}, "_debug_render_only"),
        (Endpoint.CHAT, {"messages": [*HI, {"role": "assistant"}]}, "messages[1].role"),
        (Endpoint.ANTHROPIC_MESSAGES, {"messages": HI, "top_k": 1}, "top_k"),
        (Endpoint.OPENAI_RESPONSES, {"input": "a", "background": True}, "background"),
    ],
)
async def test_what_cannot_be_carried_is_refused_before_anybody_waits(
    path: Endpoint, fields: Fields, named: str
):
    async with before() as (engine, script):
        with pytest.raises(BadRequest, match=f"`{named}`".replace("[", r"\[")):
            engine.check_request(path, {"model": "m", **fields})
        assert script.asked == []


async def test_a_server_that_is_not_there_is_unreachable():
    async with aclosing(engine_at("http://127.0.0.1:9")) as engine:
        with pytest.raises(BackendUnreachable):
            await engine.version()
        with pytest.raises(BackendError):
            await engine.installed()


@pytest.mark.parametrize("odd", [None, 1, "text", [], {}, [None], [{"id": 5}], [{"id": ""}]])
async def test_no_list_breaks_the_reading(odd: Any):
    async with before({"/v1/models": said(200, data=odd)}) as (engine, _):
        assert await engine.installed() == ()
        assert await engine.resident() == ()


async def test_a_probe_is_answered_by_any_answer():
    async with before() as (engine, _):
        assert await engine.probe("m", LoadOptions(), 30.0)
