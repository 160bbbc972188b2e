"""What an emulated model writes: each word is a function of the model, the text so far and the
seed, as with a real one.

So a reply that is asked for again from its middle goes on as it would have, and whoever knows the
words that can follow sees where a letter is missing. Pure: draws come from a hash.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate, count, islice, pairwise
from math import sqrt

from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.writers import Generation, TextPart, ToolCall
from hearth.emulator.models import EmulatedModel
from hearth.emulator.prompts import ASSISTANT, GREEDY_SEED, THOUGHT, ChatMessage, pieces_of
from hearth.types import frozen

_TEXT = (
    "the of and to a in is it you that he was for on are with as his they at be this from have or"
    " by one had not but what all were when we there can an your which their said if do will each"
    " about how up out them then she many some so these would other into has more her two like him"
    " see time could no make than first been its who now people my made over did down only way find"
    " use may water long little very after words called just where most know house light garden"
    " river dawn stove window answer reason small warm quiet paper table letter story music winter"
    " summer road home lamp door note plan part place point"
)
_WORDS = _TEXT.split()
_WRITTEN = re.compile(r" ?[A-Za-z]+|\.| ")
_THOUGHT = re.compile(re.escape(THOUGHT).replace(r"\{\}", ".*?"), re.DOTALL)
_CHOICES = 4
"""Words that can follow a text; which of them does, the seed decides."""
_MAX_DEPTH = 12
_SAMPLE_TEXT = "amber birch cedar delta ember fjord grove haven ivory juniper lumen meadow"
_SAMPLES = _SAMPLE_TEXT.split()
_FORMATS = {
    "date": "2026-01-15",
    "date-time": "2026-01-15T08:30:00Z",
    "time": "08:30:00Z",
    "email": "ann@example.org",
}


@frozen
class Wish:
    """What shapes a reply besides the prompt."""

    seed: int
    limit_tokens: int | None = None  # None for the natural length
    stop: tuple[str, ...] = ()
    schema: JsonValue = None  # `"json"`, a JSON schema, or None for free text
    thinks: bool = False  # begin with some reasoning
    tool: ToolCall | None = None  # answer with this call instead of text
    # the piece from which a warm prompt cache makes it write something else; None for never
    drift: int | None = None


def draws(key: str) -> Iterator[int]:
    """An endless sequence of 32-bit numbers that depends on `key` alone."""
    for block in count():
        digest = blake2b(f"{block} {key}".encode()).digest()
        for place in range(0, len(digest), 4):
            yield int.from_bytes(digest[place : place + 4])


def plan_reply(model: EmulatedModel, prompt: str, wish: Wish) -> Generation:
    """Decide the whole reply, or the rest of one that `prompt` holds the beginning of; a stop
    string ends it before the string.
    """
    if wish.tool is not None:
        call: JsonObject = {"name": wish.tool.name, "arguments": wish.tool.arguments}
        spent = len(_json_pieces(call))
        return Generation(parts=(wish.tool,), reason="stop", output_tokens=spent)
    base, written = begun(prompt)
    source = draws(f"{model.name}\x00{wish.seed}\x00{base}")
    if wish.schema is not None:
        return _bounded(_texts(_json_pieces(sample(wish.schema, source))), wish)
    thoughts: list[str] = []
    before = base
    if wish.thinks:
        thinking = _Writing(model, f"{base}{next(source)}", "", Wish(seed=0))
        thoughts = thinking.next_pieces(8 + next(source) % 16)
        before += THOUGHT.format("".join(thoughts))
    text = _THOUGHT.sub("", written)
    answer = _Writing(model, before + written[: len(written) - len(text)], text, wish)
    tokens = 40 + next(source) % 161 if model.ends else (wish.limit_tokens or 10 * 4096) + 2**20
    tokens -= answer.words
    if wish.limit_tokens is not None:
        tokens = min(tokens, wish.limit_tokens + 1)
    pieces = _texts(thoughts, thinking=True) + _texts(answer.next_pieces(tokens))
    return _bounded(pieces, wish)


def _texts(pieces: Sequence[str], *, thinking: bool = False) -> list[TextPart]:
    return [TextPart(text=text, thinking=thinking) for text in pieces]


def _json_pieces(value: JsonValue) -> list[str]:
    return pieces_of(encode(value).decode())


def begun(prompt: str) -> tuple[str, str]:
    """A rendered prompt up to the assistant's turn, and what of that turn it holds already."""
    base, marker, written = prompt.rpartition(ASSISTANT)
    return (base + marker, written) if marker else (prompt, "")


