"""JSON as Ollama reads and writes it: Go's encoding/json, error texts included.

Whatever the gateway believes about a body must be what Ollama will read from the same bytes, so the differences between the two parsers are
settled here: keys match in any letter case and the last one wins, invalid text becomes U+FFFD, data after the first value is ignored, NaN
is refused. Must never know a route or a field.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in all but its stub
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import NoReturn, TypeAlias

from hearth.dialects.goscan import MAX_DEPTH, GoJsonError, refuse_malformed
from hearth.errors import BadRequest
from hearth.types import MIB, value

__all__ = [
    "LARGE_BYTES",
    "MAX_DEPTH",
    "MAX_INT",
    "MAX_VALUES",
    "Document",
    "GoJsonError",
    "JsonObject",
    "JsonValue",
    "array_field",
    "bool_field",
    "check_structure",
    "decode",
    "decode_document",
    "encode",
    "encode_large",
    "integer_field",
    "lookup",
    "lookup_all",
    "mismatch",
    "object_field",
    "spellings",
    "string_field",
    "struct_of",
    "without",
]

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = "dict[str, JsonValue]"

MAX_INT = 2**63 - 1
"""The largest number that Go's `int` holds."""

MAX_VALUES = 300_000
"""Most values and keys in one request body: twice what a prompt of 128,000 token numbers has, and a second of work for the parser."""

_MAX_OUTSIDE_MIB = 8
"""Most bytes outside of strings: white space and digits cost time, too."""

LARGE_BYTES = 256 * 1024
"""A larger text is read and written in pieces of this size: one call into C keeps the interpreter's lock, and every thread waits."""

_EXPLAINED_BYTES = 64 * 1024
"""How much of a broken body is scanned for Go's text; the rest of a larger one gets a plainer text."""

_SPACE = " \t\r\n"
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE_CHARS = len("\\u0000") - 1
_FIRST_PIECE_CHARS = 512
_ESCAPED = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


@value
class Document:
    """A decoded body. `exact`: False when re-encoding `value` would mean something else to a reader that handles duplicates otherwise."""

    value: JsonValue
    exact: bool


def decode(body: bytes) -> JsonValue:
    """The first JSON value of `body`.

    Raises GoJsonError with the text of Go's `json.Decoder` (`EOF` for a body of white space, `unexpected EOF`, `invalid character …`), and
    with `exceeded max depth` for more than MAX_DEPTH nested containers.
    """
    return decode_document(body).value


def decode_document(body: bytes) -> Document:
    """As `decode`, and whether any object repeated a key (Go merges repeated objects, so the bytes and the value may differ)."""
    text, exact = _text(body), True
    usual, merging = (_USUAL, _MERGING) if len(body) <= LARGE_BYTES else (_USUAL_LARGE, _MERGING_LARGE)
    start = len(text) - len(text.lstrip(_SPACE))
    try:
        try:
            value: JsonValue = usual.raw_decode(text, start)[0]
        except _KeyRepeatedError:
            value, exact = merging.raw_decode(text, start)[0], False
    except RecursionError:
        raise GoJsonError("exceeded max depth") from None
    except ValueError as error:
        _refuse(body, error)
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _refuse_deep(value)
    if any(_SURROGATE_ESCAPE.search(body, start, start + LARGE_BYTES + _ESCAPE_CHARS) for start in range(0, len(body), LARGE_BYTES)):
        value = _without_surrogates(value)
    return Document(value=value, exact=exact)


def check_structure(body: bytes, *, max_values: int = MAX_VALUES) -> int:
    """How many values and keys the JSON in `body` has at most, found in its bytes: a value costs a parser a hundred times its length.

    Raises BadRequest for more than `max_values`. What is in strings does not count, so text may be as long as it likes.
    """
    values, outside_bytes, inside, escape = 0, 0, 0, b""
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
            raise BadRequest(f"the body has more than {_MAX_OUTSIDE_MIB} MiB of JSON outside of strings")
    return values


class _PlainObject(dict[str, JsonValue]):
    """A decoded object in which every key is known to be its own only spelling: ASCII in lower case. Nobody adds to one."""

    __slots__ = ()


class _KeyRepeatedError(Exception):
    """An object says the same key twice."""


