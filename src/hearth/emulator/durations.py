"""Go's durations and timestamps as they appear on Ollama's wire.

Pure text and numbers; must never read a clock. Called by the emulator's handlers.
"""

from __future__ import annotations

from datetime import UTC, datetime

from hearth.dialects.durations import keep_alive_ns
from hearth.dialects.gojson import MAX_INT, JsonValue

FOREVER_S = float("inf")
_MAX_DURATION_S = 9223372036.854775807


def keep_alive_s(value: JsonValue) -> float | None:
    """Seconds of a `keep_alive` field: None if absent, infinity for any negative value; raises `GoJsonError` as Go does."""
    asked_ns = keep_alive_ns(value)
    if asked_ns is None:
        return None
    return FOREVER_S if asked_ns == MAX_INT else asked_ns / 1e9


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
