"""A request of any dialect as a request of OpenAI's chat, text completions or embeddings, for an
engine that speaks these.

Here are Ollama's own routes. Fields that Ollama does not know either are left out, as Ollama does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from hearth.dialects.claude_blocks import image_block
from hearth.dialects.frames import at
from hearth.dialects.gojson import MAX_INT, Body, JsonObject, JsonValue, encode
from hearth.dialects.open_calls import OpenCalls
from hearth.dialects.routes import Endpoint
from hearth.dialects.translation.asking_messages import asked_of_messages
from hearth.dialects.translation.asking_responses import asked_of_responses
from hearth.dialects.translation.parts import (
    Asked,
    ServerApi,
    going_on,
    image_part,
    refused,
    schema_format,
    streamed,
    thinking,
)
from hearth.errors import Untranslatable
from hearth.types import without_none

_OF_THE_OWNER = frozenset({"num_ctx"})
"""An option that the gateway puts in itself; the engine has its context already."""
_MOST_TOKENS = 2**31 - 1
"""An engine that counts with 32 bits would take another number for a larger one."""
_ROLES = frozenset({"system", "user", "assistant", "tool"})
_NOT_GENERATED = ("suffix", "template", "context", "width", "height", "steps")


def asked_of(path: Endpoint, fields: JsonObject, api: ServerApi) -> Asked:
    """What OpenAI's routes are asked for a request of another dialect; generations always as a
    stream.

    Raises:
        BadRequest: it asks for something that cannot be carried; names the field.
    """
    body = Body(fields)
    if path is Endpoint.ANTHROPIC_MESSAGES:
        return asked_of_messages(body, api)
    if path is Endpoint.OPENAI_RESPONSES:
        return asked_of_responses(body, api)
    if path in (Endpoint.EMBED, Endpoint.EMBEDDINGS):
        return Asked(path=Endpoint.OPENAI_EMBEDDINGS, fields=_embedding(path, body))
    if not api.renders and body.flag("_debug_render_only"):
        raise refused("_debug_render_only", "it does not show how prompts are rendered")
    sampling = _sampling(body.map("options"), api.options)
    _refuse_shortening(body)
    if path is Endpoint.CHAT:
        tools = _tools(body)
        messages = _messages(body.objects("messages"), api)
        return _chat(body, messages, sampling | tools, api)
    for name in _NOT_GENERATED:
        if body.get(name):
            raise refused(name, "leave it out")
    if body.flag("raw"):
        return _completion(body, sampling, api)
    system = body.string("system")
    turns: list[JsonValue] = [{"role": "system", "content": system}] if system else []
    content = _content(body.string("prompt"), body.array("images"), "images")
    return _chat(body, [*turns, {"role": "user", "content": content}], sampling, api)


def _refuse_shortening(body: Body) -> None:
    """The engine refuses a prompt that is longer than its context, and never shortens one."""
    for name in ("truncate", "shift"):
        if body.get(name) is True:
            raise refused(name, "it refuses prompts that are longer than its context")


def _sampling(given: JsonObject, options: Mapping[str, str]) -> JsonObject:
    sampling: JsonObject = {}
    for name, wanted in given.items():
        if wanted is None or name.lower() in _OF_THE_OWNER:
            continue
        if name not in options:
            raise refused(f"options.{name}", "it has no such option")
        if name == "stop":
            if not (isinstance(wanted, str) or _is_texts(wanted)):
                raise refused("options.stop", "give an array of strings")
        elif not _is_number(wanted):
            raise refused(f"options.{name}", "give a number of at most 64 bits")
        elif name == "num_predict" and not 0 < wanted <= _MOST_TOKENS:
            continue  # no limit
        sampling[options[name]] = wanted
    return sampling


def _is_number(given: JsonValue) -> TypeGuard[float]:
    """One that an engine reads as it was meant, in place of making another one of it."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return False
    return -MAX_INT <= given <= MAX_INT


def _is_texts(given: JsonValue) -> bool:
    return isinstance(given, list) and all(isinstance(one, str) for one in given)


def _chat(body: Body, messages: list[JsonValue], sampling: JsonObject, api: ServerApi) -> Asked:
    asked: JsonObject = {
        "model": body.get("model"),
        "messages": messages,
        **sampling,
        **thinking(body.get("think"), api, "think"),
        **_format(body.get("format")),
        **streamed(),
    }
    if body.flag("logprobs"):
        tops = body.integer("top_logprobs")
        asked |= {"logprobs": True, **without_none({"top_logprobs": tops})}
    asked |= going_on(messages, api, f"messages[{len(messages) - 1}].role")
    return Asked(path=Endpoint.OPENAI_CHAT, fields=asked)


