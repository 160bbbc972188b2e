"""What Discord, ntfy and a webhook are sent, and what their answers mean. docs/alerts.md documents
the messages.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from itertools import accumulate
from typing import Literal
from urllib.parse import urljoin, urlsplit

from yarl import URL

from hearth.alerts.rules import Alert, shown, worst_first
from hearth.clock import rfc3339_ms
from hearth.config.choices import Severity
from hearth.types import JsonMapping, Post, PostAnswer, frozen

MAX_WAIT_S = 3600.0
TITLE_LIMIT = 256
DESCRIPTION_LIMIT = 4096
TEXT_CHARS = 4000
NTFY_BYTES = 4096
"""Of a longer message ntfy makes a file."""
NAMED_ALERTS = 25
"""Alerts of a digest that are written out; the rest is a number. Critical ones always are."""
SHORTEST_LINE = 40
"""What a critical alert leaves to every other that is written out with it."""
OTHERS_ROOM = 1200
"""What critical alerts leave in a digest: for all others, and for what was dropped."""
_MARKDOWN = re.compile(
    r"[\\*~`|<\[@]"
    r"|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])"  # within a word it is no markup
    r"|:(?=//|[\w+~-]+:)"  # of a link or an emoji
    r"|^\s*[>#+-]|^\s*[0-9]+\."  # a quote, a heading or a list
)
"""What Discord takes for markup; other punctuation stands as it is, also in notifications of
phones, which show a backslash.
"""
_LOOKS = {
    Severity.INFORMATION: (0x3498DB, "3", "information_source"),
    Severity.WARNING: (0xF1C40F, "4", "warning"),
    Severity.CRITICAL: (0xE74C3C, "5", "rotating_light"),
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
_DELETED_CODES = (10015, 50027)
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
    "broken": "the connection ended before there was an answer of HTTP",
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
        what = self.alerts[0].title if len(self.alerts) == 1 else f"{len(self.alerts)} alerts"
        return f"Hearth: {what}" if self.resolved else f"Hearth ({self.severity.word}): {what}"

    @property
    def severity(self) -> Severity:
        """That of the worst of them."""
        return max(each.severity for each in self.alerts)

    @property
    def resolved(self) -> bool:
        return all(each.resolved for each in self.alerts)


@frozen
class Room:
    """How much text a receiver takes: `limit`, in what `length` counts.

    `write`: a line as it is sent, cut to a length.
    """

    limit: int
    length: Callable[[str], int]
    write: Callable[[str, int], str]


def lines_of(message: AlertMessage, room: Room) -> list[str]:
    """A line per alert, the worst first. Critical ones are whole if there is any room for it, the
    others have what is left; of very many, a number stands for the rest.
    """
    alerts = worst_first(message.alerts)
    critical = sum(each.severity is Severity.CRITICAL for each in alerts)
    named = alerts[: max(NAMED_ALERTS, critical)]
    last = []
    if len(alerts) > len(named):
        last.append(f"And {len(alerts) - len(named)} more.")
    if message.dropped:
        last.append(f"{message.dropped} more could not be sent in time and were dropped.")
    closing = [room.write(line, room.limit) for line in last]
    left = room.limit - sum(room.length(line) + 1 for line in closing)
    lines: list[str] = []
    for after, each in zip(range(len(named) - 1, -1, -1), named, strict=True):
        share = (left - after) // (after + 1)
        if each.severity is Severity.CRITICAL:
            share = max(share, left - SHORTEST_LINE * after)
        lines.append(room.write(_line_of(each, alone=len(alerts) == 1), share))
        left -= room.length(lines[-1]) + 1
    return [*lines, *closing]


def in_one_message(alerts: Sequence[Alert], room: Room) -> list[Alert]:
    """Of alerts, those that the next message holds. Where not all critical ones can be whole in it,
    as many as can, and nothing else.
    """
    ordered = worst_first(alerts)
    critical = [each for each in ordered if each.severity is Severity.CRITICAL]
    written = (room.write(_line_of(each), room.limit) for each in critical)
    ends = list(accumulate(room.length(line) + 1 for line in written))
    fitting = bisect_right(ends, room.limit - OTHERS_ROOM)
    return ordered if fitting == len(critical) else critical[: max(1, fitting)]


def _line_of(alert: Alert, *, alone: bool = False) -> str:
    """What an alert says, with its title and severity unless it is alone under them."""
    line = alert.text
    if not alone:
        severity = "" if alert.resolved else f"{alert.severity.word.capitalize()}: "
        line = f"{severity}{alert.title}: {line}"
    if alert.suppressed:
        line += f" {alert.suppressed} more like this since the last message."
    return line


Compose = Callable[[str, AlertMessage], Post]
"""Makes the post of a message to a URL. Runs in a thread: the first one may import a library."""


def discord_post(url: str, message: AlertMessage) -> Post:
    """One embed; nobody is mentioned, whatever the text says.

    `?wait=true` makes Discord answer with what became of it.
    """
    # Importing it takes a tenth of a second.
    import discord_webhook as discord  # type: ignore[import-untyped]  # noqa: PLC0415

    embed = discord.DiscordEmbed(
        title=discord_text(message.title, TITLE_LIMIT),
        description="\n".join(lines_of(message, ROOMS["discord"])),
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
            "severity": each.severity.word,
            "resolved": each.resolved,
            "suppressed": each.suppressed,
        }
        for each in worst_first(message.alerts)
    ]
    body = {
        "source": "hearth",
        "title": message.title,
        "text": "\n".join(lines_of(message, ROOMS["webhook"])),
        "severity": message.severity.word,
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
        "Tags": "white_check_mark" if message.resolved else f"{tag},{message.severity.word}",
    }
    body = "\n".join(lines_of(message, ROOMS["ntfy"]))
    return Post(url=url, headers=headers, body=body.encode("utf-8", "replace"))


COMPOSERS: Mapping[str, Compose] = {
    "discord": discord_post,
    "webhook": webhook_post,
    "ntfy": ntfy_post,
}
"""The targets that there are, by the names that log and status use."""


def discord_text(text: str, limit: int) -> str:
    """A line as Discord shows it literally, in at most `limit` UTF-16 units: no markup, mention,
    link or quote takes effect.
    """
    # A backslash before punctuation is that character; clients colour `@everyone` even where it
    # notifies nobody, unless something is in it.
    pieces = list(text)
    for found in _MARKDOWN.finditer(text):
        last = found.end() - 1
        pieces[last] = "\\@\u200b" if found[0] == "@" else f"\\{text[last]}"
    ends = list(accumulate(map(_utf16_units, pieces)))
    if not ends or ends[-1] <= limit:
        return "".join(pieces)
    return "".join(pieces[: bisect_right(ends, limit - 1)]) + "…"


def _utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _plain_text(text: str, limit: int) -> str:
    """The text in at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _utf8_text(text: str, limit: int) -> str:
    """The text in at most `limit` bytes of UTF-8."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - len("…".encode())].decode("utf-8", "ignore") + "…"


ROOMS: Mapping[str, Room] = {
    "discord": Room(limit=DESCRIPTION_LIMIT, length=_utf16_units, write=discord_text),
    "webhook": Room(limit=TEXT_CHARS, length=len, write=_plain_text),
    "ntfy": Room(limit=NTFY_BYTES, length=lambda text: len(text.encode()), write=_utf8_text),
}


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
        old, new = _origin(url), _origin(urljoin(url, location))
    except ValueError:
        return "elsewhere"
    if not location or not new:
        return "elsewhere"
    return "to another path of its host" if new == old else f"to {shown(new)}"


def _origin(url: str) -> str:
    """Scheme, host and port; empty where it has no host, or is not of HTTP. Raises ValueError."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme}://{host}" if host and parts.scheme in {"http", "https"} else ""


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
