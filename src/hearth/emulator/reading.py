"""Messages and tools of every dialect, read as strictly as Ollama reads them: what it cannot put
into its own types is refused.

Types and texts as in ollama/ollama (`api/types.go`, `openai/openai.go`, `anthropic/anthropic.go`).
Where Go's parser says in its own words that a value has the wrong type, it is refused in those of
`gojson`.
"""

from __future__ import annotations

import re
from base64 import b64decode

from hearth.dialects.gojson import Body, GoJsonError, JsonObject, JsonValue, decode, encode
from hearth.emulator.prompts import ChatMessage
from hearth.errors import BadRequest

EFFORTS = ("high", "medium", "low", "max")
_EFFORTS_TEXT = ", ".join(f'"{effort}"' for effort in EFFORTS)
_ARGUMENTS_TEXT = "Value looks like object, but can't find closing '}' symbol"
"""Of `jsonparser`, by which Ollama keeps arguments in their order."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]*")
_IMAGE = re.compile(r"data:(image/(jpeg|jpg|png|webp))?;base64,")
_TEXTS = ("text", "input_text", "output_text")


def strings(body: Body, name: str) -> list[str]:
    """An array of strings. Raises BadRequest."""
    found = [one for one in body.array(name) if isinstance(one, str)]
    if len(found) != len(body.array(name)):
        raise GoJsonError(f"every entry of {name} must be of type string")
    return found


def check_context(body: Body) -> None:
    """The native `context`, which are integers. Raises BadRequest."""
    for one in body.array("context"):
        if not isinstance(one, int) or isinstance(one, bool):
            raise GoJsonError("every entry of context must be of type integer")


def _check_strings(body: Body, *names: str) -> None:
    for name in names:
        body.string(name)


def check_images(body: Body) -> None:
    """The native `images`, which are base64.

    Raises BadRequest.
    """
    for text in strings(body, "images"):
        try:
            b64decode(text, validate=True)
        except ValueError as error:
            legal = _BASE64.match(text)
            end = len(legal[0]) if legal else 0
            # An illegal character is reported where it stands, an incomplete group where it
            # begins.
            place = end if end < len(text) and text[end] != "=" else end // 4 * 4
            raise BadRequest(f"illegal base64 data at input byte {place}") from error


def think_of(body: Body) -> JsonValue:
    """The native `think`: a boolean, an effort or None. Raises BadRequest."""
    given = body.get("think")
    allowed = f"{_EFFORTS_TEXT}, true, or false)"
    if given is None or isinstance(given, bool) or given in EFFORTS:
        return given
    if isinstance(given, str):
        raise BadRequest(f"invalid think value: {encode(given).decode()} (must be {allowed}")
    raise BadRequest(f"think must be a boolean or string ({allowed}")


def effort_of(body: Body) -> str | None:
    """How much a chat completion is to think; None for the model's default.

    Raises BadRequest.
    """
    effort = body.string("reasoning_effort") or body.object("reasoning").string("effort")
    if effort and effort not in (*EFFORTS, "none"):
        raise BadRequest(
            f"invalid reasoning value: '{effort}' (must be {_EFFORTS_TEXT}, or \"none\")"
        )
    return effort or None


# Messages.


def native_message(body: Body) -> ChatMessage:
    """Raises BadRequest."""
    check_images(body)
    _check_strings(body, "tool_name", "tool_call_id")
    calls = body.objects("tool_calls")
    for call in calls:
        call.string("id")
        function = call.object("function")
        function.integer("index")
        function.string("name")
        _check_arguments(function.get("arguments"))
    return _message(body, body.string("content"), body.string("thinking"), calls)


def openai_message(body: Body) -> ChatMessage:
    """Raises BadRequest."""
    _check_strings(body, "name", "tool_call_id")
    calls = body.objects("tool_calls")
    content = body.get("content")
    for call in calls:
        _check_strings(call, "id", "type")
        call.integer("index")
        function = call.object("function")
        function.string("name")
        _check_packed_arguments(function.string("arguments"))
    if not isinstance(content, str | list):
        if body.get("tool_calls") is None:
            raise BadRequest(f"invalid message content type: {go_type(content)}")
        content = None
    return _message(body, openai_text(content, "text"), body.string("reasoning"), calls)


def _message(body: Body, content: str, thinking: str, calls: list[Body]) -> ChatMessage:
    called = encode([call.fields for call in calls]).decode() if calls else ""
    return ChatMessage(
        role=body.string("role"), content=content, tool_calls=called, thinking=thinking
    )


def _check_arguments(arguments: JsonValue) -> None:
    if arguments is not None and not isinstance(arguments, dict):
        raise BadRequest(_ARGUMENTS_TEXT)


def _check_packed_arguments(text: str) -> None:
    """Arguments of OpenAI's are JSON inside of a string."""
    try:
        _check_arguments(decode(text.encode()))
    except BadRequest as error:
        raise BadRequest("invalid tool call arguments") from error


