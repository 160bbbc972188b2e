"""Alerts and messages, and an alerter at work behind a fanout, as in a gateway, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from hearth.alerts.alerter import GatewayAlerter
from hearth.alerts.channels import AlertMessage
from hearth.alerts.delivery import Target
from hearth.alerts.rules import Alert
from hearth.config.settings import AlertSettings, AlertType
from hearth.events import AlertFailed, AlertSent, Event
from hearth.observability.fanout import EventFanout
from tests.support.fake_webhooks import OK, MemoryPoster, Reply, Webhooks
from tests.support.house import within
from tests.support.recorder import Recorder
from tests.support.virtual_time import LoopClock, loop_s

SECRET = "canary-77aa"
DISCORD = f"https://discord.example/api/webhooks/1/{SECRET}"
WEBHOOK = f"https://hooks.example/{SECRET}"
ONE = AlertSettings(discord_webhook_url=DISCORD)
ALL = AlertSettings(
    discord_webhook_url=DISCORD, webhook_url=WEBHOOK, ntfy_url=f"https://ntfy.example/{SECRET}"
)
TITLE = AlertType.STARVATION.words
"""Of a warning, which an alert is here unless a test says so."""
GATHERED_S = 3.0
"""After this, what was said at once has arrived."""


def alert(
    subject: str = "webui",
    kind: AlertType = AlertType.STARVATION,
    *,
    at: float = 0.0,
    text: str = "it is full",
    **more: Any,
) -> Alert:
    return Alert(type=kind, subject=subject, at=at, text=text, **more)


def down(at: float = 0.0, subject: str = "") -> Alert:
    return alert(
        subject,
        AlertType.BACKEND_DOWN,
        at=at,
        text="it is down",
        lasting=True,
    )


def up(at: float = 0.0, subject: str = "") -> Alert:
    return alert(subject, AlertType.BACKEND_DOWN, at=at, text="it is up", resolved=True)


def message(*alerts: Alert, dropped: int = 0) -> AlertMessage:
    return AlertMessage(alerts=alerts or (alert(),), dropped=dropped, wall_at=1_767_571_200.0)


@dataclass
class Harness:
    alerter: GatewayAlerter
    fanout: EventFanout
    webhooks: Webhooks
    events: Recorder

    @property
    def now(self) -> float:
        return loop_s()

    @property
    def target(self) -> Target:
        """The first one, which is Discord."""
        return self.alerter._targets[0]

    def status(self, name: str) -> Any:
        return self.target.status()[name]

    def emit(self, event: Event) -> None:
        self.fanout.emit(replace(event, at=self.now))

    async def arrived(self) -> list[str]:
        """What has arrived since the last time, once everything said until now is there."""
        await asyncio.sleep(GATHERED_S)
        texts = self.webhooks.texts()
        self.webhooks.seen.clear()
        return texts

    async def put(self, *alerts: str | Alert, wait_s: float = 0.0, **more: Any) -> None:
        """Give alerts to the first target, past the debouncing; a text stands for one about that
        caller.
        """
        for each in alerts:
            self.target.put(
                alert(each, text=f"about {each}", at=self.now, **more)
                if isinstance(each, str)
                else each
            )
        await asyncio.sleep(wait_s)

    @property
    def times(self) -> list[float]:
        """When posts came, in seconds from the start."""
        return [round(each.at, 3) for each in self.webhooks.seen]

    @property
    def texts(self) -> list[str]:
        return [
            text.removeprefix("Hearth: ").removeprefix(f"Hearth (warning): {TITLE}: ")
            for text in self.webhooks.texts()
        ]

    @property
    def failures(self) -> list[tuple[str, int, bool]]:
        return [(each.reason, each.attempts, each.stopped) for each in self.events.of(AlertFailed)]

    @property
    def attempts(self) -> list[int]:
        return [each.attempts for each in self.events.of(AlertSent)]


@asynccontextmanager
async def alerting(
    settings: AlertSettings = ONE, *replies: Reply, default: Reply = OK, latency_s: float = 0.0
) -> AsyncIterator[Harness]:
    webhooks = Webhooks(*replies, default=default)
    events = Recorder()
    fanout = EventFanout((events,))
    poster = MemoryPoster(webhooks, latency_s=latency_s)
    alerter = GatewayAlerter(settings=settings, clock=LoopClock(), events=fanout, poster=poster)
    fanout.subscribe(alerter)
    task = asyncio.ensure_future(alerter.run())
    await asyncio.sleep(0)
    yield Harness(alerter, fanout, webhooks, events)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await alerter.aclose()
    assert (poster.closed, webhooks.refused, webhooks.most_in_flight <= len(alerter._targets)) == (
        True,
        [],
        True,
    )
    assert SECRET not in repr((events.all, alerter.status()))
    assert asyncio.all_tasks() == {asyncio.current_task()}


alerted = within(alerting)
"""Run a test in virtual time with an alerter of its own, its first argument."""
