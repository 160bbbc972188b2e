"""Asking a ComfyUI over real sockets: what it answers, whatever else may answer in its place, and
that the fake without sockets says the same.
"""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from hearth.backends.comfyui import ComfyUi
from hearth.types import QueueLook
from tests.support.cases import for_each
from tests.support.fake_comfyui import FakeComfyUi, MemoryRenderer, serving
from tests.support.fake_webhooks import Reply
from tests.support.patience import WITHIN_S, until
from tests.support.virtual_time import run_virtual

JSON = {"Content-Type": "application/json; charset=utf-8"}
OTHER = QueueLook(problem="other_server")


def counting(jobs: object) -> Reply:
    return Reply(200, JSON, json.dumps({"exec_info": {"queue_remaining": jobs}}).encode())


ANSWERS: dict[str, tuple[Reply, QueueLook]] = {
    "idle": (counting(0), QueueLook()),
    "three jobs": (counting(3), QueueLook(jobs=3)),
    "a newer one says more": (
        Reply(200, JSON, b'{"exec_info":{"queue_remaining":1,"eta":9},"node":null}'),
        QueueLook(jobs=1),
    ),
    "fewer than none": (counting(-1), OTHER),
    "half a job": (counting(0.5), OTHER),
    "text": (counting("1"), OTHER),
    "true": (counting(True), OTHER),
    "null": (counting(None), OTHER),
    "no number": (counting(float("nan")), OTHER),
    "a list": (Reply(200, JSON, b"[]"), OTHER),
    "nested too deep": (Reply(200, JSON, b"[" * 4000), OTHER),
    "cut off": (Reply(200, JSON, b'{"exec_info": {"queue_rem'), OTHER),
    "nothing": (Reply(200, JSON), OTHER),
    "a page": (Reply(200, {"Content-Type": "text/html"}, b"<html>Sign in</html>"), OTHER),
    "a huge page": (Reply(200, {}, b"x" * 3_000_000), OTHER),
    "compressed": (
        Reply(200, {**JSON, "Content-Encoding": "gzip"}, gzip.compress(counting(1).body, mtime=0)),
        OTHER,
    ),
    "elsewhere": (Reply(302, {"Location": "/login"}), QueueLook(problem="http_302")),
    "a login": (Reply(401, {"WWW-Authenticate": "Basic"}), QueueLook(problem="http_401")),
    "forbidden": (Reply(403), QueueLook(problem="http_403")),
    "another program": (Reply(404, {}, b"404: Not Found"), QueueLook(problem="http_404")),
    "a proxy without it": (Reply(502, {}, b"<html>"), QueueLook(problem="http_502")),
    "reset": (Reply(reset=True), QueueLook(problem="broken")),
    "silent": (Reply(stall=True), QueueLook(problem="timeout")),
}


@pytest.fixture
async def open_renderer() -> AsyncIterator[Callable[..., ComfyUi]]:
    """Makes one that waits so many seconds."""
    made: list[ComfyUi] = []

    def make(timeout_s: float = WITHIN_S) -> ComfyUi:
        made.append(ComfyUi(timeout_s))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()


@pytest.fixture
async def comfyui() -> AsyncIterator[FakeComfyUi]:
    async with FakeComfyUi() as made:
        yield made


@for_each("name", list(ANSWERS))
async def test_an_answer_is_a_number_of_jobs_or_a_problem_in_one_word(name, open_renderer):
    reply, expected = ANSWERS[name]
    async with FakeComfyUi() as comfyui:
        comfyui.reply = reply
        async with serving(comfyui) as url:
            renderer = open_renderer(0.05 if reply.stall else WITHIN_S)
            assert await renderer.look(url) == expected
            assert set(comfyui.asked) == {"GET /prompt"}  # no redirect is followed


@for_each("name", [name for name in ANSWERS if name != "compressed"])
def test_the_fake_without_sockets_says_the_same(name):
    reply, expected = ANSWERS[name]

    async def scenario() -> None:
        comfyui = FakeComfyUi()
        comfyui.reply = reply
        assert await MemoryRenderer({"http://memory": comfyui}).look("http://memory") == expected

    run_virtual(scenario)


async def test_nobody_at_the_address_is_a_problem_in_one_word(open_renderer):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert await open_renderer().look(url) == QueueLook(problem="connect")
    assert (await MemoryRenderer({}).look("http://nobody")).problem == "connect"


async def test_no_proxy_is_used(open_renderer, comfyui, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with serving(comfyui) as url:
        assert await open_renderer().look(url) == QueueLook()


@pytest.mark.parametrize("path", ["", "/api"])
async def test_what_runs_counts_and_its_workflow_is_not_read(path, open_renderer, comfyui):
    renderer = open_renderer()
    async with serving(comfyui) as url, aiohttp.ClientSession(url) as others:
        assert await renderer.look(url + path) == QueueLook()
        for _ in range(2):
            await others.post("/prompt", json={"seconds": 600.0})
        async with others.get("/queue") as answer:
            queue = await answer.json()
        assert [len(queue[name]) for name in ("queue_running", "queue_pending")] == [1, 1]
        assert await renderer.look(url + path) == QueueLook(jobs=2)
        comfyui.clear()
        assert await renderer.look(url + path) == QueueLook(jobs=1)


async def test_it_frees_its_memory_when_it_is_told_to(open_renderer, comfyui):
    async with serving(comfyui) as url:
        comfyui.post(seconds=0.0)
        await until(
            lambda: comfyui.holds_mib and not comfyui.queue_info["exec_info"]["queue_remaining"]
        )
        assert await open_renderer().free(url) == QueueLook()
        await until(lambda: not comfyui.holds_mib)
        comfyui.reply = Reply(403)
        assert await open_renderer().free(url) == QueueLook(problem="http_403")
