"""Compares a stream with an earlier one of the same request, and passes on only what its caller does not have yet.

Finishes a frame of which the caller has only the first bytes.

The caller's bytes stand; what is missing is taken from a frame of the second run that says the same. Must never give a byte that makes the
frame say anything else than that frame does.

Goes on with a stream that was interrupted after its caller had been given bytes, by running the same request again.

The second run is compared, as text, with everything that the caller has, and nothing of it is passed on before all of that has been
reproduced; from there on the caller gets what is new, under the names, dates and numbers that it knows already. Where the two runs differ
by a letter the stream ends with an error instead. Pure: no clock, no randomness, no I/O. The rule: an answer is never spliced together from
two different ones.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy

from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.replay_reading import (
    ROLE,
    VOLATILE,
    Frame,
    Path,
    Reading,
    Slot,
    WholeFrames,
    at,
    frame_end,
    frame_of,
    identities,
    object_in,
    read,
    renamed,
    shortened,
)
from hearth.dialects.routes import Endpoint, Route
from hearth.errors import StreamDiverged
from hearth.types import Dialect

_TOKEN = re.compile(rb'"(?:[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u])*("?)|[{}\[\],:]|[^\s"{}\[\],:]+')
_SCALAR = re.compile(rb'"(?:[^"\\]+|\\.)*("?)|[^\s"{}\[\],:]+', re.DOTALL)
_CLOSERS = {ord("{"): b"}", ord("["): b"]"}
_MOMENT = re.compile(rb'"\d{4}-\d\d-\d\dT[0-9:.]+Z"')
_MAX_DANGLING = 5
"""Tokens at the end that can be unfinished business: a comma, a key, a colon, half a literal."""


class OpenFrame:
    """The first bytes of a frame."""

    def __init__(self, route: Route, given: bytes) -> None:
        begun = frame_of(route, given)
        self._route = route
        self.given = given
        whole = begun.fields or mended(begun.payload)
        reading = read(route, Frame(head=begun.head, payload=begun.payload, foot=begun.foot, fields=whole))
        self.slots: tuple[Slot, ...] = reading.slots if whole else ()
        """The texts in it, as far as they go; marks do not count before their frame is whole."""
        self._texts = {slot.path: slot.text for slot in self.slots}

    def text_at(self, path: Path) -> str:
        """What of the text at `path` the caller has."""
        return self._texts.get(path, "")

    @property
    def has_text(self) -> bool:
        return any(self._texts.values())

    def rest(self, wanted: Frame) -> bytes | None:
        """The bytes that turn what the caller has into a frame that says what `wanted` says; None where there are none."""
        wanted = self._with_opening(wanted)
        fit = _Fit(self.given)
        if not (fit.literal(wanted.head) and fit.payload(wanted) and fit.literal(wanted.foot) and fit.used_up):
            return None
        whole = frame_of(self._route, self.given + fit.rest)
        return fit.rest if read(self._route, whole).says == read(self._route, wanted).says else None

    def _with_opening(self, wanted: Frame) -> Frame:
        """Only the first frame of a stream names the role; the caller may have it from a longer one than the second run's."""
        fields = deepcopy(wanted.fields)
        for slot in self.slots:
            delta, key = at(fields, slot.path[:-1]), slot.path[-1]
            if slot.channel == ROLE and isinstance(delta, dict) and isinstance(key, str) and key not in delta:
                rest = dict(delta)
                delta.clear()
                delta |= {key: slot.text, **rest}
        return wanted.saying(fields)