def _built(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    built = _PlainObject(pairs)
    if len(built) != len(pairs):
        raise _KeyRepeatedError
    return built if _are_plain(built) else dict(built)


def _merged(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """A repeated key takes the place and the value of its last occurrence, as Go's assignment order does.

    A null there leaves a Go `string` or `bool` as it was; of numbers Ollama keeps pointers nearly everywhere, which it takes away.
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
        decoder = codecs.getincrementaldecoder("utf-8")()
        starts = range(0, len(body), LARGE_BYTES)
        return "".join([decoder.decode(body[start : start + LARGE_BYTES], final=start == starts[-1]) for start in starts])
    except UnicodeDecodeError:
        return _SURROGATE.sub("\ufffd", body.decode(errors="surrogateescape"))


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise GoJsonError(f"json: cannot unmarshal number {digits} into Go value of type float64")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


class _LargeDecoder(json.JSONDecoder):
    """The same in Python, with long strings in pieces: slower, but other threads get the interpreter's lock every few milliseconds."""

    def __init__(self, pairs_hook: Callable[[list[tuple[str, JsonValue]]], JsonObject]) -> None:
        super().__init__(object_pairs_hook=pairs_hook, parse_float=_finite, parse_constant=_no_constant)
        self.parse_string = _string_in_pieces
        self.scan_once = py_make_scanner(self)


def _string_in_pieces(text: str, start: int, strict: bool = True) -> tuple[str, int]:  # noqa: FBT001, FBT002 - as the scanner calls it
    """As `json.decoder.scanstring`, a piece of the text at a time, the first ones short; none ends inside an escape."""
    pieces: list[str] = []
    chars = _FIRST_PIECE_CHARS
    while start + chars < len(text):
        piece = _whole_escapes(text[start : start + chars])
        try:
            found, end = scanstring(f'{piece}"', 0, strict)
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, text, start + error.pos) from None
        _append(pieces, found)
        if end <= len(piece):
            return "".join(pieces), start + end
        start, chars = start + len(piece), min(8 * chars, LARGE_BYTES)
    found, end = scanstring(text, start, strict)
    _append(pieces, found)
    return "".join(pieces), end


def _whole_escapes(piece: str) -> str:
    """The piece up to an escape that may go on behind it."""
    last = piece.rfind("\\", -_ESCAPE_CHARS)
    if last < 0:
        return piece
    up_to = piece[: last + 1]
    return up_to[: len(up_to) - (len(up_to) - len(up_to.rstrip("\\"))) % 2]


def _append(pieces: list[str], found: str) -> None:
    """Put two surrogates that were cut apart together."""
    if pieces and "\ud800" <= pieces[-1][-1:] <= "\udbff" and "\udc00" <= found[:1] <= "\udfff":
        pair = (pieces[-1][-1] + found[0]).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        pieces[-1], found = pieces[-1][:-1] + pair, found[1:]
    pieces.append(found)


_USUAL = json.JSONDecoder(object_pairs_hook=_built, parse_float=_finite, parse_constant=_no_constant)
_MERGING = json.JSONDecoder(object_pairs_hook=_merged, parse_float=_finite, parse_constant=_no_constant)
_USUAL_LARGE = _LargeDecoder(_built)
_MERGING_LARGE = _LargeDecoder(_merged)


def _refuse(body: bytes, error: ValueError) -> NoReturn:
    if len(body) <= _EXPLAINED_BYTES:
        refuse_malformed(body)
        raise GoJsonError("json: cannot unmarshal number into Go value of type float64") from error
    if isinstance(error, json.JSONDecodeError):
        if error.pos >= len(error.doc.rstrip(_SPACE)) or error.msg.startswith("Unterminated string"):
            raise GoJsonError("unexpected EOF") from error
        raise GoJsonError(f"invalid JSON near byte {error.pos}: {error.msg}") from error
    raise GoJsonError("invalid JSON") from error


def _refuse_deep(value: JsonValue) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
        if not level:
            return
    raise GoJsonError("exceeded max depth")


def _children(node: JsonValue) -> list[JsonValue]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def _without_surrogates(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return "".join([_SURROGATE.sub("\ufffd", piece) for piece in _slices(value)])
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", key): _without_surrogates(item) for key, item in value.items()}
    return value


def encode(value: JsonValue | Mapping[str, JsonValue]) -> bytes:
    """`value` as Go's `json.Marshal` writes it: no spaces, `<`, `>`, `&`, U+2028 and U+2029 escaped, all else raw UTF-8.

    Key order is kept. Floats are written as Python does (`1.0`, not `1`): the same number, not always the same bytes.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _ESCAPED.sub(_escape, text).encode()


def encode_large(value: JsonValue | Mapping[str, JsonValue]) -> bytes:
    """As `encode`, but for a request: in pieces, so that other threads get the interpreter's lock, and with nothing escaped for HTML."""
    return b"".join(_encoded(value))


def _encoded(value: JsonValue | Mapping[str, JsonValue]) -> Iterator[bytes]:
    if isinstance(value, str):
        yield b'"'
        for piece in _slices(value):
            yield json.dumps(_SURROGATE.sub("\ufffd", piece), ensure_ascii=False)[1:-1].encode()
        yield b'"'
    elif isinstance(value, Mapping):
        for number, (key, content) in enumerate(value.items()):
            yield b"," if number else b"{"
            yield from _encoded(key)
            yield b":"
            yield from _encoded(content)
        yield b"}" if value else b"{}"
    elif isinstance(value, list):
        for number, content in enumerate(value):
            yield b"," if number else b"["
            yield from _encoded(content)
        yield b"]" if value else b"[]"
    else:
        yield encode(value)


def _slices(text: str) -> Iterator[str]:
    return (text[start : start + LARGE_BYTES] for start in range(0, len(text), LARGE_BYTES))


def _escape(found: re.Match[str]) -> str:
    char = found.group()
    return "\ufffd" if _SURROGATE.match(char) else f"\\u{ord(char):04x}"


def _fold(key: str) -> str:
    """Go's `foldName` for ASCII names: U+212A and U+017F fold to `k` and `s` too."""
    return key.lower().replace("\u017f", "s")


def lookup(fields: Mapping[str, JsonValue], name: str) -> JsonValue:
    """The value that Go puts into the field tagged `name` (lower case): the last key that matches in any case; None if absent or null."""
    if type(fields) is _PlainObject or _are_plain(fields):
        return fields.get(name)
    found: JsonValue = None
    for key in spellings(fields, name):
        found = found if fields[key] is None else fields[key]
    return found


def lookup_all(fields: Mapping[str, JsonValue], names: Iterable[str]) -> list[JsonValue]:
    """As `lookup`, for several names; those that are absent or null are left out."""
    if type(fields) is _PlainObject or _are_plain(fields):
        return [value for name in names if (value := fields.get(name)) is not None]
    return [value for value in (lookup(fields, name) for name in names) if value is not None]


def spellings(fields: Mapping[str, JsonValue], name: str) -> list[str]:
    """The keys that Go would read as `name` (lower case), in document order."""
    if type(fields) is _PlainObject or _are_plain(fields):
        return [name] if name in fields else []
    return [key for key in fields if key == name or _fold(key) == name]


def _are_plain(keys_of: Iterable[str]) -> bool:
    """No key is spelled in any way but its own: nearly every object that is ever sent."""
    keys = "".join(keys_of)
    return keys.isascii() and keys == keys.lower()


def without(fields: Mapping[str, JsonValue], name: str) -> JsonObject:
    """A copy without any key that Go would read as `name`; the order of the others is kept."""
    if type(fields) is _PlainObject:
        return {key: value for key, value in fields.items() if key != name}
    return {key: value for key, value in fields.items() if _fold(key) != name}


def struct_of(value: JsonValue, struct: str) -> JsonObject:
    """The object that a Go struct is filled from; null is an empty one. Raises GoJsonError for any other type."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise GoJsonError(f"json: cannot unmarshal {_kind(value)} into Go value of type {struct}")
    return value


def string_field(fields: Mapping[str, JsonValue], name: str, struct: str) -> str:
    """A Go `string` field, empty if absent. Raises GoJsonError for another type, naming `struct`."""
    value = lookup(fields, name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise mismatch(value, name, struct, "string")
    return value


def bool_field(fields: Mapping[str, JsonValue], name: str, struct: str) -> bool | None:
    """A Go `*bool` field, None if absent. Raises GoJsonError for another type."""
    value = lookup(fields, name)
    if value is not None and not isinstance(value, bool):
        raise mismatch(value, name, struct, "bool")
    return value


def integer_field(fields: Mapping[str, JsonValue], name: str, struct: str) -> int | None:
    """A Go `*int` field, None if absent. Raises GoJsonError for another type, for `1.5` and for more than 64 bits."""
    value = lookup(fields, name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not -MAX_INT - 1 <= value <= MAX_INT):
        raise mismatch(value, name, struct, "int")
    return value


def array_field(fields: Mapping[str, JsonValue], name: str, struct: str, go_type: str) -> list[JsonValue]:
    """A Go slice field of type `go_type` (as Go writes it, `[]api.Message`), empty if absent. Raises GoJsonError for another type."""
    value = lookup(fields, name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise mismatch(value, name, struct, go_type)
    return value


def object_field(fields: Mapping[str, JsonValue], name: str, struct: str, go_type: str) -> JsonObject:
    """A Go map or struct field of type `go_type`, empty if absent. Raises GoJsonError for another type."""
    value = lookup(fields, name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise mismatch(value, name, struct, go_type)
    return value


def mismatch(value: JsonValue, name: str, struct: str, go_type: str) -> GoJsonError:
    """The error for a value that does not fit the field `struct`.`name` of Go type `go_type`; `name` may be a dotted path."""
    kind = _kind(value)
    if kind == "number" and go_type == "int":
        kind = f"number {value!r}"
    return GoJsonError(f"json: cannot unmarshal {kind} into Go struct field {struct}.{name} of type {go_type}")


def _kind(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"
