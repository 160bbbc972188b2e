"""How `hearth status` looks. Pure drawing: values in, something rich can print out; every name goes through `printable`.

Called by `hearth.cli.status`; others take parts of it, above all `duration`.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hearth.cli.answers import printable
from hearth.cli.fitting import Fitting
from hearth.cli.status_page import BackendState, CardState, GpuState, ItemRow, Lane, LaneLatency, StatusPage, read_status

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
