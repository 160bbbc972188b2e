"""Sends a message about the end of a job to the URL that came with it. What is still to be sent is
in the store, so a restart loses no message.

At least once: a message that arrived but could not be noted as delivered comes again, with the same
`webhook-id`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from hearth.clock import Clock
from hearth.config.settings import WebhookSettings
from hearth.errors import BadRequest, Forbidden, StorageUnavailable
from hearth.events import JobEnded, WebhookDelivered, WebhookFailed
from hearth.events.handling import HandlingSink
from hearth.execution.tasks import wait_at_most
from hearth.job_types import Delivery
from hearth.ports import EventSink, Poster, WebhookOutbox
from hearth.types import Post

BACKOFF_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0)
"""Between two attempts; the last one again and again."""
_PREFIX = "whsec_"


def post_of(delivery: Delivery, secret: str, wall_s: float) -> Post:
    """One attempt at an instant; every attempt of one message has the same `webhook-id`."""
    content = {
        "type": f"job.{delivery.state.value}",
        "job_id": delivery.job_id,
        "state": delivery.state.value,
        "task_type": delivery.task_type,
        "emulator": delivery.emulated,
        "reason": delivery.reason,
        "accepted_wall_s": delivery.accepted_wall_s,
        "ended_wall_s": delivery.ended_wall_s,
    }
    body = json.dumps(content, separators=(",", ":")).encode("ascii")
    stamp = str(int(wall_s))
    headers = {
        "content-type": "application/json",
        "webhook-id": delivery.job_id,
        "webhook-timestamp": stamp,
        "webhook-signature": signature(secret, delivery.job_id, stamp, body),
    }
    return Post(url=delivery.url, headers=headers, body=body)


def signature(secret: str, message_id: str, stamp: str, body: bytes) -> str:
    """`v1,` and the signature in base64.

    A secret that begins with `whsec_` is the base64 of its bytes, any other is text.
    """
    key = (
        base64.b64decode(secret.removeprefix(_PREFIX))
        if secret.startswith(_PREFIX)
        else secret.encode()
    )
    digest = hmac.new(
        key, b".".join((message_id.encode(), stamp.encode(), body)), hashlib.sha256
    ).digest()
    return "v1," + base64.b64encode(digest).decode("ascii")


def pause_s(attempts: int) -> float:
    """Seconds between an attempt that failed, the `attempts`-th, and the next one."""
    return BACKOFF_S[min(max(1, attempts), len(BACKOFF_S)) - 1]


MAX_URL_CHARS = 2000
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",
        "fd00:ec2::254",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
    )
)
"""Instance metadata of AWS, Google, Azure, Alibaba and Oracle."""


def check_webhook(url: str, settings: WebhookSettings) -> str:
    """The URL as it was given.

    Raises BadRequest for one that no job may have, Forbidden where its host is not allowed.
    """
    host = host_of(url)
    if not host:
        raise BadRequest(
            "webhook: must be an http or https URL without user, password and fragment"
        )
    if host not in allowed_hosts(settings):
        raise Forbidden(
            "webhook: messages to its host are not allowed; ask the owner",
            remedy="jobs.webhooks.allowed_hosts",
        )
    if not settings.secret:
        raise BadRequest(
            "webhook: the owner has not set the secret that signs the messages",
            remedy="jobs.webhooks.secret",
        )
    return url


def allowed_hosts(settings: WebhookSettings) -> frozenset[str]:
    """As `host_of` gives them."""
    return frozenset(map(_bare, settings.allowed_hosts))


def host_of(url: str) -> str:
    """The host of a usable URL in lower case, empty for any other."""
    if (
        len(url) > MAX_URL_CHARS
        or not url.isascii()
        or not url.isprintable()
        or " " in url
        or "\\" in url
    ):
        return ""
    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in {"http", "https"}
            and parts.port != 0
            and "@" not in parts.netloc
            and not parts.fragment
        )
    except ValueError:
        return ""
    return _bare(parts.hostname or "") if usable else ""


def _bare(host: str) -> str:
    return host.lower().strip("[]").rstrip(".")


def is_forbidden(address: str) -> bool:
    """Whether nothing is ever sent to an address.

    Link-local, metadata, multicast, unspecified, reserved, and every IPv6 address that leads to
    one.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True
    if isinstance(found, ipaddress.IPv6Address) and any(map(_is_off_limits, _embedded(found))):
        return True
    return _is_off_limits(found)


