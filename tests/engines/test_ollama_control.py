"""The control adapter against servers that refuse, hang, break or lie: every ending has its own
error.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Awaitable, Callable

import pytest

from hearth.engines.ollama.control import Control
from hearth.errors import (
    BackendGone,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    HearthError,
    LoadError,
    ModelNotFound,
)
from hearth.types import MIB, InstalledModel, JsonDict, LoadOptions, ResidentModel
from tests.dialects.captured import captured
from tests.engines.stub_server import Peer, Serve, StubServer, saying

Asked = Callable[[Control], Awaitable[object]]
SILENT_S = 0.2
"""How long an answer that never comes is waited for."""
LONG_S = 30.0


def json_answer(body: bytes, status: int = 200) -> bytes:
    return (
        b"HTTP/1.1 %d Whatever\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (status, len(body), body)
    )


def load(control: Control) -> Awaitable[object]:
    return control.load("a", LoadOptions())


def unload(control: Control) -> Awaitable[object]:
    return control.unload("a")


READS: tuple[Asked, ...] = (Control.version, Control.installed, Control.resident)


async def ask(serve: Serve, asked: Asked, timeout_s: float = LONG_S) -> object:
    async with StubServer(serve) as server:
        control = Control(server.url, timeout_s=timeout_s)
        try:
            return await asked(control)
        finally:
            await control.aclose()


async def failure(serve: Serve, asked: Asked, timeout_s: float = LONG_S) -> HearthError:
    with pytest.raises(HearthError) as caught:
        await ask(serve, asked, timeout_s)
    return caught.value


async def bodies_sent(asked: Asked, *answers: bytes) -> list[tuple[str, object]]:
    pending = list(answers)

    async def serve(peer: Peer) -> None:
        await peer.send(pending.pop(0))

    async with StubServer(serve) as server:
        control = Control(server.url, timeout_s=LONG_S)
        await asked(control)
        await control.aclose()
        seen = [server.peers.get_nowait() for _ in range(server.connections)]
    return [(peer.path, peer.json) for peer in seen]


SILENT = saying(waits=True)
HUNG_UP = saying()
MOVED = saying(b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("asked", READS)
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"<html>hello</html>", 200),
        (b"[1, 2]", 200),
        (b'"text"', 200),
        (b'{"models": 5}', 200),
        (b'{"models": [5]}', 200),
        (b"{}", 200),
        (b'{"half', 200),
        (b"oops", 500),
        (b'"oops"', 500),
        (b'{"error":"oops"}', 500),
    ],
)
async def test_what_is_no_ollama_answer_is_a_protocol_error(asked: Asked, body: bytes, status: int):
    assert isinstance(await failure(saying(json_answer(body, status)), asked), BackendProtocolError)


@pytest.mark.parametrize("asked", READS)
async def test_a_server_that_hangs_up_is_gone_and_one_that_says_nothing_is_late(asked: Asked):
    assert isinstance(await failure(MOVED, asked), BackendProtocolError)
    assert type(await failure(HUNG_UP, asked)) is BackendGone
    late = BackendUnreachable if asked is Control.version else BackendTimeout
    assert type(await failure(SILENT, asked, SILENT_S)) is late


HTML = b"<!doctype html><title>Not found</title>"
A_LIST = "200 with an object with the list `models` was expected; ollama.url must lead to Ollama."
ODD: list[tuple[bytes, int, str]] = [
    (HTML, 404, "404 with HTML"),
    (b'{"error":{"message":"File Not Found"}}', 404, "404 with an object"),
    (HTML, 200, "200 with HTML"),
    (b"null", 200, "200 with null"),
    (b"", 200, "200 with an empty body"),
    (b"[]", 200, "200 with a list"),
    (b"it works!", 200, "200 with something that is no JSON"),
    (b'{"models":null}', 200, "200 with an object without the list `models`"),
    (b'{"models":[null]}', 200, "200 with a model that is no object"),
    (b'{"models":[{"name":5}]}', 200, "200 with `name` that is no string"),
]


@pytest.mark.parametrize(
    ("asked", "path"), [(Control.installed, "/api/tags"), (Control.resident, "/api/ps")]
)
@pytest.mark.parametrize(("body", "status", "words"), ODD)
async def test_an_odd_list_of_models_is_named_by_route_status_and_what_was_expected(
    asked: Asked, path: str, body: bytes, status: int, words: str
):
    error = await failure(saying(json_answer(body, status)), asked)
    assert (type(error), error.message) == (
        BackendProtocolError,
        f"GET {path} answered {words}; {A_LIST}",
    )


@pytest.mark.parametrize(
    ("asked", "path"), [(Control.installed, "/api/tags"), (Control.resident, "/api/ps")]
)
async def test_a_list_that_has_moved_is_named_by_its_route(asked: Asked, path: str):
    assert (await failure(MOVED, asked)).message.startswith(f"GET {path}: ")


@pytest.mark.parametrize("field", ["size", "size_vram", "context_length"])
async def test_a_size_that_is_no_number_is_named(field: str):
    said = json_answer(b'{"models":[{"name":"a","%b":"12"}]}' % field.encode())
    assert f"`{field}` that is no number" in (await failure(saying(said), Control.resident)).message


@pytest.mark.parametrize("asked", [load, unload])
@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        (
            json_answer(b'{"error":"llama-server process has terminated: signal: killed"}', 500),
            LoadError,
            "signal: killed",
        ),
        (
            json_answer(
                b'{"error":"server busy, please try again.  maximum pending requests exceeded"}',
                503,
            ),
            LoadError,
            "server busy",
        ),
        (json_answer(b"plain words", 500), LoadError, "plain words"),
        (
            json_answer(b'{"error":"time: missing unit in duration"}', 400),
            LoadError,
            "missing unit",
        ),
        (json_answer(HTML, 502), LoadError, "The model server answered 502 with HTML."),
        (json_answer(HTML, 404), LoadError, "The model server answered 404 with HTML."),
        (b"", LoadError, "closed the connection"),
        (
            json_answer(captured("generate_missing").body, 404),
            ModelNotFound,
            "model 'missing' not found",
        ),
    ],
)
async def test_a_refused_swap_has_failed_in_the_servers_words(
    asked: Asked, said: bytes, kind: type[HearthError], text: str
):
    error = await failure(saying(said), asked)
    assert (type(error), text in error.message) == (kind, True), error.message


async def test_an_unload_without_an_answer_has_failed():
    assert type(await failure(SILENT, unload, SILENT_S)) is LoadError


def pinned(control: Control) -> Awaitable[object]:
    return control.load("a", LoadOptions(num_ctx=8192))


@pytest.mark.parametrize(
    ("asked", "wish"),
    [
        (load, {"keep_alive": -1}),
        (unload, {"keep_alive": 0}),
        (pinned, {"keep_alive": -1, "options": {"num_ctx": 8192}}),
    ],
)
async def test_a_swap_is_an_empty_prompt_that_stays_for_ever_or_not_at_all(
    asked: Asked, wish: JsonDict
):
    by_prompt = ("/api/generate", {"model": "a", **wish})
    assert await bodies_sent(asked, json_answer(captured("load_generate").body)) == [by_prompt]
    refusal = json_answer(b'{"error":"\\"a\\" does not support generate"}', 400)
    sent = await bodies_sent(asked, refusal, json_answer(captured("embed_empty").body))
    assert sent == [by_prompt, ("/api/embed", {"model": "a", "input": [], **wish})]


LISTED = (
    b'{"models":[{"name":"a:latest","model":"a:latest","digest":"one","size":4096},'
    b'{"name":"b:cloud","model":"b:cloud","remote_model":"b",'
    b'"remote_host":"https://ollama.com:443","digest":"two","size":384}]}'
)
READ: tuple[tuple[Asked, bytes, object], ...] = (
    (Control.version, captured("version").body, "0.0.0"),
    (Control.resident, captured("ps_empty").body, ()),
    (
        Control.resident,
        captured("ps_loaded").body,
        (
            ResidentModel(
                name="tiny-a:latest", size_mib=6553599 / 1048576, vram_mib=0.0, context_tokens=4096
            ),
        ),
    ),
    (
        Control.resident,
        b'{"models":[{"name":"a","unheard_of":1}]}',
        (ResidentModel(name="a:latest", size_mib=0.0, vram_mib=0.0, context_tokens=None),),
    ),
    (
        Control.resident,
        b'{"models":[{"model":"n","details":{"family":"nomic-bert"}},{"model":"my-embed"}]}',
        tuple(
            ResidentModel(name=name, size_mib=0.0, vram_mib=0.0, context_tokens=None, embeds=True)
            for name in ("n:latest", "my-embed:latest")
        ),
    ),
    (
        Control.installed,
        LISTED,
        (
            InstalledModel(name="a:latest", digest="one", file_mib=4096 / MIB),
            InstalledModel(
                name="b:cloud",
                digest="two",
                remote_host="https://ollama.com:443",
                file_mib=384 / MIB,
            ),
        ),
    ),
)


@pytest.mark.parametrize(("asked", "body", "read"), READ)
async def test_what_the_server_says_is_understood(asked: Asked, body: bytes, read: object):
    assert await ask(saying(json_answer(body)), asked) == read


async def test_a_failure_that_nobody_awaits_any_more_is_not_reported_as_a_bug():
    reports: list[JsonDict] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    answer = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await answer.wait()
        await peer.send(json_answer(b'{"error":"oops"}', 500))

    async with StubServer(serve) as server:
        control = Control(server.url, timeout_s=LONG_S)
        leaving = asyncio.ensure_future(unload(control))
        await server.peers.get()
        leaving.cancel()
        await asyncio.wait([leaving])
        answer.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        await control.aclose()
    del leaving
    gc.collect()  # that is when asyncio tells of it
    assert reports == []


IMPORTING = """
import asyncio, sys, threading

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "ollama":
            print("imported in", threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Watch())
from hearth.engines.ollama.control import Control
from hearth.types import LoadOptions

async def main():
    control = Control(sys.argv[1], timeout_s=30.0)
    print(await control.version())
    await control.load("a", LoadOptions())
    await control.aclose()

asyncio.run(main())
"""


async def test_the_library_is_imported_with_the_first_load_off_the_loop():
    async def serve(peer: Peer) -> None:
        await peer.send(json_answer(b'{"version":"0.33.0"}'))

    async with StubServer(serve) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", IMPORTING, server.url, stdout=PIPE, stderr=STDOUT
        )
        said, _ = await process.communicate()
    assert said.decode().splitlines() == ["0.33.0", "imported in False"]


async def test_closing_ends_calls_that_still_run_and_tells_their_callers():
    async with StubServer(saying(waits=True)) as server:
        control = Control(server.url, timeout_s=LONG_S)
        leaving = asyncio.ensure_future(unload(control))
        await server.peers.get()
        await control.aclose()
        with pytest.raises(BackendGone):
            await leaving
        await server.all_left()
