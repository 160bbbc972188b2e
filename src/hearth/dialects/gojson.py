"""JSON as Ollama reads and writes it, with Go's encoding/json.

Whatever the gateway believes about a body must be what Ollama reads from it, so the differences
between the two parsers are settled here: keys match in any letter case and the last one wins,
invalid text becomes U+FFFD, data after the first value is ignored, NaN is refused.
"""

from __future__ import annotations

import json
import math
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in all but its stub
from json.encoder import encode_basestring
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, TypeAlias, TypeVar

from hearth.dialects.gosyntax import UNEXPECTED_END, syntax_error
from hearth.errors import BadRequest
from hearth.types import MIB

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = "dict[str, JsonValue]"
T = TypeVar("T")

MAX_DEPTH = 64
"""Containers inside containers; Go itself stops at 10,000, a request to a model needs a tenth of
ours.
"""
MAX_INT = 2**63 - 1
"""The largest number that Go's `int` holds."""
MAX_VALUES = 300_000
"""Most values and keys in one request body: twice what a prompt of 128,000 token numbers has, and a
second of work for the parser.
"""
LARGE_BYTES = 256 * 1024
"""A larger text is read and written in pieces: one call into C keeps the interpreter's lock, and
every thread waits.
"""
PIECE_CHARS = 8 * 1024
"""So much of a larger text at a time: a fraction of a millisecond, whatever it is full of."""
MAX_KEY_CHARS = 64 * 1024
"""Longest key of a body beyond `LARGE_BYTES`."""
MAX_INVALID_BYTES = 10_000
"""Most bytes that are no UTF-8. Each takes a hundred times as long as one that is."""
_MAX_OUTSIDE_MIB = 8
"""Most bytes outside of strings: white space and digits cost time, too."""
_SHOWN_DIGITS = 100
_FIRST_PIECE_CHARS = 512
_ESCAPE_CHARS = 6

JSON_SPACE = " \t\r\n"
# it always matches
_behind_space: Callable[[str, int], Any] = re.compile(f"[{JSON_SPACE}]*").match
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_HIGH_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_ESCAPES = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
# `json.dumps` would make an encoder for each call, which takes as long as a short text itself
_written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class GoJsonError(BadRequest):
    """A body that Go's JSON decoder would refuse, or refuse to put into a field."""

    reason = BadRequest.reason


def decode(body: bytes, *, whole: bool = False) -> JsonValue:
    """The first JSON value of `body`, the only one where it must be `whole`. Raises GoJsonError."""
    return decode_document(body, whole=whole)[0]


def decode_document(body: bytes, *, whole: bool = False) -> tuple[JsonValue, bool]:
    """As `decode`, and whether no object repeats a key: only then `body` means the same to every
    reader.
    """
    repeated: list[JsonObject] = []

    def built(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            fields = _merged(pairs)
            repeated.append(fields)
        return fields

    text = _text(body)
    start = len(text) - len(text.lstrip(JSON_SPACE))
    if start == len(text):
        raise GoJsonError("EOF")
    is_large = len(body) > LARGE_BYTES
    value, end = _first_value(_decoder(built, in_pieces=is_large), text, start)
    if whole and text[end:].strip(JSON_SPACE):
        raise GoJsonError(f"invalid JSON near character {end}: another value")
    # With fewer brackets, those in texts included, nothing can be nested deeper: so the walk over
    # all values is rare.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _refuse_deep(value)
    # In a large body, each text was cleaned as it was read (`_string_in_pieces`).
    if not is_large and _SURROGATE_ESCAPE.search(body):
        value = _without_surrogates(value)
    return value, not repeated


def _first_value(decoder: json.JSONDecoder, text: str, start: int) -> tuple[JsonValue, int]:
    """The value that begins at `start`, and where it ends. Raises GoJsonError."""
    try:
        return decoder.raw_decode(text, start)
    except RecursionError:
        raise GoJsonError("exceeded max depth") from None
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip(JSON_SPACE)) or error.msg.startswith("Unterminated string"):
            raise GoJsonError(UNEXPECTED_END) from error
        raise GoJsonError(syntax_error(text)) from error
    except ValueError as error:  # more digits than Python reads
        raise GoJsonError("a number has too many digits") from error


