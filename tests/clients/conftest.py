"""Gateways on loopback, and the official clients that talk to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anthropic
import ollama
import openai
import pytest

from hearth.config.settings import Settings
from tests.support.home import Home, StartHome, house_settings, open_home


@pytest.fixture
async def start_home() -> AsyncIterator[StartHome]:
    """Starts gateways; all of them are taken down after the test."""
    async with AsyncExitStack() as stack:

        async def start(settings: Settings | None = None) -> Home:
            return await stack.enter_async_context(open_home(settings or house_settings()))

        yield start


@pytest.fixture
async def home(start_home: StartHome) -> Home:
    """A gateway without keys and with room for most models at once."""
    return await start_home()


Clients = tuple[ollama.AsyncClient, openai.AsyncOpenAI, anthropic.AsyncAnthropic]


@pytest.fixture
async def clients(home: Home) -> AsyncIterator[Clients]:
    async with home.native() as native, home.gpt() as gpt, home.claude() as claude:
        yield native, gpt, claude
