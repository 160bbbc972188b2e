"""Alerts in the whole house: a real gateway on loopback, an emulated model server, and targets on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import AlertSettings
from hearth.events import AlertSent, Event
from hearth.observability.log_lines import line_of, to_json, to_text
from tests.clients.home import ADMIN_KEY, FRIEND_KEY, HELLO, KEYS, LLAMA, Home, house_settings, open_home
from tests.support.fake_webhooks import Reply, Webhooks, serving
from tests.support.patience import WITHIN_S

SECRET = "canary-4d5e6f"


@pytest.fixture
async def webhooks() -> AsyncIterator[tuple[Webhooks, AlertSettings]]:
    made = Webhooks()
    async with serving(made) as url:
        yield (
            made,
            AlertSettings(
                discord_webhook_url=f"{url}/api/webhooks/1/{SECRET}", webhook_url=f"{url}/{SECRET}", ntfy_url=f"{url}/topic-{SECRET}"
            ),
        )


@dataclass
class Stirring:
    """An event sink that wakes whoever waits for the webhooks."""

    stirred: asyncio.Event

    def emit(self, event: Event) -> None:
        self.stirred.set()


async def until(home: Home, received: Webhooks, condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds, looked at after every event and every post; raises TimeoutError where it does not in time."""
    home.gateway.events.subscribe(Stirring(received.stirred))
    async with asyncio.timeout(2 * WITHIN_S):
        while not condition():
            await received.stirred.wait()
            received.stirred.clear()


async def post(home: Home, path: str, key: str = "") -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(trust_env=False) as session, session.post(home.url + path, headers=headers) as got:
        return got.status, json.loads(await got.read())


async def test_a_caller_beyond_its_limit_is_told_everywhere_and_no_address_shows_anywhere(webhooks):
    received, alerts = webhooks
    async with open_home(house_settings(per_minute=1).replace(alerts=alerts)) as home:
        statuses = []
        for _ in range(6):
            body = {"model": LLAMA, "messages": HELLO, "stream": False, "options": {"num_predict": 1}}
            async with aiohttp.ClientSession(trust_env=False) as session, session.post(f"{home.url}/api/chat", json=body) as got:
                statuses.append(got.status)
        assert statuses == [200, 429, 429, 429, 429, 429]
        await until(home, received, lambda: len(home.events.of(AlertSent)) == 3)
        said = set(received.texts())
        status = home.gateway.worker.get_status()
        shown = json.dumps(status) + "".join(
            to_json(line_of(each, 0.0)) + to_text(line_of(each, 0.0), colour=False) for each in home.events.seen
        )
    assert said == {"Hearth: Caller over its rate limit: local was refused by its rate limit at least 5 times within 5 minutes."}
    part: Any = status["alerts"]
    assert (part["sent"], part["dropped"], [each["host"] for each in part["targets"]]) == (3, 0, ["127.0.0.1"] * 3)
    assert SECRET not in shown
    assert SECRET not in repr(home.gateway.config)


async def test_the_owner_can_try_the_alerts_and_nobody_else(webhooks):
    received, alerts = webhooks
    received.at_path[f"/{SECRET}"] = Reply(404)
    async with open_home(house_settings(keys=KEYS).replace(alerts=alerts)) as home:
        assert (await post(home, "/llm/admin/alert/test"))[0] == 401
        assert (await post(home, "/llm/admin/alert/test", FRIEND_KEY))[0] == 403
        status, said = await post(home, "/llm/admin/alert/test", ADMIN_KEY)
        assert (status, {each["target"]: each["answer"] for each in said["targets"]}) == (
            200,
            {"discord": "http_204", "webhook": "http_404", "ntfy": "http_204"},
        )
        changed = home.gateway.config.settings.replace(alerts=AlertSettings())
        home.gateway.reload(GatewayConfig(settings=changed))
        status, said = await post(home, "/llm/admin/alert/test", ADMIN_KEY)
        assert (status, "alerts.discord_webhook_url" in said["error"]) == (404, True)
    assert len(received.seen) == 3
