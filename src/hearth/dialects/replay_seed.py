"""Makes a request repeatable: puts a seed into its body where the caller gave none.

Ollama takes a seed on its native routes (`options.seed`) and on OpenAI's chat and text completions (`seed`); its Anthropic and Responses
layers have no field for one (ollama/ollama v0.33.0-rc2, `anthropic/anthropic.go`, `openai/responses.go`), so there only a request at
temperature 0 repeats itself. A seed does not make Ollama reload a model. Must never change a seed that the caller gave, nor any other byte
of the body.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TypeGuard

from hearth.dialects.gojson import JsonObject, JsonValue, lookup, spellings
from hearth.dialects.native_form import native_form
from hearth.dialects.routes import Endpoint, Route
from hearth.types import Dialect, Way, WorkKind

RANDOM_SEED = -1
"""What Ollama takes for "another answer every time" (its own default); also where a caller writes it."""

_SEEDS = 2**32
"""llama.cpp keeps 32 bits of a seed, so 4294967295 is RANDOM_SEED too."""

_SPACE = " \t\r\n"
_OPENING = re.compile(r"\{[ \t\r\n]*(\}?)")
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_NEXT = re.compile(r"[ \t\r\n]*(?:,[ \t\r\n]*|(\}))")
_SEEDED = frozenset({Endpoint.CHAT, Endpoint.GENERATE, Endpoint.OPENAI_CHAT, Endpoint.OPENAI_COMPLETIONS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """A request body and what can be expected of running it twice.

    Attributes:
        body: the very bytes that were given, or these with a seed added.
        repeatable: running it again should give the same text: a seed other than RANDOM_SEED, or temperature 0.
        chosen: that is the caller's own choice.
        continuable: the rest of its answer can be asked for as plain text.
    """

    body: bytes
    repeatable: bool
    chosen: bool = False
    continuable: bool = False

    def ways(self, *, only_replay: bool, continue_diverged: bool) -> tuple[Way, ...]:
        """How its stream can go on after an interruption, best first: who chose a repeatable answer is given that one where it can be."""
        replay = (Way.REPLAY,) if self.repeatable else ()
        onward = (Way.CONTINUE,) if self.continuable and not only_replay else ()
        if self.chosen:
            return replay + (onward if continue_diverged else ())
        return onward + replay


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """A JSON object inside a text: `inside` is the place after its brace, `starts` where each member's value is."""

    inside: int
    members: JsonObject
    starts: dict[str, int]


def can_seed(route: Route) -> bool:
    """A seed can be put into a request for this route."""
    return route.path in _SEEDED


def seeded(route: Route, body: bytes, seed: int) -> Seeded:
    """`body` with `seed` (0 to 2**31 - 1) where the caller gave none, or gave null.

    `body` must have been read by `read_envelope` before; one that is no JSON object comes back as it is, not repeatable.
    """
    if route.kind is not WorkKind.GENERATE:
        return Seeded(body=body, repeatable=False)
    text = body.decode(errors="surrogateescape")
    top = _object_at(text, len(text) - len(text.lstrip(_SPACE)))
    holder = top if top is None or route.dialect is not Dialect.OLLAMA else _options(text, top)
    if top is None or (holder is None and lookup(top.members, "options") is not None):
        return Seeded(body=body, repeatable=False)
    continuable = native_form(route.path, top.members) is not None
    cold = _is_zero(_asked(route, holder, "temperature"))
    own = _asked(route, holder, "seed")
    if not can_seed(route) or own is not None:
        repeatable = cold or (can_seed(route) and _fixes_the_answer(own))
        return Seeded(body=body, repeatable=repeatable, chosen=repeatable, continuable=continuable)
    changed = _with_seed(text, route, top, holder, seed)
    return Seeded(body=changed.encode(errors="surrogateescape"), repeatable=True, chosen=cold, continuable=continuable)


def _asked(route: Route, holder: _Object | None, name: str) -> JsonValue:
    """Native options are a Go map, whose keys match exactly; OpenAI's fields are those of a struct, in any letter case."""
    if holder is None:
        return None
    return holder.members.get(name) if route.dialect is Dialect.OLLAMA else lookup(holder.members, name)


def _fixes_the_answer(own: JsonValue) -> bool:
    return _is_number(own) and int(own) % _SEEDS != RANDOM_SEED % _SEEDS


def _is_number(value: JsonValue) -> TypeGuard[int | float]:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_zero(temperature: JsonValue) -> bool:
    return _is_number(temperature) and temperature == 0


def _options(text: str, top: _Object) -> _Object | None:
    """The native `options` object; None where there is none, or several (Go merges them)."""
    keys = spellings(top.members, "options")
    return _object_at(text, top.starts[keys[0]]) if len(keys) == 1 else None


def _with_seed(text: str, route: Route, top: _Object, holder: _Object | None, seed: int) -> str:
    if holder is None:
        return _with_member(text, top, "options", f'{{"seed":{seed}}}', spellings(top.members, "options"))
    keys = ["seed"] if route.dialect is Dialect.OLLAMA else spellings(holder.members, "seed")
    return _with_member(text, holder, "seed", str(seed), keys)


def _with_member(text: str, holder: _Object, name: str, value: str, keys: list[str]) -> str:
    """The text with one member more, first in its object; in the place of a null where one of `keys` has that."""
    nulls = [key for key in keys if key in holder.members]
    if nulls:
        start = holder.starts[nulls[-1]]
        return text[:start] + value + text[start + len("null") :]
    comma = "," if holder.members else ""
    return f'{text[: holder.inside]}"{name}":{value}{comma}{text[holder.inside :]}'


def _object_at(text: str, start: int) -> _Object | None:
    """The object that begins at `start`; None where none does, or where it is broken."""
    found = _OPENING.match(text, start)
    members: JsonObject = {}
    starts: dict[str, int] = {}
    decoder = json.JSONDecoder()
    try:
        while found is not None and not found.group(1):
            key, place = decoder.raw_decode(text, found.end())
            colon = _COLON.match(text, place)
            if colon is None or not isinstance(key, str):
                return None
            starts[key] = colon.end()
            members[key], place = decoder.raw_decode(text, colon.end())
            found = _NEXT.match(text, place)
    except (ValueError, RecursionError):
        return None
    return None if found is None else _Object(inside=start + 1, members=members, starts=starts)
