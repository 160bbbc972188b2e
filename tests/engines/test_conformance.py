"""What every engine does (`hearth.engines.port`): the adapter before a server, the emulator, the
fake of the other tests, the echo, and a real llama-server.

What a scripted world can show beside that is in `test_conformance_in_faults.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.dialects.routes import INFO_ROUTES, MANAGEMENT_ROUTES, WORK_ROUTES
from hearth.emulator.engine import EmulatedServer
from hearth.emulator.models import EmulatedModel
from hearth.engines.llama_router.engine import LlamaRouter
from hearth.engines.llama_server.engine import LlamaServer
from hearth.engines.llama_swap.engine import LlamaSwap
from hearth.engines.lmstudio.engine import LmStudio
from hearth.engines.ollama.engine import Ollama
from hearth.engines.openai_server.engine import OpenAiServer
from hearth.engines.port import Engine, Exchange
from hearth.engines.sglang.engine import Sglang
from hearth.engines.vllm.engine import Vllm
from hearth.errors import LoadError, ModelNotFound
from hearth.types import BackendCall, LoadOptions
from tests.engines.llama_router.stub import Preset, StubRouter
from tests.engines.llama_swap.stub import Entry, StubSwap
from tests.engines.llamacpp.command import run_settings
from tests.engines.llamacpp.gguf import write_model
from tests.engines.llamacpp.serving import serving
from tests.engines.lmstudio.stub import Entry as Studio
from tests.engines.lmstudio.stub import StubStudio
from tests.engines.openai_server.plain import open_plain
from tests.engines.processes.house import house
from tests.engines.stub_server import StubServer, read
from tests.engines.test_conformance_in_faults import serve
from tests.support.echo_engine import EchoEngine
from tests.support.emulated import EmulatedOllama
from tests.support.fake_ollama import FakeModel, FakeOllama
from tests.support.patience import WITHIN_S

MODEL = "a:latest"
UNPINNED = LoadOptions()
WORDS = 3
TIMES: Any = {"connect_timeout_s": WITHIN_S, "control_timeout_s": WITHIN_S}


def world() -> FakeOllama:
    return FakeOllama(FakeModel(name=MODEL, load_s=0.0, unload_s=0.0))


@asynccontextmanager
async def fake() -> AsyncIterator[Engine]:
    yield world()


@asynccontextmanager
async def ollama() -> AsyncIterator[Engine]:
    async with (
        StubServer(partial(serve, world())) as server,
        aclosing(Ollama(server.url, connect_timeout_s=WITHIN_S)) as engine,
    ):
        yield engine


@asynccontextmanager
async def emulator() -> AsyncIterator[Engine]:
    model = EmulatedModel(name=MODEL, load_s=0.0, unload_s=0.0)
    server = EmulatedServer([model], clock=SystemClock(), speed=1e3, seed=1)
    async with EmulatedOllama(server) as engine:
        yield engine


@asynccontextmanager
async def echo() -> AsyncIterator[Engine]:
    yield EchoEngine(MODEL)


@pytest.fixture(scope="module")
def llama_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real one, with a tiny model."""
    file = tmp_path_factory.mktemp("llama_server") / "tiny.gguf"
    write_model(file)
    with serving(file, MODEL) as url:
        yield url


@asynccontextmanager
async def llama_server(url: str) -> AsyncIterator[Engine]:
    async with aclosing(LlamaServer(url, clock=SystemClock(), **TIMES)) as engine:
        yield engine


@asynccontextmanager
async def openai_server(url: str) -> AsyncIterator[Engine]:
    """The same server, as any server with OpenAI's API."""
    async with (
        open_plain(url) as (_, plain_url),
        aclosing(OpenAiServer(plain_url, clock=SystemClock(), **TIMES)) as engine,
    ):
        yield engine


@asynccontextmanager
async def llama_router() -> AsyncIterator[Engine]:
    async with StubServer(StubRouter(Preset(MODEL))) as server:
        engine = LlamaRouter(
            server.url, clock=SystemClock(), connect_timeout_s=WITHIN_S, control_timeout_s=WITHIN_S
        )
        async with aclosing(engine):
            yield engine


@asynccontextmanager
async def llama_swap() -> AsyncIterator[Engine]:
    async with StubServer(StubSwap(Entry(MODEL))) as server:
        engine = LlamaSwap(
            server.url, clock=SystemClock(), connect_timeout_s=WITHIN_S, control_timeout_s=WITHIN_S
        )
        async with aclosing(engine):
            yield engine


@asynccontextmanager
async def processes() -> AsyncIterator[Engine]:
    """A real llama-server that is started for each load."""
    with TemporaryDirectory() as folder:
        write_model(Path(folder) / "tiny.gguf")
        run = run_settings(Path(folder) / "tiny.gguf")
        async with house({MODEL: run}) as home:
            yield home.engine


@asynccontextmanager
async def vllm(url: str) -> AsyncIterator[Engine]:
    """The same with the one page that vLLM has beside OpenAI's routes."""
    async with (
        open_plain(url, {"/version": {"version": "0.32.0"}}) as (_, plain_url),
        aclosing(Vllm(plain_url, clock=SystemClock(), **TIMES)) as engine,
    ):
        yield engine


@asynccontextmanager
async def sglang(url: str) -> AsyncIterator[Engine]:
    """The same with the page in which SGLang says its version."""
    async with (
        open_plain(url, {"/get_server_info": {"version": "0.5.6"}}) as (_, plain_url),
        aclosing(Sglang(plain_url, clock=SystemClock(), **TIMES)) as engine,
    ):
        yield engine


