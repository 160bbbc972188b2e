"""A request of any dialect in the words of Ollama's own routes, where its answer can be continued as plain text.

Ollama renders no prompt for its Anthropic and Responses layers, so what these make of a body is done here, in the same way. Must say None
for whatever would not come out the same. Called by `replay_seed` when a request comes and by `continuing` when it is interrupted.
Source: ollama/ollama v0.33.0-rc2, `openai/openai.go`, `openai/responses.go`, `anthropic/anthropic.go`, `api/types.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hearth.dialects.gojson import JsonObject, JsonValue, lookup
from hearth.dialects.routes import Endpoint
from hearth.types import value

_BLOCKS = frozenset({"text", "thinking"})
_EFFORTS = frozenset({"low", "medium", "high", "max"})


@value
class Native:
    """What an interrupted request asks for.

    Attributes:
        path, fields: where its prompt is rendered, and of what.
        options: how the text is sampled, and how the model is loaded, in Ollama's names.
        turns: the prompt is a conversation, or a user's turn of one; else the answer follows the prompt itself.
    """

    path: Endpoint
    fields: JsonObject
    options: JsonObject
    turns: bool = True

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end the answer."""
        stops = self.options.get("stop")
        return tuple(stop for stop in stops if isinstance(stop, str) and stop) if isinstance(stops, list) else ()


def native_form(path: Endpoint, fields: JsonObject) -> Native | None:
    """The native form; None where an answer cannot be continued: tools, a grammar, log probabilities, images."""
    read = _READERS.get(path)
    if read is None or any(lookup(fields, name) for name in ("tools", "logprobs", "top_logprobs", "_debug_render_only", "functions")):
        return None
    return read(fields)


def _chat(fields: JsonObject) -> Native | None:
    if lookup(fields, "format") or any(_has(message, "images", "tool_calls") for message in _list(lookup(fields, "messages"))):
        return None
    return Native(path=Endpoint.CHAT, fields=fields, options=_object(lookup(fields, "options")))


def _generate(fields: JsonObject) -> Native | None:
    if lookup(fields, "format") or lookup(fields, "images"):
        return None
    plain = bool(lookup(fields, "raw") or lookup(fields, "suffix") or lookup(fields, "template"))
    return Native(path=Endpoint.GENERATE, fields=fields, options=_object(lookup(fields, "options")), turns=not plain)


def _openai_chat(fields: JsonObject) -> Native | None:
    """Ollama renders this one itself, so only the options are brought over."""
    kind = lookup(_object(lookup(fields, "response_format")), "type")
    if kind not in (None, "text") or any(_is_more_than_text(message) for message in _list(lookup(fields, "messages"))):
        return None
    options = _openai_options(fields) | _given(fields, "frequency_penalty", "presence_penalty")
    return Native(path=Endpoint.OPENAI_CHAT, fields=fields, options=options)


def _openai_completion(fields: JsonObject) -> Native | None:
    prompt, suffix = lookup(fields, "prompt"), lookup(fields, "suffix") or ""
    if not isinstance(prompt, str) or not isinstance(suffix, str):
        return None
    asked: JsonObject = {"model": lookup(fields, "model"), "prompt": prompt, **({"suffix": suffix} if suffix else {})}
    penalties: JsonObject = {name: lookup(fields, name) or 0 for name in ("frequency_penalty", "presence_penalty")}
    return Native(path=Endpoint.GENERATE, fields=asked, options=_openai_options(fields) | penalties, turns=not suffix)


def _openai_options(fields: JsonObject) -> JsonObject:
    stop = lookup(fields, "stop")
    options: JsonObject = {} if stop is None else {"stop": stop if isinstance(stop, list) else [stop]}
    if (limit := lookup(fields, "max_tokens")) is not None:
        options["num_predict"] = limit
    defaults: JsonObject = {"temperature": 1.0, "top_p": 1.0}
    return options | defaults | _given(fields, "temperature", "seed", "top_p")


def _message(fields: JsonObject) -> Native | None:
    system = lookup(fields, "system")
    told = system if isinstance(system, str) else "".join(_texts(system, "text"))
    messages: list[JsonValue] = [{"role": "system", "content": told}] if told else []
    for message in _list(lookup(fields, "messages")):
        turn = _message_turn(message) if isinstance(message, dict) else None
        if turn is None:
            return None
        messages += turn
    options = {"num_predict": lookup(fields, "max_tokens"), **_given(fields, "temperature", "top_p", "top_k")}
    if stops := _list(lookup(fields, "stop_sequences")):
        options["stop"] = stops
    asked: JsonObject = {"model": lookup(fields, "model"), "messages": messages, **_message_think(fields)}
    return Native(path=Endpoint.CHAT, fields=asked, options=options)


