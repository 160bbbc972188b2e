"""A request of any dialect in the words of Ollama's own routes, where its answer can be continued
as plain text.

Ollama renders no prompt for its Anthropic and Responses layers, so what these make of a body is
done here, in the same way. Must say None for whatever would not come out the same. Source:
ollama/ollama v0.33.0-rc2, `openai/openai.go`, `openai/responses.go`, `anthropic/anthropic.go`,
`api/types.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hearth.dialects.capabilities import EFFORTS
from hearth.dialects.gojson import Body, GoJsonError, JsonObject, JsonValue, decode
from hearth.dialects.routes import Endpoint
from hearth.types import value

_BLOCKS = ("text", "thinking", "tool_use", "tool_result")
_TEXT_PARTS = ("text", "input_text", "output_text")
_NEVER_CONTINUED = ("logprobs", "top_logprobs", "_debug_render_only", "functions")


@value
class Native:
    """What an interrupted request asks for.

    Attributes:
        path, fields: where its prompt is rendered, and of what. options: how the text is sampled,
        and how the model is loaded, in Ollama's names. turns: the prompt is a conversation, or a
        user's turn of one; else the answer follows the prompt itself. chat: where tools are on
        offer, the fields by which `/api/chat` renders the same prompt; only its parser finds calls
        in the rest. thinks: the caller does not forbid thoughts.
    """

    path: Endpoint
    fields: JsonObject
    options: JsonObject
    turns: bool = True
    chat: JsonObject | None = None
    thinks: bool = True

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end the answer."""
        stops = self.options.get("stop")
        return (
            tuple(stop for stop in stops if isinstance(stop, str) and stop)
            if isinstance(stops, list)
            else ()
        )


def native_form(path: Endpoint, fields: JsonObject) -> Native | None:
    """The native form; None where an answer cannot be continued: a grammar, log probabilities,
    images, tools that a server runs.
    """
    read = _READERS.get(path)
    body = Body(fields)
    if read is None or any(map(body.get, _NEVER_CONTINUED)):
        return None
    try:
        return read(body)
    except GoJsonError:
        return None


def _must(be_true: object) -> None:
    if not be_true:
        raise GoJsonError("this cannot be brought into native form")


def _chat(body: Body) -> Native:
    _must(
        not body.get("format")
        and not any(message.get("images") for message in body.objects("messages"))
    )
    chat = body.fields if body.get("tools") else None
    return Native(
        path=Endpoint.CHAT,
        fields=body.fields,
        options=body.map("options"),
        chat=chat,
        thinks=body.get("think") is not False,
    )


def _generate(body: Body) -> Native:
    _must(not body.get("format") and not body.get("images"))
    plain = bool(body.get("raw") or body.get("suffix") or body.get("template"))
    thinks = body.get("think") is not False
    return Native(
        path=Endpoint.GENERATE,
        fields=body.fields,
        options=body.map("options"),
        turns=not plain,
        thinks=thinks,
    )


def _openai_chat(body: Body) -> Native:
    """Ollama renders this one itself, so only the options are brought over, and where there are
    tools the messages too.
    """
    _must(body.object("response_format").get("type") in (None, "text"))
    options = _openai_options(body) | _given(body, "frequency_penalty", "presence_penalty")
    messages = body.objects("messages")
    effort = body.object("reasoning").get("effort") or body.get("reasoning_effort")
    thinks = effort != "none"
    if not body.get("tools"):
        _must(
            all(
                _texts(message.get("content")) and not message.get("tool_calls")
                for message in messages
            )
        )
        return Native(path=Endpoint.OPENAI_CHAT, fields=body.fields, options=options, thinks=thinks)
    names = _called_names(messages)
    turns: list[JsonValue] = [
        turn for message in messages for turn in _openai_turns(message, names)
    ]
    chat: JsonObject = {
        "model": body.get("model"),
        "messages": turns,
        "tools": body.get("tools"),
        **_think(effort),
    }
    return Native(
        path=Endpoint.OPENAI_CHAT, fields=body.fields, options=options, chat=chat, thinks=thinks
    )


