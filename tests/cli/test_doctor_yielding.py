"""What `hearth doctor` says of a ComfyUI whose queue is followed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hearth.cli.doctor_yielding import check_comfyui
from hearth.config.loading import parse_config
from hearth.config.settings import Settings
from tests.cli.test_doctor import free_port
from tests.support.fake_comfyui import FakeComfyUi, serving
from tests.support.fake_webhooks import Reply


def following(url: str) -> Settings:
    return parse_config(f'gpu: {{yield: {{comfyui: "{url}"}}}}', source="f").settings


@contextmanager
def running(reply: Reply | None) -> Iterator[str]:
    """One in a thread of its own, since the command has a loop of its own; gives its URL."""
    urls: list[str] = []
    is_up = threading.Event()
    loop = asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        async with FakeComfyUi() as comfyui, serving(comfyui) as url:
            comfyui.reply = reply
            comfyui.post(seconds=3600.0)
            urls.append(url)
            is_up.set()
            await end.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert is_up.wait(60)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    ("reply", "level", "says", "advice"),
    [
        (None, "ok", "answers at URL, 1 job", ""),
        (
            Reply(404),
            "FAIL",
            "what answers at URL is no ComfyUI (http_404)",
            "correct gpu.yield.comfyui, such as http://127.0.0.1:8188",
        ),
        (
            Reply(200, {}, b"<html>"),
            "FAIL",
            "what answers at URL is no ComfyUI (other_server)",
            "correct gpu.yield.comfyui, such as http://127.0.0.1:8188",
        ),
        (
            Reply(401),
            "FAIL",
            "URL refuses (http_401): Hearth cannot sign in there",
            "set gpu.yield.comfyui to ComfyUI's own address",
        ),
    ],
)
def test_a_comfyui_is_examined_at_its_address(reply, level, says, advice):
    with running(reply) as url:
        (found,) = check_comfyui(following(url))
    assert found == (level, "ComfyUI", says.replace("URL", url), advice)


def test_one_that_is_not_running_is_no_failure():
    url = f"http://127.0.0.1:{free_port()}"
    (found,) = check_comfyui(following(url))
    advice = "start it, or correct gpu.yield.comfyui"
    assert found == ("warn", "ComfyUI", f"nothing answers at {url}", advice)


def test_nothing_is_said_without_one():
    assert list(check_comfyui(following(""))) == []
