"""What is drawn in a terminal: the status, the models, the log, the screen of `hearth top`. The one part that needs rich."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from hearth.cli.gateway_client import number, part, parts, printable, text
from hearth.cli.looking import BackendState, CardState, GpuState, ItemRow, Lane, LaneLatency, StatusPage, read_status

_PIPE_WIDTH = 120


def console_for(stream: TextIO, *, environ: Mapping[str, str]) -> Console:
    """A console that writes plain text where `stream` is no terminal or `NO_COLOR` is set and not empty (no-color.org).

    Without a terminal, lines are up to 120 columns wide, or `COLUMNS`.
    """
    plain = bool(environ.get("NO_COLOR"))
    width = None if stream.isatty() else int_or(environ.get("COLUMNS"), _PIPE_WIDTH)
    return Console(file=stream, width=width, color_system=None if plain else "auto", markup=False, emoji=False, highlight=False)


def int_or(text: str | None, default: int) -> int:
    """`text` as a positive decimal number, else `default`."""
    return int(text) if text and text.isdecimal() and int(text) > 0 else default


def program() -> str:
    """This command as this shell finds it: `hearth` where PATH leads here, else the path that it was called by."""
    called, found = Path(sys.argv[0]), shutil.which("hearth")
    if called.name != "hearth" or (found is not None and Path(found).resolve() == called.resolve()):
        return "hearth"
    return str(called)


_GAP = 2


class Fitting:
    """A table without a frame, and the names of columns that it can do without, the least needed first."""

    def __init__(self, table: Table, *, expendable: Sequence[str]) -> None:
        self._table = table
        self._expendable = expendable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self._table.columns
        for name in self._expendable:
            if _needed(columns) <= options.max_width:
                break
            columns = [column for column in columns if column.header != name]
        fits = _needed(columns) <= options.max_width
        kept = [replace(column.copy(), no_wrap=column.no_wrap or (fits and _is_firm(column))) for column in columns]
        whole = self._table
        fitted = Table(
            *kept, title=whole.title, title_justify="left", title_style=whole.title_style, box=None, pad_edge=False, show_edge=False
        )
        for cells in zip(*(column.cells for column in columns), strict=True):
            fitted.add_row(*cells)
        yield fitted


def _is_firm(column: Column) -> bool:
    """Numbers and single words: rich may not take room from them while there is some between the words of other columns."""
    return column.justify == "right" or all(len(str(cell).split()) < 2 for cell in column.cells)


def _needed(columns: Sequence[Column]) -> int:
    """Width that leaves every word whole, and every number with its unit."""
    return sum(_width(column) for column in columns) + _GAP * (len(columns) - 1)


def _width(column: Column) -> int:
    lines = [line for each in (column.header, *column.cells) for line in str(each).splitlines()]
    unbroken = lines if column.no_wrap or column.justify == "right" else [word for line in lines for word in line.split()]
    return max(column.min_width or 0, *map(cell_len, ("", *unbroken)))


_COLUMNS = ("", "#", "caller", "model", "task", "for")


def status_view(answer: Mapping[str, object]) -> RenderableType:
    """The page for a terminal, from an answer of `/llm/queue/status`."""
    page = read_status(answer)
    return Group(*emulator_notice(page), _work(page), Text(), facts(page))


def emulator_notice(page: StatusPage) -> list[RenderableType]:
    """The box, where the emulator answers."""
    if page.backend is None or not page.backend.emulator:
        return []
    return [emulator_box("no Ollama answered when the gateway started, or the emulator was asked for")]


def emulator_box(reason: str) -> RenderableType:
    """The loud box that nobody overlooks: answers are not a model's."""
    text = Text("ANSWERS ARE MADE UP: the emulator stands in for Ollama.", style="bold")
    text.append(f"\n{printable(reason)}", style="not bold")
    return Panel(text, border_style="bold yellow", expand=False)


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: `0.8 s`, `42 s`, `3 min`, `2 h 5 min`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _work(page: StatusPage) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in {"#", "for"} else "left", header_style="dim")
    for item in page.running:
        table.add_row(Text("runs", style="green"), *_cells(item))
    if not page.running:
        table.add_row(Text("idle", style="dim"), *[""] * 5)
    for lane in page.lanes:
        _add_waiting(table, lane)
    return Fitting(table, expendable=("task",))


def _add_waiting(table: Table, lane: Lane) -> None:
    style = "cyan" if lane.name == "internal" else "yellow"
    for item in lane.items:
        table.add_row(Text(f"waits ({lane.name})", style=style), *_cells(item))
    unseen = lane.pending - len(lane.items)
    if unseen > 0:
        table.add_row(Text(f"... and {unseen} more {lane.name}", style="dim"), *[""] * 5)


