"""Tells the owner when something is wrong: from events to messages on Discord, ntfy or a webhook,
debounced per type and caller.

`emit` and the `alert_*` methods never block. Thresholds and debounce: donna's LLM gateway page
("Alert Thresholds").
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from hearth.alerts.channels import COMPOSERS, ROOMS, AlertMessage
from hearth.alerts.delivery import Target
from hearth.alerts.rules import (
    LASTING_BREACHES,
    RULES,
    Alert,
    AlertKey,
    Breach,
    Rule,
    breached,
    budget,
    shown,
    starvation,
    worst_first,
)
from hearth.clock import Clock
from hearth.config.settings import AlertSettings, AlertType
from hearth.errors import NotFound, QueueFull, RateLimited
from hearth.events import (
    DiskRanLow,
    DiskSpaceReturned,
    Event,
    ItemBrokenOff,
    ItemDispatched,
    ItemEnded,
    ItemEvent,
    ItemInterrupted,
    ItemLost,
    ItemQueued,
    ItemResent,
    ItemYielded,
    LoopLagged,
    RequestRejected,
    SwapCompleted,
)
from hearth.events.handling import HandlingSink
from hearth.ports import EventSink, Poster
from hearth.types import MIB, JsonDict, Lane, plural
from hearth.types import Sequence as SequenceNumber

MAX_KEYS = 1000
"""Types times callers that are remembered; beyond it, what was quiet for longest is forgotten."""
MAX_CALLERS = 1000
_BEGINS_TO_WAIT = (ItemQueued, ItemInterrupted, ItemYielded, ItemResent, ItemBrokenOff)
REFUSALS_WITHIN_S = 300.0
CHECK_EVERY_S = 60.0
"""Between looks at whether swapping is back within its limits; nothing but time ends such a
condition.
"""
CLOSE_TIMEOUT_S = 2.0
NO_TARGET = (
    "no alert channel is configured: set alerts.discord_webhook_url, alerts.ntfy_url or"
    " alerts.webhook_url in config/llm_gateway.yaml"
)


@dataclass(slots=True)
class _AlertRecord:
    """What is known of one key.

    `standing`: the last alert of a condition that goes on; `notified`: the owner knows that it
    does.
    """

    sent_at: float = -inf
    suppressed: int = 0
    standing: Alert | None = None
    notified: bool = False


class Debouncer:
    """What was sent of each key: one message in `window_s`, and of a condition that goes on also
    once its type has a target.
    """

    def __init__(
        self, window_s: float, has_target: Callable[[AlertType], bool] = lambda _: True
    ) -> None:
        self.window_s = window_s
        self.suppressed = 0
        self._has_target = has_target
        self._records: dict[AlertKey, _AlertRecord] = {}

    @property
    def standing(self) -> list[AlertKey]:
        """The conditions that go on, whether the owner knows it or not, the worst first."""
        standing = [each.standing for each in self._records.values() if each.standing is not None]
        return [alert.key for alert in worst_first(standing)]

    def take(self, alert: Alert) -> Alert | None:
        """The alert as it should be sent, with what was left out before it; None where it should
        not be.
        """
        if alert.resolved:
            ended = self._records.get(alert.key, _AlertRecord())
            was_notified = ended.notified
            ended.standing = None
            ended.notified = False
            return alert if was_notified else None
        record = self._record(alert.key)
        if alert.lasting:
            record.standing = alert
        if not self._has_target(alert.type):
            return None
        if alert.at < record.sent_at + self.window_s:
            record.suppressed += 1
            self.suppressed += 1
            return None
        return self._send(record, alert, alert.at)

    def due(self, now: float) -> list[Alert]:
        """Conditions whose return was left out, and whose window has ended while they still go
        on.
        """
        due: list[Alert] = []
        for record, alert in self._unknown():
            if now >= record.sent_at + self.window_s:
                # it is the message now and no longer one of those left out
                record.suppressed = max(0, record.suppressed - 1)
                due.append(self._send(record, alert, now))
        return due

    def next_due_at(self) -> float | None:
        """When `due` has something next."""
        return min((record.sent_at + self.window_s for record, _ in self._unknown()), default=None)

    def _unknown(self) -> list[tuple[_AlertRecord, Alert]]:
        """Conditions that go on, and of which the owner could know but does not."""
        return [
            (record, record.standing)
            for record in self._records.values()
            if record.standing is not None
            and not record.notified
            and self._has_target(record.standing.type)
        ]

    def _send(self, record: _AlertRecord, alert: Alert, at: float) -> Alert:
        sent = replace(alert, suppressed=alert.suppressed + record.suppressed)
        record.sent_at = at
        record.suppressed = 0
        record.notified |= alert.lasting
        return sent

    def _record(self, key: AlertKey) -> _AlertRecord:
        """The record of a key, made the youngest."""
        record = self._records.pop(key, None) or _AlertRecord()
        if len(self._records) >= MAX_KEYS:
            quiet = (known for known, each in self._records.items() if each.standing is None)
            del self._records[next(quiet, next(iter(self._records)))]
        self._records[key] = record
        return record


def _waiting(depth: int) -> str:
    return f"{plural(depth, 'external request')} {'waits' if depth == 1 else 'wait'}"


class GatewayAlerter(HandlingSink):
    """An `EventSink` that alerts.

    Its methods say whether a message will be sent: not debounced, muted or lacking a target.
    """

    def __init__(
        self, *, settings: AlertSettings, clock: Clock, events: EventSink, poster: Poster
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._poster = poster
        self._targets = tuple(
            Target(
                name,
                compose=compose,
                room=ROOMS[name],
                poster=self._poster,
                clock=clock,
                events=events,
            )
            for name, compose in COMPOSERS.items()
        )
        self._debouncer = Debouncer(settings.debounce_minutes * 60, self._has_target)
        self._refusals: dict[str, deque[float]] = {}
        self._waiting: set[SequenceNumber] = set()
        self._breaches: Callable[[float], Sequence[Breach]] = lambda _: ()
        self._wake = asyncio.Event()
        self._handlers: Mapping[type[Event], Callable[[Any], None]] = {
            **{kind: partial(self._send_all, rule) for kind, rule in RULES.items()},
            RequestRejected: self._on_rejected,
            **dict.fromkeys(
                (*_BEGINS_TO_WAIT, ItemDispatched, ItemEnded, ItemLost), self._on_queue
            ),
            SwapCompleted: self._on_swap,
        }
        self.update(settings)

    def watch_gpu(self, breaches: Callable[[float], Sequence[Breach]]) -> None:
        """Have this called after every swap for the limits that are passed at an instant
        (`GpuTracker.alarming`).
        """
        self._breaches = breaches

    def update(self, settings: AlertSettings) -> None:
        """Put settings in force.

        What was sent and what goes on stays known; targets that had stopped are tried again.
        """
        self._settings = settings
        self._debouncer.window_s = settings.debounce_minutes * 60
        urls = {
            "discord": settings.discord_webhook_url,
            "webhook": settings.webhook_url,
            "ntfy": settings.ntfy_url,
        }
        for target in self._targets:
            target.point_at(urls[target.name])
        self._wake.set()

    def alert_rate_limited(self, caller: str, rejections: int, *, at: float | None = None) -> bool:
        """A caller was refused `rejections` times within 5 minutes."""
        minutes = REFUSALS_WITHIN_S / 60
        text = (
            f"{shown(caller)} was refused by its rate limit at least {plural(rejections, 'time')}"
            f" within {minutes:.0f} minutes."
        )
        return self._alert(AlertType.RATE_LIMITED, text, at, subject=caller)

    def alert_queue_depth(self, depth: int, *, at: float | None = None) -> bool:
        """So many external items wait, which is too many."""
        text = f"{_waiting(depth)}; the limit is {self._settings.queue_depth_warning}."
        return self._alert(AlertType.QUEUE_DEPTH, text, at, lasting=True)

    def alert_queue_full(self, caller: str, *, at: float | None = None) -> bool:
        """A caller was refused because the queue is full."""
        text = f"A request of {shown(caller)} was refused because the queue is full."
        return self._alert(AlertType.QUEUE_FULL, text, at, subject=caller)

    def alert_starvation(
        self,
        caller: str,
        interrupt_count: int,
        *,
        model: str | None = None,
        at: float | None = None,
    ) -> bool:
        """A caller's request was interrupted so often that it is protected now."""
        return self.send_alert(starvation(self._at(at), caller, interrupt_count, model))

    def alert_budget(self, spent_usd: float, limit_usd: float, *, at: float | None = None) -> bool:
        """The day's budget for cloud models is nearly spent."""
        return self.send_alert(budget(self._at(at), spent_usd, limit_usd))

    def send_alert(self, alert: Alert) -> bool:
        """Send an alert, or the notice that it is over, unless it is muted or was sent a moment
        ago.
        """
        sent = self._debouncer.take(alert)
        self._wake.set()
        return sent is not None and self._deliver(sent)

    # `more`: the other fields of an alert
    def _alert(
        self,
        kind: AlertType,
        text: str,
        at: float | None,
        **more: Any,  # noqa: ANN401
    ) -> bool:
        return self.send_alert(Alert(type=kind, text=text, at=self._at(at), **more))

    async def run(self) -> None:
        """Send what waits, and conditions whose window has ended, and look whether swapping is back
        within its limits.
        """
        for target in self._targets:
            target.start()
        while True:
            now = self._clock.monotonic()
            for alert in self._debouncer.due(now):
                self._deliver(alert)
            self._end_breaches(now)
            # Without an event there is something to look at when a window ends, and while a limit
            # of the GPU's hour is passed.
            due_at = self._debouncer.next_due_at()
            pause_s = inf if due_at is None else max(0.0, due_at - now)
            if self._standing_breaches():
                pause_s = min(pause_s, CHECK_EVERY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if pause_s == inf else pause_s):
                    await self._wake.wait()
            self._wake.clear()

    def _end_breaches(self, now: float) -> None:
        standing = self._standing_breaches()
        passed = {breach.kind for breach in self._breaches(now)} if standing else set()
        for kind in standing:
            if kind not in passed:
                self._alert(kind, "It is back within its limit.", now, resolved=True)

    async def test(self) -> list[JsonDict]:
        """Send a message to every target now: `target`, `host`, `delivered`, `answer` and `problem`
        of each.

        Raises NotFound where there is none.
        """
        targets = [target for target in self._targets if target.configured]
        if not targets:
            raise NotFound(NO_TARGET)
        alert = Alert(
            type=AlertType.TEST,
            at=self._clock.monotonic(),
            text="Alerts from Hearth arrive here.",
        )
        message = AlertMessage(alerts=(alert,), wall_at=self._clock.wall())
        return await asyncio.gather(*(target.test(message) for target in targets))

    def status(self) -> JsonDict:
        """The `alerts` part of the status page: counts since the start, what goes on (the worst
        first), how each target does.
        """
        return {
            "sent": sum(target.sent for target in self._targets),
            "suppressed": self._debouncer.suppressed,
            "dropped": sum(target.dropped for target in self._targets),
            "active": [
                {"type": kind.value, "severity": kind.severity.word, "subject": subject}
                for kind, subject in self._debouncer.standing
            ],
            "targets": [target.status() for target in self._targets if target.configured],
        }

    async def aclose(self) -> None:
        """Send what still waits, within 2 seconds; to be called when `run` has ended."""
        await asyncio.gather(*(target.aclose(CLOSE_TIMEOUT_S) for target in self._targets))
        await self._poster.aclose()

    def _send_all(self, rule: Rule, event: Event) -> None:
        for alert in rule(event):
            self.send_alert(alert)

    def _deliver(self, alert: Alert) -> bool:
        if not self._has_target(alert.type):
            return False
        for target in self._targets:
            if target.configured:
                target.put(alert)
        return True

    def _has_target(self, kind: AlertType) -> bool:
        return kind not in self._settings.mute and any(
            target.configured for target in self._targets
        )

    def _on_rejected(self, event: RequestRejected) -> None:
        if event.reason == QueueFull.reason:
            self.alert_queue_full(event.caller, at=event.at)
        elif event.reason == RateLimited.reason:
            threshold = self._settings.rate_limit_alert_threshold
            recent = deque((*self._refusals.pop(event.caller, ()), event.at), maxlen=threshold)
            self._refusals[event.caller] = recent
            if len(self._refusals) > MAX_CALLERS:
                del self._refusals[next(iter(self._refusals))]
            if len(recent) == threshold and recent[0] > event.at - REFUSALS_WITHIN_S:
                self.alert_rate_limited(event.caller, threshold, at=event.at)

    def _on_queue(self, event: ItemEvent) -> None:
        limit = self._settings.queue_depth_warning
        before = len(self._waiting)
        if not isinstance(event, _BEGINS_TO_WAIT):
            self._waiting.discard(event.sequence)
        elif event.lane is Lane.EXTERNAL:
            self._waiting.add(event.sequence)
        depth = len(self._waiting)
        if depth > max(before, limit):
            self.alert_queue_depth(depth, at=event.at)
        elif (
            depth < before
            and depth <= limit // 2
            and (AlertType.QUEUE_DEPTH, "") in self._debouncer.standing
        ):
            words = f"{_waiting(depth)}."
            self._alert(AlertType.QUEUE_DEPTH, words, event.at, resolved=True)

    def _on_swap(self, event: SwapCompleted) -> None:
        self._send_all(RULES[SwapCompleted], event)
        for breach in self._breaches(event.at):
            self.send_alert(breached(breach, event.at))

    def _standing_breaches(self) -> list[AlertType]:
        return [kind for kind, _ in self._debouncer.standing if kind in LASTING_BREACHES]

    def _at(self, at: float | None) -> float:
        return self._clock.monotonic() if at is None else at


