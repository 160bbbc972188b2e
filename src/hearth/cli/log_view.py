"""How `hearth log` looks. Pure drawing: an answer of `/llm/log` in, something rich can print out; every name goes through `printable`.

Called by `hearth.cli.log`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hearth.cli.answers import number, parts, printable
from hearth.cli.fitting import Fitting
from hearth.cli.status_view import duration

_TEXTS = ("ended", "caller", "model", "task", "outcome")
_PHASES = {"queue": "queue_s", "swap": "swap_s", "first byte": "first_byte_s", "backend": "backend_s", "total": "total_s"}
_NUMBERS = (*_PHASES, "tokens")
_EXPENDABLE = ("first byte", "backend", "swap", "task", "tokens", "queue")


def log_view(answer: Mapping[str, object]) -> RenderableType:
    """The table for a terminal, one row per finished request in the order of the answer. Never raises."""
    rows = parts(answer, "items")
    if not rows:
        return Text("nothing has ended that matches", style="dim")
    table = Table(box=None, pad_edge=False, show_edge=False)
    for name in _TEXTS:
        table.add_column(name, header_style="dim", overflow="fold", no_wrap=name == "ended")
    for name in _NUMBERS:
        table.add_column(name, justify="right", header_style="dim", no_wrap=True)
    for row in rows:
        table.add_row(_ended(row), _name(row, "caller"), _name(row, "model"), _name(row, "task_type"), _outcome(row), *_numbers(row))
    return Fitting(table, expendable=_EXPENDABLE)


def _ended(row: Mapping[str, object]) -> str:
    """Local time; the date comes with it, because a log spans days."""
    ended_wall_s = number(row, "ended_wall_s")
    try:
        return "-" if ended_wall_s is None else f"{datetime.fromtimestamp(ended_wall_s, tz=UTC).astimezone():%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return "-"


def _name(row: Mapping[str, object], field: str) -> str:
    return printable(row.get(field) or "-")


def _outcome(row: Mapping[str, object]) -> Text:
    outcome, reason = printable(row.get("outcome") or "-"), printable(row.get("reason") or "")
    style = {"completed": "green", "cancelled": "dim"}.get(outcome, "red")
    interruptions = number(row, "interrupt_count") or 0
    text = Text(outcome, style=style).append(f" ({reason})" if reason and reason != outcome else "")
    return text.append(f" +{interruptions:.0f} interrupted", style="yellow") if interruptions else text


def _numbers(row: Mapping[str, object]) -> tuple[str, ...]:
    phases = (_phase(number(row, field)) for field in _PHASES.values())
    return (*phases, f"{_count(row, 'prompt_tokens')}+{_count(row, 'output_tokens')}")


def _phase(seconds: float | None) -> str:
    """As `duration` says it; hundredths below a second, where most first bytes are."""
    return f"{seconds:.2f} s" if seconds is not None and 0 <= seconds < 1 else duration(seconds)


def _count(row: Mapping[str, object], field: str) -> str:
    tokens = number(row, field)
    return "?" if tokens is None else f"{tokens:.0f}"
