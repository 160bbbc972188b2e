"""Prompts: messages become text, and text that is too long for the context is cut or refused as Ollama does it.

Pure. The template is that of a toy model (`<role>content`); token counts matter here, wording does not. Called by `session` and the
handlers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from hearth.dialects.gojson import JsonObject, encode
from hearth.emulator.errors import OllamaError
from hearth.emulator.models import EmulatedModel
from hearth.emulator.tokens import count_tokens

_TOO_LONG_TEXT = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust the context length in "
    "settings, or use a model with a longer context length"
)


ASSISTANT = "<assistant>"
"""Where the model's own words begin."""
THOUGHT = "<think>{}</think>"


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
