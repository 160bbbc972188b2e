"""The page in a real browser, in front of a real gateway over a fake Ollama. Skipped where there is no Chromium."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from hearth.admission.auth import digest_of
from hearth.api.app import build_app
from hearth.api.server import HearthServer
from hearth.clock import SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import AuthSettings, GpuSettings, KeySettings, Settings
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.fanout import EventFanout
from hearth.types import BackendCall
from tests.api.house import Caller
from tests.support.fake_ollama import Ending, FakeModel, FakeOllama, Service, service_asked_for

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed: `make setup` brings it")
from playwright.async_api import Browser, Page, async_playwright, expect  # noqa: E402 - only where there is one

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: `apt install chromium`")

LONG = {"service_s": 60.0, "first_byte_s": 0.01, "chunks": 300}
EVIL = "<img src=x onerror=alert(1)>"
KEYS = (
    KeySettings(name="owner", sha256=digest_of("hearth_owner"), admin=True),
    KeySettings(name="friend", sha256=digest_of("hearth_friend")),
)


def quickly(call: BackendCall) -> Service:
    return service_asked_for(call) if b'"fake"' in call.body else Service(service_s=0.02, first_byte_s=0.01)


@dataclass
class House:
    """A gateway with its server, and the callers that have asked it for something."""

    gateway: Gateway
    ollama: FakeOllama
    url: str = ""
    server: HearthServer | None = None
    callers: list[Caller] = field(default_factory=list)

    async def serve(self, port: int = 0) -> None:
        self.server = HearthServer(build_app(self.gateway), lambda: self.gateway.config.settings.server)
        self.url = await self.server.start("127.0.0.1", port)

    async def stop_serving(self) -> None:
        assert self.server is not None
        await self.server.stop(0.0)

    async def ask(self, model: str, name: str, *, key: str = "", long: bool = True) -> Caller:
        caller = await Caller.to(self.url)
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "fake": LONG if long else {"service_s": 0.02}}
        extra = [b"X-Request-Id: %s" % name.encode(), *([b"Authorization: Bearer %s" % key.encode()] if key else [])]
        await caller.post("/api/chat", json.dumps(body).encode(), *extra)
        self.callers.append(caller)
        async with asyncio.timeout(3):
            while self.gateway.worker.get_item(len(self.callers)) is None:  # noqa: ASYNC110 - no event tells a caller that it was accepted
                await asyncio.sleep(0.01)
        return caller


@asynccontextmanager
async def house_with(*models: str, keys: tuple[KeySettings, ...] = (), emulator: bool = False) -> AsyncIterator[House]:
    ollama = FakeOllama(*(FakeModel(name=name, load_s=0.01) for name in models), service=quickly)
    gateway = Gateway(
        config=GatewayConfig(settings=Settings(auth=AuthSettings(keys=keys), gpu=GpuSettings(home_model=""))),
        backend=ollama,
        control=ollama,
        identity=BackendIdentity(mode="ollama", url="http://127.0.0.1:11434", emulator=emulator),
        clock=SystemClock(),
        events=EventFanout(()),
    )
    async with gateway:
        house = House(gateway, ollama)
        await house.serve()
        try:
            yield house
        finally:
            for caller in house.callers:
                caller.leave()
            await house.stop_serving()


@dataclass
class Watched:
    """A page, and everything in it that should not have happened."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def listen(self) -> None:
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type in {"error", "warning"} else None)
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


async def opened(browser: Browser, house: House, *, path: str = "/", width: int = 1440, scheme: str = "dark", key: str = "") -> Watched:
    page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light" if scheme == "light" else "dark")
    page.set_default_timeout(10_000)
    if key:
        await page.add_init_script(f"sessionStorage.setItem('hearth.key', '{key}')")
    watched = Watched(page)
    watched.listen()
    await page.goto(house.url + path)
    return watched


async def test_the_page_shows_who_runs_who_waits_and_why_and_follows_without_being_loaded_again(browser):
    async with house_with("a:1", "b:1", emulator=True) as house:
        watched = await opened(browser, house, path="/llm/queue/status")
        page = watched.page
        await expect(page.get_by_text("THE EMULATOR IS ANSWERING")).to_be_visible()
        await expect(page.get_by_text("Nobody waits.")).to_be_visible()
        first = await house.ask("a:1", "first")
        await house.ask("b:1", "second")
        await house.ask("b:1", "third")
        await expect(page.locator(".run .model")).to_have_text("a:1")
        rows = page.locator(".queue tbody tr")
        await expect(rows).to_have_count(2)
        await expect(rows.nth(0).locator(".why")).to_contain_text("swap to b:1 (")
        await expect(rows.nth(1).locator(".why")).to_contain_text(", 1 before it")
        await expect(page).to_have_title("1 running, 2 waiting | Hearth")
        first.leave()
        await expect(page.locator(".run .model")).to_have_text("b:1")
        await expect(page.locator(".recent tbody tr")).to_have_count(1)
        await expect(page.locator(".lanes canvas")).to_be_visible()
        assert watched.complaints == []
        assert watched.hosts == {urlsplit(house.url).netloc}