# What is looked at on a beat for the owner: the event loop, and the free space of the disk.

BEAT_S = 0.2
"""Between two looks; a hold-up is measured short by this at most."""
DISK_CHECK_EVERY_S = 60.0
RECOVERED_FACTOR = 1.2
"""Space has returned when there is this many times the limit, so that a disk at the limit is not
reported again and again.
"""


async def watch_loop_lag(
    *,
    clock: Clock,
    events: EventSink,
    settings: Callable[[], AlertSettings],
    note: Callable[[float], None],
) -> None:
    """Emit an event when the loop was held up for `loop_lag_warning_s`, until cancelled; `note`
    gets the lag of every beat in seconds.
    """
    while True:
        began_at = clock.monotonic()
        await asyncio.sleep(BEAT_S)
        now = clock.monotonic()
        lag_s = now - began_at - BEAT_S
        note(lag_s)
        if lag_s >= settings().loop_lag_warning_s:
            events.emit(LoopLagged(at=now, lag_s=lag_s))


def free_mib(directory: Path) -> float:
    """What an ordinary user may still write there, in MiB. Blocks. Raises OSError."""
    return shutil.disk_usage(directory).free / MIB


async def watch_disk(
    directory: Path,
    *,
    clock: Clock,
    events: EventSink,
    settings: Callable[[], AlertSettings],
    measure: Callable[[Path], float] = free_mib,
) -> None:
    """Emit an event when space runs low and when it has returned.

    A disk that cannot be asked (`measure`) is the store's to report.
    """
    is_low = False
    while True:
        try:
            free = await asyncio.to_thread(measure, directory)
        except OSError:
            await asyncio.sleep(DISK_CHECK_EVERY_S)
            continue
        now = clock.monotonic()
        limit = settings().disk_free_warning_mib
        if not is_low and free < limit:
            is_low = True
            events.emit(DiskRanLow(at=now, free_mib=free, limit_mib=limit))
        elif is_low and free >= limit * RECOVERED_FACTOR:
            is_low = False
            events.emit(DiskSpaceReturned(at=now, free_mib=free))
        await asyncio.sleep(DISK_CHECK_EVERY_S)
