"""Pulling and deleting models through Hearth: which engine is asked, and what is in the way of a
model that goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.api.house import HttpHouse
from tests.gateway.test_several_engines import Home
from tests.support.fake_gpu import FakeModel
from tests.support.fake_ollama import Service
from tests.support.house import settle, within
from tests.support.http import Got, ask
from tests.support.virtual_time import in_virtual_time, sleep_until

JSON = {"content_type": "application/json"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def delete(house: HttpHouse, model: str) -> Got:
    return await house.ask("DELETE", "/api/delete", {"model": model}, **JSON)


def deleted(house: HttpHouse) -> list[str]:
    return [call.path for call in house.ollama.calls if call.method == "DELETE"]


@within(HttpHouse)
async def test_a_model_leaves_the_memory_before_it_is_deleted(house):
    house.list_as()
    began = house.now
    assert (await delete(house, "m")).status == 200
    assert "m:latest" not in house.gateway.worker.runtime.view.residents
    assert house.ollama.control[-1].kind == "unload"
    assert house.now - began == pytest.approx(0.5)
    assert deleted(house) == ["/api/delete"]
    assert (await delete(house, "unheard-of")).status == 404  # as the model server says


@within(HttpHouse)
async def test_a_model_that_runs_is_waited_for_or_pinned_is_not_deleted(house):
    house.service = Service(service_s=600.0)
    await house.begin(CHAT, CHAT | {"model": "allowed"}, CHAT | {"model": "allowed"})
    refused = await delete(house, "m")
    assert (refused.status, refused.error) == (409, "m:latest is in use: 1 request runs on it")
    waited_for = await delete(house, "allowed")
    assert waited_for.status == 409
    assert (await house.ask("POST", "/llm/admin/pin", {"model": "allowed"}, **JSON)).status == 200
    house.worker.cancel_caller("local")
    await settle()
    pinned = await delete(house, "allowed")
    assert (pinned.status, pinned.error) == (409, "allowed:latest is pinned: unpin it first")
    assert deleted(house) == []


@within(lambda: HttpHouse(FakeModel(name="m"), FakeModel(name="n")))
async def test_a_model_that_is_only_on_the_disk_is_deleted_at_once(house):
    house.list_as()
    assert (await delete(house, "n")).status == 200
    assert house.ollama.control == []


@within(lambda: HttpHouse(FakeModel(name="m", digest="d"), FakeModel(name="copy", digest="d")))
async def test_a_second_name_of_a_model_in_use_is_deleted(house):
    house.list_as()
    house.service = Service(service_s=600.0)
    await house.begin(CHAT)
    await sleep_until(5.0)  # it is loaded
    one = house.gateway.name_of("m")
    other = {"m:latest": "copy", "copy:latest": "m"}[one]
    assert (await delete(house, other)).status == 200
    assert (await delete(house, one)).status == 409
    house.worker.cancel_caller("local")
    await settle()


@within(lambda: HttpHouse("m", aliases={"any": ("m",)}))
async def test_an_alias_is_not_deleted(house):
    refused = await delete(house, "any")
    assert (refused.status, deleted(house)) == (409, [])
    assert refused.error == "any is an alias: name one of m:latest"


async def manage(house: Home, method: str, path: str, asked: Mapping[str, Any]) -> Got:
    return await ask(house.app, method, path, asked, **JSON)


@in_virtual_time
async def test_engines_that_cannot_change_their_models_say_what_can_be_done():
    async with Home() as house:
        refused = await manage(house, "DELETE", "/api/delete", {"model": "Stays"})
        assert refused.status == 501
        assert refused.error.startswith("Stays is a model of Staying, which does not delete models")
        refused = await manage(house, "POST", "/api/pull?engine=big", {"model": "new"})
        assert refused.status == 501
        unknown = await manage(house, "POST", "/api/pull?engine=none", {"model": "new"})
        assert unknown.status == 400
        assert unknown.error == "engine: there is none of this name; there are cards, big"
        assert house.ollama.calls == []


@pytest.mark.parametrize("query", ["", "?engine=cards"])
@in_virtual_time
async def test_what_is_pulled_comes_from_the_engine_that_pulls(query):
    async with Home() as house:
        await manage(house, "POST", f"/api/pull{query}", {"model": "new"})
        assert [call.path for call in house.ollama.calls] == [f"/api/pull{query}"]


@within(HttpHouse)
async def test_after_a_change_the_lists_are_read_at_once(house):
    house.list_as(b'{"status":"success"}\n')
    listed = house.ollama.listed
    await house.ask("POST", "/api/pull", {"model": "new"}, **JSON)
    await asyncio.sleep(0)
    await settle()
    assert house.ollama.listed > listed
