"""Goes on with a stream that was interrupted after its caller had been given frames, by running the
same request again.

The second run is compared, as text, with everything that the caller has, and nothing of it is
passed on before all of that has been reproduced; from there on the caller gets what is new, under
the names, dates and numbers that it knows already. Where the two runs differ by a letter the stream
ends with an error instead: an answer is never spliced together from two different ones.
"""

from __future__ import annotations

from collections import deque

from hearth.dialects.frames import (
    ROLE,
    Frame,
    Slot,
    WholeFrames,
    frame_of,
    frames_in,
    identities,
    read,
    renamed,
    shortened,
)
from hearth.dialects.gojson import JsonObject, JsonValue
from hearth.dialects.routes import Endpoint, Route
from hearth.errors import StreamDiverged
from hearth.types import LoadedModel

_MOST_EQUAL = 30
"""Equal pieces in a row after which Ollama gives an answer up, without a word (llm/server.go)."""
_MARK = ""
"""The channel of marks; no text has it."""


class Sent:
    """Everything one caller has been given of one stream, over all runs: bytes only, nothing is
    parsed before a replay needs it. `written_by`: the model of the first run, as it was loaded.
    """

    def __init__(self, route: Route, *, limit_bytes: int, written_by: LoadedModel) -> None:
        self._route = route
        self._limit_bytes = limit_bytes
        self.written_by = written_by
        self._parts: list[bytes] = []
        self._frames: WholeFrames | None = WholeFrames(route)
        self.size_bytes = 0

    def whole(self, chunks: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """What of these bytes may be passed on: whole frames, so that a later run can go on behind
        them; the very chunks as a rule.
        """
        if self._frames is None:
            return chunks
        passed = tuple(filter(None, map(self._frames.feed, chunks)))
        return passed if self._frames.held_bytes <= self._limit_bytes else (*passed, self.held())

    def held(self) -> bytes:
        """What was held back: the beginning of a frame. Nothing is held back any more."""
        frames = self._frames
        self._frames = None
        return b"" if frames is None else frames.rest

    def feed(self, chunk: bytes) -> bool:
        """Add what was passed on to the caller, of whichever run.

        True where that was too much, and all was forgotten.
        """
        self.size_bytes += len(chunk)
        if self.size_bytes <= self._limit_bytes:
            self._parts.append(chunk)
            return False
        self._parts.clear()
        return self.size_bytes - len(chunk) <= self._limit_bytes

    @property
    def replayable(self) -> bool:
        """What was sent is still known, so a second run can be compared with it."""
        return self.size_bytes <= self._limit_bytes

    @property
    def repeats_itself(self) -> bool:
        """It ends with as many equal pieces as make Ollama end an answer."""
        last = deque[str](maxlen=_MOST_EQUAL)
        for frame in frames_in(self._route, b"".join(self._parts[-2 * _MOST_EQUAL :])):
            slots = read(self._route, frame).slots
            last.extend(slot.text.strip() for slot in slots if slot.text and slot.channel != ROLE)
        return len(last) == _MOST_EQUAL and len(set(last)) == 1

    @property
    def frames(self) -> int:
        """How many frames with a payload, about as many as tokens: in every dialect it is an object
        that ends its line.
        """
        return sum(part.count(b"}\n") for part in self._parts)

    @property
    def data(self) -> bytes:
        """All of it; empty once it is no longer replayable."""
        return b"".join(self._parts)


class Rename:
    """The names, dates and numbers that a caller knows, in place of a later run's.

    Only OpenAI's frames repeat any.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self._known: JsonObject = {}
        self._own: JsonObject = {}
        self._names: dict[str | int, JsonValue] = {}
        self._next_number = 0

    def know(self, frame: Frame) -> None:
        """The caller has this frame."""
        self._known |= identities(self._route, frame)
        self._pair()
        number = frame.fields.get("sequence_number")
        self._next_number = number + 1 if isinstance(number, int) else self._next_number

    def match(self, frame: Frame) -> None:
        """The later run has sent this frame."""
        self._own |= identities(self._route, frame)
        self._pair()

    def _pair(self) -> None:
        self._names |= {
            name: self._known[thing]
            for thing, name in self._own.items()
            if thing in self._known and isinstance(name, str | int)
        }

    def known(self, frame: Frame) -> Frame:
        """The frame as the caller may read it."""
        fields = renamed(frame.fields, self._names)
        if not isinstance(fields, dict):
            return frame
        if self._route.path is Endpoint.OPENAI_RESPONSES and "sequence_number" in fields:
            fields["sequence_number"] = self._next_number
        return frame.saying(fields)


class Replay:
    """One later run of an interrupted stream. Every byte of it goes through `feed`; only what comes
    out is for the caller.

    Texts of one channel that follow one another are one text, however they are cut; a mark is
    compared whole. What was sent is read only as far as this run has come, so neither a long stream
    nor its comparison ever holds up the event loop.
    """

    def __init__(self, route: Route, sent: Sent) -> None:
        """Begin to compare with what `sent` holds now.

        Raises StreamDiverged where it is no longer replayable.
        """
        if not sent.replayable:
            raise StreamDiverged
        self._route = route
        self._frames = WholeFrames(route)
        self._rename = Rename(route)
        self._failed = False
        self._ahead = frames_in(route, sent.data)
        self._runs: deque[tuple[str, str]] = deque()
        """Channel and text of what is to come again, as far as it was read."""
        self._offset = 0
        self.verified_chars = 0
        """How far the comparison has come: characters of text found equal."""
        self._read_on()

    @property
    def caught_up(self) -> bool:
        """Everything that the caller has has been reproduced; what follows is new."""
        return not self._runs

    def feed(self, chunk: bytes) -> bytes:
        """What may be passed on now, always up to the end of a frame; empty while catching up.

        An error that the backend reports in the stream is passed on at any time: it is no part of
        the answer.

        Raises:
            StreamDiverged: the runs differ. Nothing of this one may follow; what was passed on
            before stays right.
        """
        return b"".join([self._passed(raw) for raw in self._frames.split(chunk)])

    def finish(self) -> bytes:
        """What may still be passed on at the end of a run that ended in its dialect's own way (a
        truncated one proves nothing). Raises StreamDiverged: the run ended before it had reproduced
        what was sent.
        """
        out = self._passed(self._frames.rest) if self._frames.rest else b""
        if not self._failed and not self.caught_up:
            raise StreamDiverged
        return out

    def _passed(self, raw: bytes) -> bytes:
        was_caught_up = self.caught_up
        # Only OpenAI's frames repeat ids, dates or numbers that the caller knows by other ones.
        if was_caught_up and self._route.dialect != "openai":
            return raw
        frame = frame_of(self._route, raw)
        self._rename.match(frame)
        reading = read(self._route, frame)
        if reading.is_error:
            self._failed = True
            return self._rename.known(frame).raw
        texts = [self._new_text(slot) for slot in reading.slots]
        marks = sum([self._is_new(mark) for mark in reading.marks])
        # The caller has all of this frame, also where it is the one that catches up exactly.
        if not self.caught_up or not (was_caught_up or marks or any(texts)):
            return b""
        passed = self._rename.known(shortened(frame, reading, texts, marks))
        self._rename.know(passed)
        return passed.raw

    def _new_text(self, slot: Slot) -> str:
        """What of a text the caller has not got."""
        start = 0
        while self._runs and start < len(slot.text):
            channel, sent = self._runs[0]
            size = min(len(sent) - self._offset, len(slot.text) - start)
            if channel != slot.channel or not sent.startswith(
                slot.text[start : start + size], self._offset
            ):
                raise StreamDiverged
            start += size
            self._offset += size
            if self._offset == len(sent):
                self._next_run()
        self.verified_chars += start
        return slot.text[start:]

    def _is_new(self, mark: bytes) -> bool:
        if not self._runs:
            return True
        if self._runs[0] != _run_of(mark):
            raise StreamDiverged
        self._next_run()
        return False

    def _next_run(self) -> None:
        self._runs.popleft()
        self._offset = 0
        self._read_on()

    def _read_on(self) -> None:
        while not self._runs and (frame := next(self._ahead, None)) is not None:
            self._rename.know(frame)
            reading = read(self._route, frame)
            self._runs.extend((slot.channel, slot.text) for slot in reading.slots if slot.text)
            self._runs.extend(map(_run_of, reading.marks))


def _run_of(mark: bytes) -> tuple[str, str]:
    return _MARK, mark.decode(errors="surrogateescape")
