"""A request of any dialect in the words of Ollama's own routes, where its answer can be continued as plain text.

Ollama renders no prompt for its Anthropic and Responses layers, so what these make of a body is done here, in the same way. Must say None
for whatever would not come out the same. Source: ollama/ollama v0.33.0-rc2, `openai/openai.go`, `openai/responses.go`,
`anthropic/anthropic.go`, `api/types.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hearth.dialects.gojson import GoJsonError, JsonObject, JsonValue, decode, lookup
from hearth.dialects.routes import Endpoint
from hearth.types import value

_BLOCKS = ("text", "thinking", "tool_use", "tool_result")
_TEXT_PARTS = ("text", "input_text", "output_text")
_EFFORTS = frozenset({"low", "medium", "high", "max"})


@value
class Native:
    """What an interrupted request asks for.

    Attributes:
        path, fields: where its prompt is rendered, and of what.
        options: how the text is sampled, and how the model is loaded, in Ollama's names.
        turns: the prompt is a conversation, or a user's turn of one; else the answer follows the prompt itself.
        chat: where tools are on offer, the fields by which `/api/chat` renders the same prompt; only its parser finds calls in the rest.
    """

    path: Endpoint
    fields: JsonObject
    options: JsonObject
    turns: bool = True
    chat: JsonObject | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end the answer."""
        stops = self.options.get("stop")
        return tuple(stop for stop in stops if isinstance(stop, str) and stop) if isinstance(stops, list) else ()


def native_form(path: Endpoint, fields: JsonObject) -> Native | None:
    """The native form; None where an answer cannot be continued: a grammar, log probabilities, images, tools that a server runs."""
    read = _READERS.get(path)
    if read is None or any(lookup(fields, name) for name in ("logprobs", "top_logprobs", "_debug_render_only", "functions")):
        return None
    return read(fields)


def _chat(fields: JsonObject) -> Native | None:
    if lookup(fields, "format") or any(_has(message, "images") for message in _list(lookup(fields, "messages"))):
        return None
    chat = fields if lookup(fields, "tools") else None
    return Native(path=Endpoint.CHAT, fields=fields, options=_object(lookup(fields, "options")), chat=chat)


def _generate(fields: JsonObject) -> Native | None:
    if lookup(fields, "format") or lookup(fields, "images"):
        return None
    plain = bool(lookup(fields, "raw") or lookup(fields, "suffix") or lookup(fields, "template"))
    return Native(path=Endpoint.GENERATE, fields=fields, options=_object(lookup(fields, "options")), turns=not plain)


def _openai_chat(fields: JsonObject) -> Native | None:
    """Ollama renders this one itself, so only the options are brought over, and where there are tools the messages too."""
    kind, given = lookup(_object(lookup(fields, "response_format")), "type"), _list(lookup(fields, "messages"))
    options = _openai_options(fields) | _given(fields, "frequency_penalty", "presence_penalty")
    if kind not in (None, "text"):
        return None
    if not lookup(fields, "tools"):
        plain = not any(_is_more_than_text(message) for message in given)
        return Native(path=Endpoint.OPENAI_CHAT, fields=fields, options=options) if plain else None
    messages: list[JsonValue] = []
    for message in given:
        turn = _openai_turn(message, given) if isinstance(message, dict) else None
        if turn is None:
            return None
        messages += turn
    effort = lookup(_object(lookup(fields, "reasoning")), "effort") or lookup(fields, "reasoning_effort")
    chat: JsonObject = {"model": lookup(fields, "model"), "messages": messages, "tools": lookup(fields, "tools"), **_effort(effort)}
    return Native(path=Endpoint.OPENAI_CHAT, fields=fields, options=options, chat=chat)


def _openai_turn(message: JsonObject, others: list[JsonValue]) -> list[JsonValue] | None:
    """One message for each part of the content, the calls at the last one, as Ollama does."""
    content, wanted = lookup(message, "content"), _list(lookup(message, "tool_calls"))
    calls = [_call(lookup(one, "id"), _object(lookup(one, "function"))) for one in wanted if isinstance(one, dict)]
    if None in calls or len(calls) < len(wanted) or (_is_more_than_text({"content": content}) and not (content is None and calls)):
        return None
    texts = [content] if isinstance(content, str) else _texts(content, "text") or [""]
    turns: list[JsonObject] = [{"role": lookup(message, "role"), "content": text} for text in texts]
    if calls:
        turns[-1]["tool_calls"] = [*calls]
    if thought := lookup(message, "reasoning"):
        turns[-1]["thinking"] = thought
    if answered := lookup(message, "tool_call_id"):
        turns[-1] |= {"tool_call_id": answered, "tool_name": lookup(message, "name") or _called_name(others, answered)}
    return [*turns]


def _called_name(messages: list[JsonValue], identity: JsonValue) -> JsonValue:
    """The tool that was called under this id; the last one counts."""
    calls = (call for message in reversed(messages) if isinstance(message, dict) for call in _list(lookup(message, "tool_calls")))
    return next(
        (lookup(_object(lookup(call, "function")), "name") for call in calls if isinstance(call, dict) and lookup(call, "id") == identity),
        "",
    )


def _call(identity: JsonValue, function: JsonObject) -> JsonObject | None:
    """A call in the words of `/api/chat`; None where its arguments are no object."""
    arguments = lookup(function, "arguments")
    if isinstance(arguments, str):
        try:
            arguments = decode(arguments.encode()) if arguments else {}
        except (GoJsonError, UnicodeEncodeError):  # half a character, which Go reads as another one
            return None
    if not isinstance(arguments, dict):
        return None
    return {"id": identity, "function": {"name": lookup(function, "name"), "arguments": arguments}}


