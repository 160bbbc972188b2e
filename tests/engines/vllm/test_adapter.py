"""The adapter before a vLLM that says what a real one was recorded to say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.dialects.replay import Sent
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.engines.vllm.engine import Vllm
from hearth.engines.vllm.traits import common_form
from hearth.errors import BackendProtocolError, BadRequest
from hearth.types import NO_TIME, LoadedModel, LoadOptions
from tests.engines.openai_server.scripted import Answer, post, said, whole
from tests.engines.openai_server.scripted import Scripted as Scripted_
from tests.engines.stub_server import Peer, StubServer, read
from tests.support.fields import Fields
from tests.support.llama_server_wire import recorded

MODEL = "toy"
HI: Any = [{"role": "user", "content": "hello house"}]
CHAT = Endpoint.OPENAI_CHAT.value
MESSAGES = Endpoint.ANTHROPIC_MESSAGES.value
PROMPT = "<|im_start|>user\nhello house<|im_end|>\n<|im_start|>assistant\n"


def as_recorded(name: str) -> Answer:
    answer = recorded(name, "vllm")
    return answer.status, answer.body, answer.headers["content-type"].partition(";")[0]


ABOUT = {
    "/version": as_recorded("version"),
    "/v1/models": as_recorded("models"),
    MESSAGES: as_recorded("messages_empty"),
    "/v1/responses": as_recorded("messages_empty"),
}


class Scripted(Scripted_):
    """It reads prompts as the recorded one, which splits texts at blanks."""

    async def __call__(self, peer: Peer) -> None:
        if peer.path in ("/tokenize", "/detokenize"):
            shown = tokenized(peer.json) if peer.path == "/tokenize" else texts_of(peer.json)
            self.answers[peer.path] = said(200, **shown)
        await super().__call__(peer)


TEXTS: list[str] = []


def tokenized(asked: Fields) -> Fields:
    """Numbers that stand for the pieces of a text."""
    text = asked.get("prompt")
    if text is None:
        text = "".join(
            f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in asked["messages"]
        )
        if asked["continue_final_message"]:
            text = text.removesuffix("<|im_end|>\n")
        elif asked["add_generation_prompt"]:
            text += "<|im_start|>assistant\n"
    pieces = text.replace(" ", "\0 ").split("\0")
    TEXTS.extend(piece for piece in pieces if piece not in TEXTS)
    tokens = [TEXTS.index(piece) for piece in pieces]
    return {"count": len(tokens), "max_model_len": 1024, "tokens": tokens}


def texts_of(asked: Fields) -> Fields:
    return {"prompt": "".join(TEXTS[token] for token in asked["tokens"])}


@asynccontextmanager
async def before(
    answers: Mapping[str, Answer] | None = None,
    *,
    serve: type[Scripted] = Scripted,
    **options: Any,
) -> AsyncIterator[tuple[Vllm, Scripted]]:
    script = serve({**ABOUT, **(answers or {})})
    times: Any = {"connect_timeout_s": 30.0, "control_timeout_s": 30.0}
    async with StubServer(script) as server:
        engine = Vllm(server.url, clock=SystemClock(), **times, **options)
        async with aclosing(engine):
            yield engine, script


async def test_what_it_lists_is_there_and_on_the_card():
    async with before() as (engine, _):
        assert await engine.version() == "0.32.0"
        first, second = await engine.installed()
        assert (first.name, second.name) == ("toy", "org/Toy-2")
        assert first.digest == second.digest  # both names of one model
        assert [model.context_tokens for model in await engine.resident()] == [1024, 1024]
        assert (engine.on_card, engine.loads_on_request, engine.title) == (True, False, "vLLM")


async def test_one_that_stands_for_others_takes_nothing_of_the_card():
    async with before(elastic=True) as (engine, _):
        assert not engine.on_card


async def test_a_refused_key_names_the_setting():
    async with before({"/v1/models": as_recorded("models_no_key")}) as (engine, _):
        with pytest.raises(BackendProtocolError, match=r"engines\.main\.api_key"):
            await engine.installed()


@pytest.mark.parametrize(
    ("path", "name"),
    [(CHAT, "chat_stream"), (MESSAGES, "messages_stream"), ("/v1/responses", "responses_stream")],
)
async def test_a_stream_of_its_own_routes_goes_through_as_bytes(path: str, name: str):
    async with before() as (engine, script):
        await engine.installed()
        script.answers[path] = as_recorded(name)
        call = post(path, MODEL, messages=HI, stream=True)
        body = b"".join(await read(await engine.open(call)))
        assert body.strip() == recorded(name, "vllm").body.strip()
        assert [peer.body for peer in script.sent_to(path)] == [call.body]


async def test_an_old_version_without_messages_is_asked_for_chat():
    answers = {MESSAGES: said(404, detail="Not Found"), CHAT: as_recorded("chat_stream_usage")}
    async with before(answers) as (engine, _):
        await engine.installed()
        status, message = await whole(engine, post(MESSAGES, MODEL, messages=HI, max_tokens=3))
        assert (status, message["content"]) == (
            200,
            [{"type": "text", "text": " gate gate gate"}],
        )
        assert message["usage"] == {"input_tokens": 22, "output_tokens": 3}


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("chat_missing_model", 404, "does not exist"),
        ("chat_too_long", 400, "maximum context length"),
        ("image", 400, "not a multimodal model"),
    ],
)
async def test_its_errors_are_in_the_words_of_who_asked(name: str, status: int, says: str):
    async with before({CHAT: as_recorded(name)}) as (engine, _):
        answered, native = await whole(engine, post(Endpoint.CHAT, MODEL, messages=HI))
        assert (answered, says in native["error"]) == (status, True)
        assert (await whole(engine, post(CHAT, MODEL, messages=HI)))[0] == status


async def test_errors_of_its_messages_have_anthropics_shape():
    async with before() as (engine, script):
        await engine.installed()
        for name in ("messages_missing_model", "messages_empty"):
            script.answers[MESSAGES] = as_recorded(name)
            call = post(MESSAGES, MODEL, messages=HI, max_tokens=3)
            _, answer = await whole(engine, call)
            assert answer["type"] == "error"
            assert answer["error"]["type"] in ("not_found_error", "invalid_request_error")


async def test_ollamas_words_become_its_own():
    async with before({CHAT: as_recorded("chat_stream_usage")}) as (engine, script):
        options = {"repeat_penalty": 1.1, "top_k": 5, "min_p": 0.1, "num_predict": 3}
        turns = [*HI, {"role": "assistant", "content": "I", "thinking": "hm"}, *HI]
        call = post(
            Endpoint.CHAT, MODEL, messages=turns, options=options, think=False, stream=False
        )
        status, answer = await whole(engine, call)
        assert (status, answer["message"]["content"]) == (200, " gate gate gate")
        [peer] = script.sent_to(CHAT)
        assert peer.json["repetition_penalty"] == 1.1
        assert peer.json["chat_template_kwargs"] == {"enable_thinking": False}
        assert peer.json["messages"][1]["reasoning"] == "hm"
        with pytest.raises(BadRequest, match=r"options\.mirostat"):
            engine.check_request(Endpoint.CHAT, {"messages": HI, "options": {"mirostat": 1}})


async def test_calls_of_tools_are_put_together_from_its_parts():
    async with before({CHAT: as_recorded("tools_stream")}) as (engine, _):
        status, answer = await whole(engine, post(CHAT, MODEL, messages=HI, tools=[]))
        [call] = answer["choices"][0]["message"]["tool_calls"]
        assert (status, call["function"]["name"]) == (200, "weather")
        assert call["id"].startswith("chatcmpl-tool-")
        assert json.loads(call["function"]["arguments"])


async def test_a_raw_prompt_without_a_limit_may_fill_the_context():
    answers = {"/v1/completions": as_recorded("completions_raw")}
    async with before(answers) as (engine, script):
        raw: Fields = {"prompt": "hello house", "raw": True, "stream": False}
        status, answer = await whole(engine, post(Endpoint.GENERATE, MODEL, **raw))
        assert (status, answer["response"]) == (200, " gate gate gate")
        await whole(engine, post(Endpoint.GENERATE, MODEL, **raw, options={"num_predict": 5}))
        first, second = script.sent_to("/v1/completions")
        assert (first.json["max_tokens"], second.json["max_tokens"]) == (1022, 5)
        assert first.json["add_special_tokens"] is False


async def test_a_prompt_is_shown_as_it_is_read():
    async with before() as (engine, _):
        asked = {"messages": HI, "_debug_render_only": True}
        for path in (CHAT, Endpoint.CHAT):
            _, shown = await whole(engine, post(path, MODEL, **asked))
            assert shown["_debug_info"] == {"rendered_template": PROMPT}
        begun = [*HI, {"role": "assistant", "content": "the gate"}]
        call = post(Endpoint.CHAT, MODEL, messages=begun, _debug_render_only=True)
        assert (await whole(engine, call))[1]["_debug_info"]["rendered_template"] == (
            f"{PROMPT}the gate"
        )


async def test_a_text_that_would_be_read_as_other_tokens_is_not_shown():
    class Lossy(Scripted):
        async def __call__(self, peer: Peer) -> None:
            if peer.path == "/detokenize":
                self.answers["/detokenize"] = said(200, prompt="something else")
                await Scripted_.__call__(self, peer)
            else:
                await super().__call__(peer)

    async with before(serve=Lossy) as (engine, _):
        asked = post(CHAT, MODEL, messages=HI, _debug_render_only=True)
        _, shown = await whole(engine, asked)
        assert shown["_debug_info"] == {"rendered_template": None}


@pytest.mark.parametrize(
    ("path", "fields", "goes_on"),
    [
        (Endpoint.OPENAI_CHAT, {"messages": HI, "top_k": 4, "repetition_penalty": 1.2}, True),
        (Endpoint.OPENAI_CHAT, {"messages": HI, "guided_choice": ["a"]}, False),
        (Endpoint.OPENAI_CHAT, {"messages": HI, "n": 2}, False),
        (Endpoint.OPENAI_COMPLETIONS, {"prompt": "a"}, False),
        (Endpoint.OPENAI_RESPONSES, {"input": "a"}, False),
        (Endpoint.ANTHROPIC_MESSAGES, {"messages": HI, "max_tokens": 5}, True),
        (Endpoint.ANTHROPIC_MESSAGES, {"messages": HI, "tools": [{"name": "f"}]}, False),
        (
            Endpoint.ANTHROPIC_MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]},
            False,
        ),
        (Endpoint.CHAT, {"messages": HI}, True),
    ],
)
def test_answers_go_on_where_their_prompt_is_known(
    path: Endpoint, fields: Fields, *, goes_on: bool
):
    native = common_form(path, {"model": "m", **fields})
    assert (native is not None) is goes_on
    if "repetition_penalty" in fields:
        assert native is not None
        assert native.options == {"top_k": 4, "repeat_penalty": 1.2}


async def test_an_interrupted_answer_is_asked_for_from_where_it_stopped():
    answers = {"/v1/completions": as_recorded("completions_raw")}
    async with before(answers) as (engine, script):
        await engine.installed()
        continuations = engine.continuations()
        load = LoadedModel(digest="d", options=LoadOptions())
        call = post(CHAT, MODEL, messages=HI, max_tokens=9, stream=True)
        await continuations.find_out(load, MODEL, call)
        assert continuations.can_continue(load)
        begun = recorded("chat_stream", "vllm").body.split(b"\n\n")[:2]
        sent = Sent(INFERENCE_ROUTES[CHAT], limit_bytes=2**20, written_by=load)
        sent.feed(b"\n\n".join([*begun, b""]))
        continuation = continuations.of(load, call, sent)
        assert await continuation.prefix() == PROMPT
        asked = await continuation.next_ask(NO_TIME)
        assert asked is not None
        rest = b"".join(await read(await engine.open(asked[0])))
        assert b'"content":" gate"' in asked[1].feed(rest, 0.0)
        assert script.sent_to("/v1/completions")[-1].json["prompt"] == f"{PROMPT} gate"
