"""The whole gateway under load while its file is edited: requests notice nothing but the new rules."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hearth.bootstrap import running_gateway
from hearth.config.loading import load_gateway_config
from hearth.config.settings import BackendMode, GatewayConfig, ServerSettings, Settings
from hearth.errors import ShuttingDown
from hearth.events import ConfigRejected, ConfigReloaded, InternalFault, ItemEnded, ItemQueued
from hearth.gateway import Gateway
from tests.clients.home import HELLO, LLAMA, LONG, SLOW, new_emulator
from tests.support.examples import EXAMPLES
from tests.support.recorder import Recorder

CALLERS = 6


def config_text(per_hour: int, *, depth: int = 1000) -> str:
    """Settings under which nothing but the limit refuses anybody."""
    return (
        "scheduling: {active_hours: '00:00-24:00'}\n"
        f"queue: {{max_external_depth: {depth}}}\n"
        f"rate_limits: {{default: {{requests_per_minute: 1000000, requests_per_hour: {per_hour}}}}}\n"
        "gpu: {home_model: '', vram_gb: 24}\n"
        "server: {shutdown_grace_s: 0}\n"
    )


class Live(Recorder):
    """A running gateway, and everything that happened."""

    url: str
    gateway: Gateway

    def __init__(self, session: aiohttp.ClientSession) -> None:
        super().__init__()
        self.session = session

    async def one_more(self) -> None:
        """Return when another item has ended."""
        done = len(self.of(ItemEnded))
        await self.until(lambda: len(self.of(ItemEnded)) > done)

    async def ask(self, model: str = LLAMA) -> int:
        """The status of one request whose answer was read to its end."""
        body = {"model": model, "messages": HELLO, "stream": False, "options": {"num_predict": 1}}
        async with self.session.post(f"{self.url}/api/chat", json=body) as got:
            await got.read()
            return got.status

    async def post(self, path: str) -> tuple[int, Any]:
        async with self.session.post(self.url + path) as got:
            return got.status, await got.json()

    async def status(self) -> dict[str, Any]:
        async with self.session.get(f"{self.url}/llm/queue/status") as got:
            answer: dict[str, Any] = await got.json()
            return answer


@asynccontextmanager
async def living(file: Path, *, watch: bool = True) -> AsyncIterator[Live]:
    emulator = new_emulator()
    backend_url = await emulator.start("127.0.0.1", 0)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(emulator.stop)
        session = await closing.enter_async_context(aiohttp.ClientSession(trust_env=False))
        live = Live(session)
        config = load_gateway_config(file, {})
        options: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "backend_mode": BackendMode.OLLAMA, "ollama_url": backend_url}
        async with running_gateway(config, sinks=(live,), watch=watch, **options) as (gateway, url):
            live.gateway, live.url = gateway, url
            yield live
    assert live.of(InternalFault) == []
    assert len(live.of(ItemEnded)) == len(live.of(ItemQueued))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "llm_gateway.yaml"
    path.write_text(config_text(1000))
    return path


@asynccontextmanager
async def load(live: Live) -> AsyncIterator[Counter[int]]:
    """Callers who ask again and again for the time of the block; the answers they got by status."""
    answers: Counter[int] = Counter()
    ending = asyncio.Event()

    async def caller() -> None:
        while not ending.is_set():
            answers[await live.ask()] += 1

    async with asyncio.TaskGroup() as callers:
        for _ in range(CALLERS):
            callers.create_task(caller())
        try:
            yield answers
        finally:
            ending.set()


async def test_an_edit_under_load_holds_on_the_next_request_and_the_counts_of_the_hour_survive(file):
    async with living(file) as live:
        async with load(live) as answers:
            await live.until(lambda: len(live.of(ItemEnded)) >= 20)
            assert live.of(ConfigReloaded) == []
            file.write_text(config_text(20))
            await live.until(lambda: live.of(ConfigReloaded))
            answers_before = answers[200]
            assert await live.ask() == 429
        # Requests that were admitted before the edit may have ended after it.
        assert answers[200] <= answers_before + CALLERS
        assert set(answers) <= {200, 429}
        used = (await live.status())["rate_limits"]["local"]["hour"]
        assert used == f"{len(live.of(ItemQueued))}/20"


async def test_a_bad_edit_or_order_under_load_is_reported_everywhere_and_changes_nothing(file):
    async with living(file) as live:
        async with load(live) as answers:
            await live.until(lambda: len(live.of(ItemEnded)) >= 5)
            file.write_text("rate_limits: {default: {requests_per_hour: none}}\n")
            await live.until(lambda: live.of(ConfigRejected))
            await live.one_more()
        assert set(answers) == {200}
        status, said = await live.post("/llm/admin/reload")
        assert (status, said["reloaded"], said["generation"]) == (422, False, 1)
        assert said["problems"] == list(live.of(ConfigRejected)[0].problems)
        shown = (await live.status())["config"]
        assert (shown["generation"], shown["rejected_count"], shown["problems"]) == (1, 2, said["problems"])
        assert live.gateway.config.settings.rate_limits.default.requests_per_hour == 1000
        file.write_text(config_text(999))
        await live.until(lambda: live.of(ConfigReloaded))
        status, said = await live.post("/llm/admin/reload")
        assert (status, said["reloaded"], said["generation"], (await live.status())["config"]["problems"]) == (200, True, 2, [])


async def test_a_running_stream_does_not_notice_a_reload(file):
    async with living(file) as live:
        body = {"model": SLOW, "messages": HELLO, "stream": True, "options": LONG | {"num_predict": 200}}
        async with live.session.post(f"{live.url}/api/chat", json=body) as got:
            await got.content.readline()
            file.write_text(config_text(1000, depth=1))
            await live.until(lambda: live.of(ConfigReloaded))
            rest = (await got.content.read()).splitlines()
        assert b'"done":true' in rest[-1]
        assert b'"eval_count":200' in rest[-1]


async def test_many_reloads_good_and_bad_under_load_drop_nothing_and_count_exactly(file):
    async with living(file, watch=False) as live:
        rounds = 60 * EXAMPLES
        async with load(live) as answers:
            for number in range(rounds):
                good = number % 3 != 2
                file.write_text(config_text(100_000 + number) if good else "queue: [")
                assert live.gateway.reload() is good
                await live.one_more()
        assert set(answers) == {200}
        accepted = rounds - rounds // 3
        shown = (await live.status())["config"]
        assert (shown["generation"], shown["reload_count"], shown["rejected_count"]) == (1 + accepted, accepted, rounds // 3)


async def test_the_address_of_the_command_line_may_be_named_whatever_the_file_says_of_it():
    async with running_gateway(GatewayConfig(), host="127.0.0.2", port=0, backend_mode=BackendMode.EMULATOR) as (gateway, url):
        host = url.removeprefix("http://")
        settings = Settings().replace(server=ServerSettings(host="other.lan"))
        async with aiohttp.ClientSession(trust_env=False) as session:
            for config in (GatewayConfig(), GatewayConfig(settings=settings)):
                gateway.reload(config)
                async with session.get(f"{url}/llm/health", headers={"Host": host}) as got:
                    assert got.status == 200


async def test_while_stopping_nothing_is_put_in_force(file):
    async with living(file) as live:
        gateway = live.gateway
        await gateway.stop()
        file.write_text(config_text(7))
        with pytest.raises(ShuttingDown):
            await gateway.reload_file()
        with pytest.raises(ShuttingDown):
            gateway.reload()
        assert gateway.config.settings.rate_limits.default.requests_per_hour == 1000
