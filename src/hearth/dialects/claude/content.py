"""What people and tools say, as Claude's content blocks: text and images.

Must never fetch anything: an image is in the request or it is refused, so that what a request costs can be bounded by its size and its
number of images. Called by the readers of the dialects. Source: Anthropic's reference of `POST /v1/messages` (image formats).
"""

from __future__ import annotations

import re

from hearth.dialects.claude.refusing import refused
from hearth.dialects.gojson import JsonObject, JsonValue, lookup, string_field

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
