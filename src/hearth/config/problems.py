"""What is wrong with the owner's file, and how it is said: `file:line: path: what, and what to do`.

Never shows a value from where a secret may stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hearth.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Where a value stands in the file: keys of mappings, indices of lists."""

SHOWN_PROBLEMS = 100
_SHOWN_CHARS = 60
_SECRET_PLACES: tuple[KeyPath, ...] = (("alerts",), ("auth",), ("cloud",), ("jobs", "webhooks"), ("ollama",), ("telemetry",))
_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        line: counted from 1; None takes the line of `path`, or of the nearest thing around it.
        text: what is wrong and what to do, without the place.
    """

    path: KeyPath
    text: str
    line: int | None = None


def dotted(path: KeyPath) -> str:
    """A path as people write it: `auth.keys[0].name`, `models["llama3.1:8b"].num_ctx`."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _BARE_KEY.fullmatch(step) and len(step) <= _SHOWN_CHARS:
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{shown(step)}]")
    return "".join(parts)


def shown(text: str) -> str:
    """Foreign text in quotes, safe for a terminal and a log: control characters escaped, length bounded."""
    short = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
    return '"' + "".join(each if each.isprintable() else ascii(each)[1:-1] for each in short) + '"'


def may_hold_a_secret(path: KeyPath) -> bool:
    """Whether a value there must not be quoted: a key, or a URL with credentials in it."""
    return any(path[: len(place)] == place for place in _SECRET_PLACES)


def line_of(path: KeyPath, lines: Mapping[KeyPath, int]) -> int:
    """The line of a path, or of the nearest thing around it that is in the file."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def config_error(source: str, problems: Iterable[Problem], lines: Mapping[KeyPath, int]) -> ConfigError:
    """Every problem in the order of the file; beyond `SHOWN_PROBLEMS` only their number."""
    placed = sorted(((each.line or line_of(each.path, lines), each) for each in problems), key=lambda pair: (pair[0], dotted(pair[1].path)))
    texts = [_sentence(source, line, each) for line, each in placed[:SHOWN_PROBLEMS]]
    if len(placed) > SHOWN_PROBLEMS:
        texts.append(f"{source}: and {len(placed) - SHOWN_PROBLEMS} more problems")
    return ConfigError(texts)


def _sentence(source: str, line: int, problem: Problem) -> str:
    place = f"{dotted(problem.path)}: " if problem.path else ""
    return f"{source}:{line}: {place}{problem.text}"
