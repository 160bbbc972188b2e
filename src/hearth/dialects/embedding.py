"""Embedding calls with one input: how several of them become one call, and how its answer becomes
their answers again.

Vectors are cut out of the answer as the bytes they came as, never parsed and written anew. Ollama
counts the tokens of all inputs together, so each caller's count is a share of it by the length of
its input; everything else is what the model server said. Only the shape that Ollama writes is cut
(no white space between elements); of any other answer nothing is known (None). `/api/embeddings`
takes a single prompt only, and its numbers are not those of `/api/embed`, so it is none of this
module's business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from hearth.dialects.gojson import JsonObject, JsonValue, decode_document, encode, folded
from hearth.dialects.routes import Endpoint, Route
from hearth.types import value

MAX_BODY_BYTES = 64 * 1024
"""A call that is larger takes so long by itself that there is nothing to gain from company."""

_NATIVE_HEAD = b'"embeddings":['
_OPENAI_HEAD = b'"data":['
_VECTOR = re.compile(rb"\[[-+0-9.eE,]*\]")
_SAID = rb'"embedding":(?:\[[-+0-9.eE,]*\]|"[A-Za-z0-9+/=]*")'
_EMBEDDING = re.compile(
    rb'\{"object":"embedding",%b,"index":(\d{1,9})\}' % _SAID
    + rb'|\{%b,"index":(\d{1,9}),"object":"embedding"(?:,"encoding_format":"base64")?\}' % _SAID
)
"""As Ollama writes it, and as llama.cpp's server does."""
Part: TypeAlias = tuple[bytes, int | None]
"""One caller's answer, and the tokens of its prompt; None where the model server counted
nothing.
"""
_COUNTS = re.compile(rb'("(?:prompt_eval_count|prompt_tokens|total_tokens)":)(\d{1,18})')


@value
class SingleInput:
    """A call with one input.

    `fields` is its body; `options` is all of it but the input, equal for calls that want the same.
    """

    text: str
    fields: JsonObject
    options: bytes


def single_input(route: Route, body: bytes) -> SingleInput | None:
    """What a body asks for that `read_request` has accepted, None where it cannot share a call with
    others.
    """
    if route.path not in {Endpoint.EMBED, Endpoint.OPENAI_EMBEDDINGS} or len(body) > MAX_BODY_BYTES:
        return None
    fields, exact = decode_document(body)
    if not exact or not isinstance(fields, dict) or folded(fields) is not fields:
        return None
    given = fields.get("input")
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if not isinstance(given, str) or not given:
        return None
    return SingleInput(
        text=given,
        fields=fields,
        options=encode({name: fields[name] for name in sorted(fields) if name != "input"}),
    )


def joined_body(inputs: Sequence[SingleInput]) -> bytes:
    """One body for all inputs, in their order; they have the same options."""
    texts: list[JsonValue] = [each.text for each in inputs]
    return encode({**inputs[0].fields, "input": texts})


def split_answer(route: Route, body: bytes, inputs: Sequence[SingleInput]) -> list[Part] | None:
    """The answer for each of `inputs` from the one for all of them; None where it has another
    shape.
    """
    native = route.path is Endpoint.EMBED
    marker = _NATIVE_HEAD if native else _OPENAI_HEAD
    start = body.find(marker) + len(marker)
    if start < len(marker):
        return None
    elements = _elements(body, start, _VECTOR if native else _EMBEDDING, len(inputs))
    if elements is None:
        return None
    if not native and [int(_index(one)) for one in elements] != list(range(len(inputs))):
        return None
    head = body[:start]
    tail = body[elements[-1].end() :]
    counted = _COUNTS.search(tail) or _COUNTS.search(head)
    shares = (
        [None] * len(inputs)
        if counted is None
        else shares_of(int(counted[2]), [len(each.text) for each in inputs])
    )
    # each the first of its array
    firsts = [one[0] if native else _as_first(one) for one in elements]
    return [
        (_counting(head, share) + first + _counting(tail, share), share)
        for first, share in zip(firsts, shares, strict=True)
    ]


def _index(element: re.Match[bytes]) -> bytes:
    """Its place in the list, as it is written."""
    return element[element.lastindex or 0]


def _as_first(element: re.Match[bytes]) -> bytes:
    before, _, behind = element[0].rpartition(b'"index":' + _index(element))
    return before + b'"index":0' + behind


def _counting(part: bytes, share: int | None) -> bytes:
    """Part of an answer with these tokens as all that there are."""
    return part if share is None else _COUNTS.sub(rb"\g<1>%d" % share, part)


def _elements(
    body: bytes, start: int, element: re.Pattern[bytes], count: int
) -> list[re.Match[bytes]] | None:
    """The elements of an array whose first one begins at `start`; None unless there are `count`."""
    found: list[re.Match[bytes]] = []
    at = start
    for place in range(count):
        match = element.match(body, at)
        if match is None or body[match.end() : match.end() + 1] != (
            b"," if place + 1 < count else b"]"
        ):
            return None
        found.append(match)
        at = match.end() + 1
    return found


def shares_of(total: int, weights: Sequence[int]) -> list[int]:
    """`total` by weight, in whole numbers that add up to it; at least 1 each where there is enough,
    since no input has no tokens.
    """
    least = 1 if total >= len(weights) else 0
    spread = total - least * len(weights)
    whole = sum(weights)
    bounds = [0]
    passed = 0
    for weight in weights:
        passed += weight
        bounds.append((2 * spread * passed + whole) // (2 * whole))
    return [least + upper - lower for lower, upper in pairwise(bounds)]
