"""What a log line says and how it is written, as JSON or for a terminal.

Pure functions of their arguments. Whatever a caller can put into a name or an error text ends up here, so nothing leaves this module that
could forge a line, drive a terminal, or carry a credential that slipped into a text.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from hearth.events import BatchEnded, Event, ItemEnded, JobEnded, SwapCompleted
from hearth.types import Outcome, value

MAX_FIELD_CHARS = 500
MAX_LIST_ITEMS = 20
_SCANNED_CHARS = 4 * MAX_FIELD_CHARS  # a secret may be cut here, but only in text that is cut away afterwards
_SECRETS = (
    (re.compile(r"(?i)\bbearer\s+[^\s\"',;]+"), "Bearer ***"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{6,}"), "sk-***"),
    (re.compile(r"(?i)\b(https?://)[^\s/@]{1,200}@"), r"\1***@"),
    (re.compile(r"(?i)\bhttps?://[^\s/]{1,200}/(?:[^\s/]{1,100}/){0,4}webhooks?/[^\s\"'<>]+"), "https://***/webhooks/***"),
    (
        re.compile(r"(?i)\b(x-api-key|api[_-]?key|authorization|password|secret|token)(\"?\s*[:=]\s*\"?)(?!Bearer \*)[^\s\"',;&]+"),
        r"\1\2***",
    ),
)
_SUSPICIOUS = re.compile(r"(?i)bearer|sk-|://|key|authorization|password|secret|token")
"""Found in every text that a pattern above could match: most texts need one search instead of five substitutions."""
_LOOKS = {
    logging.DEBUG: ("·", "\x1b[2m"),
    logging.INFO: ("·", "\x1b[32m"),
    logging.WARNING: ("!", "\x1b[33m"),
    logging.ERROR: ("✗", "\x1b[31m"),
}
"""Glyph and colour."""
_RESET, _DIM = "\x1b[0m", "\x1b[2m"
_EVENT_WIDTH = 20
_encode = json.JSONEncoder(separators=(",", ":")).encode
Field = str | int | float | bool | list[str] | None


@value
class LogLine:
    """What one line says. `wall_at`: seconds since 1970-01-01 UTC; `level`: a number of `logging`; `fields` are not yet cleaned."""

    wall_at: float
    level: int
    event: str
    fields: Mapping[str, object]


def line_of(event: Event, wall_at: float) -> LogLine:
    """The line of an event: every field but `at`, which becomes the time stamp."""
    fields = vars(event).copy()
    del fields["at"]
    return LogLine(wall_at=wall_at, level=level_of(event), event=event.NAME, fields=fields)


def level_of(event: Event) -> int:
    """That of its kind; a bad end is worth a look."""
    ended_badly = (
        (isinstance(event, ItemEnded) and event.outcome in (Outcome.FAILED, Outcome.EXPIRED))
        or (isinstance(event, BatchEnded | JobEnded) and event.state in ("failed", "expired"))
        or (isinstance(event, SwapCompleted) and event.offloaded)
    )
    return logging.WARNING if ended_badly else event.LEVEL


def to_json(line: LogLine) -> str:
    """One JSON object in ASCII without a line break: `ts` (RFC 3339, UTC, ms), `level`, `event`, then the fields."""
    time = datetime.fromtimestamp(line.wall_at, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    said = {"ts": time, "level": logging.getLevelName(line.level).lower(), "event": clean(line.event)}
    return _encode({**said, **{name: _field(raw) for name, raw in line.fields.items()}})


def to_text(line: LogLine, *, colour: bool) -> str:
    """One line for people: local time, level glyph, the event in words, then `key=value` for every field that says something."""
    time = datetime.fromtimestamp(line.wall_at, tz=UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    glyph, shade = _LOOKS[max((known for known in _LOOKS if known <= line.level), default=logging.DEBUG)]
    words = escape(clean(line.event)).replace("_", " ").ljust(_EVENT_WIDTH)
    fields = ((name, _field(raw)) for name, raw in line.fields.items())
    pairs = "  ".join(f"{name}={_shown(field)}" for name, field in fields if field not in (None, "", []))
    if not colour:
        return f"{time} {glyph} {words} {pairs}".rstrip()
    return f"{_DIM}{time}{_RESET} {shade}{glyph} {words}{_RESET} {_DIM}{pairs}{_RESET}"


def _field(raw: object) -> Field:
    """A value that JSON can hold: text cleaned, floats finite and rounded to the microsecond, tuples as lists of at most 20 texts."""
    if raw is None or isinstance(raw, bool | int):
        return raw
    if isinstance(raw, float):
        return round(raw, 6) if math.isfinite(raw) else str(raw)
    if isinstance(raw, tuple | list | set | frozenset):
        items = [str(item) for item in raw]
        kept = [clean(item) for item in items[:MAX_LIST_ITEMS]]
        return kept if len(items) <= MAX_LIST_ITEMS else [*kept, f"… and {len(items) - MAX_LIST_ITEMS} more"]
    return clean(str(raw))


def clean(text: str) -> str:
    """The text without credentials and at most 500 characters long."""
    scanned = text[:_SCANNED_CHARS]
    for pattern, replacement in _SECRETS if _SUSPICIOUS.search(scanned) else ():
        scanned = pattern.sub(replacement, scanned)
    return scanned if len(scanned) <= MAX_FIELD_CHARS else scanned[: MAX_FIELD_CHARS - 1] + "…"


def escape(text: str) -> str:
    """The text with everything that is not printable (line breaks, ESC, direction overrides, lone surrogates) as a Python escape."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _shown(field: Field) -> str:
    """Quoted where a reader could otherwise take one value for several pairs."""
    if isinstance(field, bool):
        return "yes" if field else "no"
    if isinstance(field, float):
        return f"{field:.3f}".rstrip("0").rstrip(".")
    text = ",".join(field) if isinstance(field, list) else str(field)
    if text.isprintable() and not set(text) & set(" =\"'\\"):
        return text
    return '"' + escape(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
