"""`/api/embed`, `/api/embeddings` and `/v1/embeddings`: deterministic unit vectors.

A vector depends on model and text alone, so the same text gives the same bits alone and in a batch.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from dataclasses import dataclass
from itertools import islice
from math import sqrt

from hearth.dialects.gojson import JsonObject, JsonValue, bool_field, integer_field, lookup, object_field, string_field
from hearth.emulator.engine import Execution
from hearth.emulator.errors import OllamaError
from hearth.emulator.models import EmulatedModel, Installed
from hearth.emulator.prompts import Options, count_tokens, read_options
from hearth.emulator.text import draws
from hearth.emulator.wire import Call, Server, keep_alive_s, nanoseconds

_MISSING = 'model "{}" not found, try pulling it first'
_NAMELESS = "model '{}' not found"
_UNSUPPORTED_TEXT = "This server does not support embeddings. Start it with `--embeddings`"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Texts to embed with one model."""

    texts: tuple[str, ...]
    options: JsonObject
    keep_alive_s: float | None
    dimensions: int | None = None
    truncate: bool = True
    unsupported_status: int = 501
    too_long_status: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Embedded:
    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int
    handed_over_at: float


async def embed(call: Call) -> None:
    """Raises `OllamaError`."""
    fields = call.struct("api.EmbedRequest")
    shown, go_struct = string_field(fields, "model", "EmbedRequest"), "EmbedRequest"
    job = _Job(
        texts=_texts(lookup(fields, "input"), OllamaError(400, "invalid input type")),
        options=object_field(fields, "options", go_struct, "map[string]interface {}"),
        keep_alive_s=keep_alive_s(lookup(fields, "keep_alive")),
        dimensions=integer_field(fields, "dimensions", go_struct),
        truncate=bool_field(fields, "truncate", go_struct) is not False,
    )
    installed = call.server.catalogue.require(shown, template=_MISSING if shown else _NAMELESS)
    done = await _embed(call.server, installed, job)
    answer: JsonObject = {"model": shown, "embeddings": [[*map(shortest, vector)] for vector in done.vectors]}
    if job.texts:
        answer |= {
            "total_duration": nanoseconds(call.server.engine.clock.monotonic() - call.received_at),
            "load_duration": nanoseconds(done.handed_over_at - call.received_at),
            "prompt_eval_count": done.prompt_tokens,
        }
    await call.json(answer)


async def legacy(call: Call) -> None:
    """Raises `OllamaError`; one prompt, values in double precision."""
    fields = call.struct("api.EmbeddingRequest")
    go_struct = "EmbeddingRequest"
    shown, prompt = string_field(fields, "model", go_struct), string_field(fields, "prompt", go_struct)
    options = object_field(fields, "options", go_struct, "map[string]interface {}")
    stay_s = keep_alive_s(lookup(fields, "keep_alive"))
    if not shown:
        raise OllamaError(400, "model is required")
    job = _Job(texts=(prompt,) if prompt else (), options=options, keep_alive_s=stay_s, unsupported_status=500, too_long_status=500)
    done = await _embed(call.server, call.server.catalogue.require(shown, template=_MISSING), job)
    await call.json({"embedding": [*(done.vectors[0] if done.vectors else ())]})


async def openai(call: Call) -> None:
    """Raises `OllamaError`."""
    fields = call.struct("openai.EmbedRequest")
    go_struct = "EmbedRequest"
    shown, given = string_field(fields, "model", go_struct), lookup(fields, "input")
    if given is None or given == []:
        raise OllamaError(400, "invalid input", at_bind=True)
    packed = string_field(fields, "encoding_format", go_struct).lower() == "base64"
    texts = _texts([""] if given == "" else given, OllamaError(400, "invalid input type"))
    job = _Job(texts=texts, options={}, keep_alive_s=None, dimensions=integer_field(fields, "dimensions", go_struct))
    done = await _embed(call.server, call.server.catalogue.require(shown, template=_MISSING if shown else _NAMELESS), job)
    data: list[JsonValue] = [
        {"object": "embedding", "embedding": _packed(vector) if packed else [*map(shortest, vector)], "index": place}
        for place, vector in enumerate(done.vectors)
    ]
    usage: JsonObject = {"prompt_tokens": done.prompt_tokens, "total_tokens": done.prompt_tokens}
    await call.json({"object": "list", "data": data, "model": shown, "usage": usage})


def _texts(given: JsonValue, invalid: OllamaError) -> tuple[str, ...]:
    if given is None or given == "":
        return ()
    if isinstance(given, str):
        return (given,)
    texts = tuple(one for one in given if isinstance(one, str)) if isinstance(given, list) else ()
    if not isinstance(given, list) or len(texts) != len(given):
        raise invalid
    return texts


async def _embed(server: Server, installed: Installed, job: _Job) -> _Embedded:
    options = read_options(installed.model, job.options, default_num_ctx=server.engine.limits.default_context_tokens, shift=True)
    async with server.engine.lease(installed, options.load, job.keep_alive_s) as runner:
        handed_over_at = server.engine.clock.monotonic()
        if job.texts and not installed.model.can("embedding"):
            raise OllamaError(job.unsupported_status, _UNSUPPORTED_TEXT)
        sizes = [_prompt_tokens(installed.model, text, job, options) for text in job.texts]
        for tokens in sizes:
            await Execution(server.engine, runner, tokens).read()
    vectors = tuple(vector_of(installed.model, text, job.dimensions) for text in job.texts)
    return _Embedded(vectors=vectors, prompt_tokens=sum(sizes), handed_over_at=handed_over_at)


def _prompt_tokens(model: EmulatedModel, text: str, job: _Job, options: Options) -> int:
    tokens = count_tokens(model, text)
    if tokens > options.load.num_ctx and not job.truncate:
        raise OllamaError(job.too_long_status, "the input length exceeds the context length")
    return min(tokens, options.load.num_ctx)


def vector_of(model: EmulatedModel, text: str, dimensions: int | None = None) -> tuple[float, ...]:
    """A vector of length 1 in single precision; shortened ones are normalised again."""
    full = model.profile.embedding_length
    size = min(dimensions, full) if dimensions and dimensions > 0 else full
    raw = [number / 2**31 - 1.0 for number in islice(draws(f"{model.profile.name}\x00{text}"), size)]
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
