"""One place that messages go to, and the task that sends them there: one post at a time, at the pace that the place allows."""

from __future__ import annotations

import asyncio
import importlib
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit

from hearth.alerts.alert import Alert, AlertKey, Message
from hearth.alerts.channels import Answer, Compose, Outcome, Post, Verdict, backoff_s, verdict_of
from hearth.clock import Clock
from hearth.events import AlertFailed, AlertSent
from hearth.ports import EventSink

CAPACITY = 200
GATHER_S = 2.0
"""From the first alert to the message: what one cause sets off comes within this time."""
DIGEST_ABOVE = 3
"""More alerts than this that wait at once become one message."""


class Outbox:
    """The alerts on their way to one target."""

    def __init__(self) -> None:
        self._waiting: dict[AlertKey, Alert] = {}
        self._first_at = 0.0
        self._untold = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, alert: Alert, now: float) -> None:
        """Queue an alert. It takes the place of an older one with its key; where there is no room, the oldest of the least bad goes."""
        older = self._waiting.pop(alert.key, None)
        if older is not None:
            repeated = 0 if alert.resolved or older.resolved else 1
            alert = replace(alert, suppressed=alert.suppressed + older.suppressed + repeated)
        elif len(self._waiting) >= CAPACITY:
            least = min(self._waiting.values(), key=lambda each: each.severity)
            del self._waiting[least.key]
            self.lose(1)
        if not self._waiting:
            self._first_at = now
        self._waiting[alert.key] = alert

    def due_at(self) -> float | None:
        """When the next message may be taken; None where nothing waits."""
        return self._first_at + GATHER_S if self._waiting else None

    def take(self, wall_at: float) -> Message | None:
        """The next message: the oldest alert, or all of them where they are many; None where nothing waits."""
        count = len(self._waiting) if len(self._waiting) > DIGEST_ABOVE else 1
        return self._taken(count, wall_at)

    def take_all(self, wall_at: float) -> Message | None:
        """Everything in one message; None where nothing waits."""
        return self._taken(len(self._waiting), wall_at)

    def clear(self) -> None:
        """Give up everything that waits."""
        self.lose(len(self._waiting))
        self._waiting.clear()

    def lose(self, count: int) -> None:
        """Count alerts that will never arrive; the next message says how many."""
        self.dropped += count
        self._untold += count

    def give_up(self, message: Message) -> None:
        """A message that was taken will never arrive, nor will what it would have said of earlier losses."""
        self.lose(len(message.alerts))
        self._untold += message.dropped

    def put_back(self, message: Message) -> None:
        """A message that was taken will never arrive, but the state of a condition still has to: it waits again, behind the others."""
        news = [each for each in message.alerts if each.lasting or each.resolved]
        self.lose(len(message.alerts) - len(news))
        self._untold += message.dropped
        for alert in news:
            newer = self._waiting.pop(alert.key, None)
            self.put(alert, self._first_at)
            if newer is not None:
                self.put(newer, self._first_at)

    def _taken(self, count: int, wall_at: float) -> Message | None:
        alerts = tuple(self._waiting.values())[:count]
        if not alerts:
            return None
        for each in alerts:
            del self._waiting[each.key]
        dropped, self._untold = self._untold, 0
        return Message(alerts=alerts, dropped=dropped, wall_at=wall_at)


POSTS_PER_MINUTE = 20
MINUTE_S = 60.0


class Pacer:
    """The recent posts to one target and what it said about more."""

    def __init__(self) -> None:
        self._posts: deque[float] = deque(maxlen=POSTS_PER_MINUTE)
        self.blocked_until = float("-inf")

    def posted(self, now: float) -> None:
        """A post goes out."""
        self._posts.append(now)

    def block(self, until: float) -> None:
        """No post before this instant."""
        self.blocked_until = max(self.blocked_until, until)

    def free_at(self) -> float:
        """The first instant at which the next post may go out."""
        full = len(self._posts) == POSTS_PER_MINUTE
        return max(self.blocked_until, self._posts[0] + MINUTE_S if full else float("-inf"))


class Poster(Protocol):
    """Sends posts. Never raises but for cancellation."""

    async def post(self, post: Post) -> Answer: ...

    async def aclose(self) -> None: ...