def _cells(item: ItemRow) -> tuple[str, ...]:
    number = "" if item.sequence is None else str(item.sequence)
    model = printable(item.model) or "any"
    return number, printable(item.caller), model, printable(item.task), duration(item.seconds)


def facts(page: StatusPage) -> Table:
    """The GPU, the backend, the owner's orders, the day and the configuration, a line each."""
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("GPU", style="bold"), _gpu_line(page.gpu))
    table.add_row("", _swap_line(page.gpu))
    if page.gpu.offloaded:
        names = ", ".join(printable(name) for name in page.gpu.offloaded)
        table.add_row("", Text(f"slow: {names} does not fit and runs on the CPU in part", style="yellow"))
    if page.gpu.card is not None:
        table.add_row(Text("card", style="bold"), _card_line(page.gpu.card))
    if page.backend is not None:
        table.add_row(Text("backend", style="bold"), _backend_line(page.backend))
    table.add_row(Text("mode", style="bold"), printable(page.mode) or "unknown")
    for order in page.orders:
        table.add_row(Text("order", style="bold"), Text(printable(order), style="yellow"))
    table.add_row(Text("24 hours", style="bold"), _day_line(page))
    for latency in page.latency:
        table.add_row(Text("last hour", style="bold"), _latency_line(latency))
    for problem in page.config_problems:
        table.add_row(Text("config", style="bold red"), Text(f"refused, the old one stays: {printable(problem)}", style="red"))
    if page.restart_pending:
        keys = ", ".join(map(printable, page.restart_pending))
        table.add_row(Text("config", style="bold"), Text(f"waits for a restart: {keys}", style="yellow"))
    return table


def _gpu_line(gpu: GpuState) -> Text:
    if gpu.swapping_to is not None:
        return Text(f"loading {printable(gpu.swapping_to)}", style="yellow")
    if not gpu.resident:
        return Text("no model loaded", style="dim")
    names = ", ".join(printable(name) for name in gpu.resident)
    return Text(f"{names} loaded" + (" (home)" if gpu.is_home else f"; home is {printable(gpu.home_model)}" if gpu.home_model else ""))


def _swap_line(gpu: GpuState) -> Text:
    last = f", the last took {duration(gpu.last_swap_s)}" if gpu.last_swap_s is not None else ""
    plural = "" if gpu.swaps_this_hour == 1 else "s"
    return Text(f"{gpu.swaps_this_hour} swap{plural} this hour{last}; {gpu.overhead_pct:.0f} % of the work spent on swaps")


def _card_line(card: CardState) -> Text:
    device = printable(card.device)
    if card.readings == "lost":
        return Text(f"{device} does not answer any more", style="bold red")
    if card.readings == "unknown":
        return Text("unknown", style="dim")
    facts = (_memory_words(card), _measured(card.temperature_c, "°C"), _measured(card.power_w, "W"), _measured(card.busy_pct, "% busy"))
    line = Text(", ".join((device, *filter(None, facts))))
    words = ", ".join(printable(reason).replace("_", " ") for reason in card.held_down_by)
    return line.append(f", held down: {words}", style="yellow") if words else line


def _memory_words(card: CardState) -> str:
    if card.used_mib is None or card.total_mib is None:
        return "memory unknown"
    others = f" ({card.foreign_mib / 1024:.1f} by other programs)" if card.foreign_mib else ""
    return f"{card.used_mib / 1024:.1f} of {card.total_mib / 1024:.1f} GiB used{others}"


