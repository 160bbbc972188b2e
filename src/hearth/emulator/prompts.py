"""What a runner is given: options, and messages rendered to a prompt that is cut or refused as
Ollama does it where it is too long.

The template is that of a toy model (`<role>content`); token counts matter here, wording does not.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import reduce
from typing import TypeAlias

from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.emulator.models import EmulatedModel, Installed, OllamaError
from hearth.types import frozen

_WORD_PART = re.compile(r"</?think>|\s?\w{1,6}|\s?[^\w\s]|\s+")
_BEGIN_TOKENS = 1
_LOAD_TIME_INTEGERS = ("draft_num_predict", "main_gpu", "num_batch", "num_gpu", "num_thread")
_LOAD_TIME = (*_LOAD_TIME_INTEGERS, "use_mmap")
_INTEGERS = (
    "num_keep",
    "seed",
    "num_predict",
    "top_k",
    "repeat_last_n",
    "num_ctx",
    *_LOAD_TIME_INTEGERS,
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
_TYPES = {
    **dict.fromkeys(_INTEGERS, "integer"),
    **dict.fromkeys(_FLOATS, "float32"),
    "use_mmap": "boolean",
    "stop": "array",
}
_MIN_CONTEXT_TOKENS = 4
GREEDY_SEED = 0
ASSISTANT = "<assistant>"
"""Where the model's own words begin."""
LoadKey: TypeAlias = "tuple[int, tuple[tuple[str, JsonValue], ...]]"
"""What decides how a model is loaded, its context size first; another value means a reload."""
THOUGHT = "<think>{}</think>"
_TOO_LONG_TEXT = (
    "the prompt is longer than the context length currently available to the model; shorten the"
    " prompt, adjust the context length in settings, or use a model with a longer context length"
)


@frozen
class ChatMessage:
    """One turn of a conversation, whatever the dialect."""

    role: str
    content: str
    tool_calls: str = ""
    thinking: str = ""


@frozen
class Ask:
    """What a caller wants of a model."""

    model: str  # as the caller wrote it
    stream: bool
    messages: Sequence[ChatMessage] = ()
    prompt: str | None = None  # a finished prompt (raw generate); None renders `messages`
    options: JsonObject = field(default_factory=dict)  # in Ollama's names
    tools: Sequence[JsonObject] = ()
    schema: JsonValue = None  # `"json"`, a JSON schema or None
    think: JsonValue = None  # True, False, an effort, or None for the model's default
    keep_alive_s: float | None = None  # None keeps what the runner has; infinity for ever
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    context: bool = False  # the answer gives the numbers of the conversation's tokens
    render_only: bool = False  # show the prompt and say nothing (`_debug_render_only`)


@frozen
class Options:
    """The options that the emulated runner heeds."""

    num_ctx: int  # context of one slot after clamping
    load_key: LoadKey
    # None draws a fresh one; at temperature 0 always the same: the likeliest token follows,
    # whatever the seed
    seed: int | None
    limit_tokens: int | None  # None where the reply may end by itself
    stop: tuple[str, ...]
    num_keep: int


def fitted(model: EmulatedModel, ask: Ask, options: Options) -> tuple[str, int]:
    """The prompt as the model reads it, and its tokens: fewer than the text has where its middle
    was cut.

    The oldest messages are dropped, system ones and the last kept, until the rest fits; raises
    `OllamaError` 400 where Ollama does.
    """
    droppable = [place for place, one in enumerate(ask.messages[:-1]) if one.role != "system"]

    def without_oldest(count: int) -> str:
        gone = frozenset(droppable[:count])
        return _rendered(
            [one for place, one in enumerate(ask.messages) if place not in gone], ask.tools
        )

    text = without_oldest(0) if ask.prompt is None else ask.prompt
    tokens = count_tokens(model, text)
    if ask.prompt is None and ask.truncate and tokens > options.num_ctx:
        counts = range(len(droppable))
        least = bisect_left(
            counts,
            1,
            key=lambda count: int(count_tokens(model, without_oldest(count)) <= options.num_ctx),
        )
        text = without_oldest(least)
        tokens = count_tokens(model, text)
    if tokens <= options.num_ctx:
        return text, tokens
    if not model.templated:
        raise OllamaError(400, _llama_server_refusal(tokens, options.num_ctx))
    if not (ask.shift and ask.truncate):
        raise OllamaError(400, _TOO_LONG_TEXT)
    return text, options.num_keep + (options.num_ctx - options.num_keep) // 2 + 1


