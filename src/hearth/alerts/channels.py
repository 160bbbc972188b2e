"""What Discord, ntfy and a webhook are sent, and what their answers mean. docs/alerts.md documents the messages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from yarl import URL

from hearth.alerts.alert import Alert, Message, Severity, discord_text, shown

DEFAULT_WAIT_S = 5.0
"""After a 429 that does not say how long."""
MAX_WAIT_S = 3600.0
MAX_BACKOFF_S = 60.0
GONE = frozenset({401, 403, 404, 410})
PASSING = frozenset({408, 425})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back.

    Attributes:
        status: of the HTTP answer; None where there was none, and then `failure` says why.
        headers: names in lower case.
        body: its beginning.
        failure: timeout, dns, connect, tls, broken, or empty.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    failure: str = ""

    @property
    def name(self) -> str:
        """For logs and status: `http_204`, or the failure."""
        return self.failure if self.status is None else f"http_{self.status}"

    @property
    def delivered(self) -> bool:
        """Whether the target took it."""
        return self.status is not None and 200 <= self.status < 300


class Outcome(StrEnum):
    """What to do."""

    DELIVERED = "delivered"
    WAIT = "wait"
    RETRY = "retry"
    REFUSED = "refused"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do, and how many seconds no further post may go out (0 where the target does not say)."""

    outcome: Outcome
    wait_s: float = 0.0


def verdict_of(answer: Answer, wall_s: float) -> Verdict:
    """What an answer means; `wall_s` is the time of it, seconds since 1970, for targets that name a date."""
    status = answer.status
    if status is None:
        return Verdict(outcome=Outcome.RETRY)
    if answer.delivered:
        return Verdict(outcome=Outcome.DELIVERED, wait_s=_bucket_s(answer.headers))
    if status == 429:
        return Verdict(outcome=Outcome.WAIT, wait_s=_told_s(answer, wall_s) or DEFAULT_WAIT_S)
    if status in GONE:
        return Verdict(outcome=Outcome.GONE)
    if status >= 500 or status in PASSING:
        return Verdict(outcome=Outcome.RETRY, wait_s=_told_s(answer, wall_s))
    return Verdict(outcome=Outcome.REFUSED)


def backoff_s(failures: int) -> float:
    """The pause after so many failures in a row: 1, 2, 4 ... 60 seconds."""
    doublings = min(max(0, failures - 1), 10)
    return float(min(MAX_BACKOFF_S, 2.0**doublings))


def _told_s(answer: Answer, wall_s: float) -> float:
    """The longest wait that the answer asks for, 0 where it asks for none."""
    headers = answer.headers
    return max(
        _seconds(_json_wait(answer.body)),
        _retry_after_s(headers.get("retry-after", ""), wall_s),
        _seconds(headers.get("x-ratelimit-reset-after")),
    )


def _bucket_s(headers: Mapping[str, str]) -> float:
    """After an answer that leaves no further post: until there are some again."""
    if headers.get("x-ratelimit-remaining", "").strip() != "0":
        return 0.0
    return _seconds(headers.get("x-ratelimit-reset-after"))


def _json_wait(body: bytes) -> object:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return said.get("retry_after") if isinstance(said, dict) else None


def _retry_after_s(text: str, wall_s: float) -> float:
    if _seconds(text) or not text:
        return _seconds(text)
    try:
        return _seconds(parsedate_to_datetime(text).timestamp() - wall_s)
    except (ValueError, OverflowError):
        return 0.0


def _seconds(raw: object) -> float:
    """A usable number of seconds, 0 for anything else; never more than an hour."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return 0.0
    try:
        seconds = float(raw)
    except (ValueError, OverflowError):
        return 0.0
    return min(seconds, MAX_WAIT_S) if math.isfinite(seconds) and seconds > 0 else 0.0


TITLE_LIMIT = 256
DESCRIPTION_LIMIT = 4096
TEXT_CHARS = 4000
NTFY_BYTES = 4096
"""Of a longer message ntfy makes a file."""
NAMED_ALERTS = 25
"""Alerts of a digest that are written out; the rest is a number."""

_COLOURS: Mapping[Severity, int] = MappingProxyType({Severity.INFO: 0x3498DB, Severity.WARNING: 0xF1C40F, Severity.ERROR: 0xE74C3C})
_GREEN = 0x2ECC71
_PRIORITIES: Mapping[Severity, str] = MappingProxyType({Severity.INFO: "3", Severity.WARNING: "4", Severity.ERROR: "5"})
_TAGS: Mapping[Severity, str] = MappingProxyType(
    {Severity.INFO: "information_source", Severity.WARNING: "warning", Severity.ERROR: "rotating_light"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One POST. The URL is a secret and in no repr."""

    url: str = field(repr=False)
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


