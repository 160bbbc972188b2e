"""The `options` of a native request: types checked as Ollama checks them, load-time options told apart from the rest.

Pure. Unknown options are ignored, as in Ollama. Called by `session`, and where the other APIs' bodies are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hearth.dialects.gojson import JsonObject, JsonValue, lookup, mismatch
from hearth.emulator.errors import OllamaError
from hearth.emulator.models import EmulatedModel
from hearth.emulator.runners import LoadKey

_INTEGERS = (
    "num_keep",
    "seed",
    "num_predict",
    "top_k",
    "repeat_last_n",
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "draft_num_predict",
)
_FLOATS = (
    "top_p",
    "min_p",
    "typical_p",
    "temperature",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_LOAD_TIME = (
    "num_batch",
    "num_gpu",
    "main_gpu",
    "use_mmap",
    "num_thread",
    "draft_num_predict",
)
_MIN_CONTEXT_TOKENS = 4
GREEDY_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that the emulated runner heeds.

    Attributes:
        seed: None draws a fresh one. At temperature 0 it is always the same: the likeliest token follows, whatever the seed.
        limit_tokens: None where the reply may end by itself.
    """

    load: LoadKey
    seed: int | None
    limit_tokens: int | None
    stop: tuple[str, ...]
    num_keep: int


def read_options(model: EmulatedModel, given: Mapping[str, JsonValue], *, default_num_ctx: int, shift: bool) -> Options:
    """Merge the model's parameters with the request's; raises `OllamaError` 500 for a value of the wrong type."""
    merged = {**model.parameters, **given}
    for name, value in merged.items():
        _check(name, value)
    num_ctx = max(_MIN_CONTEXT_TOKENS, min(_integer(merged, "num_ctx", default_num_ctx), model.profile.context_tokens))
    seed, num_predict = _integer(merged, "seed", -1), _integer(merged, "num_predict", -1)
    if _is_greedy(merged.get("temperature")):
        seed = GREEDY_SEED
    return Options(
        load=LoadKey(num_ctx=num_ctx, others=_load_options(merged, shift=shift)),
        seed=None if seed == -1 else seed,
        limit_tokens=num_predict if num_predict > 0 else (None if model.ends else 10 * num_ctx),
        stop=_stops(merged.get("stop")),
        num_keep=_integer(merged, "num_keep", 4),
    )


def _load_options(merged: Mapping[str, JsonValue], *, shift: bool) -> tuple[tuple[str, JsonValue], ...]:
    chosen = [(name, merged[name]) for name in sorted(_LOAD_TIME) if merged.get(name) is not None]
    return tuple(chosen) if shift else (*chosen, ("shift", False))


def temperature_option(fields: Mapping[str, JsonValue], struct: str) -> JsonObject:
    """The temperature of an OpenAI or Anthropic body, in Ollama's options. Raises GoJsonError for another type."""
    given = lookup(fields, "temperature")
    if given is None:
        return {}
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise mismatch(given, "temperature", struct, "float64")
    return {"temperature": given}


def _is_greedy(temperature: JsonValue) -> bool:
    return isinstance(temperature, int | float) and temperature <= 0


def _integer(merged: Mapping[str, JsonValue], name: str, default: int) -> int:
    value = merged.get(name)
    return int(value) if isinstance(value, int | float) else default


def _stops(value: JsonValue) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def _check(name: str, value: JsonValue) -> None:
    if value is None:
        return
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if name in _INTEGERS and not numeric:
        raise OllamaError(500, f'option "{name}" must be of type integer')
    if name in _FLOATS and not numeric:
        raise OllamaError(500, f'option "{name}" must be of type float32')
    if name == "use_mmap" and not isinstance(value, bool):
        raise OllamaError(500, f'option "{name}" must be of type boolean')
    if name == "stop" and not isinstance(value, list):
        raise OllamaError(500, f'option "{name}" must be of type array')