class _Writing:
    """Writes word after word, each of them a function of all the text before it.

    Args:
        before: what the model has read, up to its own words; written: these, as far as they go.
        They may end within a word.
    """

    def __init__(self, model: EmulatedModel, before: str, written: str, wish: Wish) -> None:
        self._vocabulary = model.vocabulary
        self._wish = wish
        pieces = _cut(model.vocabulary, written) if model.vocabulary else _WRITTEN.findall(written)
        part = pieces.pop() if pieces and written.endswith(pieces[-1]) else ""
        self.words = len(pieces)
        """How many have been written."""
        written = written.removesuffix(part)
        self._last = written[-1:]
        """The character that was written last."""
        self._read = blake2b(f"{model.name}\x00{before}{written}".encode())
        self._rest: list[str] = []
        if part:  # whoever is asked to go on from within a word finishes that word first
            words = (self._choice(), *self._possible(), part)
            whole = next(word for word in words if word.startswith(part))
            self._rest = [whole[len(part) :]] if self._note(whole) != part else []

    def next_pieces(self, tokens: int) -> list[str]:
        """The next pieces of the text; a sentence that is open then is closed."""
        written = self._rest
        end = self.words + tokens
        while self.words < end:
            written.append(self._note(self._choice()))
        if tokens >= 0 and not self._vocabulary and self._last not in ("", "."):
            written.append(self._note("."))
        return written

    def _possible(self) -> list[str]:
        """The pieces that can follow the text until now, the likeliest first."""
        number = self._number()
        words = self._vocabulary or _WORDS
        following = [words[(number + 31 * each) % len(words)] for each in range(_CHOICES)]
        if self._vocabulary:
            return following
        if self._last in ("", "."):
            return [(" " if self._last else "") + word.capitalize() for word in following]
        return ["."] if self._number(b"ends") % 9 == 0 else [f" {word}" for word in following]

    def _choice(self) -> str:
        possible = self._possible()
        drifted = self._wish.drift is not None and self.words >= self._wish.drift
        choice = (
            0 if self._wish.seed == GREEDY_SEED else self._number(str(self._wish.seed).encode())
        )
        return possible[(choice + drifted) % len(possible)]

    def _note(self, piece: str) -> str:
        self._last = piece[-1:] or self._last
        self._read.update(piece.encode())
        self.words += 1
        return piece

    def _number(self, of: bytes = b"") -> int:
        hashed = self._read.copy()
        hashed.update(b"\x00" + of)
        return int.from_bytes(hashed.digest()[:4])


def _cut(vocabulary: Sequence[str], text: str) -> list[str]:
    """The text as it was written, the last piece perhaps not whole."""
    pieces: list[str] = []
    while text:
        found = [word for word in vocabulary if text.startswith(word) or word.startswith(text)]
        pieces.append(max(found, key=len)[: len(text)] if found else text)
        text = text[len(pieces[-1]) :]
    return pieces


def _bounded(pieces: list[TextPart], wish: Wish) -> Generation:
    pieces = _until_stop(pieces, wish.stop)
    reason = "stop"
    ends = list(accumulate(_tokens_of(pieces)))
    if wish.limit_tokens is not None and ends and ends[-1] >= wish.limit_tokens:
        pieces = pieces[: bisect_right(ends, wish.limit_tokens)]
        reason = "length"
    run = 0
    for place, (before, piece) in enumerate(pairwise(pieces), start=1):
        run = run + 1 if piece.text.strip() == before.text.strip() else 0
        if run > 30:  # equal tokens in a row: here Ollama gives up on a reply
            return Generation(parts=pieces[:place], reason=None, output_tokens=place)
    tokens = ends[len(pieces) - 1] if pieces else 0
    return Generation(parts=pieces, reason=reason, output_tokens=tokens + (reason == "stop"))


