"""The models of a llama-swap are listed, started and stopped, whatever it does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from hearth.dialects.request import is_model_name
from hearth.engines.llama_swap.control import Control
from hearth.engines.llama_swap.models import aliases_in, arguments_in, models_in, running_in
from hearth.engines.openai_server.calls import Place
from hearth.errors import BackendProtocolError, BackendUnreachable, LoadError, ModelNotFound
from tests.dialects.test_any_value import with_odd_values
from tests.engines.llama_swap.stub import TEXT, Entry, StubSwap
from tests.engines.stub_server import StubServer
from tests.engines.upstream_model import answered
from tests.support.patience import WITHIN_S, until


def control_at(url: str, key: str = "", timeout_s: float = WITHIN_S) -> Control:
    place = Place(title="llama-swap", setting="engines.swap.url")
    return Control(url, api_key=key, place=place, timeout_s=timeout_s)


@asynccontextmanager
async def before(swap: StubSwap, key: str = "", **options: float) -> AsyncIterator[Control]:
    async with (
        StubServer(swap) as server,
        aclosing(control_at(server.url, key, **options)) as control,
    ):
        yield control


LISTED = {"data": [{"id": "a", "meta": {"llamaswap": {"peerID": "p"}}}]}
RUNNING = {"running": [{"model": "a", "state": "ready", "cmd": "x --parallel 2", "ttl": 5}]}
EVENT = {"type": "modelStatus", "data": '[{"id": "a", "aliases": ["b"]}]'}


def test_no_value_in_any_place_breaks_what_is_said_of_models():
    for odd in with_odd_values(LISTED):
        assert all(is_model_name(m.name) for m in models_in(odd if isinstance(odd, dict) else {}))
    for odd in with_odd_values(RUNNING):
        assert all(m.ttl_s is not None for m in running_in(odd if isinstance(odd, dict) else {}))
    for odd in with_odd_values(EVENT):
        assert (aliases_in(odd if isinstance(odd, dict) else {}) or {}).keys() <= {"b", "text"}


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("llama-server -np 2 -m 'a b.gguf'", ("llama-server", "-np", "2", "-m", "a b.gguf")),
        (
            "llama-server\n  --port 1\n  # said so\n  -np 2\n",
            ("llama-server", "--port", "1", "-np", "2"),
        ),
        ("llama-server \\\n  -np 2", ("llama-server", "-np", "2")),
        ("an 'open quote", ()),
        (None, ()),
    ],
    ids=["quotes", "lines and comments", "joined lines", "broken", "none"],
)
def test_a_command_is_read_as_its_words(command: str, arguments: tuple[str, ...]):
    assert arguments_in(command) == arguments


async def test_models_are_listed_and_those_of_others_are_elsewhere():
    swap = StubSwap(Entry("a"), Entry("author/b:q4"), Entry("far", peer="attic"))
    async with before(swap) as control:
        listed = await control.installed()
        assert [(model.name, model.remote_host) for model in listed] == [
            ("a", ""),
            ("author/b:q4", ""),
            ("far", "attic"),
        ]
        assert len({model.digest for model in listed}) == 3
        assert await control.installed() is listed
        assert await control.version() == "251"
        with pytest.raises(ModelNotFound):
            await control.load("far")


@pytest.mark.parametrize("lists_aliases", [False, True])
async def test_an_alias_is_the_same_model_whether_it_is_listed_or_not(lists_aliases: bool):
    swap = StubSwap(Entry("a", aliases=("gpt-4o-mini",)), Entry("b"), lists_aliases=lists_aliases)
    async with before(swap) as control:
        digests = {model.name: model.digest for model in await control.installed()}
        assert digests.keys() == {"a", "b", "gpt-4o-mini"}
        assert digests["a"] == digests["gpt-4o-mini"] != digests["b"]
        await control.load("gpt-4o-mini")
        assert [model.name for model in await control.resident()] == ["a"]


async def test_an_old_one_has_no_version_and_no_aliases():
    async with before(StubSwap(Entry("a", aliases=("x",)), is_old=True)) as control:
        assert await control.version() == "unknown"
        assert [model.name for model in await control.installed()] == ["a"]


async def test_slots_are_those_of_the_command_once_it_ran():
    async with before(StubSwap(Entry("a", command="llama-server -np 3"))) as control:
        assert [model.slots for model in await control.installed()] == [None]
        await control.load("a")
        assert [model.slots for model in await control.installed()] == [3]


async def test_another_command_under_the_same_name_is_another_model():
    swap = StubSwap(Entry("a"))
    async with before(swap) as control:
        [unknown] = await control.installed()
        await control.load("a")
        [first] = await control.installed()
        swap.entries["a"].command = "llama-server -m other.gguf -np 1"
        await control.resident()
        [second] = await control.installed()
        assert (unknown.digest == first.digest, first.digest == second.digest) == (True, False)


async def test_a_start_ends_when_the_server_is_ready_and_not_before():
    swap = StubSwap(Entry("author/a"))
    swap.entries["author/a"].starts.clear()
    async with before(swap) as control:
        loading = asyncio.create_task(control.load("author/a"))
        await until(lambda: swap.entries["author/a"].state == "starting")
        assert await control.resident() == ()
        assert not loading.done()
        swap.entries["author/a"].starts.set()
        await loading
        assert ("GET", "/upstream/author/a/health") in swap.asked
        [model] = await control.resident()
        assert (model.name, model.vram_mib) == ("author/a", 0.0)


async def test_a_server_without_a_page_for_its_health_is_started_all_the_same():
    async with before(StubSwap(Entry("a", has_health=False))) as control:
        await control.load("a")
        assert [model.name for model in await control.resident()] == ["a"]


async def test_a_server_that_does_not_start_is_an_error_with_its_reason():
    async with before(StubSwap(Entry("a", fails=True))) as control:
        with pytest.raises(LoadError, match=r"could not start a: 502, .*exited prematurely"):
            await control.load("a")


async def test_a_start_of_which_nothing_is_heard_any_more_is_taken_back():
    swap = StubSwap(Entry("a"))
    entry = swap.entries["a"]
    entry.starts.clear()
    async with before(swap) as control:
        loading = asyncio.create_task(control.load("a"))
        await until(lambda: entry.state == "starting")
        swap.says["/running"] = HTML
        entry.starts.set()
        with pytest.raises(BackendProtocolError):
            await loading
        await until(lambda: entry.state == "stopped")


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_start_that_is_left_is_taken_back_where_it_can_be(is_old: bool):
    swap = StubSwap(Entry("a"), is_old=is_old)
    entry = swap.entries["a"]
    entry.starts.clear()
    async with before(swap) as control:
        loading = asyncio.create_task(control.load("a"))
        await until(lambda: entry.state == "starting")
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        if is_old:
            entry.starts.set()
            await until(lambda: entry.state == "ready")
        else:
            await until(lambda: entry.state == "stopped")
        await control.load("a")
        assert entry.state == "ready"


async def test_what_is_stopping_holds_its_memory_until_it_is_gone():
    swap = StubSwap(Entry("a"))
    entry = swap.entries["a"]
    async with before(swap) as control:
        await control.load("a")
        entry.ends.clear()
        stopping = asyncio.create_task(control.unload("a"))
        await until(lambda: entry.state == "stopping")
        assert [model.name for model in await control.resident()] == ["a"]
        entry.ends.set()
        await stopping
        assert await control.resident() == ()


async def test_a_stop_that_takes_longer_than_a_call_may_is_under_way_all_the_same():
    swap = StubSwap(Entry("a"))
    async with StubServer(swap) as server:
        async with aclosing(control_at(server.url)) as patient:
            await patient.load("a")
        swap.entries["a"].ends.clear()
        async with aclosing(control_at(server.url, timeout_s=0.05)) as hasty:
            await hasty.unload("a")
            assert swap.entries["a"].state == "stopping"


async def test_what_is_unlisted_and_runs_can_be_stopped():
    swap = StubSwap(Entry("a", unlisted=True, state="ready"))
    async with before(swap) as control:
        assert [model.name for model in await control.resident()] == ["a"]
        await control.unload("a")
        assert await control.resident() == ()


async def test_an_old_one_stops_a_model_that_runs_alone_and_no_other_with_it():
    swap = StubSwap(Entry("a"), Entry("b"), is_old=True)
    async with before(swap) as control:
        await control.load("a")
        await control.unload("a")
        assert await control.resident() == ()
        await control.load("a")
        await control.load("b")
        with pytest.raises(LoadError, match="can stop a only together with b"):
            await control.unload("a")
        assert [model.name for model in await control.resident()] == ["a", "b"]


async def test_what_is_not_listed_is_not_found():
    async with before(StubSwap(Entry("a"))) as control:
        for order in (control.load, control.unload):
            with pytest.raises(ModelNotFound, match="'b' not found"):
                await order("b")


HTML = answered(200, b"<html>", "text/html")


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("/v1/models", HTML, "engines.swap.url must lead to llama-swap"),
        ("/v1/models", answered(200, b"[]"), "200 with an object with the list `data`"),
        ("/running", answered(404, b"404 page not found", TEXT), "GET /running answered 404"),
    ],
    ids=["html", "a list", "another server"],
)
async def test_a_server_that_is_not_as_it_should_be_is_described(
    path: str, answer: bytes, says: str
):
    swap = StubSwap(Entry("a"))
    swap.says[path] = answer
    async with before(swap) as control:
        ask = control.resident if path == "/running" else control.installed
        with pytest.raises(BackendProtocolError) as caught:
            await ask()
        assert says in caught.value.message


async def test_a_wrong_key_is_named_by_its_setting():
    swap = StubSwap(Entry("a"))
    swap.key = "right"
    async with before(swap, key="wrong") as control:
        with pytest.raises(BackendProtocolError, match=r"engines\.swap\.api_key is not the key"):
            await control.version()


async def test_one_that_is_not_there_is_unreachable():
    async with StubServer(StubSwap(Entry("a"))) as server:
        server.stop_listening()
        async with aclosing(control_at(server.url)) as control:
            for ask in (control.version, control.resident):
                with pytest.raises(BackendUnreachable):
                    await ask()
