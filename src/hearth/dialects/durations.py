"""`keep_alive` as Ollama reads it.

Must never decide what to do about a duration. The grammar and texts of a string are those of Go's `time.ParseDuration`; numbers are seconds
(Ollama, api/types.go, `Duration.UnmarshalJSON`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

from hearth.dialects.gojson import GoJsonError, JsonValue

_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")
_UNIT_NS: Mapping[str, int] = MappingProxyType(
    {
        "ns": 1,
        "us": 1_000,
        "\u00b5s": 1_000,
        "\u03bcs": 1_000,
        "ms": 1_000_000,
        "s": 1_000_000_000,
        "m": 60_000_000_000,
        "h": 3_600_000_000_000,
    }
)
_LONGEST_NS = 2**63 - 1
_LONGEST_S = 1e10


def keep_alive_ns(value: JsonValue) -> int | None:
    """Nanoseconds that a `keep_alive` asks for, None for absent or null; negative ones mean for ever and are returned as 2**63 - 1.

    Raises GoJsonError with Ollama's text for anything else than a number or a Go duration.
    """
    if value is None:
        return None
    if isinstance(value, str):
        duration_ns = parse_duration_ns(value)
    elif isinstance(value, bool | list | dict):
        raise GoJsonError(f"Unsupported type: '{_go_type(value)}'")
    else:
        duration_ns = int(min(max(value, -1), _LONGEST_S) * 1_000_000_000)
    return duration_ns if 0 <= duration_ns <= _LONGEST_NS else _LONGEST_NS


def _go_type(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "bool"
    return "[]interface {}" if isinstance(value, list) else "map[string]interface {}"


def parse_duration_ns(text: str) -> int:
    """A Go duration (`1h30m`, `-1.5s`, `0`) in nanoseconds. Raises GoJsonError with Go's text."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise _invalid(text)
    total_ns = 0
    while rest:
        part_ns, rest = _part_ns(rest, text)
        total_ns += part_ns
        if total_ns > _LONGEST_NS:
            raise _invalid(text)
    return sign * total_ns


def _part_ns(rest: str, whole: str) -> tuple[int, str]:
    found = _PART.match(rest)
    digits, fraction, unit = ("", None, "") if found is None else found.groups()
    if (not digits and not fraction) or len(digits) > 19:
        raise _invalid(whole)
    if not unit:
        raise GoJsonError(f"time: missing unit in duration {_quoted(whole)}")
    scale = _UNIT_NS.get(unit)
    if scale is None:
        raise GoJsonError(f"time: unknown unit {_quoted(unit)} in duration {_quoted(whole)}")
    part_ns = int(digits or "0") * scale + int(float(f"0.{fraction or '0'}") * scale)
    return part_ns, rest[len(digits) + (0 if fraction is None else len(fraction) + 1) + len(unit) :]


def _invalid(text: str) -> GoJsonError:
    return GoJsonError(f"time: invalid duration {_quoted(text)}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
