"""What an emulated model says: a deterministic function of model, prompt and seed.

Pure; no randomness of its own (draws come from a hash). Called by `session` and the handlers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, count, islice

from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.emulator.models import EmulatedModel
from hearth.emulator.samples import sample
from hearth.emulator.tokens import pieces_of

_WORDS = (
    "the of and to a in is it you that he was for on are with as his they at be this from have or by one had not but what all were "
    "when we there can an your which their said if do will each about how up out them then she many some so these would other into "
    "has more her two like him see time could no make than first been its who now people my made over did down only way find use may "
    "water long little very after words called just where most know house light garden river morning kitchen window answer question "
    "small warm quiet paper table letter story music winter summer road home lamp door note plan part place point"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model makes of one of the tools it was given."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What shapes a reply besides the prompt.

    Attributes:
        limit_tokens: at most this many, None for the natural length.
        schema: `"json"`, a JSON schema, or None for free text.
        thinks: begin with some reasoning.
        tool: answer with this call instead of text.
    """

    seed: int
    limit_tokens: int | None = None
    stop: tuple[str, ...] = ()
    schema: JsonValue = None
    thinks: bool = False
    tool: ToolCall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One token of a reply."""

    text: str
    thinking: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPlan:
    """All that will be said. `reason` is Ollama's done_reason, None for the reply that breaks off without one."""

    pieces: tuple[Piece, ...]
    reason: str | None
    eval_tokens: int
    tool: ToolCall | None = None


def draws(key: str) -> Iterator[int]:
    """An endless sequence of 32-bit numbers that depends on `key` alone."""
    for block in count():
        digest = blake2b(f"{block} {key}".encode()).digest()
        for place in range(0, len(digest), 4):
            yield int.from_bytes(digest[place : place + 4])


def plan_reply(model: EmulatedModel, prompt: str, wish: Wish) -> ReplyPlan:
    """Decide the whole reply; a stop string ends it before the string, as in Ollama."""
    source = draws(f"{model.profile.name}\x00{wish.seed}\x00{prompt}")
    if wish.tool is not None:
        spent = len(pieces_of(encode({"name": wish.tool.name, "arguments": wish.tool.arguments}).decode()))
        return ReplyPlan(pieces=(), reason="stop", eval_tokens=spent, tool=wish.tool)
    pieces = _thoughts(source) if wish.thinks else []
    pieces += [Piece(text=text) for text in _said(model, wish, source)]
    return _bounded(pieces, wish)


def _thoughts(source: Iterator[int]) -> list[Piece]:
    words = _sentences(source, 8 + next(source) % 16)
    return [Piece(text=word, thinking=True) for word in words]


def _said(model: EmulatedModel, wish: Wish, source: Iterator[int]) -> list[str]:
    if wish.schema is not None:
        return list(pieces_of(encode(sample(wish.schema, source)).decode()))
    natural_tokens = 40 + next(source) % 161
    if not model.ends:
        natural_tokens = wish.limit_tokens or 10 * 4096
    wanted = natural_tokens if wish.limit_tokens is None else min(natural_tokens, wish.limit_tokens + 1)
    if model.vocabulary:
        return [model.vocabulary[number % len(model.vocabulary)] for number in islice(source, wanted)]
    return _sentences(source, wanted)


def _sentences(source: Iterator[int], tokens: int) -> list[str]:
    words = _WORDS.split()
    said: list[str] = []
    begins = True
    while len(said) < tokens:
        word = words[next(source) % len(words)]
        said.append(("" if not said else " ") + (word.capitalize() if begins else word))
        begins = next(source) % 9 == 0
        if begins:
            said.append(".")
    if said and not begins:
        said.append(".")
    return said


def _bounded(pieces: list[Piece], wish: Wish) -> ReplyPlan:
    kept, reason = _until_stop(pieces, wish.stop), "stop"
    if wish.limit_tokens is not None and len(kept) >= wish.limit_tokens:
        kept, reason = kept[: wish.limit_tokens], "length"
    repeated = _run_length_limit(kept)
    if repeated is not None:
        return ReplyPlan(pieces=tuple(kept[:repeated]), reason=None, eval_tokens=repeated)
    return ReplyPlan(pieces=tuple(kept), reason=reason, eval_tokens=len(kept) + (reason == "stop"))


def _until_stop(pieces: list[Piece], stops: tuple[str, ...]) -> list[Piece]:
    ends = list(accumulate(len(piece.text) for piece in pieces))
    whole = "".join(piece.text for piece in pieces)
    cuts = [place for place in (whole.find(stop) for stop in stops if stop) if place >= 0]
    if not cuts:
        return pieces
    cut = min(cuts)
    kept = [piece for piece, end in zip(pieces, ends, strict=True) if end <= cut]
    rest = whole[sum(len(piece.text) for piece in kept) : cut]
    return [*kept, Piece(text=rest)] if rest else kept


def _run_length_limit(pieces: list[Piece]) -> int | None:
    """Where Ollama gives up on a reply: more than 30 equal tokens in a row; None if it never does."""
    run = 0
    for place, piece in enumerate(pieces):
        run = run + 1 if place and piece.text.strip() == pieces[place - 1].text.strip() else 0
        if run > 30:
            return place
    return None