async def test_where_there_are_keys_the_page_asks_for_one_keeps_it_for_the_tab_and_can_forget_it(browser):
    async with house_with("a:1", keys=KEYS) as house:
        page = (await opened(browser, house)).page
        await page.get_by_label("Key").fill("nonsense")
        await page.keyboard.press("Enter")
        await expect(page.locator(".wrong")).to_contain_text("No valid API key")
        await page.get_by_label("Key").fill("hearth_owner")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("owner (admin)")).to_be_visible()
        await page.reload()
        await expect(page.get_by_text("owner (admin)")).to_be_visible()
        assert "hearth_owner" not in page.url + await page.content()
        await page.get_by_role("button", name="Forget key").click()
        await expect(page.get_by_label("Key")).to_be_focused()
        assert await page.evaluate("sessionStorage.length") == 0


async def test_a_request_is_cancelled_after_a_question_and_only_then(browser):
    async with house_with("a:1") as house:
        watched = await opened(browser, house)
        page = watched.page
        await house.ask("a:1", "mine")
        cancel = page.get_by_role("button", name="Cancel local's request mine")
        await cancel.click()
        await expect(page.get_by_role("dialog", name="Cancel this request?")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert [call.ending for call in house.ollama.calls] == [None]
        await cancel.focus()
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Cancel the request").click()
        await expect(page.get_by_role("status").get_by_text("mine is cancelled.")).to_be_visible()
        await expect(page.locator(".run")).to_have_count(0)
        assert [call.ending for call in house.ollama.calls] == [Ending.CLOSED]
        assert watched.complaints == []


async def test_a_model_is_loaded_when_an_owner_asks_for_it(browser):
    async with house_with("a:1", "b:1") as house:
        page = (await opened(browser, house)).page
        await page.get_by_text("2 more installed").click()
        await page.locator(".others li").filter(has_text="b:1").get_by_role("button", name="Load").click()
        await page.get_by_role("dialog").get_by_role("button", name="Load").click()
        await expect(page.get_by_text("b:1 is in memory.")).to_be_visible()
        await expect(page.locator(".panel > .residents .model")).to_have_text("b:1")


async def test_who_is_no_admin_gets_no_buttons_that_would_be_refused(browser):
    async with house_with("a:1", keys=KEYS) as house:
        await house.ask("a:1", "owners", key="hearth_owner")
        await house.ask("a:1", "friends", key="hearth_friend")
        page = (await opened(browser, house, key="hearth_friend")).page
        await expect(page.locator(".queue .caller")).to_have_text("friend")
        assert await page.get_by_role("button", name="Reload configuration").count() == 0
        names = await page.get_by_role("button", name="Cancel").evaluate_all("all => all.map(one => one.ariaLabel)")
        assert names == ["Cancel friend's request friends"]


async def test_a_page_that_has_lost_its_gateway_says_so_and_comes_back_by_itself(browser):
    async with house_with("a:1") as house:
        page = (await opened(browser, house)).page
        await expect(page.locator(".link")).to_have_text("live")
        await house.stop_serving()
        await expect(page.locator(".link")).to_have_text("reconnecting")
        await expect(page.locator(".notices")).to_contain_text("the page goes on trying")
        await expect(page).to_have_title("Hearth: no connection")
        await house.serve(urlsplit(house.url).port or 0)
        await expect(page.locator(".link")).to_have_text("live")
        await expect(page.locator(".notices p")).to_have_count(0)


async def test_what_others_may_name_is_text_and_never_markup(browser):
    evil_key = KeySettings(name=EVIL, sha256=digest_of("hearth_evil"), admin=True)
    async with house_with("a:1", "b:1", f"{EVIL}:1", keys=(evil_key,)) as house:
        watched = await opened(browser, house, key="hearth_evil")
        await house.ask("a:1", "one", key="hearth_evil")
        await house.ask("b:1", "two", key="hearth_evil")
        page = watched.page
        await expect(page.locator(".queue .caller")).to_have_text(EVIL)
        await expect(page.locator(".limits tbody th")).to_have_text(EVIL)
        await page.locator(".others summary").click()
        await expect(page.locator(".others .model").first).to_have_text(f"{EVIL}:1")
        await page.get_by_role("button", name="Cancel").first.click()
        await expect(page.get_by_role("dialog")).to_contain_text(EVIL)
        assert await page.locator("img").count() == 1
        assert watched.complaints == []
        assert watched.hosts == {urlsplit(house.url).netloc}


@pytest.mark.parametrize("scheme", ["dark", "light"])
async def test_the_page_fits_a_phone_and_every_control_has_a_name(scheme, browser):
    async with house_with("a:1", "a-model-with-quite-a-long-name:70b-instruct-q4_K_M") as house:
        await house.ask("a-model-with-quite-a-long-name:70b-instruct-q4_K_M", "x" * 64)
        await house.ask("a:1", "y" * 64)
        page = (await opened(browser, house, width=390, scheme=scheme)).page
        await expect(page.locator(".queue tbody tr")).to_have_count(1)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        names = await page.locator("button, input, summary").evaluate_all("all => all.map(one => one.ariaLabel || one.textContent)")
        assert names
        assert all(names)
        background = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert background == {"dark": "rgb(13, 15, 19)", "light": "rgb(244, 245, 247)"}[scheme]