Compose = Callable[[str, Message], Post]
"""Makes the post of a message to a URL. Runs in a thread: the first one may import a library."""


def discord_post(url: str, message: Message) -> Post:
    """One embed; nobody is mentioned, whatever the text says. `?wait=true` makes Discord answer with what became of it."""
    from discord_webhook import DiscordEmbed, DiscordWebhook  # type: ignore[import-untyped]  # noqa: PLC0415 - a tenth of a second

    embed = DiscordEmbed(
        title=discord_text(message.title, TITLE_LIMIT),
        description=_discord_lines(_shortened(message)),
        color=_GREEN if message.resolved else _COLOURS[message.severity],
        timestamp=_rfc3339(message.wall_at),
    )
    webhook = DiscordWebhook(url="", username="Hearth", allowed_mentions={"parse": []}, embeds=[])
    webhook.add_embed(embed)
    body: dict[str, Any] = {name: value for name, value in webhook.json.items() if name not in {"wait", "attachments"}}
    return _json_post(str(URL(url).update_query(wait="true")), body)


def webhook_post(url: str, message: Message) -> Post:
    """The message and every alert in it as JSON."""
    body = {
        "source": "hearth",
        "title": message.title,
        "text": "\n".join(_shortened(message))[:TEXT_CHARS],
        "severity": message.severity.name.lower(),
        "resolved": message.resolved,
        "at": _rfc3339(message.wall_at),
        "dropped": message.dropped,
        "alerts": [_as_json(each) for each in message.alerts],
    }
    return _json_post(url, body)


def ntfy_post(url: str, message: Message) -> Post:
    """The text as the body, the rest in the headers of https://docs.ntfy.sh/publish/."""
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "Title": message.title,
        "Priority": _PRIORITIES[message.severity],
        "Tags": "white_check_mark" if message.resolved else _TAGS[message.severity],
    }
    body = "\n".join(_shortened(message)).encode("utf-8", "replace")[:NTFY_BYTES]
    return Post(url=url, headers=headers, body=body.decode("utf-8", "ignore").encode())


COMPOSERS: Mapping[str, Compose] = MappingProxyType({"discord": discord_post, "webhook": webhook_post, "ntfy": ntfy_post})
"""The targets that there are, by the names that log and status use."""


def _json_post(url: str, body: Mapping[str, object]) -> Post:
    return Post(url=url, headers={"Content-Type": "application/json"}, body=json.dumps(body).encode())


def _as_json(alert: Alert) -> dict[str, object]:
    return {
        "type": alert.type.value,
        "subject": shown(alert.subject),
        "title": alert.title,
        "text": alert.text,
        "severity": alert.severity.name.lower(),
        "resolved": alert.resolved,
        "suppressed": alert.suppressed,
    }


def _shortened(message: Message) -> list[str]:
    """The lines of a message, the worst alerts first; of very many, a number stands for the rest."""
    lines = list(message.lines)
    count = len(message.alerts)
    order = sorted(range(count), key=lambda at: -message.alerts[at].severity)
    named = [lines[at] for at in order[:NAMED_ALERTS]]
    more = [f"And {count - NAMED_ALERTS} more."] if count > NAMED_ALERTS else []
    return [*named, *more, *lines[count:]]


def _discord_lines(lines: list[str]) -> str:
    """Each line in an equal share of what a description may hold."""
    share = DESCRIPTION_LIMIT // max(1, len(lines)) - 1
    return "\n".join(discord_text(line, share) for line in lines)


def _rfc3339(wall_at: float) -> str:
    return datetime.fromtimestamp(wall_at, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