def go_type(value: JsonValue) -> str:
    """What Go calls the type of a value."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "float64"
    return "[]interface {}" if isinstance(value, list) else "map[string]interface {}"


def response_item(body: Body) -> ChatMessage:
    """One entry of the `input` of `/v1/responses`. Raises BadRequest."""
    kind = body.get("type")
    if kind == "function_call_output":
        return ChatMessage(role="tool", content=str(body.get("output")))
    if kind == "function_call":
        _check_packed_arguments(body.string("arguments"))
        return ChatMessage(role="assistant", content="", tool_calls=encode(body.fields).decode())
    content = body.get("content")
    if content is not None and not isinstance(content, str | list):
        raise BadRequest(f"invalid message content type: {go_type(content)}")
    return ChatMessage(role=str(body.get("role") or "user"), content=openai_text(content, *_TEXTS))


def openai_text(content: str | list[JsonValue] | None, *text_kinds: str) -> str:
    """The text of a message, or of its parts of these kinds; raises BadRequest for parts that
    OpenAI's layer does not read.
    """
    for one in content if isinstance(content, list) else ():
        if not isinstance(one, dict):
            raise BadRequest("invalid message format")
        part = Body(one)
        kind = part.get("type")
        image = part.get("image_url")
        if kind in text_kinds and isinstance(part.get("text"), str):
            continue
        if kind not in ("image_url", "input_image"):
            raise BadRequest("invalid message format")
        _check_image_url(image.get("url") if isinstance(image, dict) else image)
    return plain_text(content)


def _check_image_url(url: JsonValue) -> None:
    if not isinstance(url, str) or not url.startswith("data:"):
        raise BadRequest(
            "image URLs are not currently supported, please use base64 encoded data instead"
        )
    prefix = _IMAGE.match(url)
    if prefix is None:
        raise BadRequest("invalid image input")
    try:
        b64decode(url[prefix.end() :], validate=True)
    except ValueError as error:
        raise BadRequest("invalid message format") from error


def anthropic_message(body: Body) -> ChatMessage:
    """Raises BadRequest."""
    content = body.get("content")
    blocks = [] if content is None or isinstance(content, str) else body.objects("content")
    for block in blocks:
        _check_block(block)
    is_result = any(block.get("type") == "tool_result" for block in blocks)
    return ChatMessage(
        role="tool" if is_result else body.string("role"), content=plain_text(content)
    )


def _check_block(block: Body) -> None:
    _check_strings(block, "type", "text", "id", "name", "tool_use_id", "thinking", "signature")
    _check_arguments(block.get("input"))
    if block.get("type") == "image" and not block.map("source"):
        raise BadRequest("invalid image source")
    if block.get("type") == "tool_use":
        for name in ("id", "name"):
            if not block.string(name):
                raise BadRequest(f"tool_use block missing required '{name}' field")


def plain_text(content: JsonValue) -> str:
    """The text of a message, or of its blocks in any dialect; an image counts as a marker."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(plain_text(block) for block in content)
    if isinstance(content, dict):
        match content.get("type"):
            case str() as kind if kind in _TEXTS and isinstance(content.get("text"), str):
                return str(content["text"])
            case "tool_result":
                return plain_text(content.get("content"))
            case "tool_use":
                return encode(content.get("input")).decode()
    return "[img]"


def system_message(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="system", content=text)] if text else []


# Tools.


def tools_of(body: Body) -> list[JsonObject]:
    """The tools of `/api/chat` and `/v1/chat/completions`. Raises BadRequest."""
    tools = body.objects("tools")
    for tool in tools:
        tool.string("type")
        function = tool.object("function")
        _check_strings(function, "name", "description")
        _check_parameters(function.object("parameters"))
    return [tool.fields for tool in tools]


def anthropic_tools(body: Body) -> list[JsonObject]:
    """The tools of `/v1/messages` in Ollama's form. Raises BadRequest."""
    tools = body.objects("tools")
    for tool in tools:
        try:
            _check_parameters(tool.object("input_schema"))
        except GoJsonError as error:
            name = encode(tool.string("name")).decode()
            raise BadRequest(f"invalid input_schema for tool {name}: {error.message}") from error
    return [as_function(tool.fields, "input_schema") for tool in tools]


def _check_parameters(schema: Body) -> None:
    schema.string("type")
    strings(schema, "required")
    for value in schema.map("properties").values():
        _check_property(Body(value, "every entry of properties"))


def _check_property(schema: Body) -> None:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if kind is not None and not all(isinstance(one, str) for one in kinds):
        raise GoJsonError("type must be a string or an array of strings")
    schema.string("description")
    schema.array("enum")
    for option in schema.objects("anyof"):
        _check_property(option)


def as_function(tool: JsonObject, schema: str) -> JsonObject:
    """A tool in Ollama's form; `schema` is where its parameters are."""
    function: JsonObject = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get(schema),
    }
    return {"type": "function", "function": function}
