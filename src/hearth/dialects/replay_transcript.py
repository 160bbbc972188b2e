"""What a caller has been told so far, and how far a second telling has come in it.

Texts of one channel that follow one another are one text, however they were cut; a mark is told whole. Called by `replay` only.
"""

from __future__ import annotations

from hearth.dialects.replay_reading import Reading, Slot
from hearth.errors import StreamDiverged

_MARK = ""
"""The channel of marks; no text has it."""


class Transcript:
    """The telling that stands. Grows with `add` and `add_texts`; then `retell` walks through it once."""

    def __init__(self) -> None:
        self._runs: list[tuple[str, str]] = []
        self._parts: list[str] = []
        self._channel = _MARK
        self._run = 0
        self._offset = 0
        self.verified_chars = 0
        """Characters of text that the second telling has reproduced."""

    def add(self, reading: Reading) -> None:
        """What one whole frame said."""
        self.add_texts(reading.slots)
        for mark in reading.marks:
            self.close()
            self._runs.append((_MARK, mark.decode(errors="surrogateescape")))

    def add_texts(self, slots: tuple[Slot, ...]) -> None:
        """Texts alone, of a frame that is not whole."""
        for slot in slots:
            if not slot.text:
                continue
            if slot.channel != self._channel:
                self.close()
                self._channel = slot.channel
            self._parts.append(slot.text)

    def close(self) -> None:
        """No more text follows directly; to be called once before `retell`."""
        if self._parts:
            self._runs.append((self._channel, "".join(self._parts)))
            self._parts.clear()
        self._channel = _MARK

    @property
    def reproduced(self) -> bool:
        """Everything has been told again."""
        return self._run == len(self._runs)

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
        if self.reproduced or not slot.text:
            return slot.text
        channel, told = self._runs[self._run]
        missing = len(told) - self._offset
        if channel != slot.channel or not told.startswith(slot.text[:missing], self._offset):
            raise StreamDiverged
        said = min(missing, len(slot.text))
        self.verified_chars += said
        self._advance(said, at_end=said == missing)
        if said < len(slot.text) and not self.reproduced:
            raise StreamDiverged
        return slot.text[said:]

    def _mark(self, mark: bytes) -> bool:
        if self.reproduced:
            return True
        if self._offset or self._runs[self._run] != (_MARK, mark.decode(errors="surrogateescape")):
            raise StreamDiverged
        self._advance(0, at_end=True)
        return False

    def _advance(self, chars: int, *, at_end: bool) -> None:
        self._run += at_end
        self._offset = 0 if at_end else self._offset + chars