def _openai_turns(message: Body, names: Mapping[str, JsonValue]) -> list[JsonObject]:
    """One message for each part of the content, the calls at the last one, as Ollama does.

    Args:
        names: see `_called_names`.
    """
    called = [(one.get("id"), one.object("function")) for one in message.objects("tool_calls")]
    calls: list[JsonValue] = [
        _call(identity, function.get("name"), function.get("arguments"))
        for identity, function in called
    ]
    texts = _texts(message.get("content"))
    _must(texts or calls)
    turns: list[JsonObject] = [
        {"role": message.get("role"), "content": text} for text in texts or [""]
    ]
    if calls:
        turns[-1]["tool_calls"] = calls
    if thought := message.get("reasoning"):
        turns[-1]["thinking"] = thought
    if answered := message.string("tool_call_id"):
        turns[-1] |= {
            "tool_call_id": answered,
            "tool_name": message.get("name") or names.get(answered, ""),
        }
    return turns


def _called_names(messages: Sequence[Body]) -> Mapping[str, JsonValue]:
    """The tools that were called, by the id of the call; the last one of an id counts."""
    names: dict[str, JsonValue] = {}
    for message in reversed(messages):
        for call in message.objects("tool_calls"):
            names.setdefault(call.string("id"), call.object("function").get("name"))
    return names


def _call(identity: JsonValue, name: JsonValue, arguments: JsonValue) -> JsonObject:
    """A call in the words of `/api/chat`."""
    if isinstance(arguments, str):
        arguments = decode(arguments.encode()) if arguments else {}
    _must(isinstance(arguments, dict))
    return {"id": identity, "function": {"name": name, "arguments": arguments}}


def _think(effort: JsonValue) -> JsonObject:
    return {"think": False if effort == "none" else effort} if effort else {}


def _openai_completion(body: Body) -> Native:
    prompt = body.get("prompt")
    suffix = body.string("suffix")
    _must(isinstance(prompt, str))
    asked: JsonObject = {
        "model": body.get("model"),
        "prompt": prompt,
        **({"suffix": suffix} if suffix else {}),
    }
    penalties: JsonObject = {
        name: body.get(name) or 0 for name in ("frequency_penalty", "presence_penalty")
    }
    return Native(
        path=Endpoint.GENERATE,
        fields=asked,
        options=_openai_options(body) | penalties,
        turns=not suffix,
    )


def _openai_options(body: Body) -> JsonObject:
    stop = body.get("stop")
    limit = body.get("max_tokens")
    options: JsonObject = (
        {} if stop is None else {"stop": stop if isinstance(stop, list) else [stop]}
    )
    options |= {} if limit is None else {"num_predict": limit}
    return (
        options | {"temperature": 1.0, "top_p": 1.0} | _given(body, "temperature", "seed", "top_p")
    )


def _message(body: Body) -> Native:
    system = "".join(_texts(body.get("system")))
    messages: list[JsonValue] = [{"role": "system", "content": system}] if system else []
    messages += [turn for message in body.objects("messages") for turn in _message_turns(message)]
    options = {
        "num_predict": body.get("max_tokens"),
        **_given(body, "temperature", "top_p", "top_k"),
    }
    if stops := body.array("stop_sequences"):
        options["stop"] = stops
    wish = body.object("thinking").get("type")
    effort = body.object("output_config").get("effort")
    effort = effort.strip().lower().replace("xhigh", "high") if isinstance(effort, str) else ""
    think: JsonObject = {"think": effort} if effort in EFFORTS else {}
    if wish in ("enabled", "disabled"):
        think = {"think": wish == "enabled"}
    return _conversation(
        body, messages, options, think, _tools(body, "input_schema", kinds=(None, "custom"))
    )


def _conversation(
    body: Body,
    messages: list[JsonValue],
    options: JsonObject,
    think: JsonObject,
    tools: list[JsonValue],
) -> Native:
    offered: JsonObject = {"tools": tools} if tools else {}
    asked: JsonObject = {"model": body.get("model"), "messages": messages, **think, **offered}
    thinks = think.get("think") is not False
    return Native(
        path=Endpoint.CHAT,
        fields=asked,
        options=options,
        chat=asked if tools else None,
        thinks=thinks,
    )


def _tools(body: Body, schema: str, *, kinds: tuple[str | None, ...]) -> list[JsonValue]:
    """Functions as `/api/chat` takes them; not something else, such as a search that a server
    runs.
    """
    tools = body.objects("tools")
    _must(all(tool.get("type") in kinds for tool in tools))
    return [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description") or "",
                "parameters": tool.get(schema) or {},
            },
        }
        for tool in tools
    ]


