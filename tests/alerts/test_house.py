"""Alerts in a whole gateway: a real one on loopback, an emulated model server, and targets on real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from hearth.alerts.delivery import CAPACITY
from hearth.alerts.rules import Alert
from hearth.config.settings import AlertSettings, AlertType
from hearth.events import AlertSent
from hearth.observability.log_lines import line_of, to_json, to_text
from tests.clients.home import HELLO, LLAMA, house_settings, open_home
from tests.support.fake_webhooks import Reply, Webhooks, serving
from tests.support.patience import WITHIN_S
from tests.support.recorder import Recorder

SECRET = "canary-4d5e6f"


def every_target(url: str) -> AlertSettings:
    discord, webhook, ntfy = (f"{url}/{path}{SECRET}" for path in ("api/webhooks/1/", "", "topic-"))
    return AlertSettings(discord_webhook_url=discord, webhook_url=webhook, ntfy_url=ntfy, queue_depth_warning=1000, loop_lag_warning_s=60)


async def test_a_caller_beyond_its_limit_is_reported_everywhere_and_no_address_shows_anywhere():
    received, statuses, heard = Webhooks(), [], Recorder()
    async with serving(received) as url, open_home(house_settings(per_minute=1).replace(alerts=every_target(url))) as home:
        home.gateway.events.subscribe(heard)
        body = {"model": LLAMA, "messages": HELLO, "stream": False, "options": {"num_predict": 1}}
        async with aiohttp.ClientSession(trust_env=False) as session:
            for _ in range(6):
                async with session.post(f"{home.url}/api/chat", json=body) as got:
                    statuses.append(got.status)
        assert statuses == [200, 429, 429, 429, 429, 429]
        await heard.until(lambda: len(heard.of(AlertSent)) == 3)
        status = home.gateway.worker.get_status()
        lines = (line_of(each, 0.0) for each in home.events.all)
        shown = json.dumps(status) + "".join(to_json(line) + to_text(line, colour=False) for line in lines)
    text = "Hearth: Caller over its rate limit: local was refused by its rate limit at least 5 times within 5 minutes."
    assert received.texts() == [text] * 3
    part: Any = status["alerts"]
    assert (part["sent"], part["dropped"], [each["host"] for each in part["targets"]]) == (3, 0, ["127.0.0.1"] * 3)
    assert SECRET not in shown
    assert SECRET not in repr(home.gateway.config)


async def test_requests_go_on_while_every_target_stalls_under_ten_thousand_alerts():
    received = Webhooks()
    received.default = Reply(stall=True)
    async with serving(received) as url, open_home(house_settings().replace(alerts=every_target(url))) as home:
        alerter: Any = home.gateway.alerter
        for number in range(10_000):
            alerter.send_alert(Alert(type=AlertType.QUEUE_FULL, subject=f"c{number}", at=home.gateway.clock.monotonic(), text="x"))
        async with home.native() as native, asyncio.timeout(WITHIN_S):
            answers = await asyncio.gather(*(native.chat(model=LLAMA, messages=HELLO, options={"num_predict": 2}) for _ in range(20)))
        assert all(answer.done for answer in answers)
        status = alerter.status()
        waiting = [each["waiting"] for each in status["targets"]]
        assert (max(waiting) <= 2 * CAPACITY, status["dropped"] + sum(waiting)) == (True, 30_000)
