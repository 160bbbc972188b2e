"""Log probabilities of emulated tokens: plausible, deterministic, in Ollama's field order. Pure; called by the handlers."""

from __future__ import annotations

from collections.abc import Iterable

from hearth.dialects.gojson import JsonObject, JsonValue
from hearth.emulator.text import Piece, draws


def logprobs_of(pieces: Iterable[Piece], *, top: int) -> list[JsonValue]:
    """One entry per piece with `top` alternatives (0 for none), the likeliest first."""
    return [_entry(piece.text, top) for piece in pieces]


def _entry(text: str, top: int) -> JsonObject:
    source = draws(text)
    entry = _token(text, -(next(source) % 4000 + 1) / 1000)
    if top:
        others: list[JsonValue] = [_token(f"{text}{place}", -(1.0 + place)) for place in range(1, top)]
        entry["top_logprobs"] = [_token(text, -(next(source) % 1000 + 1) / 1000), *others]
    return entry


def _token(text: str, logprob: float) -> JsonObject:
    return {"token": text, "logprob": logprob, "bytes": [*text.encode()]}
