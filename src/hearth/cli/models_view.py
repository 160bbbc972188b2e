"""How `hearth models` looks. Pure drawing: an answer of `/llm/models` in, something rich can print out. Called by `hearth.cli.models`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hearth.cli.answers import number, parts, printable
from hearth.cli.fitting import Fitting

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