@asynccontextmanager
async def lmstudio() -> AsyncIterator[Engine]:
    async with (
        StubServer(StubStudio(Studio(MODEL))) as server,
        aclosing(LmStudio(server.url, clock=SystemClock(), **TIMES)) as engine,
    ):
        yield engine


LOADING = [fake, ollama, emulator, echo, llama_router, llama_swap, lmstudio, processes]
"""Those that load and unload on request."""
STAYING = [llama_server, openai_server, sglang, vllm]
"""Those whose models are there for as long as their server runs, which is a real one."""


@pytest.fixture(params=[*LOADING, *STAYING])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    opened: Callable[..., AbstractAsyncContextManager[Engine]] = request.param
    before = [request.getfixturevalue("llama_server_url")] if opened in STAYING else []
    async with opened(*before) as engine:
        yield engine


async def resident(engine: Engine) -> list[str]:
    return [model.name for model in await engine.resident()]


async def unloaded(engine: Engine) -> None:
    """Returns once nothing is in memory."""
    while await resident(engine):
        pass


async def generate(engine: Engine, model: str = MODEL) -> Exchange:
    asked = {"model": model, "prompt": "one two three", "options": {"num_predict": WORDS}}
    body = json.dumps({**asked, "fake": {"service_s": 0.0, "first_byte_s": 0.0, "chunks": WORDS}})
    headers = ((b"content-type", b"application/json"),)
    return await engine.open(
        BackendCall(method="POST", path="/api/generate", headers=headers, body=body.encode())
    )


async def test_it_says_what_it_is_and_which_of_the_known_addresses_it_serves(engine: Engine):
    assert engine.title
    assert engine.addresses
    assert {*engine.addresses} <= {*WORK_ROUTES, *INFO_ROUTES, *MANAGEMENT_ROUTES}
    assert MODEL in engine.how_to_install(MODEL)
    assert await engine.version()


async def test_names_are_listed_in_the_one_spelling_that_it_gives_every_name(engine: Engine):
    await engine.load(MODEL, UNPINNED)
    assert [model.name for model in await engine.installed()] == [MODEL]
    assert await resident(engine) == [MODEL]
    assert engine.canonical(MODEL) == MODEL
    assert engine.canonical(engine.canonical("Other")) == engine.canonical("Other")


async def test_a_list_that_has_not_changed_is_the_very_same_one(engine: Engine):
    assert await engine.installed() is await engine.installed()


@pytest.mark.parametrize("engine", LOADING, indirect=True)
async def test_a_model_is_loaded_with_the_pinned_context_and_dropped_again(engine: Engine):
    assert await resident(engine) == []
    await engine.unload(MODEL)  # what is not loaded, too
    await engine.load(MODEL, LoadOptions(num_ctx=2048))
    [model] = await engine.resident()
    assert (model.name, model.context_tokens or 2048) == (MODEL, 2048)
    assert model.size_mib >= model.vram_mib >= 0.0
    assert await engine.probe(MODEL, LoadOptions(num_ctx=2048), WITHIN_S)
    await engine.unload(MODEL)
    await unloaded(engine)


@pytest.mark.parametrize("engine", STAYING, indirect=True)
async def test_a_model_that_stays_is_there_whatever_is_asked(engine: Engine):
    assert not engine.loads_on_request
    [model] = await engine.resident()
    assert model.name == MODEL
    assert model.size_mib >= model.vram_mib >= 0.0
    await engine.load(MODEL, UNPINNED)
    assert await engine.probe(MODEL, UNPINNED, WITHIN_S)
    with pytest.raises(LoadError):
        await engine.unload(MODEL)
    assert await resident(engine) == [MODEL]
    [listed] = await engine.installed()
    assert listed.slots in (None, 1)


async def test_a_model_that_is_not_installed_is_not_found(engine: Engine):
    for attempt in (
        partial(engine.load, "missing:latest", UNPINNED),
        partial(engine.unload, "missing:latest"),
        partial(engine.capabilities, "missing:latest"),
    ):
        with pytest.raises(ModelNotFound, match="missing:latest"):
            await attempt()


async def test_what_a_model_can_do_is_said_or_not_known(engine: Engine):
    has = await engine.capabilities(MODEL)
    assert has is None or "completion" in has


async def test_an_answer_comes_in_chunks_that_end_and_may_be_closed_twice(engine: Engine):
    await engine.load(MODEL, UNPINNED)
    exchange = await generate(engine)
    lines = [json.loads(chunk) for chunk in await read(exchange)]
    for _ in range(2):
        exchange.close()
    assert (exchange.status, len(lines)) == (200, WORDS + 1)
    assert [line["done"] for line in lines] == [False] * WORDS + [True]
    assert all(line["response"] for line in lines[:-1])
    assert b"application/x-ndjson" in dict(exchange.headers)[b"content-type"]


async def test_an_answer_that_is_left_is_over_and_the_next_one_comes(engine: Engine):
    await engine.load(MODEL, UNPINNED)
    left = await generate(engine)
    assert await left.take()
    left.close()
    assert len(await read(await generate(engine))) == WORDS + 1


async def test_a_call_that_names_a_model_that_is_not_there_is_answered_so(engine: Engine):
    exchange = await generate(engine, "missing:latest")
    assert (exchange.status, bool(await read(exchange))) == (404, True)
    exchange.close()