def _message_turn(message: JsonObject) -> list[JsonValue] | None:
    """A message that holds nothing is left out, as Ollama does."""
    content, role = lookup(message, "content"), lookup(message, "role")
    blocks: list[JsonValue] = [{"type": "text", "text": content}] if isinstance(content, str) else _list(content)
    if not isinstance(role, str) or any(_kind(block) not in _BLOCKS for block in blocks):
        return None
    text, thoughts = "".join(_texts(blocks, "text")), _texts(blocks, "thinking")
    turn: JsonObject = {"role": role.lower(), "content": text, **({"thinking": thoughts[-1]} if thoughts and thoughts[-1] else {})}
    return [turn] if text or "thinking" in turn else []


def _message_think(fields: JsonObject) -> JsonObject:
    wish = lookup(_object(lookup(fields, "thinking")), "type")
    if wish in ("enabled", "disabled"):
        return {"think": wish == "enabled"}
    effort = lookup(_object(lookup(fields, "output_config")), "effort")
    effort = effort.strip().lower().replace("xhigh", "high") if isinstance(effort, str) else ""
    return {"think": effort} if effort in _EFFORTS else {}


def _response(fields: JsonObject) -> Native | None:
    kind = lookup(_object(lookup(_object(lookup(fields, "text")), "format")), "type")
    instructions, given = lookup(fields, "instructions"), lookup(fields, "input")
    if kind not in (None, "text"):
        return None
    messages: list[JsonValue] = [{"role": "system", "content": instructions}] if instructions else []
    items: list[JsonValue] = [{"role": "user", "content": given}] if isinstance(given, str) else _list(given)
    for item in items:
        if not isinstance(item, dict) or (_kind(item) or "message") != "message" or _is_more_than_text(item):
            return None
        content = lookup(item, "content")
        text = content if isinstance(content, str) else "".join(_texts(content, "text"))
        messages.append({"role": lookup(item, "role"), "content": text})
    limit = lookup(fields, "max_output_tokens")
    options: JsonObject = {
        "temperature": 1.0,
        **_given(fields, "temperature", "top_p"),
        **({} if limit is None else {"num_predict": limit}),
    }
    effort = lookup(_object(lookup(fields, "reasoning")), "effort")
    think: JsonObject = {"think": False if effort == "none" else effort} if effort else {}
    return Native(path=Endpoint.CHAT, fields={"model": lookup(fields, "model"), "messages": messages, **think}, options=options)


_READERS: Mapping[Endpoint, Callable[[JsonObject], Native | None]] = MappingProxyType(
    {
        Endpoint.CHAT: _chat,
        Endpoint.GENERATE: _generate,
        Endpoint.OPENAI_CHAT: _openai_chat,
        Endpoint.OPENAI_COMPLETIONS: _openai_completion,
        Endpoint.OPENAI_RESPONSES: _response,
        Endpoint.ANTHROPIC_MESSAGES: _message,
    }
)


def _is_more_than_text(message: JsonValue) -> bool:
    if not isinstance(message, dict):
        return True
    content = lookup(message, "content")
    parts = _list(content)
    plain = isinstance(content, str) or (bool(parts) and all(_kind(part) in ("text", "input_text", "output_text") for part in parts))
    return not plain or bool(lookup(message, "tool_calls"))


def _texts(blocks: JsonValue, kind: str) -> list[str]:
    """The texts of the blocks or parts that carry one under this name."""
    texts = [lookup(block, kind) for block in _list(blocks) if isinstance(block, dict)]
    return [text for text in texts if isinstance(text, str)]


def _kind(part: JsonValue) -> JsonValue:
    return lookup(part, "type") if isinstance(part, dict) else "none"


def _has(message: JsonValue, *names: str) -> bool:
    return not isinstance(message, dict) or any(lookup(message, name) for name in names)


def _given(fields: JsonObject, *names: str) -> JsonObject:
    return {name: given for name in names if (given := lookup(fields, name)) is not None}


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
