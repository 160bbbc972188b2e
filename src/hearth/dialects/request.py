"""What the queue must know of a request body, and the few things changed in it before it goes on.

A body goes to Ollama as the very bytes the caller sent, unless it asks for something that only the owner of the GPU may decide: how long a
model stays, and how it is loaded. Those are the causes of Ollama's reload ping-pong and of its eviction wedge (ollama/ollama issue 17408).
And habits of well-known clients that would cost a home its one GPU get the smallest change that mends them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from hearth.dialects.gojson import (
    LARGE_BYTES,
    Document,
    GoJsonError,
    JsonObject,
    JsonValue,
    bool_field,
    decode,
    decode_document,
    encode,
    encode_large,
    integer_field,
    lookup,
    lookup_all,
    mismatch,
    spellings,
    string_field,
    struct_of,
    without,
)
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint, Route
from hearth.dialects.validation import INVALID_NAME, MODEL_REQUIRED, check_request, is_model_name, keep_alive_ns, messages_of
from hearth.errors import BadRequest
from hearth.types import Dialect, LoadOptions, WorkKind, value

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


_ATTRIBUTION = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""Claude Code's line of version, entry point and a checksum that differs with every request (ggml-org/llama.cpp pull request 20623)."""

BACKGROUND_MARK = b"### Task:"
"""In the body of every background task: most bodies need no closer look."""
_TASK = "### Task:\n"
_HISTORY = "<chat_history>"


class BackgroundTask(StrEnum):
    """What Open WebUI asks for on its own account, after it has shown an answer."""

    TITLE = "title"
    TAGS = "tags"
    FOLLOW_UPS = "follow_ups"


_ANSWERS: Mapping[str, BackgroundTask] = MappingProxyType(
    {'{ "title":': BackgroundTask.TITLE, '{ "tags":': BackgroundTask.TAGS, '{ "follow_ups":': BackgroundTask.FOLLOW_UPS}
)
"""The JSON that each of Open WebUI's default prompts asks for (backend/open_webui/config.py)."""


def background_task(route: Route, fields: JsonObject) -> BackgroundTask | None:
    """The background task a chat body carries: one user message made from Open WebUI's default prompts, nothing but system ones beside it.

    Open WebUI marks the task in `metadata`, which it takes out before it sends a request, so only the prompt is left to tell it by. A
    prompt that the owner has replaced by another is recognised where it keeps the first line, the wanted JSON and `<chat_history>`.
    """
    if route.path not in {Endpoint.CHAT, Endpoint.OPENAI_CHAT}:
        return None
    messages = lookup(fields, "messages")
    prompt = _only_prompt(messages if isinstance(messages, list) else [])
    if prompt is None or not prompt.startswith(_TASK):
        return None
    asked, history, _ = prompt.partition(_HISTORY)
    return next((task for answer, task in _ANSWERS.items() if answer in asked), None) if history else None


def _only_prompt(messages: list[JsonValue]) -> str | None:
    spoken = [message for message in messages if isinstance(message, dict) and lookup(message, "role") != "system"]
    if len(spoken) != 1 or lookup(spoken[0], "role") != "user":
        return None
    content = lookup(spoken[0], "content")
    return content if isinstance(content, str) else None


def without_attribution(fields: JsonObject) -> JsonObject:
    """The fields of a Messages body without Claude Code's attribution line; the very same object where there is none.

    The line opens the system prompt and changes with every request, so no two turns share a prefix and every turn is processed from its
    first token again. A block that holds nothing else is dropped, and the whole `system` where nothing else is left.
    """
    names = spellings(fields, "system")
    kept = {key: _unattributed(value) if key in names else value for key, value in fields.items()}
    if kept == fields:
        return fields
    return {key: value for key, value in kept.items() if value == fields[key] or value not in ("", [])}


def _unattributed(system: JsonValue) -> JsonValue:
    if isinstance(system, str):
        return _ATTRIBUTION.sub("", system)
    if not isinstance(system, list):
        return system
    blocks = [_unattributed_block(block) for block in system]
    return [new for new, old in zip(blocks, system, strict=True) if new == old or not _is_empty(new)]


