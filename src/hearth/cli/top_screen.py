"""How `hearth top` looks: a screen of its own, drawn anew at every look, cut to the height of the terminal. Called by `hearth.cli.top`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hearth.cli.console import printable
from hearth.cli.status_page import read_status
from hearth.cli.status_view import duration, emulator_box, facts

_COLUMNS = ("", "#", "caller", "model", "task", "prompt", "waited", "runs / starts in")
_CALLERS_SHOWN = 8
_OTHER_LINES = 20
"""What stands on the screen besides requests, generously counted."""
_FEWEST_ROWS = 3


def watch(look: Callable[[], Mapping[str, object] | str], console: Console, *, go_on: Callable[[], bool]) -> None:
    """Draw what `look` finds until `go_on` (which waits) says no; where it finds a reason instead, the last screen stays, with it above."""
    answer: Mapping[str, object] = {}
    with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
        while True:
            found = look()
            problem = found if isinstance(found, str) else ""
            answer = answer if isinstance(found, str) else found
            live.update(top_view(answer, rows=max(_FEWEST_ROWS, console.height - _OTHER_LINES), problem=problem), refresh=True)
            if not go_on():
                return


def top_view(answer: Mapping[str, object], *, rows: int, problem: str = "") -> RenderableType:
    """The screen for an answer of `/llm/queue/status`, with at most `rows` requests. Never raises."""
    page = read_status(answer)
    parts: list[RenderableType] = []
    if problem:
        parts.append(Text(f"{printable(problem)}; trying again", style="bold red"))
    if page.backend is not None and page.backend.emulator:
        parts.append(emulator_box("no Ollama answered when the gateway started, or the emulator was asked for"))
    parts += [_counts(answer), Text(), _requests(answer, rows), Text(), facts(page)]
    parts += [line for line in (_slots(answer), _callers(answer), _money(answer), _alerts(answer)) if line is not None]
    return Group(*parts)


def _counts(answer: Mapping[str, object]) -> Text:
    running = len(_listed(answer, "running"))
    waiting = {lane: _number(_part(answer, f"{lane}_queue"), "pending") or 0 for lane in ("internal", "external")}
    day = _part(answer, "stats_24h")
    failed = sum(_number(day, f"{lane}_{how}") or 0 for lane in waiting for how in ("failed", "expired"))
    words = f"{running} running   {waiting['internal']:.0f} internal and {waiting['external']:.0f} external waiting"
    line = Text(f"{words}   24 h: {failed:.0f} failed, {_number(day, 'rejected') or 0:.0f} refused", style="bold")
    return line.append("   DRAINING", style="bold yellow") if answer.get("draining") is True else line


def _requests(answer: Mapping[str, object], rows: int) -> RenderableType:
    running = _listed(answer, "running")
    waiting = [item for lane in ("internal", "external") for item in _listed(_part(answer, f"{lane}_queue"), "next_items")]
    if not running and not waiting:
        return Text("nothing runs and nobody waits", style="dim")
    table = Table(box=None, pad_edge=False, show_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in {"", "caller", "model", "task"} else "right", header_style="dim", no_wrap=True)
    shown = [*running, *waiting][:rows]
    for item in shown:
        table.add_row(*_cells(item))
    pending = sum(_number(_part(answer, f"{lane}_queue"), "pending") or 0 for lane in ("internal", "external"))
    unseen = len(running) + int(pending) - len(shown)
    if unseen > 0:
        table.add_row(Text(f"... and {unseen} more", style="dim"), *[""] * (len(_COLUMNS) - 1))
    return table


def _cells(item: Mapping[str, object]) -> tuple[Text | str, ...]:
    runs = _number(item, "running_s")
    interrupted = _number(item, "interrupt_count") or 0
    prompt = _number(item, "prompt_tokens")
    last = duration(runs) if runs is not None else duration(_number(item, "estimated_start_s"))
    return (
        _state(item, runs, interrupted),
        printable(item.get("sequence") or ""),
        printable(item.get("caller") or ""),
        printable(item.get("model") or "any"),
        printable(item.get("task_type") or item.get("priority") or ""),
        "-" if prompt is None else f"{prompt:.0f}",
        duration(_number(item, "waited_s")),
        last,
    )


def _state(item: Mapping[str, object], runs: float | None, interrupted: float) -> Text:
    if runs is not None:
        return Text("answers" if item.get("first_byte") is True else "reads", style="green")
    if interrupted:
        return Text(f"interrupted x{interrupted:.0f}", style="yellow")
    band = printable(item.get("band") or item.get("type") or "waits")
    return Text(band, style="cyan" if item.get("type") == "internal" else "")


def _slots(answer: Mapping[str, object]) -> Text | None:
    residents = _listed(_part(answer, "gpu"), "residents")
    if not residents:
        return None
    words = (
        f"{printable(each.get('model'))} {_number(each, 'running') or 0:.0f} of {_number(each, 'parallel') or 0:.0f} busy, "
        f"{_number(each, 'waiting') or 0:.0f} wait"
        for each in residents
    )
    return Text("slots     ", style="bold").append("; ".join(words), style="not bold")


def _callers(answer: Mapping[str, object]) -> Text | None:
    limits = _part(answer, "rate_limits")
    shown = [(name, used) for name, used in limits.items() if isinstance(used, dict)][:_CALLERS_SHOWN]
    if not shown:
        return None
    words = (f"{printable(name)} {printable(used.get('minute'))} a minute, {printable(used.get('hour'))} an hour" for name, used in shown)
    return Text("callers   ", style="bold").append("; ".join(words), style="not bold")


def _money(answer: Mapping[str, object]) -> Text | None:
    cloud = _part(answer, "cloud")
    if not cloud or cloud.get("state") == "off":
        return None
    spent, limit = _number(cloud, "spent_today_usd") or 0.0, _number(cloud, "limit_today_usd") or 0.0
    words = f"{printable(cloud.get('state'))}, {len(_listed(cloud, 'running'))} running, {spent:.2f} of {limit:.2f} USD today"
    return Text("Claude    ", style="bold").append(words, style="not bold")


def _alerts(answer: Mapping[str, object]) -> Text | None:
    active = [" ".join(filter(None, (_text(each, "type"), _text(each, "subject")))) for each in _listed(_part(answer, "alerts"), "active")]
    return Text("alerts    ", style="bold red").append("; ".join(active), style="not bold") if active else None


def _part(of: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = of.get(key)
    return value if isinstance(value, dict) else {}


def _listed(of: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    value = of.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(of: Mapping[str, object], key: str) -> str:
    value = of.get(key)
    return printable(value) if isinstance(value, str) else ""


def _number(of: Mapping[str, object], key: str) -> float | None:
    value = of.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15 else None
