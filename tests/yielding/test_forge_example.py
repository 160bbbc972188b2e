"""`examples/renderers/forge.py` beside a gateway and a Forge that answers as its API does
(`modules/api/api.py`: one job at a time, the image in the answer).
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hearth.events import GpuLeaseEnded
from tests.support.home import FRIEND_KEY, Home, house_settings, open_home
from tests.support.keys import key_of
from tests.support.listening import listening
from tests.support.patience import for_ever, in_time
from tests.support.places import ROOT

PNG = b"\x89PNG\r\n\x1a\n..."
RENDERER_KEY = "hearth_renderer"
KEYS = (key_of("renderer", RENDERER_KEY, may_lease=True), key_of("friend", FRIEND_KEY))


@dataclass
class Forge:
    """`leases`: what the gateway says of the lease during each call; `status`: of its answers."""

    home: Home
    status: int = 200
    hangs: bool = False
    rendering: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[Any] = field(default_factory=list)
    leases: list[tuple[bool, float | None]] = field(default_factory=list)

    async def render(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        self._note()
        self.rendering.set()
        if self.hangs:
            await for_ever()
        image = base64.b64encode(PNG).decode()
        answer = {"images": [image], "parameters": {}, "info": "{}"}
        return web.json_response(answer, status=self.status)

    async def unload(self, request: web.Request) -> web.Response:
        self.asked.append("unload")
        self._note()
        return web.json_response({})

    def _note(self) -> None:
        (lease,) = self.home.gateway.leases.leases.values()
        self.leases.append((lease.granted_at is not None, lease.mib))


@asynccontextmanager
async def open_forge(home: Home) -> AsyncIterator[tuple[Forge, str]]:
    forge = Forge(home)
    app = web.Application()
    app.router.add_post("/sdapi/v1/txt2img", forge.render)
    app.router.add_post("/sdapi/v1/unload-checkpoint", forge.unload)
    async with listening(app) as url:
        yield forge, url


@dataclass
class Studio:
    """The example, and what it works with."""

    home: Home
    forge: Forge
    environ: dict[str, str]
    folder: Path

    async def start(self, *arguments: str, key: str = RENDERER_KEY) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            ROOT / "examples" / "renderers" / "forge.py",
            "a lighthouse at night",
            *arguments,
            cwd=self.folder,
            env={**self.environ, "HEARTH_KEY": key},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *arguments: str, key: str = RENDERER_KEY) -> tuple[int | None, str]:
        """Its exit code, and what it says."""
        process = await self.start(*arguments, key=key)
        async with in_time():
            said, problems = await process.communicate()
        return process.returncode, (said + problems).decode()

    @property
    def ends(self) -> list[str]:
        return [event.why for event in self.home.events.of(GpuLeaseEnded)]


@pytest.fixture
async def studio(tmp_path: Path) -> AsyncIterator[Studio]:
    async with open_home(house_settings(keys=KEYS)) as home, open_forge(home) as (forge, url):
        environ = {
            "PATH": os.environ["PATH"],
            "NO_PROXY": "*",
            "HEARTH_URL": home.url,
            "FORGE_URL": url,
        }
        yield Studio(home, forge, environ, tmp_path)


async def test_images_are_rendered_in_memory_that_is_free_and_freed_again(studio: Studio):
    code, said = await studio.run("--count", "2", "--gb", "8", "--steps", "9")
    assert (code, said) == (0, "image-1.png\nimage-2.png\n")
    assert [path.read_bytes() for path in sorted(studio.folder.iterdir())] == [PNG, PNG]
    asked = {"prompt": "a lighthouse at night", "steps": 9, "width": 1024, "height": 1024}
    assert studio.forge.asked == [asked, asked, "unload"]
    assert studio.forge.leases == [(True, 8192.0)] * 3
    assert (studio.ends, dict(studio.home.gateway.leases.leases)) == (["released"], {})


async def test_a_render_that_fails_ends_its_lease_and_says_why(studio: Studio):
    studio.forge.status = 500
    code, said = await studio.run()
    assert (code, "/sdapi/v1/txt2img: 500" in said) == (1, True), said
    assert (studio.forge.asked[-1], studio.ends) == ("unload", ["released"])


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What a shell without job control starts in the background ignores Ctrl-C, and so do its
    children.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
async def test_an_interrupted_program_ends_its_lease(studio: Studio):
    studio.forge.hangs = True
    process = await studio.start()
    await studio.forge.rendering.wait()
    process.send_signal(signal.SIGINT)
    async with in_time():
        await process.communicate()
    assert (studio.forge.asked[-1], studio.ends) == ("unload", ["released"])


async def test_a_killed_program_has_its_lease_for_ten_minutes_at_most(studio: Studio):
    studio.forge.hangs = True
    process = await studio.start()
    await studio.forge.rendering.wait()
    process.kill()
    await process.wait()
    (lease,) = studio.home.gateway.leases.leases.values()
    assert lease.until is not None
    assert lease.until - studio.home.gateway.clock.monotonic() <= 600.0


async def test_a_key_without_the_right_renders_nothing(studio: Studio):
    code, said = await studio.run(key=FRIEND_KEY)
    assert (code, "/llm/gpu/leases: 403" in said) == (1, True), said
    assert (studio.forge.asked, studio.ends) == ([], [])


async def test_without_a_forge_the_lease_ends(studio: Studio):
    studio.environ["FORGE_URL"] = "http://127.0.0.1:9"
    code, said = await studio.run()
    assert (code, "refused" in said, studio.ends) == (1, True, ["released"]), said
