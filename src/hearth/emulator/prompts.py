"""What a runner is given: options, and messages rendered to a prompt that is cut or refused as Ollama does it where it is too long.

The template is that of a toy model (`<role>content`); token counts matter here, wording does not.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

from hearth.dialects.gojson import JsonObject, JsonValue, encode, lookup, mismatch
from hearth.emulator.models import EmulatedModel, OllamaError

_WORD_PART = re.compile(r"\s?\w{1,6}|\s?[^\w\s]|\s+")
_BEGIN_TOKENS = 1
_INTEGERS = ("num_keep", "seed", "num_predict", "top_k", "repeat_last_n", "num_ctx")
_FLOATS = ("top_p", "min_p", "typical_p", "temperature", "repeat_penalty", "presence_penalty", "frequency_penalty")
_LOAD_TIME_INTEGERS = ("draft_num_predict", "main_gpu", "num_batch", "num_gpu", "num_thread")
_LOAD_TIME = (*_LOAD_TIME_INTEGERS, "use_mmap")
_MIN_CONTEXT_TOKENS = 4
GREEDY_SEED = 0
ASSISTANT = "<assistant>"
"""Where the model's own words begin."""
LoadKey: TypeAlias = "tuple[int, tuple[tuple[str, JsonValue], ...]]"
"""What decides how a model is loaded, its context size first; another value means a reload."""
THOUGHT = "<think>{}</think>"
_TOO_LONG_TEXT = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust the context length in "
    "settings, or use a model with a longer context length"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation, whatever the dialect."""

    role: str
    content: str
    tool_calls: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the runner reads. `tokens` may be smaller than the text where its middle was cut."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much fits and what to do when it does not."""

    num_ctx: int
    num_keep: int = 4
    truncate: bool = True
    shift: bool = True


def render(messages: Sequence[Message], *, tools: Sequence[JsonObject] = ()) -> str:
    """The conversation as the model reads it, ready for the assistant's turn, or in the middle of it where that is the last message."""
    offered = f"<tools>{encode([*tools]).decode()}\n" if tools else ""
    said = offered + "".join(map(_turn, messages))
    if messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
        return said.removesuffix("\n")
    return said + ASSISTANT


def _turn(one: Message) -> str:
    thought = THOUGHT.format(one.thinking) if one.thinking else ""
    return f"<{one.role}>{thought}{one.content}{one.tool_calls}\n"


def fit_messages(model: EmulatedModel, messages: Sequence[Message], room: Room, *, tools: Sequence[JsonObject] = ()) -> Prompt:
    """Drop the oldest messages, keeping system ones and the last, until the rest fits; raises `OllamaError` 400 where Ollama does."""
    droppable = [place for place, one in enumerate(messages[:-1]) if one.role != "system"]

    def without_oldest(count: int) -> str:
        gone = frozenset(droppable[:count])
        return render([one for place, one in enumerate(messages) if place not in gone], tools=tools)

    def fits(count: int) -> bool:
        return count_tokens(model, without_oldest(count)) <= room.num_ctx

    if not room.truncate or fits(0):
        return fit_text(model, without_oldest(0), room)
    least = bisect_left(range(len(droppable)), 1, key=lambda count: int(fits(count)))
    return fit_text(model, without_oldest(least), room)