def _decoder(
    built: Callable[[list[tuple[str, JsonValue]]], JsonObject], *, in_pieces: bool
) -> json.JSONDecoder:
    decoder = json.JSONDecoder(object_pairs_hook=built, parse_float=_finite, parse_constant=_finite)
    if in_pieces:  # in Python: slower, but other threads get the interpreter's lock in between
        parts: Any = decoder  # public in all but its stub
        parts.parse_string = _string_in_pieces
        parts.parse_object = _object_in_pieces
        parts.scan_once = py_make_scanner(decoder)
    return decoder


def check_structure(body: bytes, *, max_values: int = MAX_VALUES) -> int:
    """How many values and keys the JSON in `body` has at most, found in its bytes: a value costs a
    parser a hundred times its length.

    Raises BadRequest for more than `max_values`. What is in strings does not count, so text may be
    as long as it likes.
    """
    values = 0
    outside_bytes = 0
    inside = 0
    escape = b""
    for start in range(0, len(body), LARGE_BYTES):
        piece = escape + body[start : start + LARGE_BYTES]
        escape = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        piece = piece[: len(piece) - len(escape)]
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[inside::2])
        values += len(outside) - len(outside.translate(None, b",:[{"))
        outside_bytes += len(outside)
        inside ^= (len(parts) - 1) % 2
        if values > max_values:
            raise BadRequest(f"the body has more than {max_values:,} JSON values and keys")
        if outside_bytes > _MAX_OUTSIDE_MIB * MIB:
            raise BadRequest(
                f"the body has more than {_MAX_OUTSIDE_MIB} MiB of JSON outside of strings"
            )
    return values


def _merged(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """A repeated key takes the place and the value of its last occurrence, as Go's assignment order
    does. A null there leaves a Go `string` or `bool` as it was; of numbers Ollama keeps pointers
    nearly everywhere, which it takes away.
    """
    merged: JsonObject = {}
    for key, content in pairs:
        if content is None and isinstance(merged.get(key), str | bool):
            continue
        merged.pop(key, None)
        merged[key] = content
    return merged


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return _repaired(body)


def _repaired(body: bytes) -> str:
    """The text with U+FFFD for each byte that is none.

    Raises GoJsonError for more than `MAX_INVALID_BYTES` of them.
    """
    decoder = getincrementaldecoder("utf-8")("surrogateescape")
    pieces: list[str] = []
    invalid = 0
    for start in range(0, len(body), PIECE_CHARS):
        end = start + PIECE_CHARS
        decoded = decoder.decode(body[start:end], final=end >= len(body))
        piece, found = _SURROGATE.subn("\ufffd", decoded)
        pieces.append(piece)
        invalid += found
        if invalid > MAX_INVALID_BYTES:
            raise GoJsonError(
                f"the body has more than {MAX_INVALID_BYTES:,} bytes that are not UTF-8"
            )
    return "".join(pieces)


def _finite(digits: str) -> float:
    """Of a number, or of `NaN` and `Infinity`, which the scanner takes for some."""
    if digits[-1].isalpha():
        raise GoJsonError(syntax_error(digits))
    number = float(digits)
    if math.isinf(number):
        raise GoJsonError(f"the number {digits[:_SHOWN_DIGITS]} is too large")
    return number


def _string_in_pieces(
    text: str,
    start: int,
    strict: bool = True,  # noqa: FBT001, FBT002 - as the scanner calls it
) -> tuple[str, int]:
    """As `json.decoder.scanstring`, a piece of the text at a time, the first ones short; a lone
    surrogate is U+FFFD.
    """
    pieces: list[str] = []
    chars = _FIRST_PIECE_CHARS
    while start + chars < len(text):
        end = _end_of_piece(text, start, start + chars)
        try:
            found, read = scanstring(f'{text[start:end]}"', 0, strict)
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, text, start + error.pos) from None
        pieces.append(_without_surrogates_of(text[start:end], found))
        if read <= end - start:
            return "".join(pieces), start + read
        start = end
        chars = min(8 * chars, PIECE_CHARS)
    found, end = scanstring(text, start, strict)
    return "".join([*pieces, _without_surrogates_of(text[start:end], found)]), end


def _end_of_piece(text: str, start: int, end: int) -> int:
    """The last place up to `end` with no escape on both sides, nor a pair of them for one character
    (`\\ud83d\\ude00`).
    """
    end = _before_escape(text, start, end)
    if _HIGH_SURROGATE_ESCAPE.match(text, end - _ESCAPE_CHARS, end):
        end = _before_escape(text, start, end)
    return end


