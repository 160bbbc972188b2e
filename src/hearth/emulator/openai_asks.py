"""OpenAI request bodies as asks: chat and completions. Conversions as in ollama/ollama `openai/openai.go`.

Reads only what Ollama reads: `max_tokens` counts, `max_completion_tokens`, `n`, `tool_choice` and `keep_alive` do not. Pure; called by
`openai` and `responses`.
"""

from __future__ import annotations

from collections.abc import Mapping

from hearth.dialects.gojson import (
    JsonObject,
    JsonValue,
    array_field,
    bool_field,
    encode,
    integer_field,
    lookup,
    object_field,
    string_field,
    struct_of,
)
from hearth.emulator.errors import OllamaError
from hearth.emulator.options import temperature_option
from hearth.emulator.prompts import Message
from hearth.emulator.session import Ask

_STRUCT = "ChatCompletionRequest"


def chat_ask(fields: JsonObject) -> Ask:
    """The ask of a chat completion; raises `OllamaError` or `GoJsonError` for what Ollama refuses while reading."""
    messages = array_field(fields, "messages", _STRUCT, "[]openai.Message")
    if not messages:
        raise OllamaError(400, "[] is too short - 'messages'", at_bind=True)
    return Ask(
        messages=[_message(one) for one in messages],
        tools=[struct_of(one, "api.Tool") for one in array_field(fields, "tools", _STRUCT, "[]api.Tool")],
        options=sampling(fields, _STRUCT, limit_key="max_tokens"),
        schema=_schema(object_field(fields, "response_format", _STRUCT, "openai.ResponseFormat")),
        think=_effort(fields),
        render_only=bool(bool_field(fields, "_debug_render_only", _STRUCT)),
    )


def completion_ask(fields: JsonObject) -> Ask:
    struct = "CompletionRequest"
    prompt = string_field(fields, "prompt", struct) + string_field(fields, "suffix", struct)
    options, render_only = sampling(fields, struct, limit_key="max_tokens"), bool(bool_field(fields, "_debug_render_only", struct))
    return Ask(messages=[Message(role="user", content=prompt)], options=options, render_only=render_only)


def sampling(fields: Mapping[str, JsonValue], struct: str, *, limit_key: str) -> JsonObject:
    """The options that an OpenAI body can set, in Ollama's names."""
    options: JsonObject = {}
    limit, seed = integer_field(fields, limit_key, struct), integer_field(fields, "seed", struct)
    if limit is not None:
        options["num_predict"] = limit
    if seed is not None:
        options["seed"] = seed
    options |= temperature_option(fields, struct)
    stop = lookup(fields, "stop")
    if stop is not None:
        options["stop"] = stop if isinstance(stop, list) else [stop]
    return options


def text_of(content: JsonValue, *, text_kinds: tuple[str, ...] = ("text",)) -> str:
    """The text in a message's content: a string, or the text parts of a list; images count as a marker each."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise OllamaError(400, "invalid message content type: map[string]interface {}", at_bind=True)
    return "".join(_part(struct_of(one, "openai.ContentPart"), text_kinds) for one in content)


def _part(part: JsonObject, text_kinds: tuple[str, ...]) -> str:
    kind = part.get("type")
    text = part.get("text")
    if kind in text_kinds and isinstance(text, str):
        return text
    if kind not in ("image_url", "input_image"):
        raise OllamaError(400, "invalid message format", at_bind=True)
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url.startswith("data:"):
        raise OllamaError(400, "image URLs are not currently supported, please use base64 encoded data instead", at_bind=True)
    return "[img]"


def _message(value: JsonValue) -> Message:
    fields = struct_of(value, "openai.Message")
    calls = array_field(fields, "tool_calls", "Message", "[]openai.ToolCall")
    return Message(
        role=string_field(fields, "role", "Message"),
        content=text_of(lookup(fields, "content")),
        tool_calls=encode(calls).decode() if calls else "",
        thinking=string_field(fields, "reasoning", "Message"),
    )


def _schema(response_format: JsonObject) -> JsonValue:
    kind = response_format.get("type")
    if kind == "json_object":
        return "json"
    described = response_format.get("json_schema")
    if kind == "json_schema" and isinstance(described, dict):
        return described.get("schema")
    return None


def _effort(fields: JsonObject) -> JsonValue:
    effort = string_field(fields, "reasoning_effort", _STRUCT)
    nested = object_field(fields, "reasoning", _STRUCT, "openai.Reasoning").get("effort")
    return effort or nested or None
