"""`make pictures`: the dashboard after an hour of the demo's household, for README and docs.

The household runs as in `hearth demo`, at honest speeds and with the emulator's card. Only the
clock of the event loop goes faster for that hour, and as any clock from then on.
"""

from __future__ import annotations

import asyncio
import selectors
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import click
from playwright.async_api import Browser, Page, async_playwright

from hearth.bootstrap import running_gateway
from hearth.cli.demo import ask_for_ever, demo_emulator, watch_card
from hearth.cli.demo_homes import EMULATED, VISITOR, key_of
from hearth.clock import SystemClock
from hearth.config.settings import GatewayConfig, StorageSettings
from hearth.emulator.server import Emulator
from hearth.gateway import Gateway

FOLDER = Path(__file__).parents[1] / "docs" / "dashboard"
HOUR_S = 3600.0
HURRY = 30.0
"""Seconds of the household in one of the machine."""
PACE = 10.0
"""The demo's pauses are made for models that are ten times as fast as real ones."""
LEAST_WAITING = 3
"""So many requests wait where the page shows what waits."""
SETTLED_MS = 1500
"""A page has asked for what it shows, and its charts are drawn."""
QUESTION = "What can I cook with leeks?"

Scheme: TypeAlias = Literal["dark", "light"]
SCHEMES: tuple[Scheme, ...] = ("dark", "light")
WIDE = (1440, 900)
PHONE = (390, 844)
WALL = (1920, 1080)
PAGES = ("requests", "history", "models", "keys", "playground", "settings")


class _HurriedSelector(selectors.DefaultSelector):
    """The system's selector, whose timeouts are in the seconds of its loop."""

    rate = HURRY

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / self.rate)


class HurriedLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds are shorter than the machine's, until `slow_down`."""

    def __init__(self) -> None:
        self._began_at = self._real_at = time.monotonic()
        self._hurried = _HurriedSelector()
        super().__init__(self._hurried)

    def time(self) -> float:
        return self._began_at + (time.monotonic() - self._real_at) * self._hurried.rate

    def slow_down(self) -> None:
        self._began_at, self._real_at = self.time(), time.monotonic()
        self._hurried.rate = 1.0


class LoopClock(SystemClock):
    """The loop's time. After the hour, the wall clock is that of the machine."""

    def __init__(self, loop: HurriedLoop) -> None:
        self._ahead_s = time.time() - loop.time() - HOUR_S * (1 - 1 / HURRY)
        self.monotonic = loop.time

    def wall(self) -> float:
        return self.monotonic() + self._ahead_s

    def asleep(self) -> float:
        return 0.0


@asynccontextmanager
async def home(folder: Path, loop: HurriedLoop) -> AsyncIterator[tuple[Gateway, Emulator, str]]:
    """The gateway of the demo with its emulator, and its address."""
    clock = LoopClock(loop)
    emulator = demo_emulator(1.0, clock)
    storage = StorageSettings(path=str(folder / "hearth.db"), reserve_mib=0)
    settings = EMULATED.config(PACE).settings.replace(storage=storage)
    server_url = await emulator.start()
    try:
        async with running_gateway(
            GatewayConfig(settings=settings),
            port=0,
            backend_url=server_url,
            clock=clock,
            store=True,
            beside=lambda gateway: watch_card(gateway, emulator),
        ) as (gateway, url):
            yield gateway, emulator, url
    finally:
        await emulator.stop()


class Camera:
    """Takes pictures of the dashboard at `url`."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self._url = url

    async def open(self, path: str, scheme: Scheme, size: tuple[int, int], script: str) -> Page:
        """A signed-in page that has settled."""
        width, height = size
        page = await self._browser.new_page(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        await page.add_init_script(f"sessionStorage.setItem('hearth.key', '{key_of(VISITOR)}')")
        await page.add_init_script(script)
        await page.goto(self._url + path)
        await page.wait_for_timeout(SETTLED_MS)
        return page

    async def take(
        self,
        name: str,
        path: str,
        size: tuple[int, int] = WIDE,
        *,
        before: Callable[[Page], Awaitable[None]] | None = None,
        first_run: bool = False,
    ) -> None:
        """In both themes; `before`: what is done on the page."""
        hide = "" if first_run else "localStorage.setItem('hearth.first-run', 'closed')"
        for scheme in SCHEMES:
            page = await self.open(path, scheme, size, hide)
            if before is not None:
                await before(page)
                await page.wait_for_timeout(SETTLED_MS)
            file = FOLDER / f"{name}-{scheme}.png"
            await page.screenshot(path=file)
            await page.close()
            click.echo(file.relative_to(FOLDER.parents[1]))


async def ask(page: Page) -> None:
    """Ask something in the playground, where it waits like everybody's."""
    await page.get_by_role("textbox", name="Message").fill(QUESTION)
    await page.keyboard.press("Enter")


async def take_all(browser: Browser, gateway: Gateway, emulator: Emulator, url: str) -> None:
    camera = Camera(browser, url)

    async def busy() -> None:
        async for _ in gateway.worker.changes():
            view = gateway.worker.runtime.view
            if view.running and view.waiting >= LEAST_WAITING:
                return

    await busy()
    await asyncio.gather(
        camera.take("now", "/"),
        camera.take("now-phone", "/", PHONE),
        camera.take("wall", "/dashboard/wall", WALL),
    )
    for page in PAGES:
        before = ask if page == "playground" else None
        await camera.take(page, f"/dashboard/{page}", before=before)
        await camera.take(f"{page}-phone", f"/dashboard/{page}", PHONE, before=before)
    await emulator.stop()
    await camera.take("down", "/")
    await camera.take("wall-down", "/dashboard/wall", WALL)


async def main(loop: HurriedLoop) -> None:
    """Take every picture."""
    FOLDER.mkdir(exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with tempfile.TemporaryDirectory() as folder:
            async with home(Path(folder), loop) as (gateway, emulator, url):
                asking = ask_for_ever(url, home=EMULATED, pace=PACE, complain=click.echo)
                callers = asyncio.create_task(asking)
                await asyncio.sleep(HOUR_S)
                loop.slow_down()
                await take_all(browser, gateway, emulator, url)
                callers.cancel()
        with tempfile.TemporaryDirectory() as folder:
            async with home(Path(folder), loop) as (_, _, url):
                await Camera(browser, url).take("first-run", "/", first_run=True)
        await browser.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        hurried = runner.get_loop()
        assert isinstance(hurried, HurriedLoop)
        runner.run(main(hurried))