def _tools(body: Body) -> JsonObject:
    for place, tool in enumerate(body.objects("tools")):
        if not tool.map("function"):
            raise refused(f"tools[{place}].function", "give the function that it is")
    tools = body.array("tools")
    return {"tools": tools} if tools else {}


def _completion(body: Body, sampling: JsonObject, api: ServerApi) -> Asked:
    """A prompt as the model reads it."""
    if api.ends_texts and api.options["num_predict"] not in sampling:
        raise refused("raw", "give a positive options.num_predict with it, which it asks for")
    for name in ("images", "format", "think", "logprobs", "system"):
        if body.get(name):
            raise refused(name, "it is not possible with `raw`")
    asked: JsonObject = {
        "model": body.get("model"),
        "prompt": body.string("prompt"),
        **api.raw,
        **sampling,
        **streamed(),
    }
    return Asked(path=Endpoint.OPENAI_COMPLETIONS, fields=asked)


def _format(wanted: JsonValue) -> JsonObject:
    if wanted in (None, ""):
        return {}
    if wanted == "json":
        return {"response_format": {"type": "json_object"}}
    if not isinstance(wanted, dict):
        raise refused("format", 'give "json" or a JSON schema')
    return schema_format(wanted)


def _messages(given: Sequence[Body], api: ServerApi) -> list[JsonValue]:
    """The conversation. OpenAI ties what a tool answers to its call by an id, Ollama need not."""
    turns: list[JsonValue] = []
    open_calls = OpenCalls()
    for place, message in enumerate(given):
        where = f"messages[{place}]"
        role = message.string("role").lower()
        if role not in _ROLES:
            raise refused(f"{where}.role", f"give one of {', '.join(sorted(_ROLES))}")
        images = message.array("images")
        turn: JsonObject = {
            "role": role,
            "content": _content(message.string("content"), images, f"{where}.images"),
            **without_none({api.thoughts: message.string("thinking") or None}),
        }
        if calls := _calls(message, place):
            open_calls = _open(calls)
            turn["tool_calls"] = calls
        if role == "tool":
            turn["tool_call_id"] = _answered(message, open_calls, where)
        turns.append(turn)
    return turns


def _calls(message: Body, place: int) -> list[JsonValue]:
    calls: list[JsonValue] = []
    for number, call in enumerate(message.objects("tool_calls")):
        function = call.object("function")
        name = call.string("id") or f"call_{place}_{number}"
        said: JsonObject = {
            "name": function.get("name"),
            "arguments": encode(function.map("arguments")).decode(),
        }
        calls.append({"id": name, "type": "function", "function": said})
    return calls


def _open(calls: Sequence[JsonValue]) -> OpenCalls:
    """These calls, none of which has a result yet."""
    waiting = OpenCalls()
    for call in calls:
        tool = at(call, ("function", "name"))
        waiting.add(str(at(call, ("id",))), tool if isinstance(tool, str) else "")
    return waiting


def _answered(message: Body, open_calls: OpenCalls, where: str) -> str:
    """The id of the call that a tool's message answers: the one it gives, else that of its tool,
    else the first that has no answer yet.
    """
    if given := message.string("tool_call_id"):
        return given
    tool = message.string("tool_name") or message.string("name")
    found = open_calls.answer_first(tool)
    if found is None:
        raise refused(f"{where}.tool_name", "no call before it has this name")
    return found


def _content(text: str, images: Sequence[JsonValue], where: str) -> JsonValue:
    """Plain text, or the text and then the images."""
    if not images:
        return text
    parts: list[JsonValue] = [{"type": "text", "text": text}] if text else []
    return [*parts, *(_image(image, f"{where}[{at_}]") for at_, image in enumerate(images))]


def _image(data: JsonValue, where: str) -> JsonObject:
    try:
        source = image_block(data, where)["source"]
    except Untranslatable:
        raise refused(where, "give base64 of a PNG, JPEG, GIF or WebP image") from None
    media = at(source, ("media_type",))
    return image_part(f"data:{media};base64,{at(source, ('data',))}")


def _embedding(path: Endpoint, body: Body) -> JsonObject:
    if body.get("truncate") is True:
        raise refused("truncate", "it refuses inputs that are longer than its context")
    if body.integer("dimensions"):
        raise refused("dimensions", "its vectors have the length that its model gives them")
    _sampling(body.map("options"), {})
    if path is Endpoint.EMBEDDINGS:
        given: JsonValue = body.get("prompt")
        if not isinstance(given, str):
            raise refused("prompt", "give a string")
    else:
        given = body.get("input")
        if not (isinstance(given, str) or _is_texts(given)):
            raise refused("input", "give a string or an array of strings")
    return {"model": body.get("model"), "input": given}
