"""Tells the owner when something is wrong: from events to messages on Discord, ntfy or a webhook, debounced per type and caller.

Listens to every event and decides about alerts, never about requests; `emit` and the `alert_*` methods only put values into bounded
places, and `run` does the talking. Thresholds and debounce: donna's LLM gateway page ("Alert Thresholds"); docs/alerts.md has the table.
Must never see a prompt, and never show an address beyond its host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from hearth.alerts.alert import Alert, AlertKey, Message, Severity, shown
from hearth.alerts.channels import COMPOSERS
from hearth.alerts.delivery import LatePoster, Poster, Target
from hearth.alerts.rules import RULES, WINDOW_S, Refusals, WaitingItems, alerts_of, budget, starvation
from hearth.clock import Clock
from hearth.config.settings import AlertSettings, AlertType
from hearth.errors import NotFound, QueueFull, RateLimited
from hearth.events import (
    Event,
    ItemDispatched,
    ItemEnded,
    ItemEvent,
    ItemInterrupted,
    ItemQueued,
    ItemResent,
    RequestRejected,
    SwapCompleted,
)
from hearth.ports import EventSink

MAX_KEYS = 1000
"""Types times callers that are remembered; beyond it, what was quiet for longest is forgotten."""


@dataclass(slots=True)
class _Record:
    """What is known of one key. `standing`: the last alert of a condition that goes on; `told`: the owner believes that it goes on."""

    sent_at: float = float("-inf")
    suppressed: int = 0
    standing: Alert | None = None
    told: bool = False


class Debouncer:
    """The memory of what was sent, per key.

    Args:
        window_s: between two messages with one key; may be changed at any time.
        heard: whether messages of a type go anywhere now. What nobody hears is not told: where it goes on, it is told once somebody does.
    """

    def __init__(self, window_s: float, heard: Callable[[AlertType], bool] = lambda _: True) -> None:
        self.window_s = window_s
        self.suppressed = 0
        self._heard = heard
        self._records: dict[AlertKey, _Record] = {}

    @property
    def standing(self) -> tuple[Alert, ...]:
        """The conditions that go on, told or not."""
        return tuple(record.standing for record in self._records.values() if record.standing is not None)

    def is_standing(self, key: AlertKey) -> bool:
        """Whether a condition goes on."""
        record = self._records.get(key)
        return record is not None and record.standing is not None

    def take(self, alert: Alert) -> Alert | None:
        """The alert as it should be sent, with what was left out before it; None where it should not be."""
        if alert.resolved:
            return self._ended(alert)
        record = self._record(alert.key)
        record.standing = alert if alert.lasting else record.standing
        if not self._heard(alert.type):
            return None
        if alert.at < record.sent_at + self.window_s:
            record.suppressed += 1
            self.suppressed += 1
            return None
        return self._send(record, alert, alert.at)

    def due(self, now: float) -> list[Alert]:
        """Conditions whose return was left out, and whose window has ended while they still go on."""
        return [
            # It is the message now and no longer one of those left out.
            self._send(record, standing, now, told_late=1)
            for record, standing in self._untold()
            if now >= record.sent_at + self.window_s
        ]

    def next_due_at(self) -> float | None:
        """When `due` has something next."""
        return min((record.sent_at + self.window_s for record, _ in self._untold()), default=None)

    def _untold(self) -> list[tuple[_Record, Alert]]:
        """Conditions that go on, and of which the owner could know but does not."""
        known = ((record, record.standing) for record in self._records.values() if not record.told)
        return [(record, standing) for record, standing in known if standing is not None and self._heard(standing.type)]

    def _ended(self, alert: Alert) -> Alert | None:
        record = self._records.get(alert.key)
        if record is None or record.standing is None:
            return None
        told, record.standing, record.told = record.told, None, False
        return alert if told else None

    def _send(self, record: _Record, alert: Alert, at: float, told_late: int = 0) -> Alert:
        left_out = max(0, record.suppressed - told_late)
        record.sent_at, record.suppressed, record.told = at, 0, record.told or alert.lasting
        return replace(alert, suppressed=alert.suppressed + left_out)

    def _record(self, key: AlertKey) -> _Record:
        """The record of a key, made the youngest."""
        record = self._records.pop(key, None) or _Record()
        self._records[key] = record
        if len(self._records) > MAX_KEYS:
            quiet = (known for known, each in self._records.items() if each.standing is None)
            del self._records[next(quiet, next(iter(self._records)))]
        return record


CHECK_EVERY_S = 60.0
"""Between looks at whether swapping is back within its limits; nothing but time ends such a condition."""
CLOSE_TIMEOUT_S = 2.0
TEST_TIMEOUT_S = 25.0
NO_TARGET = (
    "no place for messages is configured: set alerts.discord_webhook_url, alerts.ntfy_url or alerts.webhook_url in config/llm_gateway.yaml"
)


class Breach(Protocol):
    """A limit of the GPU tracker that is passed; `kind` is the type of the alert."""

    @property
    def kind(self) -> str: ...

    @property
    def measured(self) -> float: ...

    @property
    def threshold(self) -> float: ...


BreachCheck = Callable[[float], Sequence[Breach]]
"""The limits that are passed at an instant (`GpuTracker.alarming`)."""

_MEASURES: Mapping[AlertType, Callable[[Breach], str]] = MappingProxyType(
    {
        AlertType.GPU_SWAP_FREQUENCY: lambda it: (
            f"{it.measured:.0f} model swaps in the last hour; more than {it.threshold:.0f} is the limit set."
        ),
        AlertType.GPU_SWAP_LATENCY: lambda it: (
            f"The last model swap took {it.measured / 1000:.0f} s; the limit set is {it.threshold / 1000:.0f} s."
        ),
        AlertType.GPU_SWAP_OVERHEAD: lambda it: (
            f"Model swaps took {it.measured:.0f} % of the GPU's busy time in the last hour; the limit set is {it.threshold:.0f} %."
        ),
    }
)
_LASTING_MEASURES = (AlertType.GPU_SWAP_FREQUENCY, AlertType.GPU_SWAP_OVERHEAD)


class GatewayAlerter:
    """An `EventSink` that alerts.

    The `alert_*` methods and `send_alert` may be called from the event loop at any time, also before `run`; they return whether a message
    will be sent, and False where it is debounced, muted, or has no place to go.

    Args:
        events: hears of messages that arrived or were given up.
        poster: sends what is to be sent.
    """

    def __init__(self, *, settings: AlertSettings, clock: Clock, events: EventSink, poster: Poster | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._poster = poster or LatePoster()
        self._targets = tuple(
            Target(name, compose=compose, poster=self._poster, clock=clock, events=events) for name, compose in COMPOSERS.items()
        )
        self._debouncer = Debouncer(settings.debounce_minutes * 60, self._heard)
        self._refusals = Refusals()
        self._waiting = WaitingItems()
        self._breaches: BreachCheck = _no_breaches
        self._wake = asyncio.Event()
        self._handlers: Mapping[type[Event], Callable[[Any], None]] = {
            RequestRejected: self._on_rejected,
            ItemQueued: self._on_item,
            ItemInterrupted: self._on_item,
            ItemResent: self._on_item,
            ItemDispatched: self._on_item,
            ItemEnded: self._on_item,
            SwapCompleted: self._on_swap,
        }
        self.update(settings)

    def watch_gpu(self, breaches: BreachCheck) -> None:
        """Ask this for limits that are passed, after every swap."""
        self._breaches = breaches

    def update(self, settings: AlertSettings) -> None:
        """Put settings in force. What was sent and what goes on stays known; targets that had stopped are tried again."""
        self._settings = settings
        self._debouncer.window_s = settings.debounce_minutes * 60
        urls = {"discord": settings.discord_webhook_url, "webhook": settings.webhook_url, "ntfy": settings.ntfy_url}
        for target in self._targets:
            target.point_at(urls[target.name])
        self._wake.set()

    def emit(self, event: Event) -> None:
        """Raise and end what the event means."""
        for alert in alerts_of(event):
            self.send_alert(alert)
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def handler_of(self, kind: type[Event]) -> Callable[[Any], None] | None:
        """As `SelectiveSink` says."""
        return self.emit if kind in RULES else self._handlers.get(kind)

    def alert_rate_limited(self, caller: str, rejections: int, *, at: float | None = None) -> bool:
        """A caller was refused `rejections` times within 5 minutes."""
        text = f"{shown(caller)} was refused by its rate limit at least {rejections} times within {WINDOW_S / 60:.0f} minutes."
        return self.send_alert(Alert(type=AlertType.RATE_LIMITED, subject=caller, at=self._at(at), text=text))

    def alert_queue_depth(self, depth: int, *, at: float | None = None) -> bool:
        """So many external items wait, which is too many."""
        text = f"{depth} external requests wait; more than {self._settings.queue_depth_warning} is the limit set."
        return self.send_alert(Alert(type=AlertType.QUEUE_DEPTH, at=self._at(at), lasting=True, text=text))

    def alert_queue_full(self, caller: str, *, at: float | None = None) -> bool:
        """A caller was refused because the queue is full."""
        text = f"A request of {shown(caller)} was refused because the queue is full."
        alert = Alert(type=AlertType.QUEUE_FULL, subject=caller, at=self._at(at), severity=Severity.ERROR, text=text)
        return self.send_alert(alert)

    def alert_starvation(self, caller: str, interrupt_count: int, *, model: str | None = None, at: float | None = None) -> bool:
        """A caller's request was interrupted so often that it is protected now."""
        return self.send_alert(starvation(self._at(at), caller, interrupt_count, model))

    def alert_budget(self, spent_usd: float, limit_usd: float, *, at: float | None = None) -> bool:
        """The day's budget for cloud models is nearly spent."""
        return self.send_alert(budget(self._at(at), spent_usd, limit_usd))

    def send_alert(self, alert: Alert) -> bool:
        """Send an alert, or the notice that it is over, unless it is muted or was sent a moment ago."""
        told = self._debouncer.take(alert)
        self._wake.set()
        return told is not None and self._deliver(told)

    async def run(self) -> None:
        """Send what comes, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for target in self._targets:
                group.create_task(target.run(), name=f"alerts to {target.name}")
            await self._keep_watch()

    async def test(self) -> list[dict[str, object]]:
        """Send a message to every target now, and say what each answered. Needs `run` to run.

        Returns:
            `target`, `host`, `delivered`, and `answer`: `http_204` and the like, timeout, dns, connect, tls or broken.

        Raises:
            NotFound: no target is configured.
        """
        targets = [target for target in self._targets if target.configured]
        if not targets:
            raise NotFound(NO_TARGET)
        alert = Alert(type=AlertType.TEST, at=self._clock.monotonic(), severity=Severity.INFO, text="Messages of Hearth arrive here.")
        message = Message(alerts=(alert,), wall_at=self._clock.wall())
        answers = await asyncio.gather(*(target.attempt(message, TEST_TIMEOUT_S) for target in targets))
        return [
            {"target": target.name, "host": target.host, "delivered": answer.delivered, "answer": answer.name}
            for target, answer in zip(targets, answers, strict=True)
        ]

    def status(self) -> dict[str, object]:
        """The `alerts` part of the status page: counts since the start, what goes on, how each target does."""
        return {
            "sent": sum(target.sent for target in self._targets),
            "suppressed": self._debouncer.suppressed,
            "dropped": sum(target.dropped for target in self._targets),
            "active": [{"type": each.type.value, "subject": each.subject} for each in self._debouncer.standing],
            "targets": [target.status() for target in self._targets if target.configured],
        }

    async def aclose(self) -> None:
        """Send what still waits, within 2 seconds; to be called when `run` has ended."""
        await asyncio.gather(*(target.aclose(CLOSE_TIMEOUT_S) for target in self._targets))
        await self._poster.aclose()

    def _deliver(self, alert: Alert) -> bool:
        if not self._heard(alert.type):
            return False
        for target in self._targets:
            if target.configured:
                target.put(alert)
        return True

    def _heard(self, kind: AlertType) -> bool:
        return kind not in self._settings.mute and any(target.configured for target in self._targets)

    async def _keep_watch(self) -> None:
        """Tell of conditions whose window has ended, and look whether swapping is back within its limits."""
        while True:
            now = self._clock.monotonic()
            for alert in self._debouncer.due(now):
                self._deliver(alert)
            self._end_breaches(now)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s(now)):
                    await self._wake.wait()
            self._wake.clear()

    def _pause_s(self, now: float) -> float | None:
        due_at = self._debouncer.next_due_at()
        check_s = CHECK_EVERY_S if any(self._debouncer.is_standing((each, "")) for each in _LASTING_MEASURES) else None
        known = [wait_s for wait_s in (None if due_at is None else due_at - now, check_s) if wait_s is not None]
        return max(0.0, min(known)) if known else None

    def _on_rejected(self, event: RequestRejected) -> None:
        if event.reason == QueueFull.reason:
            self.alert_queue_full(event.caller, at=event.at)
        elif event.reason == RateLimited.reason:
            threshold = self._settings.rate_limit_alert_threshold
            if self._refusals.add(event.caller, event.at, threshold):
                self.alert_rate_limited(event.caller, threshold, at=event.at)

    def _on_item(self, event: ItemEvent) -> None:
        change = self._waiting.note(event)
        if not change:
            return
        depth, limit = self._waiting.depth, self._settings.queue_depth_warning
        if change > 0 and depth > limit:
            self.alert_queue_depth(depth, at=event.at)
        elif change < 0 and depth <= limit // 2 and self._debouncer.is_standing((AlertType.QUEUE_DEPTH, "")):
            text = f"{depth} external requests wait."
            self.send_alert(Alert(type=AlertType.QUEUE_DEPTH, at=event.at, resolved=True, text=text))

    def _on_swap(self, event: SwapCompleted) -> None:
        for breach in self._breaches(event.at):
            kind = AlertType(breach.kind)
            self.send_alert(Alert(type=kind, at=event.at, lasting=kind in _LASTING_MEASURES, text=_MEASURES[kind](breach)))

    def _end_breaches(self, now: float) -> None:
        standing = [kind for kind in _LASTING_MEASURES if self._debouncer.is_standing((kind, ""))]
        passed = {breach.kind for breach in self._breaches(now)} if standing else set()
        for kind in standing:
            if kind.value not in passed:
                self.send_alert(Alert(type=kind, at=now, resolved=True, text="It is back within its limit."))

    def _at(self, at: float | None) -> float:
        return self._clock.monotonic() if at is None else at


def _no_breaches(_now: float) -> tuple[Breach, ...]:
    return ()
