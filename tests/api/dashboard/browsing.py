"""The page in a real browser, in front of a real gateway: over a fake Ollama, or over the emulator
with a store and jobs.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.async_api import Browser, Locator, Page, expect

from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.bootstrap import build_gateway
from hearth.clock import SystemClock
from hearth.config.settings import (
    AlertSettings,
    AuthSettings,
    BackendMode,
    GatewayConfig,
    GpuSettings,
    JobSettings,
    KeySettings,
    QueueSettings,
    ServerSettings,
    Settings,
    StorageSettings,
)
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.fanout import EventFanout
from hearth.types import BackendCall
from tests.support.fake_ollama import FakeModel, FakeOllama, Service, service_asked_for
from tests.support.home import SkippingClock, house_settings, new_emulator
from tests.support.house import gateway_over
from tests.support.http import Caller
from tests.support.keys import key_of

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WITHIN_MS = 1000 * int(os.environ.get("HEARTH_BROWSER_S", "600"))
"""Long enough for a browser on a machine that has much else to do; nothing waits for so long where
all is well. Whoever changes a page sets a few seconds.
"""
LONG = {"service_s": 60.0, "first_byte_s": 0.01, "chunks": 300}
EVIL = "<img src=x onerror=alert(1)>"
KEYS = (
    key_of("owner", "hearth_owner", admin=True),
    key_of("friend", "hearth_friend"),
)


@dataclass
class Site:
    """A gateway with its server, and its callers; its fake Ollama is as quick or slow as a request
    asks.
    """

    gateway: Gateway
    ollama: FakeOllama = field(default_factory=FakeOllama)
    model_time: SkippingClock | None = None  # of an emulated Ollama, where there is one
    url: str = ""
    callers: list[Caller] = field(default_factory=list)

    server: HearthServer | None = None

    def has_written_all(self) -> bool:
        """Let a second pass for the emulated Ollama; whether nothing runs on it any more."""
        assert self.model_time is not None
        self.model_time.skip(1.0)
        return not self.gateway.worker.scheduler.gateway.running

    async def serve(self) -> None:
        """At the port that it had before, where it had one."""
        self.server = HearthServer(
            HearthApp(self.gateway), lambda: self.gateway.config.settings.server
        )
        self.url = await self.server.start("127.0.0.1", urlsplit(self.url).port or 0)

    async def stop_serving(self) -> None:
        assert self.server is not None
        await self.server.stop(0.0)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Site]:
        await self.serve()
        try:
            yield self
        finally:
            for caller in self.callers:
                caller.leave()
            await self.stop_serving()

    async def post(self, path: str, body: object, *, key: str = "", name: str = "") -> Caller:
        """Ask for something on a connection that stays until the caller leaves."""
        caller = await Caller.to(self.url)
        extra = [b"X-Request-Id: %s" % name.encode()] if name else []
        extra += [b"Authorization: Bearer %s" % key.encode()] if key else []
        await caller.post(path, json.dumps(body).encode(), *extra)
        self.callers.append(caller)
        return caller

    async def status(self, path: str, body: object) -> int:
        """Of the answer to a request."""
        return (await (await self.post(path, body)).head())[0]

    async def ask(self, model: str, name: str, *, key: str = "", long: bool = True) -> Caller:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "hi"}],
            "fake": LONG if long else {"service_s": 0.02},
        }
        caller = await self.post("/api/chat", body, key=key, name=name)
        async with asyncio.timeout(WITHIN_MS / 1000):
            # no event tells a caller that it was accepted
            while self.gateway.worker.get_item(len(self.callers)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return caller


def _quickly(call: BackendCall) -> Service:
    return (
        service_asked_for(call)
        if b'"fake"' in call.body
        else Service(service_s=0.02, first_byte_s=0.01)
    )


@asynccontextmanager
async def house_with(
    *models: str,
    keys: tuple[KeySettings, ...] = (),
    emulator: bool = False,
    depth: int = 20,
    previews: bool = False,
    base_path: str = "",
) -> AsyncIterator[Site]:
    """Over a fake Ollama; the server is up."""
    ollama = FakeOllama(*(FakeModel(name=name, load_s=0.01) for name in models), service=_quickly)
    settings = Settings(
        auth=AuthSettings(keys=keys),
        gpu=GpuSettings(home_model=""),
        queue=QueueSettings(max_external_depth=depth),
        server=ServerSettings(prompt_previews=previews, base_path=base_path),
    )
    identity = BackendIdentity(mode="ollama", url="http://127.0.0.1:11434", emulator=emulator)
    config = GatewayConfig(settings=settings)
    clock = SystemClock()
    events = EventFanout(())
    gateway = gateway_over(ollama, config, identity=identity, clock=clock, events=events)
    async with gateway, Site(gateway, ollama).serving() as house:
        yield house


@asynccontextmanager
async def whole_house(
    folder: Path, *, alerts: AlertSettings | None = None, source: Path | None = None
) -> AsyncIterator[Site]:
    """As `hearth serve` wires it: a store, jobs, commands; over an emulated Ollama."""
    clock = SkippingClock()
    ollama = new_emulator(clock)
    settings = house_settings().replace(
        storage=StorageSettings(path=str(folder / "hearth.db"), reserve_mib=0),
        jobs=JobSettings(max_in_queue=1),
        alerts=alerts or AlertSettings(),
    )
    ollama_url = await ollama.start("127.0.0.1", 0)
    try:
        config = GatewayConfig(settings=settings, source=source)
        async with await build_gateway(
            config, backend_mode=BackendMode.OLLAMA, backend_url=ollama_url, store=True
        ) as gateway:
            async with Site(gateway).serving() as house:
                house.model_time = clock
                yield house
            await gateway.stop(0.0)
    finally:
        await ollama.stop()


@dataclass
class Watched:
    """A page, and everything in it that should not have happened."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def listen(self) -> None:
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text)
                if message.type in {"error", "warning"}
                else None
            ),
        )
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.on("websocket", lambda socket: self.hosts.add(urlsplit(socket.url).netloc))

    async def order(self, button: str | Locator, answer: str, says: str = "") -> None:
        """Press a button, answer the question that it asks, and wait until the page says this."""
        found = (
            self.page.get_by_role("button", name=button, exact=True)
            if isinstance(button, str)
            else button
        )
        await found.click()
        await self.page.get_by_role("dialog").get_by_role("button", name=answer, exact=True).click()
        if says:
            await expect(self.page.locator(".said")).to_contain_text(says)


