"""Finds what Go's JSON decoder would say about a body that is not JSON.

Runs only after the fast parser has refused a body, and only over its beginning: the cost is bounded whatever a caller sends. It must never
accept or build a value. The texts are those of Go's encoding/json (scanner.go, `scanner.error`, and `Decoder.readValue` for the two ends of
file).
"""

from __future__ import annotations

import re

from hearth.errors import BadRequest

MAX_DEPTH = 64
"""Containers inside containers; Go itself stops at 10,000, a request to a model needs a tenth of ours."""

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING_BODY = re.compile(rb'"(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
_HEX = re.compile(rb"[0-9a-fA-F]*")
_DIGITS = re.compile(rb"[0-9]*")
_LITERALS = {b"t": b"true", b"f": b"false", b"n": b"null"}


class GoJsonError(BadRequest):
    """A body that Go's JSON decoder would refuse, or refuse to put into a field; the message is Go's own."""


def refuse_malformed(body: bytes) -> None:
    """Raises GoJsonError with Go's text for the first fault in the first value of `body`; returns when there is none."""
    _Scan(body).value()


class _Scan:
    """One pass over a body, with the open containers on a stack."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0
        self._open: list[bytes] = []

    def value(self) -> None:
        if self._peek() == b"":
            raise GoJsonError("EOF")
        self._begin_value()
        while self._open:
            self._after_value()

    def _peek(self) -> bytes:
        """The next byte that is not white space, empty at the end."""
        found = _SPACE.match(self._body, self._at)
        self._at = self._at if found is None else found.end()
        return self._body[self._at : self._at + 1]

    def _begin_value(self) -> None:
        char = self._peek()
        if char in (b"{", b"["):
            self._enter(char)
        elif char == b'"':
            self._string()
        elif char in _LITERALS:
            self._literal(_LITERALS[char])
        elif char == b"-" or char.isdigit():
            self._number()
        else:
            self._refuse("looking for beginning of value")

    def _enter(self, bracket: bytes) -> None:
        self._open.append(bracket)
        if len(self._open) > MAX_DEPTH:
            raise GoJsonError("exceeded max depth")
        self._at += 1
        if self._peek() == (b"}" if bracket == b"{" else b"]"):
            self._leave()
        else:
            self._next_member()

    def _leave(self) -> None:
        self._at += 1
        self._open.pop()

    def _next_member(self) -> None:
        if self._open[-1] == b"{":
            self._key()
        self._begin_value()

    def _key(self) -> None:
        if self._peek() != b'"':
            self._refuse("looking for beginning of object key string")
        self._string()
        if self._peek() != b":":
            self._refuse("after object key")
        self._at += 1

    def _after_value(self) -> None:
        in_object = self._open[-1] == b"{"
        char = self._peek()
        if char == (b"}" if in_object else b"]"):
            self._leave()
        elif char == b",":
            self._at += 1
            self._next_member()
        else:
            self._refuse("after object key:value pair" if in_object else "after array element")

    def _string(self) -> None:
        self._skip(_STRING_BODY)
        char = self._body[self._at : self._at + 1]
        if char == b"\\":
            self._escape()
        elif char != b'"':
            self._refuse("in string literal")
        self._at += 1

    def _escape(self) -> None:
        self._at += 1
        if self._body[self._at : self._at + 1] != b"u":
            self._refuse("in string escape code")
        self._at += 1
        self._skip(_HEX)
        self._refuse("in \\u hexadecimal character escape")

    def _literal(self, word: bytes) -> None:
        for offset, expected in enumerate(word):
            if self._body[self._at : self._at + 1] != bytes((expected,)):
                self._refuse(f"in literal {word.decode()} (expecting {chr(expected)!r})" if offset else "looking for beginning of value")
            self._at += 1

    def _number(self) -> None:
        if self._take(b"-"):
            self._need_digit("in numeric literal")
        if not self._take(b"0"):
            self._skip(_DIGITS)
        if self._take(b"."):
            self._need_digit("after decimal point in numeric literal")
            self._skip(_DIGITS)
        if self._take(b"eE"):
            self._take(b"+-")
            self._need_digit("in exponent of numeric literal")
            self._skip(_DIGITS)

    def _take(self, choices: bytes) -> bool:
        char = self._body[self._at : self._at + 1]
        taken = char != b"" and char in choices
        self._at += taken
        return taken

    def _need_digit(self, context: str) -> None:
        if not self._body[self._at : self._at + 1].isdigit():
            self._refuse(context)

    def _skip(self, pattern: re.Pattern[bytes]) -> None:
        found = pattern.match(self._body, self._at)
        self._at = self._at if found is None else found.end()

    def _refuse(self, context: str) -> None:
        if self._at >= len(self._body):
            raise GoJsonError("unexpected EOF")
        raise GoJsonError(f"invalid character {_quoted(self._body[self._at])} {context}")


def _quoted(byte: int) -> str:
    """Go's `quoteChar`: the byte taken as a code point, in single quotes."""
    char = chr(byte)
    if char == "'":
        return r"'\''"
    if char == '"':
        return "'\"'"
    escaped = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\\": r"\\"}.get(char)
    if escaped is None:
        escaped = char if char.isprintable() else (f"\\x{byte:02x}" if byte < 0x80 else f"\\u{byte:04x}")
    return f"'{escaped}'"
