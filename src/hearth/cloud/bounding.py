"""The most that a call can use, known before it is made: so that what is set aside is never too little.

A token stands for at least one byte of what is sent, whatever the tokenizer, so the bytes of the body bound the tokens of its text; field
names and punctuation pay for the marks between messages. Images cost by their size in pixels, not by their bytes, and have a ceiling.
What has no bound (addresses, PDFs, tools that run at Anthropic) is refused before, by `dialects.claude`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

OVERHEAD_TOKENS = 4096
"""For what the API itself adds to a prompt: instructions for tools (up to 700 tokens) and for structured answers."""
IMAGE_TOKENS = 8192
"""More than one image can be: the largest that any model takes is below 5,000 tokens."""


def encoded(model: str, body: Mapping[str, object]) -> bytes:
    """The body to send; it always asks for a stream."""
    return json.dumps({"model": model, **body, "stream": True}, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def prompt_bound_tokens(body: Mapping[str, object], encoded_bytes: int) -> int:
    """The most tokens that Claude can count for a body of so many bytes."""
    images, image_bytes = _images([body.get("messages")])
    return encoded_bytes - image_bytes + images * IMAGE_TOKENS + OVERHEAD_TOKENS


def _images(pending: list[object]) -> tuple[int, int]:
    """Images in messages and blocks, and the bytes of their data. What a tool is given may look like one, and is text."""
    images = data_bytes = 0
    while pending:
        value = pending.pop()
        if isinstance(value, list | tuple):
            pending.extend(value)
        elif isinstance(value, Mapping):
            if value.get("type") == "image":
                images += 1
                data_bytes += _data_bytes(value.get("source"))
            else:
                pending += [value.get("content"), _inside(value.get("source"))]
    return images, data_bytes


def _inside(source: object) -> object:
    """The blocks of a document."""
    return source.get("content") if isinstance(source, Mapping) else None


def _data_bytes(source: object) -> int:
    data = source.get("data") if isinstance(source, Mapping) else None
    return len(data) if isinstance(data, str) and data.isascii() else 0
