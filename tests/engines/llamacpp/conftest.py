"""A real engine for the whole session, and for each test a gateway in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from hearth.bootstrap import running_gateway
from hearth.config.settings import BackendMode, GatewayConfig, GpuSettings
from hearth.gateway import Gateway
from tests.engines.llamacpp.front import MODEL, Front, open_front
from tests.engines.llamacpp.gguf import LETTERS, SAYINGS, write_model
from tests.engines.llamacpp.serving import serving
from tests.support.home import house_settings
from tests.support.recorder import Recorder

SETTINGS = house_settings(gpu=GpuSettings(home_model=MODEL))
"""The house's work always interrupts, and nothing is refused."""


@dataclass
class Bench:
    """Engine, front and gateway; `client` is the official OpenAI client on the gateway."""

    front: Front
    gateway: Gateway
    events: Recorder
    client: openai.AsyncOpenAI


@pytest.fixture(scope="session")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A llama.cpp server with a tiny model; its log is beside the model."""
    yield from _serving(tmp_path_factory.mktemp("engine"), SAYINGS)


@pytest.fixture(scope="session")
def letters_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One with a model whose tokens are single letters, so that any text is read as it was
    written.
    """
    yield from _serving(tmp_path_factory.mktemp("letters"), tuple(LETTERS))


def _serving(folder: Path, texts: tuple[str, ...]) -> Iterator[str]:
    write_model(folder / "tiny.gguf", texts)
    with serving(folder / "tiny.gguf", MODEL) as url:
        yield url


@pytest.fixture
async def bench(engine_url: str) -> AsyncIterator[Bench]:
    """A gateway whose only model server is the engine."""
    async with open_bench(engine_url) as bench:
        yield bench


@pytest.fixture
async def letters(letters_url: str) -> AsyncIterator[Bench]:
    """The same with the model of single letters."""
    async with open_bench(letters_url) as bench:
        yield bench


@asynccontextmanager
async def open_bench(engine_url: str) -> AsyncIterator[Bench]:
    events = Recorder()
    config = GatewayConfig(settings=SETTINGS)
    async with (
        open_front(engine_url) as (front, front_url),
        running_gateway(
            config,
            host="127.0.0.1",
            port=0,
            backend_mode=BackendMode.OLLAMA,
            backend_url=front_url,
            sinks=(events,),
        ) as (
            gateway,
            url,
        ),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield Bench(front=front, gateway=gateway, events=events, client=client)