def _is_off_limits(found: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    # Of IPv6, Python counts all of ::/8 as reserved: the loopback address, NAT64, mapped ones.
    if isinstance(found, ipaddress.IPv4Address) and found.is_reserved:
        return True
    is_metadata = found in _METADATA
    return is_metadata or found.is_link_local or found.is_multicast or found.is_unspecified


_IN_LAST_BYTES = (
    ipaddress.IPv6Network("::/96"),
    ipaddress.IPv6Network("::ffff:0:0/96"),
    ipaddress.IPv6Network("::ffff:0:0:0/96"),
    ipaddress.IPv6Network("64:ff9b::/96"),
)
"""Compatible and mapped addresses (RFC 4291), translated ones (RFC 2765), NAT64 (RFC 6052)."""
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_ISATAP = (bytes.fromhex("00005efe"), bytes.fromhex("02005efe"))
"""How its interface identifiers begin, below any prefix (RFC 5214)."""


def _embedded(found: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """Every IPv4 address that a router or this machine might read in an IPv6 one."""
    yield from found.teredo or ()  # its server and its client
    if found.sixtofour is not None:
        yield found.sixtofour
    packed = found.packed
    if packed[8:12] in _ISATAP or any(found in network for network in _IN_LAST_BYTES):
        yield ipaddress.IPv4Address(packed[12:])
    if found in _LOCAL_NAT64:
        # Its owner chooses a prefix of 48, 56, 64 or 96 bits; the first three leave the ninth byte
        # out (RFC 6052, section 2.2). Four zeros are the rest of another prefix.
        rest = packed[6:8] + packed[9:]
        for part in (rest[0:4], rest[1:5], rest[2:6], packed[12:]):
            if any(part):
                yield ipaddress.IPv4Address(part)


AT_ONCE = 4
"""For each host: one that does not answer keeps none of the others waiting."""
LOOK_INTERVAL_S = 60.0
ROUNDING_S = 1.0
"""Seconds since 1970 are not exact; so much longer than its pause nothing waits."""
NOT_ALLOWED = "not_allowed"
GONE = "http_410"
"""The receiver wants no more of it."""


@dataclass(kw_only=True, eq=False)
class WebhookSender(HandlingSink):
    """Delivers messages, the next due first, a few at a time for each host.

    Subscribe it to the events of the gateway.
    """

    outbox: WebhookOutbox
    poster: Poster
    settings: Callable[[], WebhookSettings]
    clock: Clock
    events: EventSink

    def __post_init__(self) -> None:
        self._wake = asyncio.Event()
        self._under_way: dict[str, str | None] = {}
        self._handlers = {JobEnded: lambda _: self._wake.set()}

    async def run(self) -> None:
        """Deliver until cancelled; an attempt that is cut off is made again at the next start."""
        self._under_way.clear()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                pause_s = await self._begin(group)
                await wait_at_most(pause_s, self._wake)

    async def _begin(self, group: asyncio.TaskGroup) -> float:
        """Begin what is due, as far as its hosts have room; seconds until something else is due."""
        try:
            waiting = await self.outbox.deliveries(AT_ONCE)
        except StorageUnavailable:
            return LOOK_INTERVAL_S
        now = self.clock.wall()
        pause_s = LOOK_INTERVAL_S
        taken = Counter(self._under_way.values())
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
        """Try once.

        Where what came of it cannot be noted, it is due still, and left alone for a while.
        """
        settings = self.settings()
        reason = NOT_ALLOWED
        if host_of(delivery.url) in allowed_hosts(settings) and settings.secret:
            answer = await self.poster.post(
                post_of(delivery, settings.secret, self.clock.wall()), settings.timeout_s
            )
            reason = "" if answer.delivered else answer.name
        try:
            await self._note(delivery, settings, delivery.attempts + 1, reason)
        except StorageUnavailable:
            await asyncio.sleep(LOOK_INTERVAL_S)
        del self._under_way[delivery.job_id]
        self._wake.set()

    async def _note(
        self, delivery: Delivery, settings: WebhookSettings, attempts: int, reason: str
    ) -> None:
        job_id = delivery.job_id
        host = host_of(delivery.url)
        now = self.clock.monotonic()
        if not reason:
            await self.outbox.note_delivery(job_id, "delivered", attempts, None)
            self.events.emit(WebhookDelivered(at=now, job_id=job_id, host=host, attempts=attempts))
        elif reason in (NOT_ALLOWED, GONE) or attempts >= settings.max_attempts:
            await self.outbox.note_delivery(job_id, "failed", attempts, None)
            self.events.emit(
                WebhookFailed(at=now, job_id=job_id, host=host, attempts=attempts, reason=reason)
            )
        else:
            await self.outbox.note_delivery(
                job_id, "waiting", attempts, self.clock.wall() + pause_s(attempts)
            )


def _wait_s(delivery: Delivery, wall_s: float) -> float:
    """Seconds until it is due; where that is further than it ever was, the clock has been set back
    since, and it is due now.
    """
    left_s = delivery.due_wall_s - wall_s
    return left_s if left_s <= pause_s(delivery.attempts) + ROUNDING_S else 0.0
