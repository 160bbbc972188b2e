"""A message in the words of each kind of target. docs/alerts.md documents them.

Discord's limits: https://discord.com/developers/docs/resources/message#embed-object (title 256, description 4096, all of an embed 6000).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from yarl import URL

from hearth.alerts.alert import Alert, Message, Severity
from hearth.alerts.wording import discord_text, shown

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
