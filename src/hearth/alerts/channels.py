"""What Discord, ntfy and a webhook are sent, and what their answers mean. docs/alerts.md documents
the messages.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from itertools import accumulate
from typing import Literal

from yarl import URL

from hearth.alerts.rules import Alert, Severity, shown
from hearth.clock import rfc3339_ms
from hearth.types import JsonMapping, Post, PostAnswer, frozen

MAX_WAIT_S = 3600.0
TITLE_LIMIT = 256
DESCRIPTION_LIMIT = 4096
TEXT_CHARS = 4000
NTFY_BYTES = 4096
"""Of a longer message ntfy makes a file."""
NAMED_ALERTS = 25
"""Alerts of a digest that are written out; the rest is a number."""
_MARKDOWN = frozenset("\\*_~`|>#[]()<:-+.!@")
_LOOKS = {
    Severity.INFO: (0x3498DB, "3", "information_source"),
    Severity.WARNING: (0xF1C40F, "4", "warning"),
    Severity.ERROR: (0xE74C3C, "5", "rotating_light"),
}
"""Discord's colour, ntfy's priority and tag."""
_GREEN = 0x2ECC71
DeliveryOutcome = Literal["delivered", "wait", "retry", "blocked", "refused", "gone"]
"""What an answer means for the message, and for the posts to come.

wait: a time is asked for. retry: there is an outage. blocked: nothing is taken here now. refused:
this message is not taken. gone: nothing will ever be taken here.
"""
_OF_THE_MESSAGE = frozenset({400, 411, 413, 414, 415, 422, 431})
_OUTAGES = frozenset({408, 425})
_DELETED_CODES = frozenset({10015, 50027})
"""Of Discord: unknown webhook, invalid webhook token."""
_WRONG_ADDRESS = "the address is not complete, or no longer valid: copy it again"
_NOTHING_THERE = "there is nothing at the address: copy it again"
_PROBLEMS = {
    "http_401": _WRONG_ADDRESS,
    "http_403": _WRONG_ADDRESS,
    "http_404": _NOTHING_THERE,
    "http_410": _NOTHING_THERE,
    "http_429": "the receiver gets too many messages",
    "dns": "the name of the host is unknown: is the machine online?",
    "connect": "no connection: is the host reachable from this machine?",
    "tls": "the certificate of the host is not trusted",
    "timeout": "no answer in time",
    "broken": "the connection ended before there was an answer",
}
MILLISECONDS_FROM = 100
"""Fewer milliseconds are taken for seconds, which is a short wait as well."""


@frozen
class AlertMessage:
    """What one post says at `wall_at` (seconds since 1970): an alert or several; `dropped`: those
    lost since this target's last message.
    """

    alerts: tuple[Alert, ...]
    dropped: int = 0
    wall_at: float

    @property
    def title(self) -> str:
        if len(self.alerts) == 1:
            return f"Hearth: {self.alerts[0].title}"
        return f"Hearth: {len(self.alerts)} alerts"

    @property
    def severity(self) -> Severity:
        """That of the worst of them; what is over is no longer bad."""
        return max(Severity.INFO if each.resolved else each.severity for each in self.alerts)

    @property
    def resolved(self) -> bool:
        return all(each.resolved for each in self.alerts)

    @property
    def lines(self) -> list[str]:
        """A line per alert, the worst first; of very many, a number stands for the rest."""
        worst = sorted(self.alerts, key=lambda each: -each.severity)[:NAMED_ALERTS]
        lines: list[str] = []
        for each in worst:
            line = f"{each.title}: {each.text}" if len(self.alerts) > 1 else each.text
            if each.suppressed:
                line += f" {each.suppressed} more like this since the last message."
            lines.append(line)
        if len(self.alerts) > NAMED_ALERTS:
            lines.append(f"And {len(self.alerts) - NAMED_ALERTS} more.")
        if self.dropped:
            lines.append(f"{self.dropped} more could not be sent in time and were dropped.")
        return lines


Compose = Callable[[str, AlertMessage], Post]
"""Makes the post of a message to a URL. Runs in a thread: the first one may import a library."""


def discord_post(url: str, message: AlertMessage) -> Post:
    """One embed; nobody is mentioned, whatever the text says.

    `?wait=true` makes Discord answer with what became of it.
    """
    # Importing it takes a tenth of a second.
    import discord_webhook as discord  # type: ignore[import-untyped]  # noqa: PLC0415

    share = DESCRIPTION_LIMIT // len(message.lines) - 1
    embed = discord.DiscordEmbed(
        title=discord_text(message.title, TITLE_LIMIT),
        description="\n".join(discord_text(line, share) for line in message.lines),
        color=_GREEN if message.resolved else _LOOKS[message.severity][0],
        timestamp=rfc3339_ms(message.wall_at),
    )
    webhook = discord.DiscordWebhook(
        url="", username="Hearth", allowed_mentions={"parse": []}, embeds=[]
    )
    webhook.add_embed(embed)
    body = {
        name: value for name, value in webhook.json.items() if name not in {"wait", "attachments"}
    }
    return _json_post(str(URL(url).update_query(wait="true")), body)


def webhook_post(url: str, message: AlertMessage) -> Post:
    """The message and every alert in it as JSON."""
    alerts = [
        {
            "type": each.type.value,
            "subject": shown(each.subject),
            "title": each.title,
            "text": each.text,
            "severity": each.severity.name.lower(),
            "resolved": each.resolved,
            "suppressed": each.suppressed,
        }
        for each in message.alerts
    ]
    body = {
        "source": "hearth",
        "title": message.title,
        "text": "\n".join(message.lines)[:TEXT_CHARS],
        "severity": message.severity.name.lower(),
        "resolved": message.resolved,
        "at": rfc3339_ms(message.wall_at),
        "dropped": message.dropped,
        "alerts": alerts,
    }
    return _json_post(url, body)


def ntfy_post(url: str, message: AlertMessage) -> Post:
    """The text as the body, the rest in the headers of https://docs.ntfy.sh/publish/."""
    _, priority, tag = _LOOKS[message.severity]
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "Title": message.title,
        "Priority": priority,
        "Tags": "white_check_mark" if message.resolved else tag,
    }
    body = "\n".join(message.lines).encode("utf-8", "replace")[:NTFY_BYTES]
    return Post(url=url, headers=headers, body=body.decode("utf-8", "ignore").encode())


