"""What a request in Ollama's or OpenAI's dialect asks Claude for. Each reader raises Untranslatable, and BadRequest."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hearth.dialects.claude.request import Draft, Turns, content_blocks, image_block, refused, text_block
from hearth.dialects.claude.tools import arguments_in, function_tools, tool_choice
from hearth.dialects.gojson import MAX_INT, Body, JsonObject, JsonValue
from hearth.dialects.routes import Endpoint
from hearth.dialects.validation import messages_of
from hearth.dialects.writers import RESPONSE_REPEATS
from hearth.errors import BadRequest

_ROLES: Mapping[Endpoint, tuple[str, ...]] = MappingProxyType(
    {
        Endpoint.CHAT: ("system", "user", "assistant", "tool"),
        Endpoint.OPENAI_CHAT: ("system", "developer", "user", "assistant", "tool"),
        Endpoint.OPENAI_RESPONSES: ("system", "developer", "user", "assistant"),
    }
)


def chat_draft(body: Body) -> Draft:
    """`/api/chat`."""
    return _native_draft(body, _turns_of(body, Endpoint.CHAT), function_tools(body.array("tools")))


def generate_draft(body: Body) -> Draft:
    """`/api/generate`: one prompt."""
    for name in ("context", "suffix", "template", "raw"):
        if body.get(name):
            raise refused(name)
    turns = Turns()
    prompt = _prompt(body)
    turns.instruct(body.string("system"))
    turns.say("user", [*_images(body, ""), text_block(prompt)], "prompt")
    return _native_draft(body, turns, [])


def _native_draft(body: Body, turns: Turns, tools: list[JsonValue]) -> Draft:
    for name in ("logprobs", "_debug_render_only"):
        if body.flag(name):
            raise refused(name)
    options, wanted = body.object("options"), body.get("format")
    stop, limit = options.get("stop"), options.get("num_predict")
    if stop is not None and not isinstance(stop, list):
        raise BadRequest('option "stop" must be of type array')
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise BadRequest('option "num_predict" must be of type integer')
    if not (wanted is None or wanted in ("", "json") or isinstance(wanted, dict)):
        raise refused("format", 'give "json" or a JSON schema object')
    return Draft(
        messages=turns.messages,
        system=turns.system,
        tools=tools,
        called=turns.stand_ins,
        limit_tokens=None if limit is None else int(min(limit, MAX_INT)),
        stop=stop_texts(stop, "options.stop"),
        wanted="json" if wanted == {} else wanted or None,
    )


def openai_chat_draft(body: Body) -> Draft:
    """`/v1/chat/completions`."""
    for name in ("functions", "function_call"):
        if body.get(name) is not None:
            raise refused(name, "OpenAI has replaced it; use `tools` and `tool_choice`")
    if body.flag("logprobs"):
        raise refused("logprobs")
    turns, tools = _turns_of(body, Endpoint.OPENAI_CHAT), function_tools(body.array("tools"))
    choice = tool_choice(body.get("tool_choice"), body.get("parallel_tool_calls"), "tool_choice")
    wanted = _response_format(body.object("response_format"), "response_format")
    return _openai_draft(body, turns, tools=tools, choice=choice, wanted=wanted)


def completion_draft(body: Body) -> Draft:
    """`/v1/completions`: the prompt is one user message."""
    for name in ("suffix", "logprobs", "echo"):
        value = body.get(name)
        if value is not None and value is not False and value != "":
            raise refused(name)
    if (body.integer("best_of") or 1) > 1:
        raise refused("best_of", "one answer per request")
    turns = Turns()
    turns.say("user", [text_block(_prompt(body))], "prompt")
    return _openai_draft(body, turns, tools=[], choice=None, wanted=None)


def _openai_draft(body: Body, turns: Turns, *, tools: list[JsonValue], choice: JsonObject | None, wanted: JsonValue) -> Draft:
    if (body.integer("n") or 1) > 1:
        raise refused("n", "one answer per request")
    limit, limit_before = body.integer("max_completion_tokens"), body.integer("max_tokens")
    return Draft(
        messages=turns.messages,
        system=turns.system,
        tools=tools,
        called=turns.stand_ins,
        tool_choice=choice,
        limit_tokens=limit_before if limit is None else limit,
        stop=stop_texts(body.get("stop"), "stop"),
        wanted=wanted,
        include_usage=body.object("stream_options").flag("include_usage"),
    )


def response_draft(body: Body) -> Draft:
    """`/v1/responses`."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if body.get(name) is not None:
            raise refused(name, "nothing is remembered between requests; send the whole conversation as `input`")
    if body.flag("background"):
        raise refused("background", "ask in the foreground")
    turns = Turns()
    turns.instruct(body.string("instructions"))
    _add_input(turns, body.get("input"))
    return Draft(
        messages=turns.messages,
        system=turns.system,
        tools=function_tools(body.array("tools"), nested=False),
        called=turns.stand_ins,
        tool_choice=tool_choice(body.get("tool_choice"), body.get("parallel_tool_calls"), "tool_choice"),
        limit_tokens=body.integer("max_output_tokens"),
        wanted=_response_format(body.object("text").object("format"), "text.format"),
        asked={name: body.get(name) for name in RESPONSE_REPEATS},
    )


