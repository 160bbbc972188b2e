"""The official clients, answered by Claude through Hearth: same words, same end, real usage, in every dialect."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from hearth.types import Outcome
from tests.clients.home import HELLO, LLAMA
from tests.cloud.house import BODY, BOSS, ELSEWHERE, HAIKU, POOR, RICH, STAY, CloudHome
from tests.support.fake_claude import KEY, PROMPT_TOKENS, WORDS

TEXT = "".join(WORDS)
COUNTS = (PROMPT_TOKENS, len(WORDS))


async def test_ollamas_client_is_answered_streamed_and_whole(home: CloudHome):
    async with home.native(RICH) as client:
        parts = [part async for part in await client.chat(model=ELSEWHERE, messages=HELLO, stream=True)]
        answer = await client.generate(model=ELSEWHERE, prompt="hello")
    assert "".join(part.message.content or "" for part in parts) == answer.response == TEXT
    assert parts[-1].done
    assert answer.done
    assert (parts[-1].prompt_eval_count, parts[-1].eval_count) == (answer.prompt_eval_count, answer.eval_count) == COUNTS
    assert {part.model for part in parts} == {ELSEWHERE}
    assert home.claude_api.requests[0]["model"] == HAIKU


async def test_openais_client_is_answered_streamed_and_whole(home: CloudHome):
    async with home.gpt(RICH) as client:
        chunks = [chunk async for chunk in await client.chat.completions.create(model=ELSEWHERE, messages=HELLO, stream=True)]
        answer = await client.chat.completions.create(model=ELSEWHERE, messages=HELLO)
        events: list[Any] = [event async for event in await client.responses.create(model=ELSEWHERE, input="hello", stream=True)]
        response = await client.responses.create(model=ELSEWHERE, input="hello")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.choices[0].message.content == TEXT
    assert (chunks[-1].choices[0].finish_reason, events[-1].type) == ("stop", "response.completed")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == COUNTS
    assert events[-1].response.output_text == response.output_text == TEXT


async def test_anthropics_client_is_answered_streamed_and_whole_and_refused_in_its_own_shape(home: CloudHome):
    asked: dict[str, Any] = {"model": HAIKU, "max_tokens": 50, "messages": HELLO}
    async with home.claude(RICH) as client:
        async with client.messages.stream(**asked) as stream:
            streamed: Any = await stream.get_final_message()
        whole: Any = await client.messages.create(**asked)
        with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
            await client.messages.create(**asked, extra_body={"mcp_servers": [{"url": "x"}]})
    for message in (streamed, whole):
        assert (message.content[0].text, message.stop_reason) == (TEXT, "end_turn")
        assert (message.usage.input_tokens, message.usage.output_tokens) == COUNTS


async def test_a_claude_item_is_an_item_like_any_other(home: CloudHome):
    async with home.native(RICH) as native:
        raw = await native._client.post("/api/chat", json=BODY | {"stream": False})
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
    assert (status["cloud"]["spent_today_usd"], status["cloud"]["running"]) == (ended.cost_usd, [])


async def test_local_models_stay_local_and_items_share_one_row_of_numbers(home: CloudHome):
    async with home.native(RICH) as client:
        for model in (LLAMA, ELSEWHERE, LLAMA, HAIKU):
            await client.chat(model=model, messages=HELLO, options={"num_predict": 1})
    ended = [(event.sequence, event.model, event.cost_usd is None) for event in await home.ends(4)]
    assert ended == [(1, LLAMA, True), (2, HAIKU, False), (3, LLAMA, True), (4, HAIKU, False)]
    assert home.emulator.resident == (LLAMA,)


async def test_nobody_is_sent_to_claude_whose_key_does_not_say_so_or_with_what_cannot_be_carried(home: CloudHome):
    for key in (POOR, STAY):
        async with home.gpt(key) as client:
            for model in (ELSEWHERE, HAIKU):
                with pytest.raises(openai.NotFoundError):
                    await client.chat.completions.create(model=model, messages=HELLO)
    async with home.gpt(RICH) as client:
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            await client.chat.completions.create(model=ELSEWHERE, messages=HELLO, logprobs=True)
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model=ELSEWHERE, input="x")
    assert home.claude_api.requests == []


async def test_the_key_goes_to_its_address_only_and_shows_nowhere(home: CloudHome):
    async with home.claude(RICH) as client:
        await client.messages.create(model=HAIKU, max_tokens=5, messages=HELLO, extra_headers={"anthropic-beta": "x", "cookie": "c"})
    (sent,) = home.claude_api.headers
    assert sent["authorization"] == f"Bearer {KEY}"
    assert RICH not in str(sent)
    assert not {"cookie", "anthropic-beta"} & set(sent)
    assert KEY not in str(home.events.all) + str(home.gateway.worker.get_status()) + repr(home.gateway.config)


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