def _before_escape(text: str, start: int, end: int) -> int:
    """`end`, or the beginning of the escape that may go on there."""
    last = text.rfind("\\", end - _ESCAPE_CHARS, end)
    if last < 0:
        return end
    run = text[start : last + 1]
    backslashes = len(run) - len(run.rstrip("\\"))
    return last if backslashes % 2 else end  # of an even number, each second one is itself escaped


def _without_surrogates_of(written: str, read: str) -> str:
    r"""Of a text that has no surrogates but those of its escapes (`\ud800`)."""
    return _SURROGATE.sub("\ufffd", read) if "\\ud" in written or "\\uD" in written else read


def _key_in_pieces(text: str, start: int, *, strict: bool) -> tuple[str, int]:
    key, end = _string_in_pieces(text, start, strict)
    if end - start > MAX_KEY_CHARS + 1:
        raise GoJsonError(f"a key is longer than {MAX_KEY_CHARS:,} characters")
    return key, end


def _object_in_pieces(
    text_and_start: tuple[str, int],
    strict: bool,  # noqa: FBT001 - as the scanner calls it
    scan: Callable[[str, int], tuple[JsonValue, int]],
    _hook: object,
    built: Callable[[list[tuple[str, JsonValue]]], JsonObject],
    known: dict[str, str],
) -> tuple[JsonObject, int]:
    """As the parser of objects of `json.decoder`, with keys read in pieces: what begins behind a
    `{`, and where it ends.

    `known` has each key once, however many objects have it.
    """
    text, start = text_and_start
    pairs: list[tuple[str, JsonValue]] = []
    at = _behind_space(text, start).end()
    if text[at : at + 1] == "}":
        return built(pairs), at + 1
    while True:
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError(
                "Expecting property name enclosed in double quotes", text, at
            )
        key, at = _key_in_pieces(text, at + 1, strict=strict)
        if text[at : at + 1] != ":":  # nobody writes a space there: the match would be for nothing
            at = _behind_space(text, at).end()
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
        try:
            value, at = scan(text, _behind_space(text, at + 1).end())
        except StopIteration as error:
            raise json.JSONDecodeError("Expecting value", text, error.value) from None
        pairs.append((known.setdefault(key, key), value))
        at = _behind_space(text, at).end()
        if text[at : at + 1] == "}":
            return built(pairs), at + 1
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _behind_space(text, at + 1).end()


