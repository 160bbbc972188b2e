"""The official clients, answered by Claude through Hearth: same words, same end, real usage, in every dialect."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from hearth.types import Outcome
from tests.clients.home import HELLO, LLAMA, WEATHER
from tests.cloud.house import BOSS, ELSEWHERE, HAIKU, POOR, RICH, STAY, CloudHome, open_cloud_home
from tests.support.fake_claude import KEY, PROMPT_TOKENS, WORDS, Script

TEXT = "".join(WORDS)


@pytest.fixture
async def home(tmp_path):
    async with open_cloud_home(tmp_path) as opened:
        yield opened


async def test_ollamas_client_streams_and_gets_counts(home: CloudHome):
    async with home.native(RICH) as client:
        parts = [part async for part in await client.chat(model=ELSEWHERE, messages=HELLO, stream=True)]
    assert "".join(part.message.content or "" for part in parts) == TEXT
    assert parts[-1].done
    assert (parts[-1].prompt_eval_count, parts[-1].eval_count) == (PROMPT_TOKENS, len(WORDS))
    assert {part.model for part in parts} == {ELSEWHERE}
    assert home.claude_api.requests[0]["model"] == HAIKU


async def test_ollamas_client_gets_a_whole_answer(home: CloudHome):
    async with home.native(RICH) as client:
        answer = await client.generate(model=ELSEWHERE, prompt="hello")
    assert (answer.response, answer.done, answer.eval_count) == (TEXT, True, len(WORDS))


@pytest.mark.parametrize("streaming", [False, True])
async def test_openais_client_is_answered(home: CloudHome, streaming):
    async with home.gpt(RICH) as client:
        if streaming:
            chunks = [chunk async for chunk in await client.chat.completions.create(model=ELSEWHERE, messages=HELLO, stream=True)]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
            assert chunks[-1].choices[0].finish_reason == "stop"
        else:
            answer = await client.chat.completions.create(model=ELSEWHERE, messages=HELLO)
            assert answer.choices[0].message.content == TEXT
            assert answer.usage is not None
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT_TOKENS, len(WORDS))


@pytest.mark.parametrize("streaming", [False, True])
async def test_openais_responses_are_answered(home: CloudHome, streaming):
    async with home.gpt(RICH) as client:
        if streaming:
            events = [event async for event in await client.responses.create(model=ELSEWHERE, input="hello", stream=True)]
            assert events[-1].type == "response.completed"
            assert events[-1].response.output_text == TEXT
        else:
            assert (await client.responses.create(model=ELSEWHERE, input="hello")).output_text == TEXT


@pytest.mark.parametrize("streaming", [False, True])
async def test_anthropics_client_is_answered(home: CloudHome, streaming):
    message: Any
    async with home.claude(RICH) as client:
        if streaming:
            async with client.messages.stream(model=HAIKU, max_tokens=50, messages=HELLO) as stream:
                message = await stream.get_final_message()
        else:
            message = await client.messages.create(model=HAIKU, max_tokens=50, messages=HELLO)
    assert message.content[0].text == TEXT
    assert (message.usage.input_tokens, message.usage.output_tokens, message.stop_reason) == (PROMPT_TOKENS, len(WORDS), "end_turn")


async def test_tools_come_back_in_the_callers_dialect(home: CloudHome):
    home.claude_api.default = Script(tool="get_weather")
    async with home.native(RICH) as native, home.gpt(RICH) as gpt:
        answer = await native.chat(model=ELSEWHERE, messages=HELLO, tools=[WEATHER])
        call = (answer.message.tool_calls or [])[0].function
        assert (call.name, dict(call.arguments)) == ("get_weather", {"city": "Paris"})
        tools: Any = [WEATHER]
        choice: Any = (await gpt.chat.completions.create(model=ELSEWHERE, messages=HELLO, tools=tools)).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls[0].function.name == "get_weather"


async def test_a_claude_item_is_an_item_like_any_other(home: CloudHome):
    async with home.native(RICH) as native:
        raw = await native._client.post("/api/chat", json={"model": ELSEWHERE, "messages": HELLO, "stream": False})
    assert raw.headers["x-hearth-served-by"] == "claude"
    assert raw.headers["x-request-id"]
    (ended,) = await home.ends(1)
    assert (ended.outcome, ended.model, ended.caller, ended.status) == (Outcome.COMPLETED, HAIKU, "rich", 200)
    assert ended.cost_usd == pytest.approx((PROMPT_TOKENS + 5 * len(WORDS)) / 1e6)
    async with home.native(BOSS) as boss:
        item = (await boss._client.get(f"/llm/queue/item/{ended.sequence}")).json()
        log = (await boss._client.get("/llm/log")).json()["items"]
        status = (await boss._client.get("/llm/queue/status")).json()
    assert (item["state"], item["model"]) == ("completed", HAIKU)
    assert [entry["cost_usd"] for entry in log] == [ended.cost_usd]
    assert status["cloud"]["spent_today_usd"] == ended.cost_usd
    assert status["cloud"]["running"] == []


async def test_local_models_stay_local_and_items_share_one_row_of_numbers(home: CloudHome):
    async with home.native(RICH) as client:
        for model in (LLAMA, ELSEWHERE, LLAMA, HAIKU):
            await client.chat(model=model, messages=HELLO, options={"num_predict": 1})
    ended = await home.ends(4)
    assert [event.model for event in ended] == [LLAMA, HAIKU, LLAMA, HAIKU]
    assert [event.sequence for event in ended] == [1, 2, 3, 4]
    assert [event.cost_usd is None for event in ended] == [True, False, True, False]
    assert home.emulator.resident == (LLAMA,)


@pytest.mark.parametrize("key", [POOR, STAY])
async def test_nobody_is_sent_to_claude_whose_key_does_not_say_so(home: CloudHome, key):
    async with home.gpt(key) as client:
        for model in (ELSEWHERE, HAIKU):
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model=model, messages=HELLO)
    assert home.claude_api.requests == []


async def test_the_key_goes_to_its_address_only_and_shows_nowhere(home: CloudHome):
    async with home.claude(RICH) as client:
        await client.messages.create(model=HAIKU, max_tokens=5, messages=HELLO, extra_headers={"anthropic-beta": "x", "cookie": "c"})
    (sent,) = home.claude_api.headers
    assert sent["authorization"] == f"Bearer {KEY}"
    assert RICH not in str(sent)
    assert not {"cookie", "anthropic-beta"} & set(sent)
    assert KEY not in str(home.events.seen) + str(home.gateway.worker.get_status()) + repr(home.gateway.config)


async def test_what_cannot_be_carried_is_refused_where_only_claude_could_answer(home: CloudHome):
    async with home.gpt(RICH) as client:
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            await client.chat.completions.create(model=ELSEWHERE, messages=HELLO, logprobs=True)
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model=ELSEWHERE, input="x")
    assert home.claude_api.requests == []


async def test_completions_go_there_only_where_they_say_so_themselves(home: CloudHome):
    async with home.native(RICH) as client:
        body = {"prompt": "hello", "model": ELSEWHERE}
        refused = await client._client.post("/llm/completions", json=body)
        answered = await client._client.post("/llm/completions", json=body | {"allow_cloud": True})
        await home.emulator.stop()
        await home.backend_is(up=False)
        unnamed = await client._client.post("/llm/completions", json={"prompt": "hello", "allow_cloud": True})
    assert refused.status_code == 404
    assert (answered.json()["output"], answered.headers["x-hearth-served-by"]) == (TEXT, "claude")
    assert (answered.json()["model"], unnamed.json()["model"]) == (ELSEWHERE, HAIKU)


async def test_an_anthropic_error_has_anthropics_shape(home: CloudHome):
    async with home.claude(RICH) as client:
        with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
            await client.messages.create(model=HAIKU, max_tokens=5, messages=HELLO, extra_body={"mcp_servers": [{"url": "x"}]})