class _Fit:
    """Writes a frame, leaving out what is already given and giving up where the given bytes say otherwise.

    Lenient by key alone, so what comes out must still be read again and compared.
    """

    def __init__(self, given: bytes) -> None:
        self._given = given
        self._at = 0
        self._out = bytearray()

    @property
    def rest(self) -> bytes:
        return bytes(self._out)

    @property
    def used_up(self) -> bool:
        return self._at == len(self._given)

    def literal(self, wanted: bytes) -> bool:
        common = min(len(wanted), len(self._given) - self._at)
        if not self._given.startswith(wanted[:common], self._at):
            return False
        self._at += common
        self._out += wanted[common:]
        return True

    def payload(self, frame: Frame) -> bool:
        return self._value(frame.fields, volatile=False) if frame.fields else self.literal(frame.payload)

    def _value(self, wanted: JsonValue, *, volatile: bool) -> bool:
        if isinstance(wanted, dict):
            return self._object(wanted, volatile=volatile)
        if isinstance(wanted, list):
            return self._array(wanted, volatile=volatile)
        return self._scalar(encode(wanted)) if volatile else self.literal(encode(wanted))

    def _object(self, wanted: JsonObject, *, volatile: bool) -> bool:
        lead = b"{"
        for key, value in wanted.items():
            if not (self.literal(lead + encode(key) + b":") and self._value(value, volatile=volatile or key in VOLATILE)):
                return False
            lead = b","
        return self.literal(b"}" if wanted else b"{}")

    def _array(self, wanted: list[JsonValue], *, volatile: bool) -> bool:
        lead = b"["
        for value in wanted:
            if not (self.literal(lead) and self._value(value, volatile=volatile)):
                return False
            lead = b","
        return self.literal(b"]" if wanted else b"[]")

    def _scalar(self, wanted: bytes) -> bool:
        """A value that need not be the same: the caller keeps what it has of it."""
        found = _SCALAR.match(self._given, self._at)
        if found is None:
            return self.literal(wanted)
        self._at = found.end()
        if found.group(1) or (found.group(1) is None and not self.used_up):
            return True
        self._at = len(self._given)
        self._out += _continued(self._given[found.start() :], wanted)
        return True


def _continued(part: bytes, wanted: bytes) -> bytes:
    """The end of a name, number or moment of which `part` is the beginning, letter for letter from the place where `part` ends."""
    tail = wanted[len(part) :]
    if part[:1] != b'"' or wanted.startswith(part):
        return tail
    if _MOMENT.fullmatch(wanted) and tail in (b"", b'"'):
        return b'"' if part.endswith(b"Z") else b'0Z"'
    return b'"' if part.endswith(b"Z") and _MOMENT.fullmatch(wanted) else tail or b'"'


def mended(payload: bytes) -> JsonObject:
    """The JSON object of which `payload` is the beginning, with every text as far as it goes; empty where it has not begun."""
    tokens: list[bytes] = []
    for found in _TOKEN.finditer(payload):
        token = found.group()
        if token.startswith(b'"') and not found.group(1):
            tokens.append(token.decode(errors="ignore").encode() + b'"')
            break
        tokens.append(token)
    for dropped in range(min(_MAX_DANGLING, len(tokens)) + 1):
        kept = tokens[: len(tokens) - dropped]
        value = object_in(b"".join(kept) + _closing(kept))
        if value:
            return value
    return {}


def _closing(tokens: list[bytes]) -> bytes:
    open_ones: list[bytes] = []
    for token in tokens:
        if token in (b"{", b"["):
            open_ones.append(_CLOSERS[token[0]])
        elif token in (b"}", b"]") and open_ones:
            open_ones.pop()
    return b"".join(reversed(open_ones))


_MARK = ""
"""The channel of marks; no text has it."""


