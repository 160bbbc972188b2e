"""A request to Claude as it is put together: its draft, the turns of the conversation, and their content blocks.

Must never fetch anything: an image is in the request or it is refused, so that what a request costs can be bounded by its size and its
number of images. Source: Anthropic's reference of `POST /v1/messages` (image formats).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hearth.dialects.gojson import JsonObject, JsonValue, lookup, string_field
from hearth.errors import Untranslatable

LOCAL = "leave it out, or ask a local model"


def refused(field: str, advice: str = LOCAL) -> Untranslatable:
    """The error for `field`, a path such as `messages[2].content`; `advice` completes the sentence."""
    return Untranslatable(f"Claude cannot take `{field}`: {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a body of any dialect asks of Claude.

    Attributes:
        system: texts or blocks for the system prompt, in order.
        limit_tokens: the caller's own limit of the output; None without one.
        wanted: `"json"` for any JSON object, a JSON schema, or None for text.
        called: stand-ins for the tools that the conversation has called, for where none is offered any more.
        others: parameters that go on as they are.
        asked: what an answer has to repeat of the request.
    """

    messages: list[JsonValue]
    system: list[JsonValue]
    tools: list[JsonValue]
    tool_choice: JsonObject | None = None
    called: list[JsonValue] = field(default_factory=list)
    limit_tokens: int | None = None
    stop: tuple[str, ...] = ()
    wanted: JsonValue = None
    others: Mapping[str, JsonValue] = field(default_factory=dict)
    include_usage: bool = False
    asked: Mapping[str, JsonValue] = field(default_factory=dict)


def stop_texts(value: JsonValue, where: str) -> tuple[str, ...]:
    """The texts that end an answer, from one or a list of them; empty ones do nothing and are left out.

    Raises:
        Untranslatable: something else, or nothing but white space, which Claude refuses.
    """
    listed = value if isinstance(value, list) else [] if value is None else [value]
    texts = tuple(text for text in listed if isinstance(text, str))
    if len(texts) != len(listed):
        raise refused(where, "give a text or a list of texts")
    if any(text and not text.strip() for text in texts):
        raise refused(where, "a stop text of nothing but white space; use one with a letter in it, or ask a local model")
    return tuple(text for text in texts if text)


_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NOT_ID = re.compile(r"[^A-Za-z0-9_-]")


class Turns:
    """One conversation, message by message; `messages` when all are in."""

    def __init__(self) -> None:
        self.system: list[JsonValue] = []
        self._roles: list[str] = []
        self._contents: list[list[JsonValue]] = []
        self._pending: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._used: set[str] = set()
        self._tools: list[str] = []

    def instruct(self, text: str) -> None:
        """A system message: wherever it stood, Claude has one place for all of them."""
        if text.strip():
            self.system.append(text_block(text))

    def say(self, role: str, blocks: list[JsonValue], where: str) -> None:
        """What `role` (user or assistant) says; Claude refuses empty texts, so they are left out."""
        kept = [block for block in blocks if not _is_blank(block)]
        if kept:
            self._expect_no_results(role, where)
            self._add(role, kept)

    def call(self, call_id: str, name: str, arguments: JsonObject, where: str) -> None:
        """A tool call by the assistant; an id that is missing, malformed or taken is replaced, also in its result."""
        self._expect_no_results("assistant", where)
        safe_id = self._fresh(call_id)
        self._ids[call_id] = safe_id
        self._pending[safe_id] = name
        if name not in self._tools:
            self._tools.append(name)
        self._add("assistant", [{"type": "tool_use", "id": safe_id, "name": name, "input": arguments}])

    def result(self, call_id: str, name: str, blocks: list[JsonValue], where: str) -> None:
        """A tool's result for the call `call_id`; without an id for the first open call of that tool, or of any.

        Raises:
            Untranslatable: no such call is open.
        """
        kept = [block for block in blocks if not _is_blank(block)]
        safe_id = self._ids.get(call_id, "") if call_id else self._open_call(name)
        if self._pending.pop(safe_id, None) is None:
            raise refused(where, "there is no tool call before it that it answers")
        self._add("user", [{"type": "tool_result", "tool_use_id": safe_id, "content": kept}])

    @property
    def messages(self) -> list[JsonValue]:
        """All turns. Raises Untranslatable where it is not Claude's turn."""
        if self._pending:
            raise refused("messages", "a tool call in it has no result")
        if not self._roles:
            raise refused("messages", "there is nothing in it to answer")
        if self._roles[-1] == "assistant":
            raise refused("messages", "the last one is the assistant's own, and Claude does not go on with an answer that was begun")
        return [{"role": role, "content": content} for role, content in zip(self._roles, self._contents, strict=True)]

    @property
    def stand_ins(self) -> list[JsonValue]:
        """Tools for a conversation that has called some and offers none any more: Claude wants every one of it defined."""
        return [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in self._tools]

    def _add(self, role: str, blocks: list[JsonValue]) -> None:
        if self._roles and self._roles[-1] == role:
            self._contents[-1].extend(blocks)
        else:
            self._roles.append(role)
            self._contents.append(list(blocks))

    def _expect_no_results(self, role: str, where: str) -> None:
        if self._pending and not (role == "assistant" == self._roles[-1]):
            raise refused(where, "the tool calls before it have no results yet")

    def _fresh(self, call_id: str) -> str:
        wanted = call_id if _ID.fullmatch(call_id) else _NOT_ID.sub("_", call_id)[:100] or "call"
        number, safe_id = 1, wanted
        while safe_id in self._used:
            number += 1
            safe_id = f"{wanted[:100]}_{number}"
        self._used.add(safe_id)
        return safe_id

    def _open_call(self, name: str) -> str:
        open_calls = list(self._pending)
        named = [call_id for call_id in open_calls if self._pending[call_id] == name]
        return (named or open_calls or [""])[0]