def _refuse_deep(value: JsonValue) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inside = [
            list(node.values()) if isinstance(node, dict) else node
            for node in level
            if isinstance(node, dict | list)
        ]
        level = [
            child for children in inside for child in children if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise GoJsonError("exceeded max depth")


def _without_surrogates(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {
            _SURROGATE.sub("\ufffd", key): _without_surrogates(item) for key, item in value.items()
        }
    return value


def encode(value: JsonValue | Mapping[str, JsonValue]) -> bytes:
    """`value` as Go's `json.Marshal` writes it: no spaces, `<`, `>`, `&`, U+2028 and U+2029
    escaped, all else raw UTF-8. Key order is kept. Floats are written as Python does (`1.0`, not
    `1`): the same number, not always the same bytes.
    """
    text = _written(value)
    # a call for each sign of a text full of them would hold up the loop
    for char, escape in _ESCAPES.items():
        text = text.replace(char, escape)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def encode_large(value: JsonValue | Mapping[str, JsonValue]) -> bytes:
    """As `encode`, but in pieces, so that other threads get the interpreter's lock, and with
    nothing escaped for HTML.
    """
    pieces: list[bytes] = []
    _encode_into(pieces, value)
    return b"".join(pieces)


def _encode_into(pieces: list[bytes], value: JsonValue | Mapping[str, JsonValue]) -> None:
    if isinstance(value, str):
        _encode_text_into(pieces, value)
    elif isinstance(value, Mapping):
        mark = b"{"
        for key, each in value.items():
            pieces.append(mark)
            _encode_text_into(pieces, key)
            pieces.append(b":")
            _encode_into(pieces, each)
            mark = b","
        pieces.append(b"}" if value else b"{}")
    elif isinstance(value, list):
        mark = b"["
        for each in value:
            pieces.append(mark)
            _encode_into(pieces, each)
            mark = b","
        pieces.append(b"]" if value else b"[]")
    else:
        pieces.append(json.dumps(value, allow_nan=False).encode())


def _encode_text_into(pieces: list[bytes], text: str) -> None:
    pieces.append(b'"')
    for start in range(0, len(text), PIECE_CHARS):
        written: str = encode_basestring(text[start : start + PIECE_CHARS])
        pieces.append(_SURROGATE.sub("\ufffd", written[1:-1]).encode())
    pieces.append(b'"')


def lookup(fields: JsonObject, name: str) -> JsonValue:
    """The value that Go puts into the field tagged `name` (lower case): the last key that matches
    in any case; None if absent or null.
    """
    return folded(fields).get(name)


def folded(fields: JsonObject) -> JsonObject:
    """The fields under the names by which Go knows them; the very same object where it has no
    others. Of several spellings the last one that is not null counts; Go merges the objects among
    them.
    """
    keys = "".join(fields)
    if keys.isascii() and keys == keys.lower():
        return fields
    known: JsonObject = {}
    merged: JsonObject = {}  # copies, which may be added to
    for key, value in fields.items():
        name = key.lower().replace("\u017f", "s")  # Go's `foldName`; `lower` folds U+212A to `k`
        before = known.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            if before is not merged.get(name):
                before = known[name] = merged[name] = {**before}
            before.update(value)
        else:
            known[name] = before if value is None else value
    return known


_GO_TYPES = {"string": "string", "boolean": "bool", "integer": "int", "number": "float64"}
_GO_KINDS: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
"""What Go calls a value that it reads; the first one that fits."""


class Body:
    """A JSON object as Go reads it: keys in any letter case, null as if absent.

    A value of another type raises GoJsonError: in Go's own words where `within` says what the
    fields belong to there, such as `ChatRequest.messages.`, and they are of a simple type.
    """

    def __init__(self, value: JsonValue, name: str = "the body", *, within: str = "") -> None:
        if value is not None and not isinstance(value, dict):
            raise GoJsonError(f"{name} must be of type object")
        self.fields = folded(value or {})
        self._within = within

    def get(self, name: str) -> JsonValue:
        """Of any type; None if absent or null."""
        return self.fields.get(name)

    def string(self, name: str) -> str:
        """Empty if absent, like arrays and objects; numbers are None then."""
        return self._typed(name, str, "string") or ""

    def array(self, name: str) -> list[JsonValue]:
        """Of anything."""
        return self._typed(name, list, "array") or []

    def objects(self, name: str, *, within: str = "") -> list[Body]:
        """An array of objects; `within`: what their fields belong to in Go."""
        return [Body(one, f"every entry of {name}", within=within) for one in self.array(name)]

    def map(self, name: str) -> JsonObject:
        """An object whose keys are the caller's own."""
        return self._typed(name, dict, "object") or {}

    def object(self, name: str) -> Body:
        """An object inside."""
        return Body(self.map(name))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        given = self._typed(name, bool, "boolean")
        return default if given is None else given

    def integer(self, name: str) -> int | None:
        """`1.5` is none, nor is what takes more than 64 bits."""
        value = self._typed(name, int, "integer")
        if value is not None and not -MAX_INT - 1 <= value <= MAX_INT:
            raise GoJsonError(
                self._go_says(name, value, "integer")
                or f"{name} must be of type integer, of 64 bits"
            )
        return value

    def number(self, name: str) -> float | None:
        """Whole or not."""
        value = self.get(name)
        return value if isinstance(value, float) else self._typed(name, int, "number")

    def _typed(self, name: str, kind: type[T], type_name: str) -> T | None:
        value = self.fields.get(name)
        if value is None or (
            isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        ):
            return value
        raise GoJsonError(
            self._go_says(name, value, type_name) or f"{name} must be of type {type_name}"
        )

    def _go_says(self, name: str, value: JsonValue, type_name: str) -> str:
        """Empty where Go's words are not known."""
        wanted = _GO_TYPES.get(type_name, "")
        if not self._within or not wanted:
            return ""
        kind = next(kind for kind, types in _GO_KINDS.items() if isinstance(value, types))
        given = f"{kind} {value}" if kind == "number" and wanted == "int" else kind
        place = f"{self._within}{name}"
        return f"json: cannot unmarshal {given} into Go struct field {place} of type {wanted}"
