"""A router's models are listed, loaded and unloaded, whatever it does meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from hearth.dialects.request import is_model_name
from hearth.engines.llama_router.control import Control
from hearth.engines.llama_router.events import LoadEvents
from hearth.engines.llama_router.models import models_in
from hearth.engines.openai_server.calls import Place
from hearth.errors import BackendProtocolError, BackendUnreachable, LoadError, ModelNotFound
from tests.dialects.test_any_value import with_odd_values
from tests.engines.llama_router.stub import Preset, StubRouter
from tests.engines.stub_server import StubServer
from tests.engines.upstream_model import answered, refused
from tests.support.fields import Fields
from tests.support.llama_server_wire import FOLDER, recorded
from tests.support.patience import WITHIN_S, until


def control_at(url: str, key: str = "", timeout_s: float = WITHIN_S) -> Control:
    place = Place(title="llama-server (router)", setting="engines.big.url")
    return Control(url, api_key=key, place=place, timeout_s=timeout_s)


@asynccontextmanager
async def before(router: StubRouter, key: str = "") -> AsyncIterator[Control]:
    async with (
        StubServer(router) as server,
        aclosing(control_at(server.url, key)) as control,
    ):
        yield control


def names_in(listed: Fields) -> list[str]:
    return [model.name for model in models_in(listed)]


def test_what_a_router_was_recorded_to_list_is_read():
    [a, b, badflag, c, gone] = models_in(recorded("router_models_loaded").answered)
    assert (a.names, a.status, a.context_tokens) == (("a", "al", "alpha"), "loaded", 4096)
    assert (a.size_bytes, b.size_bytes) == (2949632, 0)
    assert [each.status for each in (b, badflag, c, gone)] == ["unloaded"] * 4
    codes = [each.exit_code for each in models_in(recorded("router_models_failed").answered)]
    assert codes == [None, None, 1, None, 1]


def test_a_stub_lists_models_with_the_fields_that_were_recorded():
    for name, status in (("router_models_loaded", "loaded"), ("router_models_failed", "unloaded")):
        real = next(
            each
            for each in recorded(name).answered["data"]
            if each["status"]["value"] == status
            and ("failed" in name) == ("failed" in each["status"])
        )
        preset = Preset(name="a", status=status, exit_code=1 if status == "unloaded" else 0)
        shown = preset.shown()
        assert (shown.keys(), shown["status"].keys()) == (real.keys(), real["status"].keys())


def test_no_value_in_any_place_breaks_what_is_said_of_models():
    for odd in with_odd_values(recorded("router_models_failed").answered):
        for model in models_in(odd if isinstance(odd, dict) else {}):
            assert all(is_model_name(name) for name in model.names)
            assert model.resident.size_mib >= 0.0


async def test_models_go_by_their_names_and_aliases_as_one_model_each():
    async with before(StubRouter(Preset("a", aliases=("al",)), Preset("b"))) as control:
        listed = await control.installed()
        assert [model.name for model in listed] == ["a", "al", "b"]
        digests = [model.digest for model in listed]
        assert (digests[0] == digests[1], digests[0] == digests[2]) == (True, False)
        assert await control.installed() is listed


async def test_a_model_is_the_same_one_before_and_after_its_first_load():
    router = StubRouter(Preset("a"))
    async with before(router) as control:
        [unloaded] = await control.installed()
        await control.load("a")
        [loaded] = await control.installed()
        await control.unload("a")
        await until(lambda: router.presets["a"].status == "unloaded")
        await control.load("a")
        assert await control.installed() == (loaded,)
        assert loaded.digest == unloaded.digest


async def test_another_file_under_the_same_name_is_another_model():
    router = StubRouter(Preset("a"))
    async with before(router) as control:
        await control.load("a")
        [first] = await control.installed()
        router.presets["a"].size_mib += 1
        [second] = await control.installed()
        await control.unload("a")
        await until(lambda: router.presets["a"].status == "unloaded")
        [third] = await control.installed()
        assert (first.digest != second.digest, second.digest == third.digest) == (True, True)


async def test_slots_are_those_of_its_arguments_or_what_it_says_once_it_is_loaded():
    router = StubRouter(Preset("a", arguments=("--parallel", "3")), Preset("b", arguments=()))
    router.presets["b"].slots = 4
    async with before(router) as control:
        assert [model.slots for model in await control.installed()] == [3, None]
        await control.load("b")
        for _ in range(2):
            assert [model.slots for model in await control.installed()] == [3, 4]
        assert router.asked.count(("GET", "/props")) == 2


@pytest.mark.parametrize(
    ("autoload", "most"), [(True, 0), (False, 1), (True, 4)], ids=["autoload", "limit", "default"]
)
async def test_a_router_that_would_load_or_unload_by_itself_is_refused(autoload: bool, most: int):
    async with before(StubRouter(Preset("a"), autoload=autoload, most=most)) as control:
        for ask in (control.version, control.installed):
            with pytest.raises(BackendProtocolError) as caught:
                await ask()
            assert "--no-models-autoload --models-max 0" in caught.value.message


HTML = answered(200, b"<html>", "text/html")
PROPS = recorded("props").body
OLD = answered(200, b'{"role": "router", "build_info": "b1"}')


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("/props", HTML, "engines.big.url must lead to llama-server (router)"),
        ("/props", answered(200, PROPS), "this server has one model; kind: llama_server"),
        ("/props", OLD, "does not say whether this router loads and unloads models by itself"),
        ("/models", refused(404, "no"), "answered 404; 200 with an object with the list `data`"),
        ("/models", answered(200, b"[]"), "200 with an object with the list `data`"),
    ],
    ids=["html", "one model", "old", "no list", "a list"],
)
async def test_a_server_that_is_not_as_it_should_be_is_described(
    path: str, answer: bytes, says: str
):
    router = StubRouter(Preset("a"))
    router.says[path] = answer
    async with before(router) as control:
        with pytest.raises(BackendProtocolError) as caught:
            await control.installed()
        assert says in caught.value.message


async def test_a_wrong_key_is_named_by_its_setting():
    router = StubRouter(Preset("a"))
    router.key = "right"
    async with before(router, key="wrong") as control:
        with pytest.raises(BackendProtocolError, match=r"engines\.big\.api_key is not the key"):
            await control.version()


async def test_a_router_that_is_not_there_is_unreachable():
    async with StubServer(StubRouter()) as server:
        server.stop_listening()
        async with aclosing(control_at(server.url)) as control:
            with pytest.raises(BackendUnreachable):
                await control.version()


async def test_a_load_ends_when_the_model_is_there_and_not_before():
    router = StubRouter(Preset("a", aliases=("al",)))
    router.presets["a"].loads.clear()
    async with before(router) as control:
        loading = asyncio.create_task(control.load("al"))
        await until(lambda: router.presets["a"].status == "loading")
        assert await control.resident() == ()
        assert not loading.done()
        router.presets["a"].loads.set()
        await loading
        [model] = await control.resident()
        assert (model.name, model.size_mib, model.context_tokens) == ("a", 64.0, 2048)


async def test_a_load_without_events_ends_when_the_list_says_so():
    router = StubRouter(Preset("a"))
    router.has_events = False
    async with before(router) as control:
        await control.load("a")
        assert [model.name for model in await control.resident()] == ["a"]


async def test_a_model_that_is_there_is_loaded_and_one_that_is_not_is_unloaded():
    async with before(StubRouter(Preset("a", status="loaded"))) as control:
        await control.load("a")
        await control.unload("a")
        await until_gone(control)
        await control.unload("a")


async def until_gone(control: Control) -> None:
    while await control.resident():
        pass


async def test_a_model_whose_process_fails_is_not_loaded_and_the_error_says_why():
    async with before(StubRouter(Preset("gone", fails=1))) as control:
        with pytest.raises(LoadError) as caught:
            await control.load("gone")
        assert "ended with exit code 1 while it loaded text_model (50%)" in caught.value.message
        with pytest.raises(LoadError):  # a second time, too, though it is listed as failed
            await control.load("gone")


async def test_a_load_that_somebody_else_takes_back_is_no_success():
    router = StubRouter(Preset("a"))
    router.presets["a"].loads.clear()
    async with before(router) as control:
        loading = asyncio.create_task(control.load("a"))
        await until(lambda: router.presets["a"].status == "loading")
        router.unload("a")
        with pytest.raises(LoadError, match="exit code 1"):
            await loading


async def test_a_load_that_is_left_is_given_up_and_the_next_one_loads():
    router = StubRouter(Preset("a"))
    preset = router.presets["a"]
    preset.loads.clear()
    async with before(router) as control:
        loading = asyncio.create_task(control.load("a"))
        await until(lambda: preset.status == "loading")
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        preset.loads.set()
        await control.load("a")
        assert preset.status == "loaded"
        orders = [path for method, path in router.asked if method == "POST"]
        assert orders == ["/models/load", "/models/unload", "/models/load"]


async def test_a_load_of_which_nothing_is_heard_any_more_is_given_up():
    router = StubRouter(Preset("a"))
    preset = router.presets["a"]
    preset.loads.clear()
    async with before(router) as control:
        loading = asyncio.create_task(control.load("a"))
        await until(lambda: preset.status == "loading")
        router.says["/models"] = HTML
        with pytest.raises(BackendProtocolError):
            await loading
        await until(lambda: preset.status == "unloaded")


async def test_a_load_that_meets_a_process_on_its_way_out_waits_for_it_and_loads():
    router = StubRouter(Preset("a", status="loading"))
    async with before(router) as control:
        loading = asyncio.create_task(control.load("a"))
        await until(lambda: ("POST", "/models/load") in router.asked)
        router.unload("a")
        await loading
        assert router.presets["a"].status == "loaded"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (recorded("router_load_limit").body, "start it with --no-models-autoload --models-max 0"),
        (b'{"error": {"message": "failed to spawn server instance"}}', "failed to spawn"),
        (b"proxy error: Could not establish connection", "could not load a: proxy error"),
    ],
    ids=["limit", "no process", "text"],
)
async def test_an_error_of_a_load_is_said(answer: bytes, says: str):
    router = StubRouter(Preset("a"))
    router.says["/models/load"] = answered(500, answer)
    async with before(router) as control:
        with pytest.raises(LoadError) as caught:
            await control.load("a")
        assert says in caught.value.message


async def test_a_model_that_leaves_the_list_is_not_found():
    router = StubRouter(Preset("a"), Preset("b"))
    async with before(router) as control:
        first = await control.installed()
        del router.presets["a"]
        assert [model.name for model in await control.installed()] == ["b"]
        assert first != await control.installed()
        for order in (control.load, control.unload):
            with pytest.raises(ModelNotFound, match="'a' not found"):
                await order("a")


async def test_one_that_sleeps_is_not_in_memory_nor_woken_by_a_look_but_by_a_load():
    router = StubRouter(Preset("a", status="sleeping", arguments=()))
    async with before(router) as control:
        assert await control.resident() == ()
        await control.installed()
        assert router.asked.count(("GET", "/props")) == 1
        assert router.presets["a"].status == "sleeping"
        await control.load("a")
        assert [model.name for model in await control.resident()] == ["a"]
        assert router.asked.count(("POST", "/tokenize")) == 1
        await control.unload("a")


async def test_one_that_does_not_wake_says_so():
    router = StubRouter(Preset("a", status="sleeping"))
    router.says["/tokenize"] = refused(500, "out of memory")
    async with before(router) as control:
        with pytest.raises(LoadError, match="a did not wake: out of memory"):
            await control.load("a")


def test_the_events_that_were_recorded_say_the_stage_of_a_load():
    text = (FOLDER / "router_models_sse.txt").read_text()
    lines = [line.encode() for line in re.findall(r"'(data: .*)'\)$", text, re.MULTILINE)]
    stages = list[str]()
    events = LoadEvents("gone")
    for line in lines:
        events.take(line)
        stages += [events.stage] if events.stage not in stages else []
    assert (len(lines) > 30, stages) == (True, ["", "text_model (0%)"])


def test_no_event_breaks_the_reading_of_events():
    sample = {
        "model": "a",
        "data": {"status": "loading", "progress": {"current": "x", "value": 1.0}},
    }
    for odd in with_odd_values(sample):
        events = LoadEvents("a")
        events.take(b"data: " + json.dumps(odd).encode())
        assert len(events.stage) < 200
