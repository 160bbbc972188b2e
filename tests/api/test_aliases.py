"""A name that stands for any of several models, as callers of each dialect use it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hearth.config.settings import KeepaliveSettings, KeySettings, ModelSettings, ServerSettings
from hearth.events import ItemDispatched, ItemEnded, UnloadRequested
from hearth.types import Lane
from tests.api.house import AT_ONCE, HttpHouse
from tests.support.fake_ollama import FakeModel, LoadFault
from tests.support.fields import Fields
from tests.support.keys import key_of
from tests.support.ollama_wire import Service

CODER = {"coder": ("a:latest", "b:latest")}
CHAT = {"model": "coder", "messages": [{"role": "user", "content": "hi there"}]}
PROMPT = {"model": "coder", "prompt": "hi"}
BODIES: dict[str, Fields] = {
    **dict.fromkeys(("/api/chat", "/v1/chat/completions"), CHAT),
    **dict.fromkeys(("/api/generate", "/v1/completions"), PROMPT),
    "/v1/responses": {"model": "coder", "input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 5},
}
NAMES_ALIAS, NAMES_MODEL, NAMES_OTHER = "hearth_names_alias", "hearth_names_b", "hearth_names_c"


def key(name: str, secret: str, *models: str) -> KeySettings:
    return key_of(name, secret, lane=Lane.EXTERNAL, models=models)


KEYS = (
    key("coder", NAMES_ALIAS, "coder"),
    key("b", NAMES_MODEL, "b"),
    key("other", NAMES_OTHER, "c"),
)


def sent(house: HttpHouse) -> Any:
    """The body that the model server was sent last."""
    return json.loads(house.ollama.calls[-1].body)


def only(*models: str | FakeModel, **sections: Any) -> HttpHouse:
    """A house with the alias `coder` of a and b."""
    return HttpHouse(*models, aliases=CODER, **sections)


ABSENT = FakeModel(name="a:latest", load_s=2.0)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_dialect_is_served_by_the_model_in_memory_and_says_which(path, stream):
    async with only(ABSENT, "b") as house:
        got = await house.ask("POST", path, {**BODIES[path], "stream": stream})
        assert got.status == 200
        assert sent(house)["model"] == "b:latest"
        assert got.headers["x-hearth-model"] == "b:latest"
        assert "model" in got.headers["x-hearth-rewrote"].split(",")
        assert b'"model":"b:latest"' in got.body.replace(b": ", b":")


@pytest.mark.parametrize("name", ["coder", "Coder:latest", "CODER"])
async def test_an_alias_is_found_in_any_spelling(name):
    async with only("b") as house:
        assert (await house.ask("POST", "/api/chat", {**CHAT, "model": name})).status == 200
        assert house.item(1)["alias"] == "coder"


async def test_an_alias_may_have_the_name_of_a_model_of_claude():
    async with HttpHouse("b", aliases={"claude-sonnet-5": ("b:latest",)}) as house:
        asked = {**BODIES["/v1/messages"], "model": "claude-sonnet-5"}
        got = await house.ask("POST", "/v1/messages", asked)
        assert (got.status, sent(house)["model"]) == (200, "b:latest")


async def test_a_request_by_name_of_a_model_has_no_such_header():
    async with only("b") as house:
        got = await house.ask("POST", "/api/chat", {**CHAT, "model": "b"})
        assert "x-hearth-model" not in got.headers


async def test_the_body_has_the_context_length_of_the_model_that_runs():
    models = {"a": ModelSettings(num_ctx=1000), "b": ModelSettings(num_ctx=2000)}
    async with only(ABSENT, "b", models=models) as house:
        await house.ask("POST", "/api/chat", CHAT)
        assert sent(house)["options"]["num_ctx"] == 2000


async def test_a_long_body_is_held_once_however_many_models_may_serve_it():
    server = ServerSettings(max_body_mib=1.0, max_bodies_mib=3.0)  # of which a caller has 1.1
    aliases = {"coder": ("a", "b", "c")}
    async with HttpHouse("a", "b", "c", aliases=aliases, server=server) as house:
        words = "word " * 180_000
        got = await house.ask("POST", "/v1/chat/completions", {**CHAT, "user": words})
        assert got.status == 200
        assert sent(house) == {**CHAT, "user": words, "model": "a:latest"}


async def test_a_background_task_for_an_alias_is_no_reason_to_ask_what_is_installed():
    task = '### Task:\nTitle.\n{ "title": 1 }\n<chat_history>'
    asked = {"model": "coder", "messages": [{"role": "user", "content": task}], "stream": False}
    async with only("a") as house:
        listed = house.ollama.listed
        got = await house.ask("POST", "/api/chat", asked)
        assert (got.status, house.item(1)["background"]) == (200, "open-webui-title")
        assert house.ollama.listed == listed


async def test_two_models_in_memory_share_the_requests():
    async with only("a", "b") as house:
        house.service = Service(service_s=5.0)
        await asyncio.gather(*[house.ask("POST", "/api/chat", CHAT) for _ in range(2)])
        assert {event.model for event in house.events.of(ItemEnded)} == {"a:latest", "b:latest"}
        assert {event.alias for event in house.events.of(ItemDispatched)} == {"coder"}


async def test_the_next_model_is_tried_where_the_first_does_not_load():
    broken = FakeModel(name="a:latest", load_s=2.0)
    async with only(broken, FakeModel(name="b:latest", load_s=3.0)) as house:
        house.ollama.next_loads(LoadFault.NOT_FOUND)
        got = await house.ask("POST", "/api/chat", CHAT)
        assert (got.status, got.headers["x-hearth-model"]) == (200, "b:latest")


@pytest.mark.parametrize(
    ("secret", "status", "served_by"),
    [(NAMES_ALIAS, 200, "a:latest"), (NAMES_MODEL, 200, "b:latest"), (NAMES_OTHER, 403, None)],
)
async def test_a_key_may_use_an_alias_that_it_names_or_the_models_of_it_that_it_names(
    secret, status, served_by
):
    async with only("a", "b", "c", keys=KEYS) as house:
        got = await house.ask("POST", "/api/chat", CHAT, key=secret)
        assert (got.status, got.headers.get("x-hearth-model")) == (status, served_by)


@pytest.mark.parametrize("written", ["coder", "Coder", "CODER:latest"])
@pytest.mark.parametrize("called", ["coder", "Coder", "CODER:latest"])
async def test_a_key_names_an_alias_in_any_spelling(written, called):
    keys = (key("coder", NAMES_ALIAS, written),)
    async with HttpHouse("a", "b", aliases={"Coder": CODER["coder"]}, keys=keys) as house:
        got = await house.ask("POST", "/api/chat", {**CHAT, "model": called}, key=NAMES_ALIAS)
        assert (got.status, house.item(1)["alias"]) == (200, "Coder")


@pytest.mark.parametrize(("secret", "unloaded"), [(NAMES_ALIAS, ["a", "b"]), (NAMES_MODEL, ["b"])])
async def test_a_key_unloads_what_it_may_use_of_an_alias(secret, unloaded):
    async with only("a", "b", "c", keys=KEYS) as house:
        wish = {"model": "coder", "keep_alive": 0}
        assert (await house.ask("POST", "/api/generate", wish, key=secret)).status == 200
        asked = [event.model for event in house.events.of(UnloadRequested)]
        assert asked == [f"{model}:latest" for model in unloaded]


@pytest.mark.parametrize(
    "more", [{"keep_alive": 0}, {"prompt": "x", "options": {"num_predict": 0}}]
)
async def test_what_needs_no_model_asks_for_one_that_is_there_and_allowed(more):
    async with only("a", keys=KEYS) as house:
        body = {"model": "coder", **more}
        got = await house.ask("POST", "/api/generate", body, key=NAMES_MODEL)
        says = "model 'coder' not found: none of its models is installed (b:latest)"
        assert (got.status, got.error) == (404, says)


async def test_a_key_that_names_the_alias_may_not_name_its_models():
    async with only("a", "b", "c", keys=KEYS) as house:
        got = await house.ask("POST", "/api/chat", {**CHAT, "model": "a"}, key=NAMES_ALIAS)
        assert got.status == 403


async def test_an_alias_none_of_whose_models_is_installed_is_not_found():
    async with only("c") as house:
        got = await house.ask("POST", "/api/chat", CHAT)
        says = "model 'coder' not found: none of its models is installed (a:latest, b:latest)"
        assert (got.status, got.error) == (404, says)


async def test_an_alias_that_is_removed_still_serves_what_waits():
    async with only("b") as house:
        house.service = Service(service_s=5.0)
        await house.begin(CHAT, CHAT)
        house.reload(aliases={})
        house.service = AT_ONCE
        assert (await house.ask("POST", "/api/chat", CHAT)).status == 404
        await asyncio.gather(*house.background)
        assert [asked.result().status for asked in house.background] == [200, 200]


async def test_an_alias_that_is_added_is_there_at_once():
    async with HttpHouse("b") as house:
        assert (await house.ask("POST", "/api/chat", CHAT)).status == 404
        house.reload(aliases=CODER)
        assert (await house.ask("POST", "/api/chat", CHAT)).status == 200


@pytest.mark.parametrize("path", ["/api/embed", "/v1/embeddings"])
async def test_embeddings_always_come_from_the_first_model(path):
    async with only(ABSENT, "b") as house:
        got = await house.ask("POST", path, {"model": "coder", "input": "hi"})
        assert (got.status, sent(house)["model"]) == (200, "a:latest")
        assert got.headers["x-hearth-model"] == "a:latest"


async def test_signs_of_life_come_before_the_model_is_chosen_and_frames_name_it():
    patient = KeepaliveSettings(after_s=1.0, every_s=1.0)
    async with only(FakeModel(name="a:latest", load_s=9.0), keepalive=patient) as house:
        got = await house.ask("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        assert "x-hearth-model" not in got.headers
        assert b'"model":"a:latest"' in got.body.replace(b": ", b":")


async def test_lists_of_models_have_the_alias_with_its_mark():
    async with only("a", "b") as house:
        listed = {"models": [{"name": "a:latest", "model": "a:latest", "size": 7}]}
        house.list_as(json.dumps(listed).encode())
        got = await house.ask("GET", "/api/tags")
        assert got.json["models"][1:] == [
            {"name": "coder", "model": "coder", "size": 7, "alias_for": ["a:latest", "b:latest"]}
        ]
        house.list_as(b'{"object":"list","data":[{"id":"a:latest","object":"model"}]}')
        got = await house.ask("GET", "/v1/models")
        assert got.json["data"][1:] == [
            {"id": "coder", "object": "model", "alias_for": ["a:latest", "b:latest"]}
        ]


async def test_an_alias_of_nothing_that_is_installed_is_in_no_list():
    async with only("c") as house:
        house.list_as(b'{"models":[{"name":"c:latest","model":"c:latest"}]}')
        assert len((await house.ask("GET", "/api/tags")).json["models"]) == 1


async def test_one_alias_is_shown_as_a_model_of_openai():
    async with only("a", "b") as house:
        got = await house.ask("GET", "/v1/models/coder")
        assert (got.json["id"], got.json["alias_for"]) == ("coder", ["a:latest", "b:latest"])


async def test_show_of_an_alias_has_what_any_of_its_models_can_do():
    async with only(ABSENT, "b") as house:
        house.list_as(b'{"capabilities":["completion","tools"],"details":{"family":"x"}}')
        got = await house.ask("POST", "/api/show", {"model": "coder"})
        assert got.json["alias_for"] == ["a:latest", "b:latest"]
        assert got.json["capabilities"] == ["completion", "tools"]
        asked = [json.loads(call.body)["model"] for call in house.ollama.calls]
        assert asked == ["a:latest", "b:latest"]


@pytest.mark.parametrize("field", ["model", "Model", "name", "NAME"])
async def test_show_finds_the_alias_under_each_name_that_ollama_reads(field):
    async with only("a", "b") as house:
        house.list_as(b'{"details":{"family":"x"}}')
        got = await house.ask("POST", "/api/show", {field: "coder"})
        assert (got.status, got.json["alias_for"]) == (200, ["a:latest", "b:latest"])


async def test_show_says_what_it_can_where_a_model_was_deleted_a_moment_ago():
    async with only("a", "b") as house:
        house.list_as(b'{"capabilities":["completion"]}')
        house.ollama.delete("a:latest")
        got = await house.ask("POST", "/api/show", {"model": "coder"})
        assert (got.status, got.json["capabilities"]) == (200, ["completion"])
        house.ollama.delete("b:latest")
        got = await house.ask("POST", "/api/show", {"model": "coder"})
        assert (got.status, got.error) == (502, "The model server says nothing of b:latest.")


async def test_an_alias_that_is_removed_while_it_is_shown_is_shown():
    async with only("a", "b") as house:
        house.list_as(b'{"details":{"family":"x"}}')
        await house.begin({"model": "coder"}, path="/api/show")
        house.reload(aliases={})
        (got,) = await asyncio.gather(*house.background)
        assert got.json["alias_for"] == ["a:latest", "b:latest"]


async def test_lists_have_the_alias_in_place_of_a_model_that_it_hides():
    async with only("a", "b", "coder") as house:
        house.list_as(b'{"models":[{"name":"a:latest"},{"name":"Coder:latest"}]}')
        listed = (await house.ask("GET", "/api/tags")).json["models"]
        assert [each["name"] for each in listed] == ["a:latest", "coder"]


async def test_no_admin_command_takes_an_alias():
    async with only("a", "b") as house:
        got = await house.ask("POST", "/llm/admin/pin", {"model": "coder"})
        assert got.status == 409
        assert "is an alias: name one of a:latest, b:latest" in got.error


async def test_a_completion_names_the_model_that_served():
    async with only(ABSENT, "b") as house:
        got = await house.ask("POST", "/llm/completions", {"prompt": "hi", "model": "coder"})
        assert (got.json["model"], got.headers["x-hearth-model"]) == ("b:latest", "b:latest")


async def test_status_and_metrics_have_the_alias():
    async with only("b") as house:
        await house.ask("POST", "/api/chat", CHAT)
        status = (await house.ask("GET", "/llm/queue/status")).json
        assert status["aliases"] == {
            "coder": {"models": ["a:latest", "b:latest"], "missing": ["a:latest"]}
        }
        page = (await house.ask("GET", "/metrics")).body.decode()
        counted = 'hearth_alias_bindings_total{alias="coder",model="b:latest"} 1.0'
        assert counted in page