def _add_input(turns: Turns, given: JsonValue) -> None:
    if isinstance(given, str):
        turns.say("user", [text_block(given)], "input")
        return
    if not isinstance(given, list):
        raise refused("input", "give a text or a list of items")
    for index, one in enumerate(given):
        where = f"input[{index}]"
        if not isinstance(one, dict):
            raise refused(where, "give an object with a type")
        item = Body(one)
        match item.get("type"):
            case None | "message":
                _add_message(turns, item, where, Endpoint.OPENAI_RESPONSES)
            case "function_call":
                arguments = arguments_in(item.get("arguments"), f"{where}.arguments")
                turns.call(item.string("call_id"), item.string("name"), arguments, where)
            case "function_call_output":
                turns.result(item.string("call_id"), "", content_blocks(item.get("output"), f"{where}.output"), where)
            case "reasoning":
                pass
            case _:
                raise refused(f"{where}.type", "only messages, function calls and their outputs can be carried")


def _turns_of(body: Body, endpoint: Endpoint) -> Turns:
    turns = Turns()
    for index, message in enumerate(messages_of(body)):
        _add_message(turns, message, f"messages[{index}]", endpoint)
    return turns


def _add_message(turns: Turns, message: Body, where: str, endpoint: Endpoint) -> None:
    native, roles = endpoint is Endpoint.CHAT, _ROLES[endpoint]
    role = message.string("role") or ("user" if endpoint is Endpoint.OPENAI_RESPONSES else "")
    if role not in roles:
        raise refused(f"{where}.role", f"it is {', '.join(roles[:-1])} or {roles[-1]}")
    if native:
        text = message.string("content")
        blocks = [*_images(message, f"{where}."), *([text_block(text)] if text else [])]
    else:
        blocks = content_blocks(message.get("content"), f"{where}.content")
    instructs = role in ("system", "developer")
    if instructs or (role == "assistant" and endpoint is Endpoint.OPENAI_CHAT):
        if any(block["type"] != "text" for block in blocks):
            place, advice = ("images", "only text can stand in a system message") if native else ("content", "only text can stand here")
            raise refused(f"{where}.{place}", advice)
        blocks = [text_block("".join(str(block["text"]) for block in blocks))]
    if instructs:
        turns.instruct(str(blocks[0]["text"]))
    elif role == "tool":
        turns.result(message.string("tool_call_id"), message.string("tool_name") if native else "", blocks, where)
    else:
        turns.say(role, blocks, where)
        if role == "assistant" and endpoint is not Endpoint.OPENAI_RESPONSES:
            _add_calls(turns, message, where)


def _add_calls(turns: Turns, message: Body, where: str) -> None:
    for index, call in enumerate(message.objects("tool_calls")):
        place, function = f"{where}.tool_calls[{index}]", call.object("function")
        if not function.fields:
            raise refused(place, "give an object with a function")
        arguments = arguments_in(function.get("arguments"), f"{place}.function.arguments")
        turns.call(call.string("id"), function.string("name"), arguments, place)


def _images(body: Body, where: str) -> list[JsonObject]:
    return [image_block(image, f"{where}images[{index}]") for index, image in enumerate(body.array("images"))]


def _prompt(body: Body) -> str:
    prompt = body.string("prompt")
    if not prompt.strip():
        raise refused("prompt", "there is nothing in it to answer")
    return prompt


def _response_format(given: Body, where: str) -> JsonValue:
    """`"json"`, a schema, or None for text, from a `response_format` or a Responses `text.format`."""
    kind = given.get("type")
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return "json"
    described = given.get("json_schema")
    schema = (Body(described) if isinstance(described, dict) else given).get("schema")
    if kind != "json_schema" or not isinstance(schema, dict):
        raise refused(where, "its type is text, json_object, or json_schema with a schema")
    return schema


def stop_texts(value: JsonValue, where: str) -> list[str]:
    """The texts that end an answer, from one or a list of them; empty ones do nothing and are left out.

    Raises Untranslatable: something else, or nothing but white space, which Claude refuses.
    """
    listed = value if isinstance(value, list) else [] if value is None else [value]
    texts = [text for text in listed if isinstance(text, str)]
    if len(texts) != len(listed):
        raise refused(where, "give a text or a list of texts")
    if any(text and not text.strip() for text in texts):
        raise refused(where, "a stop text of nothing but white space; use one with a letter in it, or ask a local model")
    return [text for text in texts if text]
