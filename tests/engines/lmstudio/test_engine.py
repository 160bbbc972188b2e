"""The adapter before LM Studio as it is documented."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.dialects.routes import Endpoint
from hearth.engines.lmstudio.engine import LmStudio
from hearth.engines.lmstudio.models import models_in
from hearth.errors import BackendProtocolError, BadRequest, LoadError, ModelNotFound
from hearth.types import BackendCall, LoadOptions
from tests.dialects.test_any_value import with_odd_values
from tests.engines.lmstudio.stub import DOWNLOAD, LOAD, MODELS, UNLOAD, Entry, StubStudio
from tests.engines.openai_server.scripted import post, whole
from tests.engines.stub_server import StubServer, read
from tests.engines.upstream_model import answered
from tests.support.patience import until

UNPINNED = LoadOptions()
HI: Any = [{"role": "user", "content": "hi"}]
CHAT = Endpoint.OPENAI_CHAT.value


@asynccontextmanager
async def before(
    *entries: Entry, jit: bool = False, **options: Any
) -> AsyncIterator[tuple[LmStudio, StubStudio]]:
    studio = StubStudio(*(entries or (Entry("qwen/a"), Entry("qwen/b"))), jit=jit)
    times: Any = {"connect_timeout_s": 30.0, "control_timeout_s": 30.0}
    async with StubServer(studio) as server:
        engine = LmStudio(server.url, clock=SystemClock(), **times, **options)
        async with aclosing(engine):
            yield engine, studio


async def resident(engine: LmStudio) -> list[str]:
    return [model.name for model in await engine.resident()]


async def test_what_is_on_its_disk_is_listed():
    seer = Entry("org/seer@q4_k_m", vision=True)
    async with before(Entry("qwen/a"), seer, Entry("embedder", kind="embedding")) as (engine, _):
        listed = {model.name: model for model in await engine.installed()}
        assert [*listed] == ["qwen/a", "seer-q4_k_m", "embedder"]
        assert {model.slots for model in listed.values()} == {4}
        assert "vision" in (listed["seer-q4_k_m"].capabilities or ())
        assert "vision" not in (listed["qwen/a"].capabilities or ())
        assert listed["embedder"].capabilities == frozenset({"embedding"})
        assert listed["embedder"].abilities == frozenset({"embedding"})
        assert listed["qwen/a"].abilities == frozenset({"completion", "tools"})
        assert await engine.installed() is await engine.installed()
        assert await resident(engine) == []
        assert (engine.loads_on_request, engine.loads_can_be_cut) == (True, False)


async def test_a_model_is_loaded_by_its_key_and_unloaded_by_its_instance():
    async with before() as (engine, studio):
        await engine.load("qwen/a", LoadOptions(num_ctx=8192))
        assert studio.sent_to(LOAD) == [{"model": "qwen/a", "context_length": 8192}]
        [model] = await engine.resident()
        assert (model.name, model.context_tokens, model.size_mib) == ("qwen/a", 8192, 2048.0)
        await engine.unload("qwen/a")
        assert studio.sent_to(UNLOAD) == [{"instance_id": "qwen/a"}]
        assert await resident(engine) == []
        await engine.unload("qwen/a")


async def test_a_model_that_is_loaded_is_not_loaded_a_second_time():
    async with before() as (engine, studio):
        await asyncio.gather(*(engine.load("qwen/a", UNPINNED) for _ in range(3)))
        assert len(studio.sent_to(LOAD)) == 1
        assert [*studio.entries["qwen/a"].instances] == ["qwen/a"]


async def test_all_instances_of_a_model_are_unloaded():
    entry = Entry("qwen/a", instances={"qwen/a": {}, "qwen/a:2": {}})
    async with before(entry) as (engine, studio):
        [model] = await engine.resident()
        assert model.size_mib == 2 * 2048.0
        await engine.unload("qwen/a")
        assert entry.instances == {}
        assert len(studio.sent_to(UNLOAD)) == 2


async def test_a_loaded_model_is_asked_for_by_its_instance():
    entry = Entry("qwen/a")
    async with before(entry) as (engine, studio):
        await engine.load("qwen/a", UNPINNED)
        entry.instances = {"my-own-name": entry.instances["qwen/a"]}
        await engine.installed()
        for path in (CHAT, Endpoint.CHAT.value):
            status, _ = await whole(engine, post(path, "QWEN/a", messages=HI, stream=False))
            assert status == 200
        assert [one["model"] for one in studio.sent_to(CHAT)] == ["my-own-name"] * 2


async def test_what_a_new_version_says_of_slots_counts():
    async with before(Entry("qwen/a", parallel=7)) as (engine, _):
        [before_load] = await engine.installed()
        await engine.load("qwen/a", UNPINNED)
        [model] = await engine.installed()
        assert (before_load.slots, model.slots) == (4, 7)
        assert model.digest == before_load.digest


@pytest.mark.parametrize("says", ["Not enough memory", "Unsupported architecture"])
async def test_a_load_that_fails_says_why(says: str):
    async with before(Entry("qwen/a", fails=says)) as (engine, _):
        with pytest.raises(LoadError, match=says):
            await engine.load("qwen/a", UNPINNED)
        assert await resident(engine) == []


async def test_a_load_that_breaks_off_is_none():
    async with before() as (engine, studio):
        studio.says[LOAD] = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"
        with pytest.raises(LoadError):
            await engine.load("qwen/a", UNPINNED)


async def test_a_load_that_is_given_up_is_unloaded_when_it_is_over():
    entry = Entry("qwen/a")
    entry.loads.clear()
    async with before(entry) as (engine, studio):
        loading = asyncio.create_task(engine.load("qwen/a", UNPINNED))
        await until(lambda: studio.sent_to(LOAD))
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        entry.loads.set()
        await until(lambda: studio.sent_to(UNLOAD))
        await until(lambda: not entry.instances)


async def test_a_model_that_is_not_there_is_not_found():
    async with before() as (engine, _):
        for attempt in (engine.load("none", UNPINNED), engine.unload("none")):
            with pytest.raises(ModelNotFound, match="none"):
                await attempt
        status, _ = await whole(engine, post(CHAT, "none", messages=HI))
        assert status == 404


async def test_jit_loading_is_seen():
    for jit in (True, False):
        async with before(jit=jit) as (engine, _):
            await engine.version()
            assert engine.loads_by_itself is jit


async def test_a_refused_key_names_the_setting():
    async with before(api_key="mine") as (engine, studio):
        studio.key = "other"
        with pytest.raises(BackendProtocolError, match=r"engines\.main\.api_key"):
            await engine.installed()
        studio.key = "mine"
        assert len(await engine.installed()) == 2


async def test_another_server_is_described():
    async with before() as (engine, studio):
        studio.says[MODELS] = answered(200, b"<html>", "text/html")
        with pytest.raises(BackendProtocolError, match=r"must lead to LM Studio"):
            await engine.installed()


async def test_messages_are_translated_where_it_has_no_such_route():
    async with before() as (engine, studio):
        await engine.load("qwen/a", UNPINNED)
        await engine.installed()
        path = Endpoint.ANTHROPIC_MESSAGES.value
        status, message = await whole(engine, post(path, "qwen/a", messages=HI, max_tokens=3))
        assert (status, message["content"]) == (200, [{"type": "text", "text": "abc"}])
        assert len(studio.sent_to(CHAT)) == 1
        with pytest.raises(BadRequest, match=r"options\.min_p"):
            engine.check_request(Endpoint.CHAT, {"messages": HI, "options": {"min_p": 0.1}})


async def test_pages_of_ollama_tell_of_its_models():
    async with before() as (engine, _):
        await engine.load("qwen/a", UNPINNED)
        _, tags = await whole(engine, post("/api/tags", ""))
        assert [one["name"] for one in tags["models"]] == ["qwen/a", "qwen/b"]
        _, running = await whole(engine, post("/api/ps", ""))
        assert [one["name"] for one in running["models"]] == ["qwen/a"]


async def test_a_stream_that_is_left_is_over():
    async with before() as (engine, studio):
        await engine.load("qwen/a", UNPINNED)
        process = studio.entries["qwen/a"].process
        assert process is not None
        process.held = 2
        exchange = await engine.open(post(CHAT, "qwen/a", messages=HI, stream=True))
        assert await exchange.take()
        exchange.close()
        await until(lambda: process.left == 1)
        process.held = None
        assert await read(await engine.open(post(CHAT, "qwen/a", messages=HI, stream=True)))


def test_no_value_in_any_place_breaks_the_reading_of_its_list():
    entry = Entry("qwen/a", vision=True, instances={"qwen/a": {"context_length": 5}})
    for odd in with_odd_values({"models": [entry.shown]}):
        for model in models_in(json.loads(json.dumps(odd))):
            assert model.installed.name
            assert model.slots >= 1


async def pulling(engine: LmStudio, name: str, **more: Any) -> tuple[int, list[Any]]:
    exchange = await engine.open(post("/api/pull", model=name, **more))
    lines = b"".join(await read(exchange)).splitlines()
    return exchange.status, [json.loads(line) for line in lines]


async def test_a_pull_is_a_download_that_is_looked_at_until_it_is_over():
    async with before(Entry("qwen/a")) as (engine, studio):
        status, lines = await pulling(engine, "hf.co/org/repo:Q4_K_M")
        part = {"status": "pulling job_1", "digest": "job_1", "total": 1000}
        assert (status, lines[:-1]) == (200, [part | {"completed": done} for done in (0, 500)])
        assert lines[-1] == {"status": "success"}
        wanted = {"model": "https://huggingface.co/org/repo", "quantization": "Q4_K_M"}
        assert studio.sent_to(DOWNLOAD) == [wanted]
        assert await pulling(engine, "qwen/a") == (200, [{"status": "success"}])
        assert await pulling(engine, "new/a", stream=False) == (200, [{"status": "success"}])


async def test_a_pull_that_fails_says_so_as_ollama_does():
    async with before() as (engine, _):
        assert await pulling(engine, "unknown/a") == (404, [{"error": "Model not found"}])
        failed = {"error": "LM Studio says that the download is failed; its app says why"}
        status, lines = await pulling(engine, "failing/a")
        assert (status, lines[-1]) == (200, failed)
        assert await pulling(engine, "failing/a", stream=False) == (500, [failed])
        nothing = BackendCall(method="POST", path="/api/pull", body=b"{}")
        assert (await engine.open(nothing)).status == 400