class LatePoster:
    """A `Poster` that is made by `module`'s `HttpPoster` when it is needed; the import is done in a thread."""

    def __init__(self, module: str = "hearth.alerts.poster") -> None:
        self._module = module
        self._poster: Poster | None = None

    async def post(self, post: Post) -> Answer:
        """As the poster does."""
        if self._poster is None:
            loaded = await asyncio.to_thread(importlib.import_module, self._module)
            self._poster = self._poster or loaded.HttpPoster()
        return await self._poster.post(post)

    async def aclose(self) -> None:
        """Close what was opened."""
        if self._poster is not None:
            await self._poster.aclose()


MAX_ATTEMPTS = 5
"""Posts of one message before it is given up."""


@dataclass(slots=True)
class _Sending:
    """The message that is on its way, over all its attempts."""

    message: Message
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """A post that is out."""

    task: asyncio.Task[Answer]
    message: Message
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    message: Message
    answer: asyncio.Future[Answer]


class Target:
    """A place to post to.

    Args:
        name: what log and status call it.
        compose: makes the post of a message.
    """

    def __init__(self, name: str, *, compose: Compose, poster: Poster, clock: Clock, events: EventSink) -> None:
        self.name = name
        self._compose = compose
        self._poster = poster
        self._clock = clock
        self._events = events
        self._url = ""
        self._outbox = Outbox()
        self._pacer = Pacer()
        self._sending: _Sending | None = None
        self._trials: deque[_Trial] = deque()
        self._flight: _Flight | None = None
        self._failures = 0
        self._retry_at = float("-inf")
        self._gone = False
        self._last = ""
        self._wake = asyncio.Event()
        self.sent = 0
        self.failed = 0

    @property
    def configured(self) -> bool:
        """Whether there is an address to post to."""
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
        """Post there from now on, nowhere where it is empty; a target that had stopped tries again."""
        if url != self._url:
            self._pacer = Pacer()
            self._recovered()
        if not url:
            self._sending = None
            self._outbox.clear()
        self._url, self._gone = url, False
        self._wake.set()

    def put(self, alert: Alert) -> None:
        """Queue an alert; never blocks. Lost and counted where the target has stopped."""
        if self._gone:
            self._outbox.lose(1)
            return
        self._outbox.put(alert, self._clock.monotonic())
        self._wake.set()

    async def attempt(self, message: Message, timeout_s: float) -> Answer:
        """Post this one now, even to a target that has stopped; what came back. Needs `run` to run."""
        trial = _Trial(message=message, answer=asyncio.get_running_loop().create_future())
        self._trials.append(trial)
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await trial.answer
        except TimeoutError:
            return Answer(failure="timeout")

    async def run(self) -> None:
        """Send what comes, until it is cancelled; a post that is out then goes on, see `aclose`."""
        await self._land()
        while True:
            wait_s = self._wait_s()
            if self._trials:
                await self._try(self._trials.popleft())
            elif wait_s is not None and wait_s <= 0:
                await self._post_next()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                self._wake.clear()

    async def aclose(self, timeout_s: float) -> None:
        """Send everything that waits in one message, if it can be done within the time and the target wants any; then forget it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._flush()
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.task.cancel()
            await asyncio.wait([flight.task])
        self._give_up("stopping")
        self._outbox.clear()

    async def _flush(self) -> None:
        await self._land()
        for _ in range(2):  # a message that failed before, and everything else
            free = self._pacer.free_at() <= self._clock.monotonic()
            if self._sending is None and (message := self._outbox.take_all(self._clock.wall())) is not None:
                self._sending = _Sending(message)
            if self._sending is None or self._gone or not self.configured or not free:
                return
            await self._post_next()

    def status(self) -> dict[str, object]:
        """How it does; `last`: the name of the last answer."""
        wait_s = max(self._retry_at, self._pacer.free_at()) - self._clock.monotonic()
        return {
            "name": self.name,
            "host": self.host,
            "state": self._state(wait_s),
            "sent": self.sent,
            "failed": self.failed,
            "dropped": self.dropped,
            "waiting": len(self._outbox) + (len(self._sending.message.alerts) if self._sending else 0),
            "last": self._last or None,
            "retry_in_s": round(wait_s, 1) if wait_s > 0 else None,
        }

    def _state(self, wait_s: float) -> str:
        if self._gone:
            return "stopped"
        if self._failures:
            return "failing"
        return "waiting" if wait_s > 0 else "ready"

    def _wait_s(self) -> float | None:
        """Seconds until the next post; None where there is nothing to post."""
        due_at = self._outbox.due_at() if self._sending is None else self._retry_at
        if due_at is None or self._gone or not self.configured:
            return None
        return max(due_at, self._retry_at, self._pacer.free_at()) - self._clock.monotonic()

    async def _post_next(self) -> None:
        if self._sending is None:
            message = self._outbox.take(self._clock.wall())
            if message is None:
                return
            self._sending = _Sending(message)
        if self._sending.attempts >= MAX_ATTEMPTS:
            self._give_up("broken")  # its last attempt raised: a defect that must not come back for ever
            return
        self._sending.attempts += 1
        await self._posted(self._sending.message)

    async def _try(self, trial: _Trial) -> None:
        if trial.answer.done():  # who asked has been told that it took too long
            return
        answer = Answer(failure="broken")
        try:
            answer = await self._posted(trial.message)
        finally:
            if not trial.answer.done():
                trial.answer.set_result(answer)

    async def _posted(self, message: Message) -> Answer:
        """Post a message and draw the consequences. Cancelling this leaves the post alone: nobody could tell whether it arrived."""
        self._pacer.posted(self._clock.monotonic())
        task = asyncio.get_running_loop().create_task(self._fly(self._url, message), name=f"alert to {self.name}")
        self._flight = _Flight(task=task, message=message, url=self._url)
        return await self._land()

    async def _fly(self, url: str, message: Message) -> Answer:
        return await self._poster.post(await asyncio.to_thread(self._compose, url, message))

    async def _land(self) -> Answer:
        """Wait for the post that is out, if there is one, and draw the consequences."""
        flight = self._flight
        if flight is None:
            return Answer(failure="broken")
        try:
            answer = await asyncio.shield(flight.task)
        finally:
            if flight.task.done():
                self._flight = None
        self._settle(flight, answer)
        return answer

    def _settle(self, flight: _Flight, answer: Answer) -> None:
        """What an answer means for this target, and for the message that it answers."""
        verdict = verdict_of(answer, self._clock.wall())
        if flight.url == self._url:
            self._obey(verdict, answer)
        if self._sending is None or self._sending.message is not flight.message:
            return
        if verdict.outcome is Outcome.DELIVERED:
            self._delivered(self._sending)
        elif verdict.outcome in {Outcome.GONE, Outcome.REFUSED}:
            self._give_up(answer.name, stopped=verdict.outcome is Outcome.GONE)
        elif self._sending.attempts >= MAX_ATTEMPTS:
            self._give_up(answer.name, later=True)

    def _obey(self, verdict: Verdict, answer: Answer) -> None:
        """What an answer says about the posts to come."""
        self._last, now = answer.name, self._clock.monotonic()
        self._gone = verdict.outcome is Outcome.GONE
        if verdict.wait_s > 0:
            self._pacer.block(now + verdict.wait_s)
        if verdict.outcome is Outcome.RETRY:
            self._failures += 1
            self._retry_at = now + backoff_s(self._failures)
        else:
            self._recovered()

    def _recovered(self) -> None:
        self._failures, self._retry_at = 0, float("-inf")

    def _delivered(self, sending: _Sending) -> None:
        self._sending = None
        self.sent += 1
        message = sending.message
        self._events.emit(
            AlertSent(
                at=self._clock.monotonic(),
                target=self.name,
                types=message.types,
                alerts=len(message.alerts),
                suppressed=sum(each.suppressed for each in message.alerts),
                attempts=sending.attempts,
            )
        )

    def _give_up(self, reason: str, *, stopped: bool = False, later: bool = False) -> None:
        sending, self._sending = self._sending, None
        if sending is None:
            return
        self.failed += 1
        (self._outbox.put_back if later else self._outbox.give_up)(sending.message)
        if stopped:
            self._outbox.clear()
        self._events.emit(
            AlertFailed(
                at=self._clock.monotonic(),
                target=self.name,
                types=sending.message.types,
                alerts=len(sending.message.alerts),
                attempts=sending.attempts,
                reason=reason,
                stopped=stopped,
            )
        )
