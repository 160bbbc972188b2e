"""Finishes a frame of which the caller has only the first bytes.

The caller's bytes stand; what is missing is taken from a frame of the second run that says the same. Must never give a byte that makes the
frame say anything else than that frame does.
"""

from __future__ import annotations

import re
from copy import deepcopy

from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.replay_frames import Frame, frame_of, object_in
from hearth.dialects.replay_reading import ROLE, VOLATILE, Path, Slot, at, read
from hearth.dialects.routes import Route

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