def _effort(effort: JsonValue) -> JsonObject:
    return {"think": False if effort == "none" else effort} if effort else {}


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
    tools = _tools(_list(lookup(fields, "tools")), "input_schema", kinds=(None, "custom"))
    if tools is None:
        return None
    asked: JsonObject = {
        "model": lookup(fields, "model"),
        "messages": messages,
        **_message_think(fields),
        **({"tools": tools} if tools else {}),
    }
    return Native(path=Endpoint.CHAT, fields=asked, options=options, chat=asked if tools else None)


def _tools(given: list[JsonValue], schema: str, *, kinds: tuple[str | None, ...]) -> list[JsonValue] | None:
    """Functions as `/api/chat` takes them; None where one is something else, such as a search that a server runs."""
    tools: list[JsonValue] = []
    for tool in given:
        if not isinstance(tool, dict) or lookup(tool, "type") not in kinds:
            return None
        told: JsonObject = {"name": lookup(tool, "name"), "description": lookup(tool, "description") or ""}
        tools.append({"type": "function", "function": {**told, "parameters": lookup(tool, schema) or {}}})
    return tools


def _message_turn(message: JsonObject) -> list[JsonValue] | None:
    """A message that holds nothing is left out, as Ollama does."""
    content, role = lookup(message, "content"), lookup(message, "role")
    blocks: list[JsonValue] = [{"type": "text", "text": content}] if isinstance(content, str) else _list(content)
    if not isinstance(role, str) or any(_kind(block) not in _BLOCKS for block in blocks):
        return None
    texts = [block for block in blocks if _kind(block) == "text"]
    text, thoughts = "".join(_texts(texts, "text")), _texts(blocks, "thinking")
    turn: JsonObject = {"role": role.lower(), "content": text, **({"thinking": thoughts[-1]} if thoughts and thoughts[-1] else {})}
    calls = [
        _call(lookup(one, "id"), {"name": lookup(one, "name"), "arguments": lookup(one, "input") or {}}) for one in _of("tool_use", blocks)
    ]
    results = [_result(lookup(one, "tool_use_id"), lookup(one, "content")) for one in _of("tool_result", blocks)]
    if None in calls or None in results:
        return None
    said: list[JsonValue] = [{**turn, **({"tool_calls": [*calls]} if calls else {})}] if text or "thinking" in turn or calls else []
    return [*results, *said] if role.lower() == "user" else [*said, *results]


def _of(kind: str, blocks: list[JsonValue]) -> list[JsonObject]:
    return [block for block in blocks if isinstance(block, dict) and _kind(block) == kind]


def _result(identity: JsonValue, content: JsonValue) -> JsonObject | None:
    """What a tool has answered; None where that is more than text."""
    parts = _list(content)
    if not (content is None or isinstance(content, str) or all(_kind(part) in _TEXT_PARTS for part in parts)):
        return None
    text = content if isinstance(content, str) else "".join(_texts(content, "text"))
    return {"role": "tool", "content": text, "tool_call_id": identity}


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
    messages: list[JsonObject] = [{"role": "system", "content": instructions}] if instructions else []
    items: list[JsonValue] = [{"role": "user", "content": given}] if isinstance(given, str) else _list(given)
    tools = _tools(_list(lookup(fields, "tools")), "parameters", kinds=("function",))
    if tools is None or not _brought_over(messages, items):
        return None
    limit = lookup(fields, "max_output_tokens")
    options: JsonObject = {
        "temperature": 1.0,
        **_given(fields, "temperature", "top_p"),
        **({} if limit is None else {"num_predict": limit}),
    }
    think = _effort(lookup(_object(lookup(fields, "reasoning")), "effort"))
    asked: JsonObject = {"model": lookup(fields, "model"), "messages": [*messages], **think, **({"tools": tools} if tools else {})}
    return Native(path=Endpoint.CHAT, fields=asked, options=options, chat=asked if tools else None)


def _brought_over(messages: list[JsonObject], items: list[JsonValue]) -> bool:
    """Add the items of an input to the conversation; False where one cannot be. Thoughts belong to the assistant's turn after them."""
    thoughts: JsonValue = ""
    for item in items:
        if not isinstance(item, dict):
            return False
        if _kind(item) == "reasoning":
            thoughts = lookup(item, "encrypted_content") or ""
            continue
        if not _response_item(messages, item):
            return False
        if thoughts and messages[-1]["role"] == "assistant":
            messages[-1]["thinking"], thoughts = thoughts, ""
    if thoughts:
        messages.append({"role": "assistant", "content": "", "thinking": thoughts})
    return True


def _response_item(messages: list[JsonObject], item: JsonObject) -> bool:
    """Add an item of the input to the conversation; False where it cannot be brought over. A call joins the assistant's turn before it."""
    kind = _kind(item) or "message"
    if kind == "function_call_output":
        result = _result(lookup(item, "call_id"), lookup(item, "output"))
        messages += [result] if result is not None else []
        return result is not None
    if kind == "function_call":
        call = _call(lookup(item, "call_id"), item)
        if call is not None and not (messages and messages[-1]["role"] == "assistant"):
            messages.append({"role": "assistant", "content": ""})
        if call is not None:
            messages[-1]["tool_calls"] = [*_list(messages[-1].get("tool_calls")), call]
        return call is not None
    if kind != "message" or _is_more_than_text(item):
        return False
    content = lookup(item, "content")
    text = content if isinstance(content, str) else "".join(_texts(content, "text"))
    messages.append({"role": lookup(item, "role"), "content": text})
    return True


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
    plain = isinstance(content, str) or (bool(parts) and all(_kind(part) in _TEXT_PARTS for part in parts))
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