def _measured(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _backend_line(backend: BackendState) -> Text:
    what = "emulator" if backend.emulator else "Ollama"
    version = f" {printable(backend.version)}" if backend.version else ""
    line = Text(f"{what}{version} at {printable(backend.url)} ")
    return line.append("up", style="green") if backend.up else line.append("DOWN", style="bold red")


def _day_line(page: StatusPage) -> Text:
    internal, external = page.lanes
    done = f"{internal.completed_24h} internal and {external.completed_24h} external completed"
    return Text(f"{done}, {page.interrupted_24h} interrupted")


def _latency_line(latency: LaneLatency) -> Text:
    """`external: 12 requests; waits 0.8 s (95 %: 42 s), ...`: the median, and what 95 of 100 do not exceed."""
    phases = (("waits", latency.wait_s), ("first byte", latency.first_byte_s), ("in all", latency.total_s))
    words = (f"{name} {duration(typical)} (95 %: {duration(most)})" for name, (typical, most) in phases if typical is not None)
    plural = "" if latency.requests == 1 else "s"
    return Text(f"{printable(latency.lane)}: {latency.requests} request{plural}; {', '.join(words)}")


_MIB_PER_GIB = 1024.0
_STYLES = {"in memory": "green", "loading": "yellow", "unloading": "yellow"}
_EXPENDABLE = ("size", "waiting", "on the GPU")


def models_view(answer: Mapping[str, object]) -> RenderableType:
    """The table, what is in memory first. Never raises."""
    models = parts(answer, "models")
    if not models:
        return Text("no models are known: none is installed, or the model server is down (see hearth status)", style="dim")
    table = Table(box=None, pad_edge=False, show_edge=False)
    for name in ("model", "", "state"):
        table.add_column(name, header_style="dim", overflow="fold", min_width=14 if name == "state" else None)
    for name in ("running", "waiting", "on the GPU", "size"):
        table.add_column(name, justify="right", header_style="dim", no_wrap=True)
    for model in sorted(models, key=lambda model: (model.get("resident") is not True, str(model.get("name")))):
        state = _state(model)
        home = Text("home" if model.get("home") is True else "", style="cyan")
        table.add_row(printable(model.get("name") or "-"), home, Text(state, style=_STYLES.get(state, "dim")), *_numbers(model))
    return Fitting(table, expendable=_EXPENDABLE)


def _state(model: Mapping[str, object]) -> str:
    if model.get("resident") is True:
        phase = printable(model.get("phase") or "ready")
        known = {"ready": "in memory"}.get(phase, phase)
        return f"{known}, partly on the CPU" if model.get("offloaded") is True else known
    return "on the disk" if model.get("installed") is True else "not installed"


def _numbers(model: Mapping[str, object]) -> tuple[str, ...]:
    running, slots = number(model, "running") or 0, number(model, "parallel") or 0
    waiting = number(model, "waiting") or 0
    at_work = f"{running:.0f} of {slots:.0f}" if model.get("resident") is True else "-"
    return at_work, f"{waiting:.0f}" if waiting else "-", _gib(number(model, "vram_mib")), _gib(number(model, "size_mib"))


def _gib(mib: float | None) -> str:
    return "-" if mib is None else f"{mib / _MIB_PER_GIB:.1f} GiB"


_TEXTS = ("ended", "caller", "model", "task", "outcome")
_PHASES = {"queue": "queue_s", "swap": "swap_s", "first byte": "first_byte_s", "backend": "backend_s", "total": "total_s"}
_NUMBERS = (*_PHASES, "tokens")
_EXPENDABLE_OF_LOG = ("first byte", "backend", "swap", "task", "tokens", "queue")


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
        table.add_row(_ended(row), _name(row, "caller"), _name(row, "model"), _name(row, "task_type"), _outcome(row), *_numbers_of_log(row))
    return Fitting(table, expendable=_EXPENDABLE_OF_LOG)


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


def _numbers_of_log(row: Mapping[str, object]) -> tuple[str, ...]:
    phases = (_phase(number(row, field)) for field in _PHASES.values())
    return (*phases, f"{_count(row, 'prompt_tokens')}+{_count(row, 'output_tokens')}")


def _phase(seconds: float | None) -> str:
    """As `duration` says it; hundredths below a second, where most first bytes are."""
    return f"{seconds:.2f} s" if seconds is not None and 0 <= seconds < 1 else duration(seconds)


def _count(row: Mapping[str, object], field: str) -> str:
    tokens = number(row, field)
    return "?" if tokens is None else f"{tokens:.0f}"


_COLUMNS_OF_TOP = ("", "#", "caller", "model", "task", "prompt", "waited", "runs / starts in")
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
    for name in _COLUMNS_OF_TOP:
        table.add_column(name, justify="left" if name in {"", *_NAMES} else "right", header_style="dim", no_wrap=name not in {"", *_NAMES})
    shown = [*running, *waiting][:rows]
    for item in shown:
        table.add_row(*_cells_of_top(item))
    pending = sum(number(part(answer, f"{lane}_queue"), "pending") or 0 for lane in ("internal", "external"))
    unseen = len(running) + int(pending) - len(shown)
    if unseen > 0:
        table.add_row(Text(f"... and {unseen} more", style="dim"), *[""] * (len(_COLUMNS_OF_TOP) - 1))
    return Fitting(table, expendable=("prompt", "task"))


def _cells_of_top(item: Mapping[str, object]) -> tuple[Text | str, ...]:
    runs = number(item, "running_s")
    interrupted = number(item, "interrupt_count") or 0
    prompt = number(item, "prompt_tokens")
    rough = "~" if runs is None and item.get("estimate_is_rough") is True else ""
    last = duration(runs) if runs is not None else rough + duration(number(item, "estimated_start_s"))
    return (
        _state_of_top(item, runs, interrupted),
        printable(item.get("sequence") or ""),
        printable(item.get("caller") or ""),
        printable(item.get("model") or "any"),
        printable(item.get("task_type") or item.get("priority") or ""),
        "-" if prompt is None else f"{prompt:.0f}",
        duration(number(item, "waited_s")),
        last,
    )


def _state_of_top(item: Mapping[str, object], runs: float | None, interrupted: float) -> Text:
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
