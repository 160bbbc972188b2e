"""Ollama's own Python client in front of the gateway: everything it can ask of a model server, and how it is told what went wrong."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from math import isclose

import ollama
import pytest

from tests.clients.home import BOOK_SCHEMA, CODER, EMBEDDER, HELLO, LLAMA, LONG, SLOW, WEATHER, WEATHER_QUESTION, exhaust
from tests.support.patience import WITHIN_S


async def test_a_chat_is_answered_whole_and_streamed_alike(native):
    options = {"seed": 7, "num_predict": 25}
    whole = await native.chat(model=LLAMA, messages=HELLO, options=options)
    parts = [part async for part in await native.chat(model=LLAMA, messages=HELLO, options=options, stream=True)]

    assert whole.done
    assert whole.model == LLAMA
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * 25 + [True]
    assert parts[-1].eval_count == whole.eval_count == 25


async def test_a_generation_is_answered_whole_and_streamed_alike(native):
    options = {"seed": 7, "num_predict": 25}
    whole = await native.generate(model=LLAMA, prompt="tell me", options=options)
    parts = [part async for part in await native.generate(model=LLAMA, prompt="tell me", options=options, stream=True)]

    assert "".join(part.response for part in parts) == whole.response
    assert parts[-1].done_reason == whole.done_reason == "length"
    assert parts[-1].context == whole.context
    assert whole.total_duration >= whole.eval_duration > 0


async def test_embeddings_are_unit_vectors_and_equal_alone_and_in_a_batch(native):
    batch = await native.embed(model=EMBEDDER, input=["one", "two"])
    alone = await native.embed(model=EMBEDDER, input="two")

    assert batch.embeddings[1] == alone.embeddings[0] != batch.embeddings[0]
    assert isclose(sum(value * value for value in alone.embeddings[0]), 1.0, rel_tol=1e-5)
    assert batch.prompt_eval_count > 0


async def test_installed_and_resident_models_are_listed_and_shown(native):
    await native.generate(model=LLAMA, prompt="hi", options={"num_predict": 1})

    assert {LLAMA, CODER, f"{EMBEDDER}:latest"} <= {model.model for model in (await native.list()).models}
    assert [model.model for model in (await native.ps()).models] == [LLAMA]
    assert (await native.show(LLAMA)).capabilities == ["completion", "tools"]


async def test_a_question_for_a_tool_is_answered_with_a_call_of_it(native):
    whole = await native.chat(model=CODER, messages=WEATHER_QUESTION, tools=[WEATHER])
    parts = [part async for part in await native.chat(model=CODER, messages=WEATHER_QUESTION, tools=[WEATHER], stream=True)]

    call = whole.message.tool_calls[0].function
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})
    assert [[one.function.arguments for one in part.message.tool_calls or ()] for part in parts] == [[{"city": "Paris"}], []]


async def test_a_schema_forces_the_answer_into_its_shape(native):
    answer = await native.chat(model=LLAMA, messages=HELLO, format=BOOK_SCHEMA)
    parts = [part async for part in await native.chat(model=LLAMA, messages=HELLO, format=BOOK_SCHEMA, stream=True)]

    for text in (answer.message.content, "".join(part.message.content for part in parts)):
        book = json.loads(text)
        assert set(book) == {"title", "year"}
        assert isinstance(book["year"], int)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_a_404_with_ollamas_text(native, stream):
    for ask, text in (
        (native.chat(model="nope", messages=HELLO, stream=stream), "model 'nope' not found"),
        (native.generate(model="nope", prompt="x", stream=stream), "model 'nope' not found"),
        (native.embed(model="nope", input="x"), 'model "nope" not found, try pulling it first'),
        (native.embeddings(model="nope", prompt="x"), 'model "nope" not found, try pulling it first'),
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            await exhaust(await ask)
        assert (caught.value.status_code, caught.value.error) == (404, text)


async def test_leaving_a_stream_early_frees_the_slot_for_the_next_request(home, native):
    async with aclosing(await native.chat(model=SLOW, messages=HELLO, options=LONG, stream=True)) as parts:
        first = await anext(parts)
    await home.idle()

    assert not first.done
    answer = await asyncio.wait_for(native.chat(model=SLOW, messages=HELLO, options={"num_predict": 2}), WITHIN_S)
    assert answer.eval_count == 2
    assert home.emulator.in_flight == {}


async def test_the_wish_to_keep_or_drop_a_model_is_not_passed_on(home, native):
    await native.chat(model=LLAMA, messages=HELLO, keep_alive=0, options={"num_predict": 1, "num_ctx": 512})
    await native.generate(model=LLAMA, prompt="hi", keep_alive="1s", options={"num_predict": 1})

    assert home.emulator.resident == (LLAMA,)
    assert [name for name, _ in home.emulator.loads] == [LLAMA]


@pytest.mark.parametrize("model", ["LLAMA3.1:8B", "library/llama3.1:8b", "registry.ollama.ai/library/llama3.1:8b"])
async def test_a_model_in_another_spelling_is_the_same_model_and_loaded_once(home, native, model):
    plain = await native.chat(model=LLAMA, messages=HELLO, options={"num_predict": 1})
    spelled = await native.chat(model=model, messages=HELLO, options={"num_predict": 1})

    assert (plain.model, spelled.model) == (LLAMA, model)
    assert [name for name, _ in home.emulator.loads] == [LLAMA]
