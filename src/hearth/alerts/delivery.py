"""One place that messages go to: what waits for it, and the task that posts one message at a time,
at the pace that the place allows.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any
from urllib.parse import urlsplit

from hearth.alerts.channels import (
    AlertMessage,
    Compose,
    DeliveryOutcome,
    Room,
    in_one_message,
    outcome_of,
    problem_of,
)
from hearth.alerts.rules import OWN_TASK, Alert, AlertKey, worst_first
from hearth.clock import Clock
from hearth.config.choices import Severity
from hearth.events import AlertFailed, AlertSent, InternalFault
from hearth.ports import EventSink, Poster
from hearth.types import JsonDict, PostAnswer

CAPACITY = 200
GATHER_S = 2.0
"""From the first alert to the message: what one cause sets off comes within this time."""
DIGEST_ABOVE = 3
"""More alerts than this that wait at once become one message."""
POSTS_PER_MINUTE = 20
MAX_ATTEMPTS = 5
"""Posts of one message before it is given up."""
BACKOFF_S: Mapping[DeliveryOutcome, tuple[float, float]] = {
    "retry": (1.0, 60.0),
    "blocked": (60.0, 3600.0),
}
"""The first pause after such an answer, and the longest; each is twice the one before."""
POST_TIMEOUT_S = 10.0
TEST_TIMEOUT_S = 25.0


class Outbox:
    """The alerts on their way to one target, by key, the oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[AlertKey, Alert] = {}
        self._first_at = 0.0
        self._unreported = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, alert: Alert, now: float) -> None:
        """Queue an alert.

        It takes the place of an older one with its key; where there is no room, the oldest of the
        least bad goes, which may be this one.
        """
        older = self._waiting.pop(alert.key, None)
        if older is not None:
            repeated = 0 if alert.resolved or older.resolved else 1
            alert = replace(alert, suppressed=alert.suppressed + older.suppressed + repeated)
        elif len(self._waiting) >= CAPACITY:
            self.lose(1)
            least = min((*self._waiting.values(), alert), key=_worth)
            if least is alert:
                return
            del self._waiting[least.key]
        if not self._waiting:
            self._first_at = now
        self._waiting[alert.key] = alert

    def due_at(self) -> float | None:
        """When the next message may be taken; None where nothing waits."""
        return self._first_at + GATHER_S if self._waiting else None

    def take(self, wall_at: float, room: Room, *, everything: bool) -> AlertMessage | None:
        """The next message: the worst alert, the oldest of those, or as many as one message holds
        where they are many; None where nothing waits.
        """
        waiting = worst_first(self._waiting.values())
        if not waiting:
            return None
        is_digest = everything or len(waiting) > DIGEST_ABOVE
        alerts = in_one_message(waiting, room) if is_digest else waiting[:1]
        for each in alerts:
            del self._waiting[each.key]
        dropped = self._unreported
        self._unreported = 0
        return AlertMessage(alerts=tuple(alerts), dropped=dropped, wall_at=wall_at)

    def undelivered(self, message: AlertMessage, *, keep_conditions: bool) -> None:
        """A message that was taken will never arrive.

        With `keep_conditions`, how one stands waits again unless there is newer news.
        """
        kept = [
            each for each in message.alerts if keep_conditions and (each.lasting or each.resolved)
        ]
        self.lose(len(message.alerts) - len(kept))
        self._unreported += message.dropped
        for alert in kept:
            for each in (alert, self._waiting.pop(alert.key, None)):
                if each is not None:
                    self.put(each, self._first_at)

    def clear(self) -> None:
        """Give up everything that waits."""
        self.lose(len(self._waiting))
        self._waiting.clear()

    def lose(self, count: int) -> None:
        """Count alerts that will never arrive; the next message says how many."""
        self.dropped += count
        self._unreported += count


def _worth(alert: Alert) -> Severity:
    """How much it is kept for where room is short: that something is over as a warning."""
    return Severity.WARNING if alert.resolved else alert.severity


