"""The lists of two Ollamas as one, and the pages that name no model."""

from __future__ import annotations

import asyncio
import json

import pytest

from hearth.api.app import HearthApp
from hearth.config.settings import AuthSettings
from hearth.engines.port import Engine
from hearth.engines.table import EngineTable, Row
from tests.support.fake_ollama import FakeModel
from tests.support.fields import Fields
from tests.support.house import House, settings_with
from tests.support.http import Got, ask
from tests.support.keys import key_of
from tests.support.silent_ollama import SilentOllama
from tests.support.virtual_time import in_virtual_time, sleep_until

KEY = "hearth_owner"


class Home(House):
    """An Ollama with `a:latest`, and another one with `b:latest` and `c:latest`."""

    def __init__(self) -> None:
        aliases = {"any": ("b", "a"), "c": ("a",)}
        self.second = SilentOllama(*(FakeModel(name=name) for name in ("b:latest", "c:latest")))
        settings = settings_with(backend={"check_interval_s": 5.0}).replace(
            aliases=aliases, auth=AuthSettings(keys=(key_of("owner", KEY, admin=True),))
        )
        super().__init__("a:latest", resident="a:latest", settings=settings, table=self._table)
        self.app = HearthApp(self.gateway)

    def _table(self, ollama: Engine) -> EngineTable:
        rows = [
            Row(name="one", engine=ollama, url="http://one", kind="ollama"),
            Row(name="two", engine=self.second, url="http://two", kind="ollama"),
        ]
        return EngineTable(rows)

    async def get(self, path: str, method: str = "GET") -> Got:
        return await ask(self.app, method, path, key=KEY)


@pytest.mark.parametrize(
    ("path", "part", "name"), [("/api/tags", "models", "name"), ("/v1/models", "data", "id")]
)
@in_virtual_time
async def test_an_alias_is_listed_beside_models_with_a_tag(path: str, part: str, name: str):
    async with Home() as house:
        listed = json.loads((await house.get(path)).body)[part]
        shown = {each[name]: each.get("alias_for") for each in listed}
        assert shown == {
            "a:latest": None,
            "b:latest": None,
            "any": ["b", "a"],
            "c": ["a"],
        }


@in_virtual_time
async def test_what_was_just_pulled_is_listed_once():
    async with Home() as house:
        for each in (house.ollama, house.second):
            each.install("new:latest")
        house.second.install("newer:latest")
        listed = json.loads((await house.get("/api/tags")).body)["models"]
        names = [each["name"] for each in listed if each["name"].startswith("new")]
        assert names == ["new:latest", "newer:latest"]


@in_virtual_time
async def test_the_merged_list_has_a_head():
    async with Home() as house:
        got = await house.get("/api/tags", "HEAD")
        assert got.status == 200


@in_virtual_time
async def test_a_list_does_not_wait_for_an_engine_that_says_nothing():
    async with Home() as house:
        house.second.is_silent = True
        got = await asyncio.wait_for(house.get("/v1/models"), 10.0)
        assert [each["id"] for each in json.loads(got.body)["data"]] == ["a:latest", "any", "c"]


@pytest.mark.parametrize(("method", "path"), [("HEAD", "/"), ("GET", "/api/version")])
@in_virtual_time
async def test_what_names_no_model_is_answered_by_an_engine_that_answers(method: str, path: str):
    async with Home() as house:
        house.ollama.go_down()
        await sleep_until(6.0)
        assert (await house.get(path, method)).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/copy", {"source": "b", "destination": "d"}),
        ("/api/create", {"model": "d", "from": "B:latest"}),
        ("/api/push", {"name": "b"}),
    ],
)
@in_virtual_time
async def test_managing_goes_to_the_engine_of_the_model_that_is_named(path: str, body: Fields):
    async with Home() as house:
        await ask(house.app, "POST", path, body, key=KEY)
        paths = [
            [call.path for call in each.calls if call.path == path]
            for each in (house.ollama, house.second)
        ]
        assert paths == [[], [path]]


@pytest.mark.parametrize("written", ["my model", "MY model:latest"])
@in_virtual_time
async def test_a_name_that_no_path_can_have_as_it_is_stays_escaped(written: str):
    async with Home() as house:
        house.second.install("my model:latest")
        await sleep_until(6.0)
        await house.get(f"/v1/models/{written}")
        assert [call.path for call in house.second.calls] == ["/v1/models/my%20model:latest"]