def _rendered(messages: Sequence[ChatMessage], tools: Sequence[JsonObject]) -> str:
    """The conversation, ready for the assistant's turn, or in the middle of it where that is the
    last message.
    """
    text = f"<tools>{encode([*tools]).decode()}\n" if tools else ""
    for one in messages:
        thought = THOUGHT.format(one.thinking) if one.thinking else ""
        text += f"<{one.role}>{thought}{one.content}{one.tool_calls}\n"
    if messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
        return text.removesuffix("\n")
    return text + ASSISTANT


def _llama_server_refusal(tokens: int, num_ctx: int) -> str:
    message = (
        f"request ({tokens} tokens) exceeds the available context size ({num_ctx} tokens), try"
        " increasing it"
    )
    inner: JsonObject = {
        "code": 400,
        "message": message,
        "type": "exceed_context_size_error",
        "n_prompt_tokens": tokens,
        "n_ctx": num_ctx,
    }
    return encode({"error": inner}).decode()


def count_tokens(model: EmulatedModel, text: str) -> int:
    """Size of `text` as a prompt, the begin-of-text token included."""
    return _BEGIN_TOKENS + (
        len(_byte_level(text)) if model.byte_tokens else sum(1 for _ in _WORD_PART.finditer(text))
    )


def token_ids(model: EmulatedModel, text: str) -> list[int]:
    """The numbers of the tokens of `text`: bytes plus 3 for a byte-level model, else word
    pieces.
    """
    if model.byte_tokens:
        return [byte + 3 for byte in _byte_level(text)]
    return [
        reduce(lambda total, char: (total * 131 + ord(char)) % 151_643, piece, 7)
        for piece in _WORD_PART.findall(text)
    ]


def _byte_level(text: str) -> bytes:
    return text.replace(" ", "\u2581").encode()


def pieces_of(text: str) -> list[str]:
    """`text` cut into word pieces; joined they are `text` again."""
    return _WORD_PART.findall(text)


def read_options(model: EmulatedModel, ask: Ask, *, default_num_ctx: int) -> Options:
    """Merge the model's parameters with the request's options; raises `OllamaError` 500 for a value
    of the wrong type.
    """
    merged = {**model.parameters, **ask.options}
    for name, value in merged.items():
        _check(name, value)
    num_ctx = max(
        _MIN_CONTEXT_TOKENS, min(_integer(merged, "num_ctx", default_num_ctx), model.context_tokens)
    )
    seed = _integer(merged, "seed", -1)
    num_predict = _integer(merged, "num_predict", -1)
    temperature = merged.get("temperature")
    stops = merged.get("stop")
    if isinstance(temperature, int | float) and temperature <= 0:
        seed = GREEDY_SEED
    chosen = [(name, merged[name]) for name in _LOAD_TIME if merged.get(name) is not None]
    return Options(
        num_ctx=num_ctx,
        load_key=(num_ctx, tuple(chosen) if ask.shift else (*chosen, ("shift", False))),
        seed=None if seed == -1 else seed,
        limit_tokens=num_predict if num_predict > 0 else (None if model.ends else 10 * num_ctx),
        stop=tuple(one for one in stops if isinstance(one, str)) if isinstance(stops, list) else (),
        num_keep=_integer(merged, "num_keep", 4),
    )


def _integer(merged: Mapping[str, JsonValue], name: str, default: int) -> int:
    value = merged.get(name)
    return int(value) if isinstance(value, int | float) else default


def _check(name: str, value: JsonValue) -> None:
    kind = _TYPES.get(name)
    if kind is None or value is None:
        return
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "boolean":
        fits = isinstance(value, bool)
    elif kind == "array":
        fits = isinstance(value, list)
    if not fits:
        raise OllamaError(500, f'option "{name}" must be of type {kind}')
    if isinstance(value, list) and not all(isinstance(one, str) for one in value):
        raise OllamaError(500, f'option "{name}" must be of an array of strings')


def check_format(schema: JsonValue) -> None:
    """Raises `OllamaError` 500 for what is neither "json" nor a schema."""
    if schema is None or isinstance(schema, dict) or schema == "json":
        return
    quoted = encode(encode(schema).decode()).decode()
    raise OllamaError(
        500, f'invalid format: {quoted}; expected "json" or a valid JSON Schema object'
    )


def check_capabilities(
    installed: Installed, ask: Ask, *, task: str, strict_thinking: bool = True
) -> None:
    """Refuse what the model cannot do; raises `OllamaError` 400 with Ollama's text for the missing
    capability.
    """
    model = installed.model
    if not model.can("completion"):
        raise OllamaError(400, f'"{ask.model}" does not support {task}')
    if ask.tools and not model.can("tools"):
        raise OllamaError(400, f"{installed.name.full} does not support tools")
    if strict_thinking and ask.think not in (None, False, "none") and not model.can("thinking"):
        raise OllamaError(400, f'"{ask.model}" does not support thinking')
