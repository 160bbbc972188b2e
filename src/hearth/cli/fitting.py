"""Tables in narrow terminals: columns are left out, the least needed first, before words are broken. Called by the views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

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
