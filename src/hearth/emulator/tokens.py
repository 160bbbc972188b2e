"""Tokens of the emulated models: counting and numbering text. Pure; called by the planner of replies and the handlers."""

from __future__ import annotations

import re
from functools import reduce

from hearth.emulator.models import EmulatedModel

_WORD_PART = re.compile(r"\s?\w{1,6}|\s?[^\w\s]|\s+")
_BEGIN_TOKENS = 1


def count_tokens(model: EmulatedModel, text: str) -> int:
    """Size of `text` as a prompt, the begin-of-text token included."""
    tokens = len(text.replace(" ", "\u2581").encode()) if model.byte_tokens else sum(1 for _ in _WORD_PART.finditer(text))
    return tokens + _BEGIN_TOKENS


def token_ids(model: EmulatedModel, text: str) -> list[int]:
    """The numbers of the tokens of `text`: bytes plus 3 for a byte-level model (a blank is U+2581 there), else word pieces."""
    if model.byte_tokens:
        return [byte + 3 for byte in text.replace(" ", "\u2581").encode()]
    return [_number(piece) for piece in _WORD_PART.findall(text)]


def pieces_of(text: str) -> tuple[str, ...]:
    """`text` cut into word pieces; joined they are `text` again."""
    return tuple(_WORD_PART.findall(text))


def _number(piece: str) -> int:
    return reduce(lambda total, char: (total * 131 + ord(char)) % 151_643, piece, 7)
