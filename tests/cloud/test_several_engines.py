"""Claude answers for an engine that is down while others answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hearth.api.app import HearthApp
from hearth.bootstrap.serving import running_gateway
from hearth.clock import SystemClock
from hearth.config.engines import EngineSettings
from hearth.config.settings import BackendMode, GatewayConfig
from hearth.emulator import EmulatedModel, Emulator
from hearth.events import BackendWentDown
from tests.cloud.house import BODY, POOR, RICH, cloud_settings
from tests.support.fake_claude import FakeClaude
from tests.support.fields import Fields
from tests.support.home import HELLO, LLAMA, new_emulator
from tests.support.http import ask
from tests.support.patience import in_time
from tests.support.recorder import Recorder

AWAY = "of-two:1b"


class Opened:
    """A gateway over two Ollamas, of which the second one has `AWAY`."""

    def __init__(self, app: HearthApp, second: Emulator, events: Recorder) -> None:
        self.second = second
        self.events = events
        self._app = app

    async def served_by(self, body: Fields, key: str = RICH) -> str:
        got = await ask(self._app, "POST", "/api/chat", body, key=key)
        served = got.headers.get("x-hearth-served-by", "an engine")
        return served if got.status == 200 else str(got.status)


@pytest.fixture(params=[False, True], ids=["answers", "never answers"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    never_answers: bool = request.param
    second = Emulator([EmulatedModel(name=AWAY)], clock=SystemClock(), speed=500.0)
    first, api, events = new_emulator(), FakeClaude(), Recorder()
    async with AsyncExitStack() as stack:
        await api.start()
        stack.push_async_callback(api.stop)
        urls = [await each.start() for each in (first, second)]
        stack.push_async_callback(first.stop)
        stack.push_async_callback(second.stop)
        if never_answers:
            await second.stop()
        rows = {
            name: EngineSettings(kind="ollama", url=url)
            for name, url in zip(("one", "two"), urls, strict=True)
        }
        aliases = {"both": (AWAY, LLAMA), "there": (AWAY,)}
        settings = cloud_settings(api.url, tmp_path).replace(engines=rows, aliases=aliases)
        running = running_gateway(
            GatewayConfig(settings=settings),
            port=0,
            backend_mode=BackendMode.OLLAMA,
            sinks=(events,),
            store=True,
        )
        gateway, _ = await stack.enter_async_context(running)
        yield Opened(HearthApp(gateway), second, events)


async def test_claude_steps_in_for_the_models_of_an_engine_that_is_down(opened: Opened):
    body = {"messages": HELLO, "options": {"num_predict": 1}}
    if not opened.events.of(BackendWentDown):
        assert await opened.served_by(body | {"model": AWAY}) == "an engine"
        await opened.second.stop()
        async with in_time():
            await opened.events.first(BackendWentDown)
    assert await opened.served_by(body | {"model": AWAY}) == "claude"
    assert await opened.served_by(body | {"model": AWAY}, POOR) == "503"
    assert await opened.served_by(body | {"model": LLAMA}) == "an engine"
    assert await opened.served_by(body | {"model": "both"}) == "an engine"
    assert await opened.served_by(body | {"model": "there"}) == "claude"
    assert await opened.served_by(BODY) == "claude"