def _tokens_of(pieces: Sequence[TextPart]) -> Iterator[int]:
    """The tokens of each piece: one, and one for the tag before it that begins or ends the
    thoughts.
    """
    thinking = False
    for piece in pieces:
        yield 1 + (piece.thinking is not thinking)
        thinking = piece.thinking


def held_back(
    pieces: Sequence[TextPart], stops: Sequence[str], reason: str | None
) -> Iterator[tuple[TextPart, int]]:
    """The pieces as llama.cpp sends them, and the number of the token with which each is sent.

    What may be the beginning of a stop string waits for what follows, at the end for the token that
    ends the reply.
    """
    pending = ""
    for place, piece in enumerate(pieces, start=1):
        pending += piece.text
        waits = not piece.thinking and _may_begin(pending, stops)
        if place == len(pieces) or not waits:
            yield replace(piece, text=pending), place + (waits and reason == "stop")
            pending = ""


def _may_begin(text: str, stops: Sequence[str]) -> bool:
    """The text ends with the beginning of a stop string."""
    return any(text.endswith(stop[:size]) for stop in stops for size in range(1, len(stop)))


def _until_stop(pieces: list[TextPart], stops: tuple[str, ...]) -> list[TextPart]:
    text = "".join(piece.text for piece in pieces)
    cuts = [place for place in (text.find(stop) for stop in stops if stop) if place >= 0]
    if not cuts:
        return pieces
    ends = accumulate(len(piece.text) for piece in pieces)
    kept = [piece for piece, end in zip(pieces, ends, strict=True) if end <= min(cuts)]
    rest = text[sum(len(piece.text) for piece in kept) : min(cuts)]
    return [*kept, TextPart(text=rest)] if rest else kept


def sample(schema: JsonValue, source: Iterator[int], *, hints: str = "") -> JsonValue:
    """A value that fits `schema` (`"json"` or a schema object). Texts are taken from `hints` where
    it offers names or numbers.

    Enough of JSON Schema for what callers send: type, enum, const, properties, items, anyOf, $ref
    to $defs, bounds.
    """
    if not isinstance(schema, dict) or not schema:
        return {"answer": _word(source), "count": next(source) % 100}
    return _Sampler(schema, source, hints).value(schema, 0)


class _Sampler:
    """One walk over one schema."""

    def __init__(self, root: JsonObject, source: Iterator[int], hints: str) -> None:
        self._root = root
        self._source = source
        self._names: list[str] = re.findall(r"(?<=[\w,] )[A-Z]\w+", hints)
        self._numbers: list[str] = re.findall(r"\b\d+\b", hints)

    def value(self, given: JsonValue, depth: int) -> JsonValue:
        if not isinstance(given, dict) or depth > _MAX_DEPTH:
            return None
        schema = self._resolved(given)
        if "const" in schema:
            return schema["const"]
        choices = schema.get("enum")
        if isinstance(choices, list) and choices:
            return choices[next(self._source) % len(choices)]
        return self._typed(schema, depth)

    def _typed(self, schema: JsonObject, depth: int) -> JsonValue:
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        match (kinds[0] if kinds else "string") if isinstance(kinds, list) else kinds:
            case "object":
                properties = schema.get("properties")
                fields = properties.items() if isinstance(properties, dict) else ()
                return {name: self.value(inner, depth + 1) for name, inner in fields}
            case "array":
                most = min(_bound(schema, "maxItems", 3), 1 + next(self._source) % 3)
                items = schema.get("items", {"type": "string"})
                size = max(_bound(schema, "minItems", 0), most)
                return [self.value(items, depth + 1) for _ in range(size)]
            case "integer":
                return self._integer(schema)
            case "number":
                bounded = "maximum" in schema or "exclusiveMaximum" in schema
                return self._integer(schema) + (0 if bounded else 0.5)
            case "boolean":
                return next(self._source) % 2 == 0
        return None if kinds == "null" else self._text(schema)

    def _resolved(self, schema: JsonObject) -> JsonObject:
        for key in ("anyOf", "oneOf", "allOf"):
            options = schema.get(key)
            if isinstance(options, list) and options and isinstance(options[0], dict):
                return self._resolved(options[0])
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: JsonValue = self._root
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        return found if isinstance(found, dict) and "$ref" not in found else {}

    def _integer(self, schema: JsonObject) -> int:
        least = _bound(schema, "minimum", _bound(schema, "exclusiveMinimum", -1) + 1)
        most = _bound(schema, "maximum", _bound(schema, "exclusiveMaximum", least + 100) - 1)
        if self._numbers and least <= int(self._numbers[0]) <= most:
            return int(self._numbers.pop(0))
        return least + next(self._source) % max(1, most - least + 1)

    def _text(self, schema: JsonObject) -> str:
        known = _FORMATS.get(str(schema.get("format"))) or (self._names[0] if self._names else None)
        if known is not None:
            return known
        text = _word(self._source).ljust(_bound(schema, "minLength", 0), "a")
        return text[: _bound(schema, "maxLength", len(text))]