def _is_blank(block: JsonValue) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and not text.strip()


_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
_MAGIC = (("iVBORw0KGgo", "image/png"), ("/9j/", "image/jpeg"), ("R0lGOD", "image/gif"), ("UklGR", "image/webp"))
"""How files of each kind begin, in base64. What a caller claims them to be is not asked: Claude refuses a wrong claim."""

_TEXTS = ("text", "input_text", "output_text")
_IMAGES = ("image_url", "input_image")
_ONLY_BASE64 = "send the image itself, as a base64 `data:` URL"


def text_block(text: str) -> JsonObject:
    """One block of text."""
    return {"type": "text", "text": text}


def image_block(data: str, where: str) -> JsonObject:
    """One image from its base64 text. Raises Untranslatable for a format that Claude does not know."""
    packed = "".join(data.split())
    for magic, media_type in _MAGIC:
        if packed.startswith(magic):
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": packed}}
    raise refused(where, "it reads base64 of PNG, JPEG, GIF and WebP images")


def content_blocks(content: JsonValue, where: str) -> list[JsonValue]:
    """The blocks of an OpenAI content: a string, or a list of text and image parts; null is none.

    Raises:
        Untranslatable: other parts, and images that are only an address.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [text_block(content)]
    if not isinstance(content, list):
        raise refused(where, "give a text or a list of parts")
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def plain_text(content: JsonValue, where: str) -> str:
    """The text of a content that may hold nothing else. Raises Untranslatable for images."""
    texts = [block.get("text") for block in content_blocks(content, where) if isinstance(block, dict)]
    if not all(isinstance(text, str) for text in texts):
        raise refused(where, "only text can stand here")
    return "".join(text for text in texts if isinstance(text, str))


def _part(part: JsonValue, where: str) -> JsonObject:
    if not isinstance(part, dict):
        raise refused(where, "give an object with a `type`")
    kind = lookup(part, "type")
    if kind in _TEXTS:
        return text_block(string_field(part, "text", where))
    if kind == "refusal":
        return text_block(string_field(part, "refusal", where))
    if kind in _IMAGES:
        return _image(lookup(part, "image_url"), f"{where}.image_url")
    raise refused(f"{where}.type", "only text and images can be carried")


def _image(image: JsonValue, where: str) -> JsonObject:
    url = lookup(image, "url") if isinstance(image, dict) else image
    found = _DATA_URL.match(url) if isinstance(url, str) else None
    if not isinstance(url, str) or found is None:
        raise refused(where, _ONLY_BASE64)
    return image_block(url[found.end() :], where)