COMPOSERS: Mapping[str, Compose] = {
    "discord": discord_post,
    "webhook": webhook_post,
    "ntfy": ntfy_post,
}
"""The targets that there are, by the names that log and status use."""


def discord_text(text: str, limit: int) -> str:
    """The text as Discord shows it literally, in at most `limit` UTF-16 units: no markup, mention,
    link or quote takes effect.
    """
    # A backslash before punctuation is that character; clients colour `@everyone` even where it
    # notifies nobody, unless something is in it.
    pieces = [
        "\\@\u200b" if char == "@" else f"\\{char}" if char in _MARKDOWN else char for char in text
    ]
    ends = list(
        accumulate(len(piece.encode("utf-16-le", "surrogatepass")) // 2 for piece in pieces)
    )
    if not ends or ends[-1] <= limit:
        return "".join(pieces)
    return "".join(pieces[: bisect_right(ends, limit - 1)]) + "…"


def _json_post(url: str, body: JsonMapping) -> Post:
    return Post(
        url=url, headers={"Content-Type": "application/json"}, body=json.dumps(body).encode()
    )


def outcome_of(answer: PostAnswer, wall_s: float) -> tuple[DeliveryOutcome, float]:
    """What an answer means at `wall_s` (seconds since 1970), and for how many seconds no post may
    go out; 0 where it does not say.
    """
    status = answer.status
    bucket = answer.headers
    if status is None:
        return "retry", 0.0
    if answer.delivered:
        is_last = bucket.get("x-ratelimit-remaining", "").strip() == "0"
        return "delivered", _seconds(bucket.get("x-ratelimit-reset-after")) if is_last else 0.0
    if status == 429:
        wait_s = _asked_wait_s(answer, wall_s)
        return ("wait", wait_s) if wait_s else ("blocked", 0.0)
    if is_deleted(answer):
        return "gone", 0.0
    if status >= 500 or status in _OUTAGES:
        return "retry", _asked_wait_s(answer, wall_s)
    return "refused" if status in _OF_THE_MESSAGE else "blocked", 0.0


def is_deleted(answer: PostAnswer) -> bool:
    """Whether Discord says that its webhook does not exist. A bare 404 may be a proxy's, or of a
    receiver that starts.
    """
    return answer.status in {401, 403, 404} and _said(answer).get("code") in _DELETED_CODES


def problem_of(answer: PostAnswer, url: str) -> str:
    """What is wrong with a receiver that answered a post to `url`, for its owner: without what may
    be secret in an address. Empty where it was delivered.
    """
    if answer.delivered:
        return ""
    if is_deleted(answer):
        return (
            "Discord does not know this webhook, it was perhaps deleted: set the address of another"
            " one as alerts.discord_webhook_url"
        )
    if 300 <= (answer.status or 0) < 400:
        moved = _moved_to(answer.headers.get("location", ""), url)
        return f"the receiver has moved {moved}: set its new address"
    return _PROBLEMS.get(answer.name, f"the receiver answers {answer.name.replace('_', ' ')}")


def _moved_to(location: str, url: str) -> str:
    """Where a redirect leads; of an address, only what is no secret."""
    try:
        old, new = URL(url).origin(), URL(url).join(URL(location)).origin()
    except ValueError:
        return "elsewhere"
    if not location or new.scheme not in {"http", "https"}:
        return "elsewhere"
    return "to another path of its host" if new == old else f"to {shown(str(new))}"


def _said(answer: PostAnswer) -> JsonMapping:
    """The JSON object of an answer; empty where there is none."""
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _asked_wait_s(answer: PostAnswer, wall_s: float) -> float:
    """The longest wait that the answer asks for, 0 where it asks for none."""
    retry_after = answer.headers.get("retry-after", "")
    reset_after_s = _seconds(answer.headers.get("x-ratelimit-reset-after"))
    try:
        until = parsedate_to_datetime(retry_after).timestamp() - wall_s
    except (ValueError, OverflowError):
        until = 0.0
    asked = (_said(answer).get("retry_after"), retry_after)
    numbers = (0.0 if _is_milliseconds(each, reset_after_s) else _seconds(each) for each in asked)
    return max(*numbers, _seconds(until), reset_after_s)


def _is_milliseconds(raw: object, reset_after_s: float) -> bool:
    """Whether a whole number is the time until the reset in milliseconds.

    Discord counts so at addresses without a version of its API, as those that it gives out, and the
    reset always in seconds, perhaps rounded up.
    """
    if not reset_after_s or not isinstance(raw, int | str):
        return False
    try:
        number = int(raw)
        return number >= MILLISECONDS_FROM and abs(number / 1000 - reset_after_s) <= 1.0
    except (ValueError, OverflowError):
        return False


def _seconds(raw: object) -> float:
    """A usable number of seconds, 0 for anything else; never more than an hour."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return 0.0
    try:
        seconds = float(raw)
    except (ValueError, OverflowError):
        return 0.0
    return min(seconds, MAX_WAIT_S) if math.isfinite(seconds) and seconds > 0 else 0.0
