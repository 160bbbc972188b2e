"""What a caller has been told so far, and how far a second telling has come in it.

Texts of one channel that follow one another are one text, however they are cut; a mark is told whole. The first telling is read only as
far as the second one has come, so neither a long stream nor its comparison ever holds up the event loop. Called by `replay` only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hearth.dialects.replay_reading import Reading, Slot
from hearth.errors import StreamDiverged

_MARK = ""
"""The channel of marks; no text has it."""


class Transcript:
    """The telling that stands; `retell` walks through it once."""

    def __init__(self, first_telling: Iterator[Reading]) -> None:
        self._ahead = first_telling
        self._runs: deque[tuple[str, str]] = deque()
        self._offset = 0
        self.verified_chars = 0
        """Characters of text that the second telling has reproduced."""
        self._read_on()

    @property
    def reproduced(self) -> bool:
        """Everything has been told again."""
        return not self._runs

    def retell(self, reading: Reading) -> tuple[tuple[str, ...], int]:
        """Take in what the next frame of the second telling says.

        Returns:
            What of it is new: the rest of each text, and how many of the marks (always the last ones).

        Raises:
            StreamDiverged: it says something else.
        """
        texts = tuple(self._text(slot) for slot in reading.slots)
        return texts, sum([self._mark(mark) for mark in reading.marks])

    def _text(self, slot: Slot) -> str:
        start = 0
        while self._runs and start < len(slot.text):
            channel, told = self._runs[0]
            size = min(len(told) - self._offset, len(slot.text) - start)
            if channel != slot.channel or not told.startswith(slot.text[start : start + size], self._offset):
                raise StreamDiverged
            start += size
            self._offset += size
            if self._offset == len(told):
                self._next_run()
        self.verified_chars += start
        return slot.text[start:]

    def _mark(self, mark: bytes) -> bool:
        if not self._runs:
            return True
        if self._runs[0] != (_MARK, _letters(mark)):
            raise StreamDiverged
        self._next_run()
        return False

    def _next_run(self) -> None:
        self._runs.popleft()
        self._offset = 0
        self._read_on()

    def _read_on(self) -> None:
        while not self._runs and (reading := next(self._ahead, None)) is not None:
            self._runs.extend((slot.channel, slot.text) for slot in reading.slots if slot.text)
            self._runs.extend((_MARK, _letters(mark)) for mark in reading.marks)


def _letters(mark: bytes) -> str:
    return mark.decode(errors="surrogateescape")
