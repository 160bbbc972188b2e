"""Tells of the ends of jobs whoever asked to be told. What is still to be said is in the store, so a restart loses no message.

At least once: a message that arrived but could not be noted as delivered comes again, with the same `webhook-id`. Never on the way of a
job. `bootstrap` has it run beside the gateway.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from hearth.clock import Clock
from hearth.config.settings import WebhookSettings
from hearth.errors import StorageUnavailable
from hearth.events import WebhookDelivered, WebhookFailed
from hearth.job_types import Delivery, Webhook
from hearth.jobs.addresses import allowed_hosts, host_of
from hearth.jobs.messages import body_of, headers_of, pause_s
from hearth.ports import EventSink, JobDeliveries

AT_ONCE = 4
"""For each host: one that does not answer keeps none of the others waiting."""
LOOK_INTERVAL_S = 60.0
ROUNDING_S = 1.0
"""Seconds since 1970 are not exact; so much longer than its pause nothing waits."""
NOT_ALLOWED = "not_allowed"
GONE = "http_410"
"""The receiver wants no more of it."""


class WebhookPoster(Protocol):
    """Posts once; says what came of it."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> str:
        """Empty where it was taken (2xx), else why not: `http_404`, `timeout`, `connect`, `forbidden_address`, ... Never raises."""


class Telling:
    """Delivers messages, the next due first, a few at a time for each host."""

    def __init__(
        self,
        *,
        deliveries: JobDeliveries,
        poster: WebhookPoster,
        settings: Callable[[], WebhookSettings],
        clock: Clock,
        events: EventSink,
    ) -> None:
        self._deliveries = deliveries
        self._poster = poster
        self._settings = settings
        self._clock = clock
        self._events = events
        self._wake = asyncio.Event()
        self._under_way: dict[str, str | None] = {}

    def wake(self) -> None:
        """A job has ended."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled; an attempt that is cut off is made again at the next start."""
        self._under_way.clear()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                pause_s = await self._begin(group)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()

    async def _begin(self, group: asyncio.TaskGroup) -> float:
        """Begin what is due, as far as its hosts have room; seconds until something else is due."""
        try:
            waiting = await self._deliveries.deliveries(AT_ONCE)
        except StorageUnavailable:
            return LOOK_INTERVAL_S
        now, pause_s, taken = self._clock.wall(), LOOK_INTERVAL_S, Counter(self._under_way.values())
        for delivery in waiting:
            if delivery.job_id in self._under_way or taken[delivery.host] >= AT_ONCE:
                continue
            wait_s = _wait_s(delivery, now)
            if wait_s <= 0:
                taken[delivery.host] += 1
                self._under_way[delivery.job_id] = delivery.host
                group.create_task(self._deliver(delivery), name="webhook of a job")
            else:
                pause_s = min(pause_s, wait_s)
        return pause_s

    async def _deliver(self, delivery: Delivery) -> None:
        """Try once. Where what came of it cannot be noted, it is due still, and left alone for a while."""
        settings, attempts = self._settings(), delivery.attempts + 1
        reason = await self._post(delivery, settings)
        try:
            await self._note(delivery, settings, attempts, reason)
        except StorageUnavailable:
            await asyncio.sleep(LOOK_INTERVAL_S)
        del self._under_way[delivery.job_id]
        self._wake.set()

    async def _post(self, delivery: Delivery, settings: WebhookSettings) -> str:
        if host_of(delivery.url) not in allowed_hosts(settings) or not settings.secret:
            return NOT_ALLOWED
        body = body_of(delivery)
        headers = headers_of(delivery, body, settings.secret, self._clock.wall())
        return await self._poster.post(delivery.url, body, headers, settings.timeout_s)

    async def _note(self, delivery: Delivery, settings: WebhookSettings, attempts: int, reason: str) -> None:
        host = host_of(delivery.url)
        if not reason:
            await self._deliveries.told(delivery.job_id, Webhook.DELIVERED, attempts, None)
            self._events.emit(WebhookDelivered(at=self._clock.monotonic(), job_id=delivery.job_id, host=host, attempts=attempts))
        elif reason in (NOT_ALLOWED, GONE) or attempts >= settings.max_attempts:
            await self._deliveries.told(delivery.job_id, Webhook.FAILED, attempts, None)
            self._events.emit(
                WebhookFailed(at=self._clock.monotonic(), job_id=delivery.job_id, host=host, attempts=attempts, reason=reason)
            )
        else:
            await self._deliveries.told(delivery.job_id, Webhook.WAITING, attempts, self._clock.wall() + pause_s(attempts))


def _wait_s(delivery: Delivery, wall_s: float) -> float:
    """Seconds until it is due; where that is further than it ever was, the clock has been set back since, and it is due now."""
    left_s = delivery.due_wall_s - wall_s
    return left_s if left_s <= pause_s(delivery.attempts) + ROUNDING_S else 0.0
