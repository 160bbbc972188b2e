"""The last lines of the log, for those who look at it over HTTP."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection
from itertools import islice
from secrets import token_hex

from hearth.observability.logs import LogLine, to_json
from hearth.types import frozen

KEPT = 2000

Numbered = tuple[int, LogLine]


@frozen
class LineFilter:
    """Which lines; a field that is None or empty is any. `level`: a number of `logging`, at
    least.
    """

    level: int = logging.NOTSET
    events: Collection[str] = ()
    caller: str | None = None
    request_id: str | None = None

    def matches(self, line: LogLine) -> bool:
        fields = line.fields
        return (
            line.level >= self.level
            and (not self.events or line.event in self.events)
            and self.caller in (None, fields.get("caller"))
            and self.request_id in (None, fields.get("request_id"))
        )


class RecentLines:
    """The last `KEPT` lines, numbered from 1 for as long as this process runs (`run`). May be added
    to from any thread.
    """

    def __init__(self) -> None:
        self.run = token_hex(6)
        self.last = 0
        """The number of the last line."""
        self._lines: deque[LogLine] = deque(maxlen=KEPT)
        self._adding = threading.Lock()

    def add(self, line: LogLine) -> None:
        """Keep a line, uncleaned as it is."""
        with self._adding:
            self.last += 1
            self._lines.append(line)

    def after(self, number: int, most: int = KEPT) -> tuple[list[Numbered], int]:
        """The lines after this number, `most` of them, and how many of them are gone."""
        with self._adding:
            first = self.last - len(self._lines) + 1
            begin = max(first, number + 1)
            lines = list(islice(self._lines, begin - first, begin - first + most))
        return list(enumerate(lines, begin)), begin - number - 1

    def place(self, number: int) -> str:
        """What names the place after a line, also after a restart."""
        return f"{self.run}-{number}"

    def number_at(self, place: str) -> int:
        """The number of that line; 0 for one of an earlier process."""
        run, _, number = place.partition("-")
        known = run == self.run and number.isascii() and number.isdigit()
        return min(int(number), self.last) if known else 0

    def text(self, number: int, line: LogLine) -> str:
        """The JSON of a line as the log writes it, with its place as `id`."""
        return f'{{"id":"{self.place(number)}",{to_json(line)[1:]}'
