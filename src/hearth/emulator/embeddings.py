"""`/api/embed`, `/api/embeddings` and `/v1/embeddings`: deterministic unit vectors.

A vector depends on model and text alone, so the same text gives the same bits alone and in a batch.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import sqrt

from hearth.dialects.gojson import JsonObject, JsonValue, bool_field, integer_field, lookup, object_field, string_field
from hearth.emulator.models import EmulatedModel, Installed, OllamaError
from hearth.emulator.prompts import count_tokens, read_options
from hearth.emulator.text import draws
from hearth.emulator.wire import Call, keep_alive_s, nanoseconds

_MISSING = 'model "{}" not found, try pulling it first'
_NAMELESS = "model '{}' not found"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Embedded:
    vectors: list[tuple[float, ...]]
    prompt_tokens: int
    load_s: float


async def embed(call: Call) -> None:
    """`/api/embed`."""
    struct_name, fields = "EmbedRequest", call.struct("api.EmbedRequest")
    shown, texts = string_field(fields, "model", struct_name), _texts(lookup(fields, "input"))
    dimensions = integer_field(fields, "dimensions", struct_name)
    truncate = bool_field(fields, "truncate", struct_name) is not False
    options, stay_s = _options(fields, struct_name)
    done = await _embed(call, _installed(call, shown), texts, options=options, stay_s=stay_s, dimensions=dimensions, truncate=truncate)
    answer: JsonObject = {"model": shown, "embeddings": [[*map(shortest, vector)] for vector in done.vectors]}
    if texts:
        answer |= {
            "total_duration": nanoseconds(call.server.engine.clock.monotonic() - call.received_at),
            "load_duration": nanoseconds(done.load_s),
            "prompt_eval_count": done.prompt_tokens,
        }
    await call.json(answer)


async def legacy(call: Call) -> None:
    """`/api/embeddings`: one prompt, values in double precision."""
    struct_name, fields = "EmbeddingRequest", call.struct("api.EmbeddingRequest")
    shown, prompt = string_field(fields, "model", struct_name), string_field(fields, "prompt", struct_name)
    options, stay_s = _options(fields, struct_name)
    if not shown:
        raise OllamaError(400, "model is required")
    texts = [prompt] if prompt else []
    done = await _embed(call, _installed(call, shown), texts, options=options, stay_s=stay_s, unsupported_status=500)
    await call.json({"embedding": [*(done.vectors[0] if done.vectors else ())]})


async def openai_embeddings(call: Call) -> None:
    """`/v1/embeddings`."""
    struct_name, fields = "EmbedRequest", call.struct("openai.EmbedRequest")
    shown, given = string_field(fields, "model", struct_name), lookup(fields, "input")
    if given is None or given == []:
        raise OllamaError(400, "invalid input", at_bind=True)
    packed = string_field(fields, "encoding_format", struct_name).lower() == "base64"
    texts = [""] if given == "" else _texts(given)
    dimensions = integer_field(fields, "dimensions", struct_name)
    done = await _embed(call, _installed(call, shown), texts, options={}, stay_s=None, dimensions=dimensions)
    data: list[JsonValue] = [
        {"object": "embedding", "embedding": _packed(vector) if packed else [*map(shortest, vector)], "index": place}
        for place, vector in enumerate(done.vectors)
    ]
    usage: JsonObject = {"prompt_tokens": done.prompt_tokens, "total_tokens": done.prompt_tokens}
    await call.json({"object": "list", "data": data, "model": shown, "usage": usage})


def _options(fields: JsonObject, struct_name: str) -> tuple[JsonObject, float | None]:
    return object_field(fields, "options", struct_name, "map[string]interface {}"), keep_alive_s(lookup(fields, "keep_alive"))


def _texts(given: JsonValue) -> list[str]:
    listed = given if isinstance(given, list) else [given] if given else []
    texts = [one for one in listed if isinstance(one, str)]
    if len(texts) != len(listed) or not (given is None or isinstance(given, str | list)):
        raise OllamaError(400, "invalid input type")
    return texts


def _installed(call: Call, shown: str) -> Installed:
    return call.server.catalogue.require(shown, template=_MISSING if shown else _NAMELESS)


async def _embed(
    call: Call,
    installed: Installed,
    texts: Sequence[str],
    *,
    options: JsonObject,
    stay_s: float | None,
    dimensions: int | None = None,
    truncate: bool = True,
    unsupported_status: int = 501,
) -> _Embedded:
    engine, model = call.server.engine, installed.model
    read = read_options(model, options, default_num_ctx=engine.limits.default_context_tokens, shift=True)
    async with engine.lease(installed, read.load_key, stay_s) as runner:
        load_s = engine.clock.monotonic() - call.received_at
        if texts and not model.can("embedding"):
            raise OllamaError(unsupported_status, "This server does not support embeddings. Start it with `--embeddings`")
        sizes = [count_tokens(model, text) for text in texts]
        if not truncate and any(tokens > read.num_ctx for tokens in sizes):
            raise OllamaError(400, "the input length exceeds the context length")
        sizes = [min(tokens, read.num_ctx) for tokens in sizes]
        for tokens in sizes:
            await engine.read(runner, tokens)
    return _Embedded(vectors=[vector_of(model, text, dimensions) for text in texts], prompt_tokens=sum(sizes), load_s=load_s)


def vector_of(model: EmulatedModel, text: str, dimensions: int | None = None) -> tuple[float, ...]:
    """A vector of length 1 in single precision; shortened ones are normalised again."""
    full = model.embedding_length
    size = min(dimensions, full) if dimensions and dimensions > 0 else full
    raw = [number / 2**31 - 1.0 for number in islice(draws(f"{model.name}\x00{text}"), size)]
    length = sqrt(sum(value * value for value in raw))
    return struct.unpack(f"<{size}f", struct.pack(f"<{size}f", *(value / length for value in raw)))


def shortest(value: float) -> float:
    """The float whose text is the shortest that still means the same number in single precision, as Go prints a float32."""
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        if struct.unpack("<f", struct.pack("<f", short))[0] == value:
            return short
    return float(f"{value:.9g}")


def _packed(vector: tuple[float, ...]) -> str:
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