_REPORTING = (
    "globalThis.brokenPolicies = []; addEventListener('securitypolicyviolation', "
    "(event) => brokenPolicies.push(event.violatedDirective));"
)
_CANNED = """(frame, locked) => {
  const { fetch } = globalThis;
  globalThis.fetch = async (path, options) => {
    if (path !== "/llm/dashboard/stream") return fetch(path, options);
    if (locked && !options.headers["x-api-key"]) return fetch(path, options);
    const start = (stream) => stream.enqueue(new TextEncoder().encode(frame));
    return new Response(new ReadableStream({ start }));
  };
}"""
"""A stream that says one frame and stays open."""


async def opened(
    browser: Browser,
    house: Site,
    *,
    path: str = "/",
    width: int = 1440,
    key: str = "",
    script: str = "",
    stream: str = "",
    first_run: bool = False,
) -> Watched:
    """A page that has begun to load, without the list for a new home; `stream`: what it is sent,
    with a key where the house has keys, in place of the house's own stream.
    """
    page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark")
    page.set_default_timeout(WITHIN_MS)
    await page.add_init_script(_REPORTING + script)
    if not first_run:
        await page.add_init_script("localStorage.setItem('hearth.first-run', 'closed')")
    if key:
        await page.add_init_script(f"sessionStorage.setItem('hearth.key', '{key}')")
    if stream:
        await page.add_init_script(
            f"({_CANNED})({json.dumps(stream)}, "
            f"{str(bool(house.gateway.config.settings.auth.keys)).lower()})"
        )
    watched = Watched(page)
    watched.listen()
    await page.goto(house.url + path)
    return watched
