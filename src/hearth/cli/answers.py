"""What the commands take out of a gateway's JSON, values with types, whatever the answer holds; and what of a foreign text may be shown.

A missing or odd field becomes None or nothing, so that an older command still shows a newer gateway. Pure; used by the commands of
`hearth.cli`.
"""

from __future__ import annotations

from collections.abc import Mapping

_HUGE = 1e15
"""Nothing that is shown is larger; NaN, infinities and numbers that overflow are not shown either."""


def part(of: Mapping[str, object], name: str) -> Mapping[str, object]:
    """The object under a name, else an empty one."""
    value = of.get(name)
    return value if isinstance(value, dict) else {}


def parts(of: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    """The objects of the list under a name."""
    value = of.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text(of: Mapping[str, object], name: str) -> str:
    """The value under a name as text; empty for None, objects and lists."""
    value = of.get(name)
    return "" if value is None or isinstance(value, dict | list) else str(value)


def texts(of: Mapping[str, object], name: str) -> tuple[str, ...]:
    """The texts of the list under a name."""
    value = of.get(name)
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def number(of: Mapping[str, object], name: str) -> float | None:
    """The number under a name; truth values are none."""
    value = of.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _HUGE else None


def without_controls(text: str) -> str:
    """`text` with line breaks and tabs, and a mark in place of every other control character."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)


def printable(value: object) -> str:
    """`value` as one line of text without control or other unprintable characters: a name cannot move the cursor."""
    return "".join(each if each.isprintable() else "\ufffd" for each in str(value))
