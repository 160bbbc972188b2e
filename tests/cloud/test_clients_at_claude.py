"""The official clients, answered by Claude through Hearth: same words, same end, real usage, in
every dialect.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from hearth.config.settings import KeepaliveSettings
from hearth.types import Outcome
from tests.cloud.house import (
    BODY,
    BOSS,
    ELSEWHERE,
    HAIKU,
    POOR,
    RICH,
    STAY,
    CloudHome,
    open_cloud_home,
)
from tests.support.fake_claude import KEY, PROMPT_TOKENS, WORDS, FakeClaude, Script
from tests.support.home import HELLO, LLAMA, house_settings
from tests.support.http import Caller

TEXT = "".join(WORDS)
COUNTS = (PROMPT_TOKENS, len(WORDS))
ASKED: Any = {"model": ELSEWHERE, "messages": HELLO}


async def test_anthropics_client_is_answered_and_refused_in_its_own_shape(home: CloudHome):
    """What the other clients read is in `tests/clients` and `tests/dialects/claude`."""
    asked: Any = {"model": HAIKU, "max_tokens": 50, "messages": HELLO}
    async with home.claude(RICH) as claude:
        async with claude.messages.stream(**asked) as stream:
            streamed: Any = await stream.get_final_message()
        whole: Any = await claude.messages.create(**asked)
        with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
            await claude.messages.create(**asked, extra_body={"mcp_servers": [{"url": "x"}]})
    for message in (streamed, whole):
        assert (message.content[0].text, message.stop_reason) == (TEXT, "end_turn")
        assert (message.usage.input_tokens, message.usage.output_tokens) == COUNTS


async def test_an_openai_stream_ends_with_a_usage_only_where_the_caller_asks_for_it(
    home: CloudHome,
):
    async with home.gpt(RICH) as gpt:
        asking: Any = {"stream_options": {"include_usage": True}}
        for more, usages in (({}, []), (asking, [COUNTS])):
            parts = [
                part
                async for part in await gpt.chat.completions.create(**ASKED, stream=True, **more)
            ]
            assert (
                "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
                == TEXT
            )
            assert [
                (part.usage.prompt_tokens, part.usage.completion_tokens)
                for part in parts
                if part.usage
            ] == usages
    assert {(ended.prompt_tokens, ended.output_tokens) for ended in await home.ends(2)} == {COUNTS}


async def test_a_claude_item_is_an_item_like_any_other(home: CloudHome):
    headers = (await home.chat(BODY | {"stream": False})).headers
    assert (headers["x-hearth-served-by"], bool(headers["x-request-id"])) == ("claude", True)
    (ended,) = await home.ends(1)
    assert (ended.outcome, ended.model, ended.caller, ended.status) == (
        Outcome.COMPLETED,
        HAIKU,
        "rich",
        200,
    )
    assert ended.cost_usd == pytest.approx((PROMPT_TOKENS + 5 * len(WORDS)) / 1e6)
    async with home.native(BOSS) as boss:
        addresses = (f"/llm/queue/item/{ended.sequence}", "/llm/log", "/llm/queue/status")
        item, log, status = [(await boss._client.get(address)).json() for address in addresses]
    assert (item["state"], item["model"]) == ("completed", HAIKU)
    assert [entry["cost_usd"] for entry in log["items"]] == [ended.cost_usd]
    assert (status["cloud"]["spent_today_usd"], status["cloud"]["running"]) == (ended.cost_usd, [])


async def test_local_models_stay_local_and_items_share_one_row_of_numbers(home: CloudHome):
    async with home.native(RICH) as client:
        for model in (LLAMA, ELSEWHERE, LLAMA, HAIKU):
            await client.chat(model=model, messages=HELLO, options={"num_predict": 1})
    ended = [(event.sequence, event.model, event.cost_usd is None) for event in await home.ends(4)]
    assert ended == [(1, LLAMA, True), (2, HAIKU, False), (3, LLAMA, True), (4, HAIKU, False)]
    assert home.emulator.resident == (LLAMA,)


async def test_only_a_key_that_says_so_is_sent_to_claude_with_what_can_be_carried(home: CloudHome):
    for key in (POOR, STAY):
        async with home.gpt(key) as client:
            for model in (ELSEWHERE, HAIKU):
                with pytest.raises(openai.NotFoundError):
                    await client.chat.completions.create(model=model, messages=HELLO)
    async with home.gpt(RICH) as client:
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            await client.chat.completions.create(**ASKED, logprobs=True)
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model=ELSEWHERE, input="x")
    assert home.claude_api.requests == []


async def test_the_key_goes_to_its_address_only_and_shows_nowhere(home: CloudHome):
    async with home.claude(RICH) as client:
        await client.messages.create(
            model=HAIKU,
            max_tokens=5,
            messages=HELLO,
            extra_headers={"anthropic-beta": "x", "cookie": "c"},
        )
    (sent,) = home.claude_api.headers
    assert (sent["authorization"], RICH in str(sent)) == (f"Bearer {KEY}", False)
    assert not {"cookie", "anthropic-beta"} & set(sent)
    assert KEY not in str(home.events.all) + str(home.gateway.worker.get_status()) + repr(
        home.gateway.config
    )


async def test_completions_go_there_only_where_they_say_so_themselves(home: CloudHome):
    body = {"prompt": "hello", "model": ELSEWHERE}
    async with home.native(RICH) as client:
        refused = await client._client.post("/llm/completions", json=body)
        answered = await client._client.post("/llm/completions", json=body | {"allow_cloud": True})
        await home.emulator.stop()
        await home.backend_is(up=False)
        unnamed = await client._client.post(
            "/llm/completions", json={"prompt": "hello", "allow_cloud": True}
        )
    assert (
        refused.status_code,
        answered.json()["output"],
        answered.headers["x-hearth-served-by"],
    ) == (404, TEXT, "claude")
    assert (answered.json()["model"], unnamed.json()["model"]) == (ELSEWHERE, HAIKU)


async def test_who_waits_for_claude_gets_the_usual_signs_where_waits_are_shown(tmp_path: Path):
    claude = FakeClaude()
    claude.default = Script(hold=True)
    keepalive = KeepaliveSettings(after_s=0.02, every_s=0.02, show="thinking")
    base = house_settings().replace(keepalive=keepalive)
    async with open_cloud_home(tmp_path, claude, base=base) as home:
        caller = await Caller.to(home.url)
        body = json.dumps({**ASKED, "stream": True}).encode()
        await caller.post("/v1/chat/completions", body, b"Authorization: Bearer " + RICH.encode())
        await caller.head()
        assert await caller.reader.readuntil(b"\n\n") == b"b\r\n: waiting\n\n"
        caller.leave()
        await home.ends(1)
