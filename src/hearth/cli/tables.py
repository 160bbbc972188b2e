"""Tables in a terminal: their columns, which of them a narrow one does without, and where lines
end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from hearth.cli.client import Json, number, text

_GAP = 2
_PHRASE_ENDS = re.compile(r"[,;] ")
_WORD_ENDS = re.compile(r"(?<!\d) | (?=\d)")
"""Not between a number and its unit."""


class Phrases:
    """A text whose lines end behind a comma or a semicolon where they can, and never between a
    number and its unit.
    """

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(overflow="fold")
        for piece in self._pieces(options.max_width):
            if line and line.cell_len + cell_len(piece.plain.rstrip()) > options.max_width:
                line.rstrip()
                yield line
                line = Text(overflow="fold")
            line.append_text(piece)
        line.rstrip()
        yield line

    def _pieces(self, width: int) -> Iterator[Text]:
        """The phrases; of one that is too long for a line, the words."""
        for phrase in _divided(self._text, _PHRASE_ENDS):
            if cell_len(phrase.plain.rstrip()) <= width:
                yield phrase
            else:
                yield from _divided(phrase, _WORD_ENDS)


def _divided(text: Text, ends: re.Pattern[str]) -> Iterable[Text]:
    return text.divide([end.end() for end in ends.finditer(text.plain)])


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
        kept = [column.copy() for column in columns]
        if fits:
            widths = _shared_widths(columns, options.max_width)
            kept = [replace(each, width=width) for each, width in zip(kept, widths, strict=True)]
        whole = self._table
        looks: Any = {
            "show_header": whole.show_header,
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
    between = "; " if any(", " in str(cell) for _, cell in others) else ", "
    below = Padding(Phrases(Text(between).join(said)), (0, 0, 0, 2))
    return Group(first, below) if said else first


def _shared_widths(columns: Sequence[Column], width: int) -> list[int]:
    """What each column gets of a width that leaves every word whole: of what is left over, those
    first that lack the least. Rich would take it from all, and break words.
    """
    widths = [_width(column) for column in columns]
    lacking = [_whole_width(column) - given for column, given in zip(columns, widths, strict=True)]
    spare = width - _needed(columns)
    for index in sorted(range(len(columns)), key=lacking.__getitem__):
        more = max(0, min(spare, lacking[index]))
        widths[index] += more
        spare -= more
    return widths


def _needed(columns: Sequence[Column]) -> int:
    """Width that leaves every word whole, and every number with its unit."""
    return sum(_width(column) for column in columns) + _GAP * (len(columns) - 1)


def _width(column: Column) -> int:
    if column.no_wrap or column.justify == "right":
        return _whole_width(column)
    words = [word for line in _lines(column) for word in line.split()]
    return max(column.min_width or 0, *map(cell_len, ("", *words)))


def _whole_width(column: Column) -> int:
    return max(column.min_width or 0, *map(cell_len, ("", *_lines(column))))


def _lines(column: Column) -> list[str]:
    return [line for each in (column.header, *column.cells) for line in str(each).splitlines()]


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
