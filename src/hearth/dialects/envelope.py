"""What the queue must know of a request body, and the few things changed in it before it goes on.

A body goes to Ollama as the very bytes the caller sent, unless it asks for something that only the owner of the GPU may decide: how long a
model stays, and how it is loaded. Those are the causes of Ollama's reload ping-pong and of its eviction wedge (ollama/ollama issue 17408).
And where the owner wants it, a line that spoils the prompt cache is taken out (see `quirks`). Must never change anything else.
"""

from __future__ import annotations

from collections.abc import Callable

from hearth.dialects.demands import check_request
from hearth.dialects.durations import keep_alive_ns
from hearth.dialects.gojson import (
    LARGE_BYTES,
    Document,
    GoJsonError,
    JsonObject,
    bool_field,
    decode_document,
    encode,
    encode_large,
    integer_field,
    lookup,
    mismatch,
    spellings,
    struct_of,
    without,
)
from hearth.dialects.prompt_size import prompt_tokens
from hearth.dialects.quirks import BACKGROUND_MARK, BackgroundTask, background_task, without_attribution
from hearth.dialects.routes import Endpoint, Route
from hearth.errors import BadRequest
from hearth.types import Dialect, LoadOptions, WorkKind, value

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
