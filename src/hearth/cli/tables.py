"""Tables in a terminal: their columns, and which of them a narrow one does without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from hearth.cli.client import Json, number, text

_GAP = 2


class Fitting:
    """A table without a frame, and the names of columns that it can do without, the least needed
    first. `in_lines`: where it is too wide without them, all columns of a row are written as lines,
    in place of broken words in columns that are too narrow.
    """

    def __init__(self, table: Table, *, expendable: Sequence[str], in_lines: bool = False) -> None:
        self._table = table
        self._expendable = expendable
        self._in_lines = in_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self._table.columns
        for name in self._expendable:
            if _needed(columns) <= options.max_width:
                break
            columns = [column for column in columns if column.header != name]
        fits = _needed(columns) <= options.max_width
        if self._in_lines and not fits:
            yield from map(_in_lines, zip(*map(_cells, self._table.columns), strict=True))
            return
        kept = [
            replace(column.copy(), no_wrap=column.no_wrap or (fits and _is_firm(column)))
            for column in columns
        ]
        whole = self._table
        looks: Any = {
            "title": whole.title,
            "title_justify": "left",
            "title_style": whole.title_style,
        }
        fitted = Table(*kept, box=None, pad_edge=False, show_edge=False, **looks)
        for cells in zip(*(column.cells for column in columns), strict=True):
            fitted.add_row(*cells)
        yield fitted


def _cells(column: Column) -> list[tuple[str, Text]]:
    """Each cell with the heading of its column."""
    return [
        (str(column.header), cell if isinstance(cell, Text) else Text(str(cell)))
        for cell in column.cells
    ]


def _in_lines(row: Sequence[tuple[str, Text]]) -> RenderableType:
    """The first cell, and below it the others that say something."""
    (_, first), *others = row
    said = [
        Text(heading and f"{heading} ", "dim").append_text(cell)
        for heading, cell in others
        if str(cell) not in ("", "-")
    ]
    below = Padding(Text(", ").join(said), (0, 0, 0, 2))
    return Group(first, below) if said else first


def _is_firm(column: Column) -> bool:
    """Numbers and single words: rich may not take room from them while there is some between the
    words of other columns.
    """
    return column.justify == "right" or all(len(str(cell).split()) < 2 for cell in column.cells)


def _needed(columns: Sequence[Column]) -> int:
    """Width that leaves every word whole, and every number with its unit."""
    return sum(_width(column) for column in columns) + _GAP * (len(columns) - 1)


def _width(column: Column) -> int:
    lines = [line for each in (column.header, *column.cells) for line in str(each).splitlines()]
    unbroken = lines
    if not column.no_wrap and column.justify != "right":
        unbroken = [word for line in lines for word in line.split()]
    return max(column.min_width or 0, *map(cell_len, ("", *unbroken)))


WORDS: dict[str, Any] = {"header_style": "dim"}
FOLDED = WORDS | {"overflow": "fold"}
NUMBER = WORDS | {"justify": "right", "no_wrap": True}


class TableColumn(NamedTuple):
    """A column: its heading, what stands in it for a row of the answer (the text under a name, or
    `empty`), and its look (`rich.table.Column`).
    """

    heading: str
    cell: str | Callable[[Json], Text | str]
    look: Mapping[str, Any] = FOLDED
    empty: str = "-"

    def of(self, row: Json) -> Text | str:
        """What stands in the column for this row."""
        if isinstance(self.cell, str):
            return text(row, self.cell) or self.empty
        return self.cell(row)


def table_of(fields: Sequence[TableColumn], rows: Iterable[Json]) -> Table:
    """A row is an object of the answer, or a text under `note` that stands alone."""
    table = Table(
        *(Column(each.heading, **each.look) for each in fields),
        box=None,
        pad_edge=False,
        show_edge=False,
    )
    for row in rows:
        note = row.get("note")
        if isinstance(note, Text):
            table.add_row(note)
        else:
            table.add_row(*(each.of(row) for each in fields))
    return table


def moment(field: str) -> Callable[[Json], str]:
    """A cell with the local time under a name; the date comes with it, because a log spans days."""

    def cell(row: Json) -> str:
        wall_s = number(row, field)
        if wall_s is None:
            return "-"
        try:
            moment = datetime.fromtimestamp(wall_s, tz=UTC).astimezone()
        except (OverflowError, ValueError, OSError):
            return "-"
        return f"{moment:%m-%d %H:%M:%S}"

    return cell
