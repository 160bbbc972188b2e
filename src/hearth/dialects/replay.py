"""Goes on with a stream that was interrupted after its caller had been given frames, by running the same request again.

The second run is compared, as text, with everything that the caller has, and nothing of it is passed on before all of that has been
reproduced; from there on the caller gets what is new, under the names, dates and numbers that it knows already. Where the two runs differ
by a letter the stream ends with an error instead: an answer is never spliced together from two different ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from hearth.dialects.frames import Frame, Reading, Slot, WholeFrames, frame_of, identities, read, renamed, shortened
from hearth.dialects.gojson import JsonObject, JsonValue
from hearth.dialects.routes import Endpoint, Route
from hearth.errors import StreamDiverged
from hearth.types import Dialect

_MARK = ""
"""The channel of marks; no text has it."""


class Sent:
    """Everything one caller has been given of one stream, over all runs: bytes only, nothing is parsed before a replay needs it."""

    def __init__(self, route: Route, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._frames: WholeFrames | None = WholeFrames(route)
        self.size_bytes = 0

    def whole(self, chunks: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """What of these bytes may be passed on: whole frames, so that a later run can go on behind them; the very chunks as a rule."""
        if self._frames is None:
            return chunks
        passed = tuple(filter(None, map(self._frames.feed, chunks)))
        return passed if self._frames.held_bytes <= self._limit_bytes else (*passed, self.held())

    def held(self) -> bytes:
        """What was held back: the beginning of a frame. Nothing is held back any more."""
        frames, self._frames = self._frames, None
        return b"" if frames is None else frames.rest

    def feed(self, chunk: bytes) -> bool:
        """Add what was passed on to the caller, of whichever run. True where that was too much, and all was forgotten."""
        was_known = self.replayable
        self.size_bytes += len(chunk)
        if self.replayable:
            self._parts.append(chunk)
            return False
        self._parts.clear()
        return was_known

    @property
    def replayable(self) -> bool:
        """What was sent is still known, so a second run can be compared with it."""
        return self.size_bytes <= self._limit_bytes

    @property
    def frames(self) -> int:
        """How many frames with a payload, about as many as tokens: in every dialect it is an object that ends its line."""
        return sum(part.count(b"}\n") for part in self._parts)

    @property
    def data(self) -> bytes:
        """All of it; empty once it is no longer replayable."""
        return b"".join(self._parts)


class Replay:
    """One later run of an interrupted stream. Every byte of it goes through `feed`; only what comes out is for the caller."""

    def __init__(self, route: Route, sent: Sent, note: Callable[[Frame, Reading], object] | None = None) -> None:
        """Begin to compare with what `sent` holds now.

        Args:
            note: is called with each frame that was sent, when it is read.

        Raises:
            StreamDiverged: `sent` is no longer replayable.
        """
        if not sent.replayable:
            raise StreamDiverged
        self._route = route
        self._frames = WholeFrames(route)
        self._known: JsonObject = {}
        self._own: JsonObject = {}
        self._names: dict[str | int, JsonValue] = {}
        self._next_number = 0
        self._failed = False
        self._told = Transcript(self._first_telling(WholeFrames(route).split(sent.data), note))

    def _first_telling(self, whole: list[bytes], note: Callable[[Frame, Reading], object] | None) -> Iterator[Reading]:
        for raw in whole:
            frame = frame_of(self._route, raw)
            self._note(frame)
            reading = read(self._route, frame)
            if note is not None:
                note(frame, reading)
            yield reading

    def trust(self) -> None:
        """Compare nothing: what comes now goes on from the end of what was sent."""
        self._told.trust()

    @property
    def caught_up(self) -> bool:
        """Everything the caller has been told has been reproduced; what follows is new."""
        return self._told.reproduced

    @property
    def verified_chars(self) -> int:
        """How far the comparison has come: characters of text found equal."""
        return self._told.verified_chars

    def feed(self, chunk: bytes) -> bytes:
        """What may be passed on now, always up to the end of a frame; empty while catching up.

        An error that the backend reports in the stream is passed on at any time: it is no part of the answer.

        Raises:
            StreamDiverged: the runs differ. Nothing of this one may follow; what was passed on before stays right.
        """
        return b"".join([self._passed(raw) for raw in self._frames.split(chunk)])

    def finish(self) -> bytes:
        """What may still be passed on at the end of a run that ended in its dialect's own way (a truncated one proves nothing).

        Raises:
            StreamDiverged: the run ended before it had reproduced what was sent.
        """
        out = self._passed(self._frames.rest) if self._frames.rest else b""
        if not self._failed and not self.caught_up:
            raise StreamDiverged
        return out

    def _passed(self, raw: bytes) -> bytes:
        was_caught_up = self.caught_up
        if was_caught_up and self._route.dialect is not Dialect.OPENAI:  # only OpenAI's frames repeat names, which have to be those known
            return raw
        frame = frame_of(self._route, raw)
        self._own |= identities(self._route, frame)
        self._match_names()
        reading = read(self._route, frame)
        if reading.is_error:
            self._failed = True
            return self._known_names(frame).raw
        texts, marks = self._told.retell(reading)
        if not self.caught_up or not (was_caught_up or marks or any(texts)):
            return b""
        passed = self._known_names(shortened(frame, reading, texts, marks))
        self._note(passed)
        return passed.raw

    def _note(self, frame: Frame) -> None:
        """The caller has this frame: the names in it are those it knows."""
        self._known |= identities(self._route, frame)
        self._match_names()
        number = frame.fields.get("sequence_number")
        self._next_number = number + 1 if isinstance(number, int) else self._next_number

    def _match_names(self) -> None:
        for thing, name in self._own.items():
            if thing in self._known and isinstance(name, str | int):
                self._names[name] = self._known[thing]

    def _known_names(self, frame: Frame) -> Frame:
        fields = renamed(frame.fields, self._names)
        if not isinstance(fields, dict):
            return frame
        if self._route.path is Endpoint.OPENAI_RESPONSES and "sequence_number" in fields:
            fields["sequence_number"] = self._next_number
        return frame.saying(fields)


class Transcript:
    """What a caller has been told so far; `retell` walks through it once, and tells how far a second telling has come.

    Texts of one channel that follow one another are one text, however they are cut; a mark is told whole. The first telling is read only as
    far as the second one has come, so neither a long stream nor its comparison ever holds up the event loop.
    """

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

    def trust(self) -> None:
        """Take the rest of the first telling as told again."""
        for _ in self._ahead:
            pass
        self._runs.clear()

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
