"""What Go's JSON parser says of a text that is no JSON: the character that cannot stand there, and
what it looked for (`encoding/json`, scanner.go).

Read again from the beginning, once Python's parser has refused the text: its own errors name a
place, but neither what is around it nor in Go's words.
"""

from __future__ import annotations

import re

UNEXPECTED_END = "unexpected EOF"
_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]{0,8192}')
"""A piece of a string: one call into C keeps the interpreter's lock."""
_DIGITS = re.compile(r"[0-9]*")
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_ESCAPED = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_QUOTED = {"'": "\\'", '"': '"', "\\": "\\\\", "\v": "\\v", **_ESCAPED}


class _Refused(Exception):
    """The text goes no further."""


class _Scan:
    """Reads one value; raises `_Refused` where it cannot go on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self) -> None:
        """Of any kind. Containers are kept in a list of their own: text may nest deeply."""
        closers: list[str] = []
        while True:
            if self._opens(closers):
                continue
            while closers and self._closes_after_value(closers):
                pass
            if not closers:
                return

    def _opens(self, closers: list[str]) -> bool:
        """Read up to the end of a value that holds no other, or into a container; True there."""
        first = self._next()
        if first == "{":
            closers.append("}")
            return not self._is_empty("}") and self._key()
        if first == "[":
            closers.append("]")
            return not self._is_empty("]")
        self._scalar(first)
        return False

    def _is_empty(self, closer: str) -> bool:
        """The container ends at once; its end is read by `_closes_after_value`."""
        return self._peek() == closer

    def _closes_after_value(self, closers: list[str]) -> bool:
        """What follows a value: True for the end of its container, which is a value itself."""
        closer = closers[-1]
        found = self._next()
        if found == closer:
            closers.pop()
            return True
        if found != ",":
            what = "object key:value pair" if closer == "}" else "array element"
            raise self._refused(f"after {what}")
        if closer == "}":
            self._key()
        return False

    def _key(self) -> bool:
        """A key and its colon; always True: a value follows."""
        if self._next() != '"':
            raise self._refused("looking for beginning of object key string")
        self._string()
        if self._next() != ":":
            raise self._refused("after object key")
        return True

    def _scalar(self, first: str) -> None:
        if first == '"':
            self._string()
        elif first in _LITERALS:
            self._literal(_LITERALS[first])
        elif first == "-" or "0" <= first <= "9":
            self._number(first)
        else:
            raise self._refused("looking for beginning of value")

    def _literal(self, word: str) -> None:
        for expected in word[1:]:
            if self._take() != expected:
                raise self._refused(f"in literal {word} (expecting '{expected}')")

    def _number(self, first: str) -> None:
        if first == "-":
            first = self._take()
            if not "0" <= first <= "9":
                raise self._refused("in numeric literal")
        if first != "0":
            self._digits()
        if self._at < len(self._text) and self._text[self._at] == ".":
            self._at += 1
            self._digit("after decimal point in numeric literal")
        if self._at < len(self._text) and self._text[self._at] in "eE":
            self._at += 1
            if self._at < len(self._text) and self._text[self._at] in "+-":
                self._at += 1
            self._digit("in exponent of numeric literal")

    def _digit(self, where: str) -> None:
        if not "0" <= self._take() <= "9":
            raise self._refused(where)
        self._digits()

    def _digits(self) -> None:
        self._at = _DIGITS.match(self._text, self._at).end()  # type: ignore[union-attr]

    def _string(self) -> None:
        while True:
            self._at = _PLAIN.match(self._text, self._at).end()  # type: ignore[union-attr]
            found = self._take()
            if found == '"':
                return
            if found == "\\":
                self._escape()
            elif found < " ":
                raise self._refused("in string literal")

    def _escape(self) -> None:
        kind = self._take()
        if kind == "u":
            for _ in range(4):
                if self._take() not in "0123456789abcdefABCDEF":
                    raise self._refused("in \\u hexadecimal character escape")
        elif kind not in 'bfnrt\\/"':
            raise self._refused("in string escape code")

    def _next(self) -> str:
        """The next character that is no space."""
        self._skip()
        return self._take()

    def _peek(self) -> str:
        self._skip()
        return self._text[self._at : self._at + 1]

    def _skip(self) -> None:
        self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise _Refused(UNEXPECTED_END)
        self._at += 1
        return self._text[self._at - 1]

    def _refused(self, context: str) -> _Refused:
        """At the character that was read last."""
        return _Refused(f"invalid character {_quoted(self._text[self._at - 1])} {context}")


def syntax_error(text: str) -> str:
    """What Go says of a text that does not begin with a JSON value."""
    try:
        _Scan(text).value()
    except _Refused as refused:
        return str(refused)
    return UNEXPECTED_END


def _quoted(char: str) -> str:
    """As Go quotes a character; it reads bytes, so of others than ASCII it shows the first one."""
    char = chr(char.encode(errors="replace")[0])
    if char in _QUOTED:
        return f"'{_QUOTED[char]}'"
    if char.isprintable():
        return f"'{char}'"
    return f"'\\x{ord(char):02x}'" if ord(char) < 0x80 else f"'\\u{ord(char):04x}'"