def _message_turns(message: Body) -> list[JsonObject]:
    """A message that holds nothing is left out, as Ollama does."""
    content = message.get("content")
    role = message.string("role").lower()
    given: list[JsonValue] = (
        [{"type": "text", "text": content}]
        if isinstance(content, str)
        else message.array("content")
    )
    blocks: dict[str, list[Body]] = {kind: [] for kind in _BLOCKS}
    for block in map(Body, given):
        _must(block.get("type") in _BLOCKS)
        blocks[block.string("type")].append(block)
    text = "".join([block.string("text") for block in blocks["text"]])
    thoughts = blocks["thinking"]
    turn: JsonObject = {"role": role, "content": text}
    if thoughts and (thought := thoughts[-1].string("thinking")):
        turn["thinking"] = thought
    if calls := [
        _call(one.get("id"), one.get("name"), one.get("input") or {}) for one in blocks["tool_use"]
    ]:
        turn["tool_calls"] = [*calls]
    results = [_result(one.get("tool_use_id"), one.get("content")) for one in blocks["tool_result"]]
    spoken = [turn] if text or len(turn) > 2 else []
    return [*results, *spoken] if role == "user" else [*spoken, *results]


def _result(identity: JsonValue, content: JsonValue) -> JsonObject:
    """What a tool has answered."""
    return {"role": "tool", "content": "".join(_texts(content)), "tool_call_id": identity}


def _response(body: Body) -> Native:
    given = body.get("input")
    limit = body.get("max_output_tokens")
    _must(body.object("text").object("format").get("type") in (None, "text"))
    options: JsonObject = {
        "temperature": 1.0,
        **_given(body, "temperature", "top_p"),
        **({} if limit is None else {"num_predict": limit}),
    }
    items: list[JsonValue] = (
        [{"role": "user", "content": given}] if isinstance(given, str) else body.array("input")
    )
    instructions: list[JsonObject] = (
        [{"role": "system", "content": body.get("instructions")}]
        if body.get("instructions")
        else []
    )
    messages = _response_messages(instructions, [Body(item) for item in items])
    think = _think(body.object("reasoning").get("effort"))
    return _conversation(
        body, [*messages], options, think, _tools(body, "parameters", kinds=("function",))
    )


def _response_messages(messages: list[JsonObject], items: Sequence[Body]) -> list[JsonObject]:
    """The conversation with these items.

    Thoughts belong to the assistant's turn after them, a call joins the one before it.
    """
    thoughts: JsonValue = ""
    for item in items:
        match item.get("type") or "message":
            case "reasoning":
                thoughts = item.get("encrypted_content") or ""
                continue
            case "message":
                texts = _texts(item.get("content"))
                _must(texts)
                messages.append({"role": item.get("role"), "content": "".join(texts)})
            case "function_call":
                if not (messages and messages[-1]["role"] == "assistant"):
                    messages.append({"role": "assistant", "content": ""})
                calls = messages[-1].get("tool_calls")
                call = _call(item.get("call_id"), item.get("name"), item.get("arguments"))
                messages[-1]["tool_calls"] = [*(calls if isinstance(calls, list) else []), call]
            case "function_call_output":
                messages.append(_result(item.get("call_id"), item.get("output")))
            case _:
                raise GoJsonError("this kind of item cannot be brought into native form")
        if thoughts and messages[-1]["role"] == "assistant":
            messages[-1]["thinking"] = thoughts
            thoughts = ""
    return (
        [*messages, {"role": "assistant", "content": "", "thinking": thoughts}]
        if thoughts
        else messages
    )


_READERS: Mapping[Endpoint, Callable[[Body], Native]] = MappingProxyType(
    {
        Endpoint.CHAT: _chat,
        Endpoint.GENERATE: _generate,
        Endpoint.OPENAI_CHAT: _openai_chat,
        Endpoint.OPENAI_COMPLETIONS: _openai_completion,
        Endpoint.OPENAI_RESPONSES: _response,
        Endpoint.ANTHROPIC_MESSAGES: _message,
    }
)


def _texts(content: JsonValue) -> list[str]:
    """The parts of a content that is nothing but text; none for no content."""
    if isinstance(content, str):
        return [content]
    parts = [Body(part) for part in content] if isinstance(content, list) else []
    _must(all(part.get("type") in _TEXT_PARTS for part in parts))
    return [part.string("text") for part in parts]


def _given(body: Body, *names: str) -> JsonObject:
    return {name: given for name in names if (given := body.get(name)) is not None}
