"""`/api/embed`, `/api/embeddings` and `/v1/embeddings`: deterministic unit vectors.

A vector depends on model and text alone, so the same text gives the same bits alone and in a batch.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import sqrt

from hearth.dialects.gojson import Body, JsonObject, JsonValue
from hearth.emulator.models import EmulatedModel, OllamaError
from hearth.emulator.prompts import Ask, count_tokens, read_options
from hearth.emulator.text import draws
from hearth.emulator.wire import Call, keep_alive_s, nanoseconds

_Vector = tuple[float, ...]


async def embed(call: Call) -> None:
    """`/api/embed`."""
    body = call.read()
    texts, dimensions = _texts(body.get("input")), body.integer("dimensions")
    ask = replace(_ask(body), truncate=body.flag("truncate", default=True))
    vectors, tokens, load_s = await _embed(call, ask, texts, dimensions=dimensions)
    answer: JsonObject = {"model": ask.model, "embeddings": [[*map(shortest, vector)] for vector in vectors]}
    if texts:
        total_s = call.engine.clock.monotonic() - call.received_at
        answer |= {"total_duration": nanoseconds(total_s), "load_duration": nanoseconds(load_s), "prompt_eval_count": tokens}
    await call.json(answer)


async def legacy(call: Call) -> None:
    """`/api/embeddings`: one prompt, values in double precision."""
    body = call.read()
    prompt, ask = body.string("prompt"), _ask(body)
    if not ask.model:
        raise OllamaError(400, "model is required")
    vectors, _, _ = await _embed(call, ask, [prompt] if prompt else [], unsupported_status=500)
    await call.json({"embedding": [*vectors[0]] if vectors else []})


async def openai_embeddings(call: Call) -> None:
    """`/v1/embeddings`."""
    body = call.read()
    ask, given = Ask(model=body.string("model"), stream=False), body.get("input")
    if given is None or given == []:
        raise OllamaError(400, "invalid input", at_bind=True)
    packed = body.string("encoding_format").lower() == "base64"
    texts = [""] if given == "" else _texts(given)
    vectors, tokens, _ = await _embed(call, ask, texts, dimensions=body.integer("dimensions"))
    data: list[JsonValue] = [
        {"object": "embedding", "embedding": b64encode(_floats(vector)).decode() if packed else [*map(shortest, vector)], "index": place}
        for place, vector in enumerate(vectors)
    ]
    await call.json({"object": "list", "data": data, "model": ask.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})


def _ask(body: Body) -> Ask:
    return Ask(model=body.string("model"), stream=False, options=body.map("options"), keep_alive_s=keep_alive_s(body))


def _texts(given: JsonValue) -> list[str]:
    listed = given if isinstance(given, list) else [given] if given else []
    texts = [one for one in listed if isinstance(one, str)]
    if len(texts) != len(listed) or not (given is None or isinstance(given, str | list)):
        raise OllamaError(400, "invalid input type")
    return texts


async def _embed(
    call: Call, ask: Ask, texts: Sequence[str], *, dimensions: int | None = None, unsupported_status: int = 501
) -> tuple[list[_Vector], int, float]:
    """The vectors, the tokens of all texts, and how long the load took in seconds."""
    missing = 'model "{}" not found, try pulling it first' if ask.model else "model '{}' not found"
    installed, engine = call.engine.catalogue.require(ask.model, template=missing), call.engine
    model, options = installed.model, read_options(installed.model, ask, default_num_ctx=engine.default_context_tokens)
    async with engine.lease(installed, options.load_key, ask.keep_alive_s) as runner:
        load_s = engine.clock.monotonic() - call.received_at
        if texts and not model.can("embedding"):
            raise OllamaError(unsupported_status, "This server does not support embeddings. Start it with `--embeddings`")
        sizes = [count_tokens(model, text) for text in texts]
        if not ask.truncate and any(tokens > options.num_ctx for tokens in sizes):
            raise OllamaError(400, "the input length exceeds the context length")
        sizes = [min(tokens, options.num_ctx) for tokens in sizes]
        for tokens in sizes:
            await engine.speak(runner, tokens)
    return [vector_of(model, text, dimensions) for text in texts], sum(sizes), load_s


def vector_of(model: EmulatedModel, text: str, dimensions: int | None = None) -> _Vector:
    """A vector of length 1 in single precision; shortened ones are normalised again."""
    full = model.embedding_length
    size = min(dimensions, full) if dimensions and dimensions > 0 else full
    raw = [number / 2**31 - 1.0 for number in islice(draws(f"{model.name}\x00{text}"), size)]
    length = sqrt(sum(value * value for value in raw))
    return struct.unpack(f"<{size}f", _floats([value / length for value in raw]))


def _floats(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def shortest(value: float) -> float:
    """The float whose text is the shortest that still means the same number in single precision, as Go prints a float32."""
    found = (float(f"{value:.{digits}g}") for digits in (6, 7, 8))
    return next((short for short in found if struct.unpack("<f", _floats([short]))[0] == value), float(f"{value:.9g}"))