def fit_text(model: EmulatedModel, text: str, room: Room) -> Prompt:
    """`text` as a prompt; raises `OllamaError` 400 when it may not be cut."""
    tokens = count_tokens(model, text)
    if tokens <= room.num_ctx:
        return Prompt(text=text, tokens=tokens)
    if not model.templated:
        raise OllamaError(400, _llama_server_refusal(tokens, room.num_ctx))
    if not (room.shift and room.truncate):
        raise OllamaError(400, _TOO_LONG_TEXT)
    return Prompt(text=text, tokens=room.num_keep + (room.num_ctx - room.num_keep) // 2 + 1)


def _llama_server_refusal(tokens: int, num_ctx: int) -> str:
    message = f"request ({tokens} tokens) exceeds the available context size ({num_ctx} tokens), try increasing it"
    inner: JsonObject = {"code": 400, "message": message, "type": "exceed_context_size_error", "n_prompt_tokens": tokens, "n_ctx": num_ctx}
    return encode({"error": inner}).decode()


def count_tokens(model: EmulatedModel, text: str) -> int:
    """Size of `text` as a prompt, the begin-of-text token included."""
    tokens = len(text.replace(" ", "\u2581").encode()) if model.byte_tokens else sum(1 for _ in _WORD_PART.finditer(text))
    return tokens + _BEGIN_TOKENS


def token_ids(model: EmulatedModel, text: str) -> list[int]:
    """The numbers of the tokens of `text`: bytes plus 3 for a byte-level model (a blank is U+2581 there), else word pieces."""
    if model.byte_tokens:
        return [byte + 3 for byte in text.replace(" ", "\u2581").encode()]
    return [reduce(lambda total, char: (total * 131 + ord(char)) % 151_643, piece, 7) for piece in _WORD_PART.findall(text)]


def pieces_of(text: str) -> tuple[str, ...]:
    """`text` cut into word pieces; joined they are `text` again."""
    return tuple(_WORD_PART.findall(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that the emulated runner heeds.

    Attributes:
        num_ctx: context of one slot after clamping.
        seed: None draws a fresh one. At temperature 0 it is always the same: the likeliest token follows, whatever the seed.
        limit_tokens: None where the reply may end by itself.
    """

    num_ctx: int
    load_key: LoadKey
    seed: int | None
    limit_tokens: int | None
    stop: tuple[str, ...]
    num_keep: int


def read_options(model: EmulatedModel, given: Mapping[str, JsonValue], *, default_num_ctx: int, shift: bool) -> Options:
    """Merge the model's parameters with the request's; raises `OllamaError` 500 for a value of the wrong type."""
    merged = {**model.parameters, **given}
    for name, value in merged.items():
        _check(name, value)
    num_ctx = max(_MIN_CONTEXT_TOKENS, min(_integer(merged, "num_ctx", default_num_ctx), model.context_tokens))
    seed, num_predict = _integer(merged, "seed", -1), _integer(merged, "num_predict", -1)
    temperature, stops = merged.get("temperature"), merged.get("stop")
    if isinstance(temperature, int | float) and temperature <= 0:
        seed = GREEDY_SEED
    chosen = [(name, merged[name]) for name in _LOAD_TIME if merged.get(name) is not None]
    return Options(
        num_ctx=num_ctx,
        load_key=(num_ctx, tuple(chosen) if shift else (*chosen, ("shift", False))),
        seed=None if seed == -1 else seed,
        limit_tokens=num_predict if num_predict > 0 else (None if model.ends else 10 * num_ctx),
        stop=tuple(one for one in stops if isinstance(one, str)) if isinstance(stops, list) else (),
        num_keep=_integer(merged, "num_keep", 4),
    )


def temperature_option(fields: Mapping[str, JsonValue], struct: str) -> JsonObject:
    """The temperature of an OpenAI or Anthropic body, in Ollama's options. Raises GoJsonError for another type."""
    given = lookup(fields, "temperature")
    if given is None:
        return {}
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise mismatch(given, "temperature", struct, "float64")
    return {"temperature": given}


def _integer(merged: Mapping[str, JsonValue], name: str, default: int) -> int:
    value = merged.get(name)
    return int(value) if isinstance(value, int | float) else default


def _check(name: str, value: JsonValue) -> None:
    if value is None:
        return
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if name in (*_INTEGERS, *_LOAD_TIME_INTEGERS) and not numeric:
        raise OllamaError(500, f'option "{name}" must be of type integer')
    if name in _FLOATS and not numeric:
        raise OllamaError(500, f'option "{name}" must be of type float32')
    if name == "use_mmap" and not isinstance(value, bool):
        raise OllamaError(500, f'option "{name}" must be of type boolean')
    if name == "stop" and not isinstance(value, list):
        raise OllamaError(500, f'option "{name}" must be of type array')