def _unattributed_block(block: JsonValue) -> JsonValue:
    if not isinstance(block, dict):
        return block
    text = block.get("text")
    return {**block, "text": _ATTRIBUTION.sub("", text)} if isinstance(text, str) else block


def _is_empty(block: JsonValue) -> bool:
    return isinstance(block, dict) and block.get("text") == ""


def on_model(body: bytes, model: str) -> bytes:
    """The same request for another model. `body` must have been read by `read_envelope` before."""
    fields = struct_of(decode(body), "")
    names = spellings(fields, "model")
    return encode({key: model if key in names else value for key, value in fields.items()})


_LOAD_TIME_OPTIONS = frozenset({"num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "draft_num_predict"})
"""Options that make Ollama reload the model when they differ from those it was loaded with (server/sched.go, `needsReload`)."""


@value
class Envelope:
    """A request body as the gateway sees it.

    Attributes:
        model: as the caller wrote it.
        streaming: the answer comes in pieces; never for embeddings and load or unload forms.
        prompt_tokens: estimate, see `prompt_size`.
        max_tokens: the caller's own limit of the output, None without one; 0 (native only) asks for an empty answer.
        body: the caller's own bytes object, or the changed body.
        rewritten: what was changed: `keep_alive`, `options.NAME`, `duplicate keys`, `system`; empty for an untouched body.
        background: what a chat client asks for on its own account, None for everything else.
    """

    dialect: Dialect
    kind: WorkKind
    model: str
    streaming: bool
    prompt_tokens: int
    max_tokens: int | None
    body: bytes
    rewritten: tuple[str, ...] = ()
    background: BackgroundTask | None = None


def read_envelope(route: Route, body: bytes, load_options: Callable[[str], LoadOptions], *, strip_attribution: bool = False) -> Envelope:
    """Read, check and where needed rewrite one body.

    Args:
        load_options: gives the pinned options of a model by the name it is called.
        strip_attribution: take Claude Code's changing line out of the system prompt.

    Raises:
        BadRequest, ModelNotFound: with the text that Ollama would answer on this route.
    """
    document = _decode(route, body)
    fields = struct_of(document.value, f"{route.package}.{route.go_struct}")
    model = check_request(route, fields)
    kind = _kind(route, fields)
    final, rewritten = body, tuple[str, ...]()
    options: JsonObject = {}
    if route.dialect is Dialect.OLLAMA:
        options = _options(route, fields)
        final, rewritten = _rewrite(document, fields, options, body, load_options(model))
    elif route.dialect is Dialect.ANTHROPIC and strip_attribution and document.exact:
        kept = without_attribution(fields)
        if kept is not fields:
            fields, final, rewritten = kept, _written(kept, body), ("system",)
    return Envelope(
        dialect=route.dialect,
        kind=kind,
        model=model,
        streaming=_streaming(route, kind, fields),
        prompt_tokens=prompt_tokens(fields),
        max_tokens=_max_tokens(route, fields, options),
        body=final,
        rewritten=rewritten,
        background=background_task(route, fields) if BACKGROUND_MARK in body else None,
    )


def _decode(route: Route, body: bytes) -> Document:
    try:
        return decode_document(body)
    except GoJsonError as error:
        if route.dialect is Dialect.OLLAMA and error.message == "EOF":
            raise BadRequest("missing request body") from error
        raise


def _kind(route: Route, fields: JsonObject) -> WorkKind:
    """A native request without prompt or messages loads the model, with `keep_alive` 0 it unloads it."""
    if route.dialect is not Dialect.OLLAMA:
        return route.kind
    stay_ns = keep_alive_ns(lookup(fields, "keep_alive"))
    content = {Endpoint.CHAT: "messages", Endpoint.GENERATE: "prompt"}.get(route.path)
    if content is None or lookup(fields, content):
        return route.kind
    return WorkKind.UNLOAD if stay_ns == 0 else WorkKind.LOAD


def _streaming(route: Route, kind: WorkKind, fields: JsonObject) -> bool:
    if kind is not WorkKind.GENERATE:
        return False
    asked = bool_field(fields, "stream", route.go_struct)
    return route.dialect is Dialect.OLLAMA if asked is None else asked


def _max_tokens(route: Route, fields: JsonObject, options: JsonObject) -> int | None:
    if route.kind is WorkKind.EMBED:
        return None
    if route.dialect is Dialect.OLLAMA:
        limit = options.get("num_predict")
        return int(limit) if isinstance(limit, int | float) and not isinstance(limit, bool) and limit >= 0 else None
    name = "max_output_tokens" if route.path is Endpoint.OPENAI_RESPONSES else "max_tokens"
    given = integer_field(fields, name, route.go_struct)
    if given == 0:
        raise BadRequest(f"Invalid '{name}': integer below minimum value. Expected a value >= 1, but got 0 instead.")
    return given if given is not None and given > 0 else None


def _options(route: Route, fields: JsonObject) -> JsonObject:
    """All `options` of a native body; Go merges them where the key is spelled in several ways."""
    merged: JsonObject = {}
    for key in spellings(fields, "options"):
        given = fields[key]
        if given is not None and not isinstance(given, dict):
            raise mismatch(given, "options", route.go_struct, "map[string]interface {}")
        merged.update(given or {})
    return merged


def _rewrite(
    document: Document, fields: JsonObject, options: JsonObject, body: bytes, pinned: LoadOptions
) -> tuple[bytes, tuple[str, ...]]:
    wanted = _without_load_options(options, pinned.num_ctx)
    if wanted == options and document.exact and not spellings(fields, "keep_alive") and len(spellings(fields, "options")) <= 1:
        return body, ()
    changed = [f"options.{name}" for name in {**options, **wanted} if options.get(name) != wanted.get(name)]
    kept = without(fields, "keep_alive")
    if len(kept) != len(fields):
        changed.insert(0, "keep_alive")
    if not document.exact or len(spellings(fields, "options")) > 1:
        changed.append("duplicate keys")
    if not changed:
        return body, ()
    return _written(_with_options(kept, wanted), body), tuple(changed)


def _written(fields: JsonObject, body: bytes) -> bytes:
    return encode_large(fields) if len(body) > LARGE_BYTES else encode(fields)


def _without_load_options(options: JsonObject, num_ctx: int | None) -> JsonObject:
    kept: JsonObject = {}
    for key, setting in options.items():
        name = key.lower()
        if name == "num_ctx" and num_ctx is not None:
            kept["num_ctx"] = num_ctx
        elif name not in _LOAD_TIME_OPTIONS:
            kept[key] = setting
    if num_ctx is not None:
        kept["num_ctx"] = num_ctx
    return kept


def _with_options(fields: JsonObject, options: JsonObject) -> JsonObject:
    """The fields with one `options` object, at the place of the first one; none is added where there is nothing to say."""
    keys = spellings(fields, "options")
    if not keys:
        return {**fields, "options": options} if options else fields
    return {key: options if key == keys[0] else value for key, value in fields.items() if key == keys[0] or key not in keys}


def count_tokens(body: bytes) -> bytes:
    """`{"input_tokens": N}` for a Messages body: characters of system, tools and messages / 3.5, 256 for an image.

    Raises:
        BadRequest: as `/v1/messages` would for the same body; `max_tokens` is not asked for, as in the original.
    """
    route = INFERENCE_ROUTES[Endpoint.ANTHROPIC_MESSAGES]
    fields = struct_of(decode(body), f"{route.package}.{route.go_struct}")
    model = string_field(fields, "model", route.go_struct)
    if not model:
        raise BadRequest(MODEL_REQUIRED)
    if not messages_of(route, fields):
        raise BadRequest("messages is required")
    if not is_model_name(model):
        raise BadRequest(INVALID_NAME)
    return encode({"input_tokens": prompt_tokens(fields)})
