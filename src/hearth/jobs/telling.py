"""Tells of the ends of jobs whoever asked to be told. What is still to be said is in the store, so a restart loses no message.

At least once: a message that arrived but could not be noted as delivered comes again, with the same `webhook-id`. Never on the way of a
job. `bootstrap` has it run beside the gateway.
"""

from __future__ import annotations

import asyncio
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
    """Delivers messages, the next due first, a few at a time."""

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

    def wake(self) -> None:
        """A job has ended."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled; an attempt that is cut off is made again at the next start."""
        while True:
            self._wake.clear()
            pause = await self._round()
            if pause > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()

    async def _round(self) -> float:
        """Try what is due; seconds until there is more to do."""
        try:
            waiting = await self._deliveries.deliveries(AT_ONCE)
        except StorageUnavailable:
            return LOOK_INTERVAL_S
        now = self._clock.wall()
        due = [delivery for delivery in waiting if _wait_s(delivery, now) <= 0]
        if not due:
            return min([LOOK_INTERVAL_S, *(_wait_s(delivery, now) for delivery in waiting)])
        noted = await asyncio.gather(*map(self._deliver, due))
        return 0.0 if all(noted) else LOOK_INTERVAL_S

    async def _deliver(self, delivery: Delivery) -> bool:
        """Whether what came of it is on the disk."""
        settings, attempts = self._settings(), delivery.attempts + 1
        reason = await self._post(delivery, settings)
        try:
            await self._note(delivery, settings, attempts, reason)
        except StorageUnavailable:
            return False
        return True

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
