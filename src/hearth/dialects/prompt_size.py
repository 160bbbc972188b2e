"""How large a prompt is, guessed from its text: nobody can count tokens without the model's tokenizer.

The rule: characters of all text / 3.5 rounded up, and 256 for every image or other attachment. Must never be used for billing.
"""

from __future__ import annotations

from collections.abc import Mapping

from hearth.dialects.gojson import JsonValue, lookup, lookup_all

ATTACHMENT_TOKENS = 256

_TEXT_FIELDS = ("system", "instructions", "tools", "messages", "input", "prompt", "suffix")
_NOT_TEXT = frozenset(
    {"type", "role", "id", "tool_use_id", "tool_call_id", "call_id", "status", "signature", "encrypted_content", "cache_control"}
)
_ATTACHMENTS = frozenset({"image", "image_url", "input_image", "document", "input_file", "file", "input_audio"})


def tokens_of(characters: int, attachments: int = 0) -> int:
    """Tokens for so many characters of text and attachments."""
    return -(-characters * 2 // 7) + attachments * ATTACHMENT_TOKENS


def prompt_tokens(fields: Mapping[str, JsonValue]) -> int:
    """Estimated tokens of everything a request of any dialect feeds to its model, tool definitions included."""
    images = lookup(fields, "images")
    texts = lookup_all(fields, _TEXT_FIELDS)
    characters, attachments = _measure(texts)
    return tokens_of(characters, attachments + (len(images) if isinstance(images, list) else 0))


def _measure(pending: list[JsonValue]) -> tuple[int, int]:
    """Characters and attachments of values, found with a stack instead of recursion."""
    characters = attachments = 0
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, dict):
            attachments += _open_object(value, pending)
    return characters, attachments


def _open_object(value: dict[str, JsonValue], pending: list[JsonValue]) -> int:
    """Puts the text of an object on the stack; returns how many attachments it holds itself."""
    kind = value.get("type")
    if type(kind) is str and kind in _ATTACHMENTS:  # a JSON schema may list several
        return 1
    images = value.get("images")
    pending.extend(item for key, item in value.items() if key not in _NOT_TEXT and key != "images")
    return len(images) if isinstance(images, list) else 0
