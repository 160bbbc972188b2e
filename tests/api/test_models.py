"""`/llm/models`: what is known of each model, and what the engines can do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hearth.config.settings import ModelSettings
from tests.api.house import ADMIN_KEY, KEYS, LOW_KEY, HttpHouse, answering
from tests.gateway.test_several_engines import Home
from tests.support.fake_gpu import FakeModel
from tests.support.house import within
from tests.support.virtual_time import in_virtual_time

JSON = {"content_type": "application/json"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi " * 400}]}
ANSWERED = (
    b'{"message":{"role":"assistant","content":"a"},"done":false}\n',
    (
        b'{"done":true,"prompt_eval_count":1000,"prompt_eval_duration":2000000000,'
        b'"eval_count":60,"eval_duration":3000000000}\n'
    ),
)


async def listed(house: HttpHouse, key: str | None = None) -> dict[str, dict[str, Any]]:
    shown = (await house.ask("GET", "/llm/models", key=key)).json["models"]
    return {model["name"]: model for model in shown}


@within(HttpHouse)
async def test_each_model_has_what_the_dashboard_has_of_it_and_more(house):
    shown = await listed(house)
    for model in await house.gateway.models():
        assert model.items() <= shown[model["name"]].items()
    assert shown["m:latest"]["loads"] is True
    assert shown["m:latest"]["engines"] == ["main"]


@within(
    lambda: HttpHouse(
        FakeModel(
            name="big",
            file_mib=2000.0,
            max_context_tokens=131_072,
            capabilities=frozenset({"completion", "vision"}),
        ),
        "m",
        models={"big": ModelSettings(num_ctx=16_384, vram_gb=4)},
        aliases={"any": ("m", "big"), "other": ("gone",)},
    )
)
async def test_sizes_contexts_aliases_and_what_it_can_do_are_listed(house):
    shown = await listed(house)
    big = shown["big:latest"]
    wanted = {
        "file_mib": 2000.0,
        "need_mib": 4096.0,
        "context_tokens": None,  # it is not loaded
        "num_ctx": 16_384,
        "max_context_tokens": 131_072,
        "capabilities": ["completion", "vision"],
        "accepts": ["completion", "vision"],
        "aliases": ["any"],
    }
    assert wanted.items() <= big.items()
    m = shown["m:latest"]
    known = (m["context_tokens"], m["num_ctx"], m["max_context_tokens"], m["capabilities"])
    assert known == (4096, None, None, None)
    assert (await house.ask("POST", "/llm/admin/pin", {"model": "m"}, **JSON)).status == 200
    assert [name for name, each in (await listed(house)).items() if each["pinned"]] == ["m:latest"]


@within(lambda: HttpHouse(FakeModel(name="m", load_s=4.0)))
async def test_loads_speeds_and_warm_conversations_are_shown_once_measured(house):
    unknown = (await listed(house))["m:latest"]
    measures = ("load_s", "read_tokens_per_s", "write_tokens_per_s")
    assert [unknown[name] for name in measures] == [None, None, None]
    assert (unknown["warm_conversations"], unknown["saved_conversations"]) == (0, 0)
    house.service = answering(*ANSWERED)
    assert (await house.ask("POST", "/api/chat", CHAT, **JSON)).status == 200
    known = (await listed(house))["m:latest"]
    assert [known[name] for name in measures] == [4.0, 500.0, 20.0]
    assert known["warm_conversations"] == 1
    assert known["warm_tokens"] > 1000


@within(lambda: HttpHouse(keys=KEYS))
async def test_a_key_learns_whether_it_may_manage_models_and_what_engines_can_do(house):
    for key, may in ((ADMIN_KEY, True), (LOW_KEY, False)):
        page = (await house.ask("GET", "/llm/models", key=key)).json
        assert page["may_manage"] is may
        [engine] = page["engines"]
        assert (engine["can_pull"], engine["can_delete"], engine["loads"]) == (True, True, True)
        assert engine["how_to_install"] == "ollama pull NAME"


@in_virtual_time
async def test_models_of_several_engines_are_shown_with_what_each_of_these_can_do():
    async with Home() as house:
        page = json.loads((await house.get("/llm/models")).body)
        able = {each["name"]: (each["can_pull"], each["loads"]) for each in page["engines"]}
        assert able == {"cards": (True, True), "big": (False, False)}
        models = {each["name"]: each for each in page["models"]}
        assert (models["a"]["engines"], models["a"]["loads"]) == (["cards"], True)
        assert (models["Stays"]["engines"], models["Stays"]["loads"]) == (["big"], False)


@pytest.mark.parametrize("number", [0, 250, 251])
@within(HttpHouse)
async def test_a_list_of_any_length_is_whole(house, number):
    house.ollama.gpu.models.clear()
    house.ollama.gpu.clear()
    for each in range(number):
        house.ollama.install(f"{each} é:latest")
    await house.worker.watch.look()
    assert len(await listed(house)) == number
