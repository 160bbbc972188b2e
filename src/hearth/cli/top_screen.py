"""How `hearth top` looks: a screen of its own, drawn anew at every look, cut to the height of the terminal. Called by `hearth.cli.top`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hearth.cli.answers import number, part, parts, printable, text
from hearth.cli.fitting import Fitting
from hearth.cli.status_page import read_status
from hearth.cli.status_view import duration, emulator_notice, facts

_COLUMNS = ("", "#", "caller", "model", "task", "prompt", "waited", "runs / starts in")
_NAMES = ("caller", "model", "task")
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
    screen: list[RenderableType] = [Text(f"{printable(problem)}; trying again", style="bold red")] if problem else []
    screen += [*emulator_notice(page), _counts(answer), Text(), _requests(answer, rows), Text(), facts(page)]
    screen += [line for line in (_slots(answer), _callers(answer), _money(answer), _alerts(answer)) if line is not None]
    return Group(*screen)


def _counts(answer: Mapping[str, object]) -> Text:
    running = len(parts(answer, "running"))
    waiting = {lane: number(part(answer, f"{lane}_queue"), "pending") or 0 for lane in ("internal", "external")}
    day = part(answer, "stats_24h")
    failed = sum(number(day, f"{lane}_{how}") or 0 for lane in waiting for how in ("failed", "expired"))
    words = f"{running} running   {waiting['internal']:.0f} internal and {waiting['external']:.0f} external waiting"
    line = Text(f"{words}   24 h: {failed:.0f} failed, {number(day, 'rejected') or 0:.0f} refused", style="bold")
    draining = answer.get("draining") is True or part(answer, "orders").get("draining") is True
    return line.append("   DRAINING", style="bold yellow") if draining else line


def _requests(answer: Mapping[str, object], rows: int) -> RenderableType:
    running = parts(answer, "running")
    waiting = [item for lane in ("internal", "external") for item in parts(part(answer, f"{lane}_queue"), "next_items")]
    if not running and not waiting:
        return Text("nothing runs and nobody waits", style="dim")
    table = Table(box=None, pad_edge=False, show_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in {"", *_NAMES} else "right", header_style="dim", no_wrap=name not in {"", *_NAMES})
    shown = [*running, *waiting][:rows]
    for item in shown:
        table.add_row(*_cells(item))
    pending = sum(number(part(answer, f"{lane}_queue"), "pending") or 0 for lane in ("internal", "external"))
    unseen = len(running) + int(pending) - len(shown)
    if unseen > 0:
        table.add_row(Text(f"... and {unseen} more", style="dim"), *[""] * (len(_COLUMNS) - 1))
    return Fitting(table, expendable=("prompt", "task"))


def _cells(item: Mapping[str, object]) -> tuple[Text | str, ...]:
    runs = number(item, "running_s")
    interrupted = number(item, "interrupt_count") or 0
    prompt = number(item, "prompt_tokens")
    rough = "~" if runs is None and item.get("estimate_is_rough") is True else ""
    last = duration(runs) if runs is not None else rough + duration(number(item, "estimated_start_s"))
    return (
        _state(item, runs, interrupted),
        printable(item.get("sequence") or ""),
        printable(item.get("caller") or ""),
        printable(item.get("model") or "any"),
        printable(item.get("task_type") or item.get("priority") or ""),
        "-" if prompt is None else f"{prompt:.0f}",
        duration(number(item, "waited_s")),
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
    residents = parts(part(answer, "gpu"), "residents")
    if not residents:
        return None
    words = (
        f"{printable(each.get('model'))} {number(each, 'running') or 0:.0f} of {number(each, 'parallel') or 0:.0f} busy, "
        f"{number(each, 'waiting') or 0:.0f} wait"
        for each in residents
    )
    return Text("slots     ", style="bold").append("; ".join(words), style="not bold")


def _callers(answer: Mapping[str, object]) -> Text | None:
    limits = part(answer, "rate_limits")
    shown = [(name, used) for name, used in limits.items() if isinstance(used, dict)][:_CALLERS_SHOWN]
    if not shown:
        return None
    words = (f"{printable(name)} {printable(used.get('minute'))} a minute, {printable(used.get('hour'))} an hour" for name, used in shown)
    return Text("callers   ", style="bold").append("; ".join(words), style="not bold")


def _money(answer: Mapping[str, object]) -> Text | None:
    cloud = part(answer, "cloud")
    spent, limit = number(cloud, "spent_today_usd") or 0.0, number(cloud, "limit_today_usd") or 0.0
    if not cloud or (cloud.get("state") == "off" and not spent):
        return None
    words = f"{printable(cloud.get('state'))}, {len(parts(cloud, 'running'))} running, {spent:.2f} of {limit:.2f} USD today"
    return Text("Claude    ", style="bold").append(words, style="not bold")


def _alerts(answer: Mapping[str, object]) -> Text | None:
    active = [f"{text(each, 'type')} {text(each, 'subject')}".rstrip() for each in parts(part(answer, "alerts"), "active")]
    return Text("alerts    ", style="bold red").append(printable("; ".join(active)), style="not bold") if active else None
