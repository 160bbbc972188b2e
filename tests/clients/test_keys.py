"""The official clients with API keys: which header each of them sends, what its key may do, and its own error where it may not."""

from __future__ import annotations

import anthropic
import ollama
import openai
import pytest

from hearth.events import ItemQueued
from hearth.types import Lane
from tests.clients.home import CODER, FRIEND_KEY, GUEST_KEY, HELLO, HOUSE_KEY, KEYS, LLAMA, Home, StartHome, exhaust, house_settings

ONE = {"num_predict": 1}


@pytest.fixture
async def home(start_home: StartHome) -> Home:
    """A house that wants keys."""
    return await start_home(house_settings(keys=KEYS))


async def test_each_client_is_served_under_the_name_of_its_key(home):
    async with home.native(FRIEND_KEY) as native, home.gpt(GUEST_KEY) as gpt, home.claude(HOUSE_KEY) as claude:
        await native.chat(model=LLAMA, messages=HELLO, options=ONE)
        await gpt.chat.completions.create(model=LLAMA, messages=HELLO, max_tokens=1)
        await claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=1)

    assert [(event.caller, event.lane) for event in home.events.of(ItemQueued)] == [
        ("friend", Lane.EXTERNAL),
        ("guest", Lane.EXTERNAL),
        ("house", Lane.INTERNAL),
    ]


async def test_the_bearer_token_of_anthropics_client_is_a_key_too(home):
    async with anthropic.AsyncAnthropic(base_url=home.url, auth_token=FRIEND_KEY, api_key=None, max_retries=0) as claude:
        assert (await claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=1)).usage.output_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_key_is_each_clients_own_authentication_error(home, stream):
    async with home.native("wrong") as native, home.gpt("wrong") as gpt, home.claude("wrong") as claude:
        with pytest.raises(ollama.ResponseError, match="API key") as refused:
            await exhaust(await native.chat(model=LLAMA, messages=HELLO, stream=stream))
        with pytest.raises(openai.AuthenticationError) as gpt_refused:
            await gpt.chat.completions.create(model=LLAMA, messages=HELLO, stream=stream)
        with pytest.raises(anthropic.AuthenticationError):
            await claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=1, stream=stream)

    assert refused.value.status_code == 401
    assert gpt_refused.value.code == "invalid_api_key"
    assert [request for request in home.emulator.requests if request.method != "GET"] == []


async def test_a_model_that_the_key_does_not_allow_is_each_clients_own_permission_error(home):
    async with home.native(GUEST_KEY) as native, home.gpt(GUEST_KEY) as gpt, home.claude(GUEST_KEY) as claude:
        with pytest.raises(ollama.ResponseError, match=CODER) as refused:
            await native.chat(model=CODER, messages=HELLO)
        with pytest.raises(openai.PermissionDeniedError, match=CODER):
            await gpt.chat.completions.create(model=CODER, messages=HELLO)
        with pytest.raises(anthropic.PermissionDeniedError, match=CODER):
            await claude.messages.create(model=CODER, messages=HELLO, max_tokens=1)

    assert refused.value.status_code == 403
