"""A request to Claude as it is put together: its draft, the turns of the conversation, and their content blocks.

Must never fetch anything: an image is in the request or it is refused, so that what a request costs can be bounded by its size and its
number of images. Source: Anthropic's reference of `POST /v1/messages`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hearth.dialects.gojson import Body, JsonObject, JsonValue
from hearth.errors import Untranslatable

LOCAL = "leave it out, or ask a local model"

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NOT_ID = re.compile(r"[^A-Za-z0-9_-]")
_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
_MAGIC = (("iVBORw0KGgo", "image/png"), ("/9j/", "image/jpeg"), ("R0lGOD", "image/gif"), ("UklGR", "image/webp"))
"""How files of each kind begin, in base64. What a caller claims them to be is not asked: Claude refuses a wrong claim."""


def refused(field: str, advice: str = LOCAL) -> Untranslatable:
    """The error for `field`, a path such as `messages[2].content`; `advice` completes the sentence."""
    return Untranslatable(f"Claude does not accept `{field}`: {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a body of any dialect asks of Claude.

    Attributes:
        called: stand-ins for the tools that the conversation has called, for where none is offered any more.
        limit_tokens: the caller's own limit of the output; None without one.
        wanted: `"json"` for any JSON object, a JSON schema, or None for text.
        others: parameters that go on as they are.
    """

    messages: list[JsonValue]
    system: list[JsonValue]
    tools: list[JsonValue] = field(default_factory=list)
    tool_choice: JsonObject | None = None
    called: list[JsonValue] = field(default_factory=list)
    limit_tokens: int | None = None
    stop: Sequence[str] = ()
    wanted: JsonValue = None
    others: Mapping[str, JsonValue] = field(default_factory=dict)


class Turns:
    """One conversation, message by message; `messages` when all are in."""

    def __init__(self) -> None:
        self.system: list[JsonValue] = []
        self._turns: list[tuple[str, list[JsonValue]]] = []
        self._open_calls: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._used: set[str] = set()
        self._tools: dict[str, None] = {}

    def instruct(self, text: str) -> None:
        """A system message: wherever it stood, Claude has one place for all of them."""
        if text.strip():
            self.system.append(text_block(text))

    def say(self, role: str, blocks: Sequence[JsonObject], where: str) -> None:
        """What `role` (user or assistant) says; Claude refuses empty texts, so they are left out."""
        kept = _not_blank(blocks)
        if kept:
            self._expect_no_results(role, where)
            self._add(role, kept)

    def call(self, call_id: str, name: str, arguments: JsonObject, where: str) -> None:
        """A tool call by the assistant; an id that is missing, malformed or taken is replaced, also in its result."""
        self._expect_no_results("assistant", where)
        wanted = call_id if _ID.fullmatch(call_id) else _NOT_ID.sub("_", call_id)[:100] or "call"
        number, safe_id = 1, wanted
        while safe_id in self._used:
            number += 1
            safe_id = f"{wanted[:100]}_{number}"
        self._used.add(safe_id)
        self._ids[call_id] = safe_id
        self._open_calls[safe_id] = name
        self._tools[name] = None
        self._add("assistant", [{"type": "tool_use", "id": safe_id, "name": name, "input": arguments}])

    def result(self, call_id: str, name: str, blocks: Sequence[JsonObject], where: str) -> None:
        """A tool's result for the call `call_id`; without an id for the first open call of that tool, or of any.

        Raises Untranslatable: no such call is open.
        """
        named = [open_id for open_id, called in self._open_calls.items() if called == name]
        safe_id = self._ids.get(call_id, "") if call_id else [*named, *self._open_calls, ""][0]
        if self._open_calls.pop(safe_id, None) is None:
            raise refused(where, "there is no tool call before it that it answers")
        self._add("user", [{"type": "tool_result", "tool_use_id": safe_id, "content": _not_blank(blocks)}])

    @property
    def messages(self) -> list[JsonValue]:
        """All turns. Raises Untranslatable where it is not Claude's turn."""
        if self._open_calls:
            raise refused("messages", "a tool call in it has no result")
        if not self._turns:
            raise refused("messages", "there is nothing in it to answer")
        if self._turns[-1][0] == "assistant":
            raise refused("messages", "the last one is from the assistant, and Claude does not continue a started answer")
        return [{"role": role, "content": content} for role, content in self._turns]

    @property
    def stand_ins(self) -> list[JsonValue]:
        """Tools for a conversation that has called some and offers none any more: Claude wants every one of it defined."""
        return [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in self._tools]

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
    """One image from its base64 text. Raises Untranslatable for a format that Claude does not know."""
    if not isinstance(data, str):
        raise refused(where, f"give base64 text, or {LOCAL}")
    packed = "".join(data.split())
    for magic, media_type in _MAGIC:
        if packed.startswith(magic):
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": packed}}
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
                raise refused(f"{where}.image_url", "send the image itself, as a base64 `data:` URL")
            return image_block(found.string[found.end() :], f"{where}.image_url")
    raise refused(f"{where}.type", "only text and images are supported")