class Sent:
    """Everything one caller has been given of one stream, over all runs: bytes only, nothing is parsed before a replay needs it."""

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> bool:
        """Add what was passed on to the caller, of whichever run; cut anywhere. True where that was too much, and all was forgotten."""
        was_known = self._size_bytes <= self._limit_bytes
        self._size_bytes += len(chunk)
        if self._size_bytes <= self._limit_bytes:
            self._parts.append(chunk)
            return False
        self._parts.clear()
        return was_known

    @property
    def replayable(self) -> bool:
        """What was sent is still known, so a second run can be compared with it."""
        return self._size_bytes <= self._limit_bytes

    @property
    def size_bytes(self) -> int:
        """How much that is."""
        return self._size_bytes

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

    def __init__(self, route: Route, sent: Sent, heard: Callable[[Frame, Reading], object] | None = None) -> None:
        """Begin to compare with what `sent` holds now.

        Args:
            heard: is told what each frame said, as far as they are read; last the beginning of one.

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
        self._heard = heard or (lambda _frame, _reading: None)
        begun = WholeFrames(route)
        whole = begun.split(sent.data)
        self._open = OpenFrame(route, begun.rest) if begun.rest else None
        self._told = Transcript(self._first_telling(whole, self._open))

    def _first_telling(self, whole: list[bytes], begun: OpenFrame | None) -> Iterator[Reading]:
        for raw in whole:
            frame = frame_of(self._route, raw)
            self._note(frame)
            reading = read(self._route, frame)
            self._heard(frame, reading)
            yield reading
        if begun is not None:
            reading = Reading(slots=begun.slots)
            self._heard(frame_of(self._route, begun.given), reading)
            yield reading

    def trust(self) -> None:
        """Compare nothing: what comes now goes on from the end of what was sent."""
        self._told.trust()

    @property
    def caught_up(self) -> bool:
        """Everything the caller has been told has been reproduced; what follows is new."""
        return self._told.reproduced

    @property
    def is_open(self) -> bool:
        """The caller's last frame is not whole."""
        return self._open is not None

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
        if not self._failed and (self._open is not None or not self.caught_up):
            raise StreamDiverged
        return out

    def _passed(self, raw: bytes) -> bytes:
        if self._unchanged_from_here:
            return raw
        frame = frame_of(self._route, raw)
        self._learn(frame)
        reading = read(self._route, frame)
        if reading.is_error:
            return self._error(frame)
        was_caught_up = self.caught_up
        texts, marks = self._told.retell(reading)
        if not self.caught_up:
            return b""
        is_new = bool(marks) or any(texts)
        if self._open is not None:
            may_fit = is_new or was_caught_up or self._open.has_text
            return self._finish_open(self._open, frame, reading, texts, marks) if may_fit else b""
        return self._forward(frame, reading, texts, marks) if is_new or was_caught_up else b""

    @property
    def _unchanged_from_here(self) -> bool:
        """Only OpenAI's frames repeat names; there the caller knows the first run's."""
        return self._route.dialect is not Dialect.OPENAI and self._open is None and self.caught_up

    def _error(self, frame: Frame) -> bytes:
        self._failed = True
        lead = b"" if self._open is None else frame_end(self._route)
        return lead + self._known_names(frame).raw

    def _forward(self, frame: Frame, reading: Reading, texts: tuple[str, ...], marks: int) -> bytes:
        told = self._known_names(shortened(frame, reading, texts, marks))
        self._note(told)
        return told.raw

    def _finish_open(self, begun: OpenFrame, frame: Frame, reading: Reading, texts: tuple[str, ...], marks: int) -> bytes:
        """Finish the caller's last frame with all of this one; else with the part that the caller has, so that the rest can follow."""
        had = tuple(begun.text_at(slot.path) for slot in reading.slots)
        all_of_it = tuple(old + new for old, new in zip(had, texts, strict=True))
        rest = self._fitted(begun, shortened(frame, reading, all_of_it, marks))
        if rest is not None:
            return rest
        if not marks and not any(texts):
            return b""
        rest = None if marks else self._fitted(begun, shortened(frame, reading, had, 0))
        if rest is None:
            raise StreamDiverged
        return rest + self._forward(frame, reading, texts, marks)

    def _fitted(self, begun: OpenFrame, wanted: Frame) -> bytes | None:
        rest = begun.rest(self._known_names(wanted))
        if rest is not None:
            self._open = None
            self._note(frame_of(self._route, begun.given + rest))
        return rest

    def _note(self, frame: Frame) -> None:
        """The caller has this frame: the names in it are those it knows."""
        self._known |= identities(self._route, frame)
        self._match_names()
        number = frame.fields.get("sequence_number")
        self._next_number = number + 1 if isinstance(number, int) else self._next_number

    def _learn(self, frame: Frame) -> None:
        """The names in this frame are those of this run."""
        self._own |= identities(self._route, frame)
        self._match_names()

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
