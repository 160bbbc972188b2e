"""What a request to Claude is made of: the turns of the conversation with their content blocks,
tools, and JSON schemas.

Must never fetch anything: an image is in the request or it is refused, so that what a request costs
can be bounded by its size and its number of images. Source: Anthropic's reference of `POST
/v1/messages`, and its guide to tool use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hearth.dialects.gojson import Body, GoJsonError, JsonObject, JsonValue, decode, encode, lookup
from hearth.dialects.open_calls import OpenCalls
from hearth.errors import CallerError, Untranslatable

LOCAL = "leave it out, or ask a local model"

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NOT_ID = re.compile(r"[^A-Za-z0-9_-]")
_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
_MAGIC = (
    ("iVBORw0KGgo", "image/png"),
    ("/9j/", "image/jpeg"),
    ("R0lGOD", "image/gif"),
    ("UklGR", "image/webp"),
)
"""How files of each kind begin, in base64.

What a caller claims them to be is not asked: Claude refuses a wrong claim.
"""

_FORMATS = (
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "uri",
    "ipv4",
    "ipv6",
    "uuid",
)
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_NOT_ADVICE = ("$schema", "$id", "$comment", "additionalProperties", "description", "strict")
_ONLY_OF = {
    "properties": "object",
    "required": "object",
    "patternProperties": "object",
    "additionalProperties": "object",
    "items": "array",
}
"""Keywords that say nothing of other types."""
_WITHOUT_TYPE = "every part of a schema for it needs a `type`"
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


def refused(field: str, advice: str = LOCAL) -> CallerError:
    """The error for `field`, a path such as `messages[2].content`; `advice` completes the
    sentence.
    """
    return Untranslatable(f"Claude does not accept `{field}`: {advice}")


class Turns:
    """One conversation, message by message; `messages` when all are in."""

    def __init__(self) -> None:
        self.system: list[JsonValue] = []
        self._turns: list[tuple[str, list[JsonValue]]] = []
        self._open_calls = OpenCalls()
        self._ids: dict[str, str] = {}
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}
        """The last one that made an id of this one."""
        self._tools: dict[str, None] = {}

    def instruct(self, text: str) -> None:
        """A system message: wherever it stood, Claude has one place for all of them."""
        if text.strip():
            self.system.append(text_block(text))

    def say(self, role: str, blocks: Sequence[JsonObject], where: str) -> None:
        """What `role` (user or assistant) says; Claude refuses empty texts, so they are left
        out.
        """
        kept = _not_blank(blocks)
        if kept:
            self._expect_no_results(role, where)
            self._add(role, kept)

    def call(self, call_id: str, name: str, arguments: JsonObject, where: str) -> None:
        """A tool call by the assistant; an id that is missing, malformed or taken is replaced, also
        in its result.
        """
        self._expect_no_results("assistant", where)
        wanted = call_id if _ID.fullmatch(call_id) else _NOT_ID.sub("_", call_id)[:100] or "call"
        begins = wanted[:100]
        safe_id = wanted
        while safe_id in self._used:
            self._numbers[begins] = self._numbers.get(begins, 1) + 1
            safe_id = f"{begins}_{self._numbers[begins]}"
        self._used.add(safe_id)
        self._ids[call_id] = safe_id
        self._open_calls.add(safe_id, name)
        self._tools[name] = None
        self._add(
            "assistant", [{"type": "tool_use", "id": safe_id, "name": name, "input": arguments}]
        )

    def result(self, call_id: str, name: str, blocks: Sequence[JsonObject], where: str) -> None:
        """A tool's result for the call `call_id`; without an id for the first open call of that
        tool, or of any. Raises Untranslatable: no such call is open.
        """
        safe_id = self._answered(call_id, name)
        if safe_id is None:
            raise refused(where, "there is no tool call before it that it answers")
        self._add(
            "user", [{"type": "tool_result", "tool_use_id": safe_id, "content": _not_blank(blocks)}]
        )

    def _answered(self, call_id: str, name: str) -> str | None:
        if not call_id:
            return self._open_calls.answer_first(name) or self._open_calls.answer_first()
        safe_id = self._ids.get(call_id, "")
        return safe_id if self._open_calls.answer(safe_id) else None

    @property
    def messages(self) -> list[JsonValue]:
        """All turns. Raises Untranslatable where it is not Claude's turn."""
        if self._open_calls:
            raise refused("messages", "a tool call in it has no result")
        if not self._turns:
            raise refused("messages", "there is nothing in it to answer")
        if self._turns[-1][0] == "assistant":
            raise refused(
                "messages",
                "the last one is from the assistant, and Claude does not continue a started answer",
            )
        return [{"role": role, "content": content} for role, content in self._turns]

    @property
    def stand_ins(self) -> list[JsonValue]:
        """Tools for a conversation that has called some and offers none any more: Claude wants
        every one of it defined.
        """
        return [
            {"name": name, "input_schema": {"type": "object", "properties": {}}}
            for name in self._tools
        ]

    def _add(self, role: str, blocks: list[JsonValue]) -> None:
        if self._turns and self._turns[-1][0] == role:
            self._turns[-1][1].extend(blocks)
        else:
            self._turns.append((role, blocks))

    def _expect_no_results(self, role: str, where: str) -> None:
        if self._open_calls and not (role == "assistant" == self._turns[-1][0]):
            raise refused(where, "the tool calls before it have no results yet")