class Target:
    """A place to post to.

    `start` and `aclose` begin and end its task; all else may be called at any time and never
    blocks.
    """

    def __init__(
        self,
        name: str,
        *,
        compose: Compose,
        room: Room,
        poster: Poster,
        clock: Clock,
        events: EventSink,
    ) -> None:
        self.name = name
        self._compose = compose
        self._room = room
        self._poster = poster
        self._clock = clock
        self._events = events
        self._url = ""
        self._outbox = Outbox()
        self._message: AlertMessage | None = None
        """Taken from the outbox, and not delivered yet."""
        self._attempts = 0
        self._posted_at: deque[float] = deque(maxlen=POSTS_PER_MINUTE)
        self._silent_until = -inf
        self._retry_at = -inf
        self._failures: Counter[DeliveryOutcome] = Counter()
        """Of every kind that backs off, since the last post that was answered otherwise."""
        self._gone = False
        self._closing = False
        self._last = ""
        self._problem = ""
        self._one_at_a_time = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.sent = 0
        self.failed = 0

    @property
    def configured(self) -> bool:
        return bool(self._url)

    @property
    def dropped(self) -> int:
        """Alerts that never arrived."""
        return self._outbox.dropped

    @property
    def host(self) -> str:
        """All that may be shown of the address."""
        return urlsplit(self._url).hostname or ""

    def point_at(self, url: str) -> None:
        """Post there from now on, nowhere where it is empty; a target that had stopped or waits to
        try again does so now.
        """
        if url != self._url:
            self._posted_at.clear()
            self._silent_until = -inf
            self._last = ""
            self._problem = ""
        self._retry_at = -inf
        self._failures.clear()
        if not url:
            self._message = None
            self._outbox.clear()
        self._url = url
        self._gone = False
        self._wake.set()

    def put(self, alert: Alert) -> None:
        """Queue an alert; lost and counted where the target has stopped."""
        if self._gone:
            self._outbox.lose(1)
        else:
            self._outbox.put(alert, self._clock.monotonic())
            self._wake.set()

    def start(self) -> None:
        """Have what comes sent, by a task that is only ended by `aclose`: whether a post that is
        cancelled has arrived, nobody can tell.
        """
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"alerts to {self.name}"
            )

    async def aclose(self, timeout_s: float) -> None:
        """Send everything that waits in as few messages as hold it, if it can be done within the
        time and the target wants any; then forget it.
        """
        self._closing = True
        self._retry_at = -inf
        self._wake.set()
        self.start()
        task = self._task
        self._task = None
        if task is not None and not (await asyncio.wait([task], timeout=timeout_s))[0]:
            task.cancel()
            await asyncio.wait([task])
        self._give_up("stopping")
        self._outbox.clear()
        self._closing = False

    async def test(self, message: AlertMessage) -> JsonDict:
        """Post this one now, even to a target that has stopped; what came back."""
        url = self._url
        try:
            async with asyncio.timeout(TEST_TIMEOUT_S), self._one_at_a_time:
                _, answer = await self._post(message)
        except TimeoutError:
            answer = PostAnswer(failure="timeout")
        return {
            "target": self.name,
            "host": self.host,
            "delivered": answer.delivered,
            "answer": answer.name,
            "problem": problem_of(answer, url) or None,
        }

    def status(self) -> JsonDict:
        """How it does; `last`: the name of the last answer; `problem`: what is wrong with it, for
        the owner.
        """
        wait_s = max(self._retry_at, self._free_at()) - self._clock.monotonic()
        state = "waiting" if wait_s > 0 else "ready"
        if self._gone:
            state = "stopped"
        elif self._problem:
            state = "failing"
        return {
            "name": self.name,
            "host": self.host,
            "state": state,
            "sent": self.sent,
            "failed": self.failed,
            "dropped": self.dropped,
            "waiting": len(self._outbox) + (len(self._message.alerts) if self._message else 0),
            "last": self._last or None,
            "problem": self._problem or None,
            "retry_in_s": round(wait_s, 1) if wait_s > 0 else None,
        }

    async def _run(self) -> None:
        while True:
            wait_s = self._wait_s()
            if wait_s is not None and wait_s <= 0:
                await self._send_next()
            elif self._closing:
                return
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                self._wake.clear()

    def _wait_s(self) -> float | None:
        """Seconds until the next post; None where there is nothing to post."""
        due_at = self._retry_at if self._message else self._outbox.due_at()
        if due_at is None or self._gone or not self.configured:
            return None
        gathered_at = -inf if self._closing else due_at
        return max(gathered_at, self._retry_at, self._free_at()) - self._clock.monotonic()

    def _free_at(self) -> float:
        """The first instant at which the pace allows the next post."""
        is_full = len(self._posted_at) == POSTS_PER_MINUTE
        return max(self._silent_until, self._posted_at[0] + 60.0 if is_full else -inf)

    async def _send_next(self) -> None:
        async with self._one_at_a_time:
            if self._message is None and self.configured:
                wall_s = self._clock.wall()
                self._message = self._outbox.take(wall_s, self._room, everything=self._closing)
                self._attempts = 0
            message = self._message
            if message is None:  # the address was taken away while a test was posted
                return
            self._attempts += 1
            outcome, answer = await self._post(message)
        if outcome == "delivered":
            self._message = None
            self.sent += 1
            suppressed = sum(each.suppressed for each in message.alerts)
            self._events.emit(AlertSent(suppressed=suppressed, **self._about(message)))
        elif outcome in {"gone", "refused"}:
            self._give_up(answer.name, stopped=outcome == "gone")
        elif self._attempts >= MAX_ATTEMPTS:
            self._give_up(answer.name, keep_conditions=True)

    async def _post(self, message: AlertMessage) -> tuple[DeliveryOutcome, PostAnswer]:
        """Post a message and note what the answer says about the posts to come."""
        url = self._url
        self._posted_at.append(self._clock.monotonic())
        try:
            post = await asyncio.to_thread(self._compose, url, message)
            answer = await self._poster.post(post, POST_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001
            # A message that cannot be made must not end the task that sends all others.
            now = self._clock.monotonic()
            detail = type(error).__name__
            self._events.emit(InternalFault(at=now, where=OWN_TASK, detail=detail))
            return "refused", PostAnswer(failure="broken")
        outcome, wait_s = outcome_of(answer, self._clock.wall())
        # what the old address says holds for that one; a message that it has not taken goes to the
        # new one
        if url != self._url:
            return "delivered" if outcome == "delivered" else "retry", answer
        self._note(outcome, wait_s)
        self._last = answer.name
        self._problem = "" if outcome == "wait" else problem_of(answer, url)
        self._wake.set()
        return outcome, answer

    def _note(self, outcome: DeliveryOutcome, wait_s: float) -> None:
        """When the next post may go out; `wait_s`: what the receiver asks for."""
        now = self._clock.monotonic()
        self._gone = outcome == "gone"
        self._silent_until = max(self._silent_until, now + wait_s)
        if outcome not in BACKOFF_S:
            self._retry_at = -inf
            self._failures.clear()
            return
        first_s, longest_s = BACKOFF_S[outcome]
        self._retry_at = now + min(longest_s, first_s * 2.0 ** min(self._failures[outcome], 10))
        self._failures[outcome] += 1

    def _give_up(
        self, reason: str, *, stopped: bool = False, keep_conditions: bool = False
    ) -> None:
        message = self._message
        self._message = None
        if message is None:
            return
        self.failed += 1
        self._outbox.undelivered(message, keep_conditions=keep_conditions)
        if stopped:
            self._outbox.clear()
        about = self._about(message)
        self._events.emit(
            AlertFailed(reason=reason, problem=self._problem, stopped=stopped, **about)
        )

    def _about(self, message: AlertMessage) -> dict[str, Any]:
        return {
            "at": self._clock.monotonic(),
            "target": self.name,
            "types": tuple(dict.fromkeys(each.type.value for each in message.alerts)),
            "alerts": len(message.alerts),
            "attempts": self._attempts,
        }
