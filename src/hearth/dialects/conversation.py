"""Which conversation a request goes on with, known by how its messages begin.

A turn repeats all turns before it, so its instructions and the user's first turn stay as they
were: one message, or several, as Codex sends its surroundings before the words. Two conversations
that begin alike are taken for one. A digest stands for the texts: nothing here keeps or shows them.
Images and tools are not looked at.

A prompt without messages goes on with another one where the model server is given the tokens of
that (`context`), or where its caller renders the conversation itself: then it begins with all that
was said before. Every other prompt is a conversation of its own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice

from hearth.dialects.background import texts_in, turns_in
from hearth.dialects.gojson import JsonObject, JsonValue, lookup
from hearth.dialects.routes import Endpoint, Route

CHAT_ID_HEADER = b"x-openwebui-chat-id"
"""Open WebUI sends it where `ENABLE_FORWARD_USER_INFO_HEADERS` is set (open-webui/open-webui,
backend/open_webui/env.py: FORWARD_SESSION_INFO_HEADER_CHAT_ID).
"""
_CHAT_ID = re.compile(rb"[!-~]{1,128}")
_KEY_BYTES = 8
_HEAD_CHARS = 4096
"""How much of a text is looked at."""
_RENDERED_CHARS = 2048
"""A prompt that its caller renders is known from this length on; to read a shorter one again costs
next to nothing.
"""
_MESSAGES = 8
"""How many messages are looked at, until the end of the user's first turn."""
_CONTEXT_TOKENS = 64


def conversation_of(route: Route, fields: JsonObject) -> str:
    """A short key, the same for each turn of a conversation; empty where a body says nothing, and
    for what generates no text.
    """
    if route.kind != "generate":
        return ""
    return _key(_opening(route, fields))


def conversation_of_chat(chat_id: bytes) -> str:
    """The key of a chat by its program's own id for it; empty for what is no id."""
    return _key(iter((b"chat", chat_id))) if _CHAT_ID.fullmatch(chat_id) else ""


def conversation_of_user(conversation: str, user: str) -> str:
    """The key of a conversation that another user of the same caller may begin in the same way."""
    if not conversation or not user:
        return conversation
    return _key(iter((conversation.encode(), user.encode())))


def _key(parts: Iterator[bytes]) -> str:
    digest = blake2b(digest_size=_KEY_BYTES)
    is_empty = True
    for part in parts:
        is_empty = False
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return "" if is_empty else digest.hexdigest()


def _opening(route: Route, fields: JsonObject) -> Iterator[bytes]:
    context = fields.get("context")
    if route.path is Endpoint.GENERATE and isinstance(context, list) and context:
        yield _numbers(context)
        return
    is_rendered = route.path is Endpoint.GENERATE and fields.get("raw") is True
    if is_rendered or route.path is Endpoint.OPENAI_COMPLETIONS:
        prompt = fields.get("prompt")
        if isinstance(prompt, str) and len(prompt) >= _RENDERED_CHARS:
            yield _bytes(prompt[:_RENDERED_CHARS])
        return
    name = "instructions" if route.path is Endpoint.OPENAI_RESPONSES else "system"
    yield from _heads(fields.get(name))
    was_user = False
    for message in islice(turns_in(route, fields), _MESSAGES):
        is_user = isinstance(message, dict) and lookup(message, "role") == "user"
        if was_user and not is_user:
            return
        was_user = is_user
        if isinstance(message, dict):
            yield from _heads(lookup(message, "content"))


def _heads(content: JsonValue) -> Iterator[bytes]:
    for text in texts_in(content):
        if text:
            yield _bytes(text[:_HEAD_CHARS])


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")


def _numbers(context: list[JsonValue]) -> bytes:
    first = context[:_CONTEXT_TOKENS]
    return ",".join(str(token) for token in first if type(token) is int).encode()