def _not_blank(blocks: Sequence[JsonObject]) -> list[JsonValue]:
    return [block for block in blocks if block["type"] != "text" or str(block["text"]).strip()]


def text_block(text: str) -> JsonObject:
    """One block of text."""
    return {"type": "text", "text": text}


def image_block(data: JsonValue, where: str) -> JsonObject:
    """One image from its base64 text.

    Raises Untranslatable for a format that Claude does not know.
    """
    if not isinstance(data, str):
        raise refused(where, f"give base64 text, or {LOCAL}")
    packed = "".join(data.split())
    for magic, media_type in _MAGIC:
        if packed.startswith(magic):
            return {
                "type": "image",
                "source": {"type": "base64", "media_type": media_type, "data": packed},
            }
    raise refused(where, "it reads base64 of PNG, JPEG, GIF and WebP images")


def content_blocks(content: JsonValue, where: str) -> list[JsonObject]:
    """The blocks of an OpenAI content: a string, or a list of text and image parts; null is none.
    Raises Untranslatable: other parts, and images that are only an address.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [text_block(content)]
    if not isinstance(content, list):
        raise refused(where, "give a text or a list of parts")
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _part(part: JsonValue, where: str) -> JsonObject:
    if not isinstance(part, dict):
        raise refused(where, "give an object with a `type`")
    given = Body(part)
    match given.get("type"):
        case "text" | "input_text" | "output_text":
            return text_block(given.string("text"))
        case "refusal":
            return text_block(given.string("refusal"))
        case "image_url" | "input_image":
            image = given.get("image_url")
            url = Body(image).get("url") if isinstance(image, dict) else image
            found = _DATA_URL.match(url) if isinstance(url, str) else None
            if found is None:
                raise refused(
                    f"{where}.image_url", "send the image itself, as a base64 `data:` URL"
                )
            return image_block(found.string[found.end() :], f"{where}.image_url")
    raise refused(f"{where}.type", "only text and images are supported")


def strict_schema(schema: JsonValue, where: str) -> JsonObject:
    """The part of `schema` that Claude enforces, the rest of it as advice in descriptions. Raises
    Untranslatable: a schema without a type, or an object with properties of any name.
    """
    if not isinstance(schema, dict):
        raise refused(where, "give a JSON schema object")
    rest = dict(schema)
    strict: JsonObject = {
        name: _each(rest.pop(name), f"{where}.{name}")
        for name in ("$defs", "definitions")
        if name in rest
    }
    if "$ref" in rest:
        return {**strict, "$ref": rest["$ref"]}
    strict |= _shape(rest, where)
    if "title" in rest:
        strict["title"] = rest.pop("title")
    advice = ", ".join(
        f"{name}: {encode(value).decode()}"
        for name, value in rest.items()
        if name not in _NOT_ADVICE
    )
    described = rest.get("description")
    texts = [described if isinstance(described, str) else "", f"{{{advice}}}" if advice else ""]
    description = "\n\n".join(text for text in texts if text)
    return {**strict, "description": description} if description else strict


def _shape(rest: JsonObject, where: str) -> JsonObject:
    """What kind of value this is; takes out of `rest` what is said here."""
    for name, kept in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        variants = rest.pop(name, None)
        if isinstance(variants, list):
            rest.pop("type", None)
            return {
                kept: [
                    strict_schema(variant, f"{where}.{name}[{index}]")
                    for index, variant in enumerate(variants)
                ]
            }
    literals = {name: rest.pop(name) for name in ("enum", "const") if _is_literal(name, rest)}
    if literals:
        rest.pop("type", None)
        return literals
    kind = rest.pop("type", None)
    # such as ["string", "null"], with the other keywords for each of them
    if isinstance(kind, list) and kind:
        others = {
            name: rest.pop(name) for name in list(rest) if name not in ("title", "description")
        }
        return {"anyOf": [strict_schema(one, where) for one in _one_by_one(kind, others, where)]}
    if not isinstance(kind, str) or kind not in _TYPES:
        raise refused(where, _WITHOUT_TYPE)
    return {"type": kind, **_inside(kind, rest, where)}


def _one_by_one(kinds: list[JsonValue], others: JsonObject, where: str) -> list[JsonObject]:
    """A schema for each of these types. None has twice what may be long: in each of those would be
    each of the next ones.
    """
    named = dict.fromkeys(kind for kind in kinds if isinstance(kind, str))
    if not all(isinstance(kind, str) for kind in kinds):
        raise refused(where, _WITHOUT_TYPE)
    return [
        {
            "type": kind,
            **{
                name: each
                for name, each in others.items()
                if kind != "null" and _ONLY_OF.get(name, kind) == kind
            },
        }
        for kind in named
    ]


def _is_literal(name: str, rest: JsonObject) -> bool:
    if name not in rest:
        return False
    value = rest[name]
    values = value if name == "enum" else [value]
    return (
        isinstance(values, list)
        and bool(values)
        and not any(isinstance(one, dict | list) for one in values)
    )


def _inside(kind: str, rest: JsonObject, where: str) -> JsonObject:
    if kind == "object":
        if isinstance(rest.get("additionalProperties"), dict) or rest.get("patternProperties"):
            raise refused(where, "an object in a schema for it must list its properties")
        properties = _each(rest.pop("properties", None) or {}, f"{where}.properties")
        required = rest.pop("required", None)
        needs: JsonObject = {"required": required} if isinstance(required, list) else {}
        return {"properties": properties, "additionalProperties": False, **needs}
    if kind == "array" and rest.get("items") is not None:
        few: JsonObject = (
            {"minItems": rest.pop("minItems")} if rest.get("minItems") in (0, 1) else {}
        )
        return {"items": strict_schema(rest.pop("items"), f"{where}.items"), **few}
    if kind == "string" and rest.get("format") in _FORMATS:
        return {"format": rest.pop("format")}
    return {}


def _each(schemas: JsonValue, where: str) -> JsonObject:
    if not isinstance(schemas, dict):
        raise refused(where, "give an object of schemas")
    return {name: strict_schema(schema, f"{where}.*") for name, schema in schemas.items()}


def function_tools(tools: Iterable[JsonValue], *, nested: bool = True) -> list[JsonValue]:
    """Function definitions as tools; `nested` where the function is an object inside (not so in the
    Responses API). Raises Untranslatable: another kind of tool, or a name that Claude does not
    allow.
    """
    return [_tool(tool, f"tools[{index}]", nested=nested) for index, tool in enumerate(tools)]


def _tool(tool: JsonValue, where: str, *, nested: bool) -> JsonObject:
    if not isinstance(tool, dict) or lookup(tool, "type") not in ("function", None):
        raise refused(where, "only functions are supported")
    given = lookup(tool, "function") if nested else tool
    if not isinstance(given, dict):
        raise refused(f"{where}.function", "give an object with name and parameters")
    function = Body(given)
    name = function.string("name")
    described = function.string("description")
    if not _ID.fullmatch(name):
        raise refused(f"{where}.name", "a name is 1 to 128 letters, digits, `_` or `-`")
    schema = function.get("parameters") or {"properties": {}}
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise refused(
            f"{where}.parameters", "the parameters of a function are a JSON schema of type object"
        )
    return {
        "name": name,
        **({"description": described} if described else {}),
        "input_schema": {"type": "object", **schema},
    }


def tool_choice(choice: JsonValue, parallel: JsonValue, where: str) -> JsonObject | None:
    """OpenAI's `tool_choice` and `parallel_tool_calls`; None where nothing is asked for. Raises
    Untranslatable: a choice that is not in the reference, or a list of allowed tools.
    """
    single: JsonObject = {"disable_parallel_tool_use": True} if parallel is False else {}
    if choice is None:
        return {"type": "auto", **single} if single else None
    if isinstance(choice, str) and choice in _CHOICES:
        return {"type": _CHOICES[choice], **({} if choice == "none" else single)}
    if isinstance(choice, dict) and lookup(choice, "type") == "function":
        function = lookup(choice, "function")
        name = lookup(function if isinstance(function, dict) else choice, "name")
        if isinstance(name, str) and _ID.fullmatch(name):
            return {"type": "tool", "name": name, **single}
    raise refused(where, 'give "auto", "none", "required" or one function')


def arguments_in(given: JsonValue, where: str) -> JsonObject:
    """The arguments of a call from their JSON text (or the object itself); nothing is no arguments.
    Raises Untranslatable: not a JSON object.
    """
    arguments = decoded_arguments(given) if isinstance(given, str) else given or {}
    if not isinstance(arguments, dict):
        raise refused(where, "the arguments of a call are a JSON object")
    return arguments


def decoded_arguments(written: str) -> JsonObject | None:
    """The arguments of a call in its JSON text, empty for a blank one; None where it is no JSON
    object.
    """
    try:
        arguments = decode(written.encode(errors="replace")) if written.strip() else {}
    except GoJsonError:
        return None
    return arguments if isinstance(arguments, dict) else None