def _word(source: Iterator[int]) -> str:
    return _SAMPLES[next(source) % len(_SAMPLES)]


def _bound(schema: JsonObject, key: str, default: int) -> int:
    value = schema.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def logprobs_of(text: str, top: int) -> JsonObject:
    """A plausible, deterministic entry for a token with `top` alternatives (0 for none), the
    likeliest first, in Ollama's field order.
    """
    source = draws(text)
    entry = _token(text, -(next(source) % 4000 + 1) / 1000)
    if top:
        others: list[JsonValue] = [
            _token(f"{text}{place}", -(1.0 + place)) for place in range(1, top)
        ]
        entry["top_logprobs"] = [_token(text, -(next(source) % 1000 + 1) / 1000), *others]
    return entry


def _token(text: str, logprob: float) -> JsonObject:
    return {"token": text, "logprob": logprob, "bytes": [*text.encode()]}


def chosen_tool(
    messages: Sequence[ChatMessage], tools: Sequence[JsonObject], *, call_id: str = ""
) -> ToolCall | None:
    """The tool that the last user message asks for: it names the tool, or a long word of the tool's
    name; None otherwise.
    """
    if not messages or messages[-1].role != "user":
        return None
    asked = messages[-1].content
    lower = asked.lower()
    for tool in tools:
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            continue
        words = name.lower().replace("-", "_").split("_")
        if name.lower() in lower or any(word in lower for word in words if len(word) > 4):
            parameters = function.get("parameters")
            has_fields = isinstance(parameters, dict) and parameters.get("properties")
            value = sample(parameters, draws(asked), hints=asked) if has_fields else {}
            return ToolCall(
                call_id=call_id, name=name, arguments=value if isinstance(value, dict) else {}
            )
    return None


def vector_of(model: EmulatedModel, text: str, dimensions: int | None = None) -> tuple[float, ...]:
    """A vector of length 1 in single precision; shortened ones are normalised again."""
    full = model.embedding_length
    size = min(dimensions, full) if dimensions and dimensions > 0 else full
    raw = [number / 2**31 - 1.0 for number in islice(draws(f"{model.name}\x00{text}"), size)]
    length = sqrt(sum(value * value for value in raw))
    return struct.unpack(f"<{size}f", floats_of([value / length for value in raw]))


def floats_of(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def shortest(value: float) -> float:
    """The float whose text is the shortest that still means the same number in single precision, as
    Go prints a float32.
    """
    found = (float(f"{value:.{digits}g}") for digits in (6, 7, 8))
    return next(
        (short for short in found if struct.unpack("<f", floats_of([short]))[0] == value),
        float(f"{value:.9g}"),
    )
