"""Go's durations and timestamps as they appear on Ollama's wire.

Pure text and numbers; must never read a clock. Called by the emulator's handlers.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hearth.dialects.gojson import GoJsonError, JsonValue

FOREVER_S = float("inf")
_MAX_DURATION_S = 9223372036.854775807
_TERM = re.compile(r"([0-9]*\.?[0-9]*)([^0-9.]*)")


def keep_alive_s(value: JsonValue) -> float | None:
    """Seconds of a `keep_alive` field: None if absent, infinity for any negative value; raises `GoJsonError` as Go does."""
    if value is None:
        return None
    if isinstance(value, str):
        seconds = parse_duration_s(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise GoJsonError(f"Unsupported type: '{'bool' if isinstance(value, bool) else 'map[string]interface {}'}'")
    return FOREVER_S if seconds < 0 else seconds


def parse_duration_s(text: str) -> float:
    """Go's `time.ParseDuration` in seconds; raises `GoJsonError` with its texts."""
    sign, rest = (-1.0, text[1:]) if text[:1] == "-" else (1.0, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    if not rest:
        raise GoJsonError(f'time: invalid duration "{text}"')
    total, place = 0.0, 0
    while place < len(rest):
        term = _TERM.match(rest, place)
        number, unit = term.groups() if term else ("", "")
        total += _term_s(text, number, unit)
        place += len(number) + len(unit)
    return sign * total


def _term_s(text: str, number: str, unit: str) -> float:
    units = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    if number in {"", "."}:
        raise GoJsonError(f'time: invalid duration "{text}"')
    if not unit:
        raise GoJsonError(f'time: missing unit in duration "{text}"')
    if unit not in units:
        raise GoJsonError(f'time: unknown unit "{unit}" in duration "{text}"')
    return float(number) * units[unit]


def timestamp(wall_s: float) -> str:
    """RFC 3339 with up to nine decimals and Z; infinity is where Go's largest duration ends, about the year 2318."""
    nanos = int(min(wall_s, 1.8e9 + _MAX_DURATION_S) * 1e9)
    seconds, fraction = divmod(nanos, 1_000_000_000)
    text = datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    decimals = f".{fraction:09d}".rstrip("0").rstrip(".")
    return f"{text}{decimals}Z"


def nanoseconds(duration_s: float, *, step: int = 1) -> int:
    """A positive whole number of nanoseconds, a multiple of `step`: Ollama omits zeros, and a finished phase is never zero long."""
    return max(step, int(duration_s * 1e9) // step * step)
