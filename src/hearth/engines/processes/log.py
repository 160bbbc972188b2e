"""The last lines that a model's server has written. What it costs is bounded, however much that
is.
"""

from __future__ import annotations

from collections import deque

LINES = 200
LINE_BYTES = 1000
_BREAK = b"\n"


class ProcessLog:
    """Lines as they were written, without their ends; of a line that rewrites itself, as a progress
    bar does, the last writing.
    """

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=LINES)
        self._open = b""
        self._written = 0

    def feed(self, data: bytes) -> None:
        """What came from the pipe, wherever it was cut."""
        *complete, last = data.rsplit(_BREAK, LINES)
        if complete:
            # all that is older than the lines that are kept stands before the last break in it
            *older, first = complete[0].rsplit(_BREAK, 1)
            self.add(first if older else self._open + first)
            for line in complete[1:]:
                self.add(line)
            self._written += older[0].count(_BREAK) + 1 if older else 0
            self._open = b""
        rest = self._open + last[-2 * LINE_BYTES :]
        # what comes next may be the end of a line, or write over it
        self._open = _writing(rest) + (b"\r" if rest.endswith(b"\r") else b"")

    def add(self, line: bytes) -> None:
        """One whole line."""
        self._lines.append(_writing(line))
        self._written += 1

    def after(self, number: int) -> tuple[list[str], int]:
        """The lines from one on, which is counted from 0 over all that was ever written, as far as
        they are kept; and the number of the next one.
        """
        kept_from = self._written - len(self._lines)
        lines = list(self._lines)[max(0, number - kept_from) :]
        return [line.decode("utf-8", "replace") for line in lines], self._written


def _writing(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2][:LINE_BYTES]
