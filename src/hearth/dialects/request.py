"""What the queue must know of a request body, and the few things changed in it before it goes on.

A body goes to Ollama as the very bytes the caller sent, unless it asks for something that only the
owner of the GPU may decide: how long a model stays, and how it is loaded. Those are the causes of
Ollama's reload ping-pong and of its eviction wedge (ollama/ollama issue 17408). Habits of
well-known clients that would cost a home its one GPU get the smallest change that mends them, and a
stream that may be interrupted gets a seed. What is changed is written anew from what was read, so
that no second spelling of a key can carry what the first may not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from hearth.dialects.background import SHAPES, Shape, shape_of
from hearth.dialects.capabilities import Needs, needs_of
from hearth.dialects.conversation import conversation_of
from hearth.dialects.gojson import (
    LARGE_BYTES,
    MAX_INT,
    Body,
    GoJsonError,
    JsonObject,
    JsonValue,
    check_structure,
    decode,
    decode_document,
    encode,
    encode_large,
)
from hearth.dialects.native_form import native_form
from hearth.dialects.routes import Endpoint, Route
from hearth.dialects.usage import asking_for_usage
from hearth.dialects.waits import MARK, without_waits
from hearth.errors import BadRequest, ModelNotFound
from hearth.types import MIB, Dialect, LoadOptions, ResumeMode, WorkKind, value

MAX_ITEMS = 10_000
"""Most messages or inputs in one body."""
MAX_NAME_CHARS = 256
"""Longest model name."""
MODEL_REQUIRED = "model is required"
INVALID_NAME = "invalid model name"
INVALID_INPUT = "invalid input type"

_NAME_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"
_MODEL_NAME = re.compile(
    r"(?:(?:(?:[^/]*://)?[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}/)?[A-Za-z0-9_][A-Za-z0-9_-]{0,79}/)?"
    rf"{_NAME_PART}(?::{_NAME_PART})?"
)
_UNIT_NS = {
    "ns": 1,
    "us": 1e3,
    "\u00b5s": 1e3,
    "\u03bcs": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "m": 60e9,
    "h": 3600e9,
}
_NUMBER = re.compile(r"[0-9]++(?:\.[0-9]*+)?|\.[0-9]++")
"""Without a way back: a text of digits alone would take the cube of their number."""
_PART = re.compile(rf"({_NUMBER.pattern})({'|'.join(sorted(_UNIT_NS, key=len, reverse=True))})")
_NOT_NUMBER = re.compile(r"[^.0-9]+")
_SHOWN_CHARS = 100
"""Of a duration that is refused."""
_GO_TYPES = {bool: "bool", list: "[]interface {}", dict: "map[string]interface {}"}
_DURATION = re.compile(rf"[-+]?(?:0|(?:{_PART.pattern})+)")
_LONGEST_S = 1e10

_LOOKED_UP_FIRST = frozenset(
    {Endpoint.GENERATE, Endpoint.EMBED, Endpoint.OPENAI_COMPLETIONS, Endpoint.OPENAI_EMBEDDINGS}
)
"""Their handlers look the model up without asking for a name first, and so report the empty name as
not found.
"""
_PROMPTED = frozenset({Endpoint.GENERATE, Endpoint.EMBEDDINGS, Endpoint.OPENAI_COMPLETIONS})
_GIVEN_INPUT = frozenset({Endpoint.OPENAI_RESPONSES, Endpoint.EMBED, Endpoint.OPENAI_EMBEDDINGS})

ATTACHMENT_TOKENS = 256
_CONTINUED_BYTES = MIB
_CONTINUED_VALUES = 20_000
"""To continue a stream its body is read again, on the event loop. One that would hold it up, with
300,000 tokens of text, is not continued.
"""

_TEXT_FIELDS = ("system", "instructions", "tools", "messages", "input", "prompt", "suffix")
_NOT_TEXT = frozenset(
    {
        "type",
        "role",
        "id",
        "tool_use_id",
        "tool_call_id",
        "call_id",
        "status",
        "signature",
        "encrypted_content",
        "cache_control",
    }
)
_ATTACHMENTS = frozenset(
    {"image", "image_url", "input_image", "document", "input_file", "file", "input_audio"}
)
_LOAD_TIME_OPTIONS = frozenset(
    {"num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "draft_num_predict"}
)
"""Options that make Ollama reload the model when they differ from those it was loaded with
(server/sched.go, `needsReload`).
"""
_ATTRIBUTION = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""Claude Code's line of version, entry point and a checksum that differs with every request
(ggml-org/llama.cpp pull request 20623).
"""

_WAIT_MARK = MARK.encode()
"""Only a body that holds it is looked at for what Hearth has said in it."""

RANDOM_SEED = -1
"""What Ollama takes for "another answer every time" (its own default); also where a caller writes
it.
"""
_SEEDS = 2**32
"""llama.cpp keeps 32 bits of a seed, so 4294967295 is RANDOM_SEED too."""
_SEEDED = frozenset(
    {Endpoint.CHAT, Endpoint.GENERATE, Endpoint.OPENAI_CHAT, Endpoint.OPENAI_COMPLETIONS}
)
"""Routes with a field for a seed; in the others only a request at temperature 0 repeats itself
(ollama/ollama v0.33.0-rc2).
"""


@value
class Envelope:
    """A request body as the gateway sees it.

    Attributes:
        model: as the caller wrote it. streaming: the answer comes in pieces; never for embeddings
        and load or unload forms. prompt_tokens: estimate, see `prompt_tokens`. max_tokens: the
        caller's own limit of the output, None without one; 0 (native only) asks for an empty
        answer. body: the caller's own bytes object, or the changed body. rewritten: what was
        changed: `keep_alive`, `options.NAME`, `duplicate keys`, `system`, `thinking`, `model`;
        empty for an untouched body. background: by which its program is known to ask for it on its
        own account, beside its user's turns; None for a turn. conversation: the one that it goes on
        with, as its first messages tell; empty for none. needs: what the model must be able to do;
        None where that is not known. ways: how a stream of it that is interrupted can go on.
        digest: stands for address and body as they were sent; empty where nobody asks for it.
        refusal: why the model server cannot be asked for it, though Claude perhaps can. num_ctx:
        the context that the caller asks for, which only the owner decides; None for none. audio_s:
        how long the recording is that it hands over; 0 for none.
    """

    dialect: Dialect
    kind: WorkKind
    model: str
    streaming: bool
    prompt_tokens: int
    max_tokens: int | None
    body: bytes
    rewritten: tuple[str, ...] = ()
    background: Shape | None = None
    conversation: str = ""
    needs: Needs | None = None
    ways: tuple[ResumeMode, ...] = ()
    digest: bytes = b""
    refusal: BadRequest | None = None
    num_ctx: int | None = None
    audio_s: float = 0.0


def read_request(
    route: Route,
    body: bytes,
    load_options: Callable[[str], LoadOptions],
    *,
    strip_attribution: bool = False,
    shapes: Sequence[Shape] = SHAPES,
    model: str | None = None,
    wire_name: Callable[[str], str] = str,
) -> tuple[Envelope, JsonObject]:
    """Read, check and where needed rewrite one body; also its fields, for `seeded`. Raises
    BadRequest and ModelNotFound in Ollama's words.

    Args:
        load_options: pinned options by the name a model is called. strip_attribution: take Claude
        Code's changing line out of the system prompt. shapes: of requests beside users' turns.
        model: asked in place of the one that is named. wire_name: what is written for a model.
    """
    asked, exact = _read(route, body)
    called = model or asked.model
    fields = asked.fields
    rewritten = list[str]()
    if route.is_native:
        fields, rewritten = _with_own_options(fields, asked.options, load_options(called).num_ctx)
        rewritten += [] if exact else ["duplicate keys"]
    if route.is_native or exact:
        fields, unread = _unread(route, fields, body, strip_attribution=strip_attribution)
        rewritten += unread
    named = wire_name(called)
    if named != asked.model:
        fields = {**fields, "model": named}
        rewritten.append("model")
    kind = _kind(route, asked.fields)
    envelope = Envelope(
        dialect=route.dialect,
        kind=kind,
        model=called,
        streaming=kind == "generate" and asked.stream,
        prompt_tokens=prompt_tokens(fields),
        max_tokens=asked.max_tokens,
        body=_written(fields, body) if rewritten else body,
        rewritten=tuple(rewritten),
        background=_background(route, fields, shapes),
        conversation=conversation_of(route, fields) if kind == "generate" else "",
        needs=needs_of(route, asked.fields, called),
        num_ctx=_num_ctx(asked.options),
    )
    return envelope, fields


def _num_ctx(options: JsonObject) -> int | None:
    found = (one for name, one in options.items() if name.lower() == "num_ctx")
    return next((int(one) for one in found if _is_number(one) and 0 < one <= MAX_INT), None)


def _read(route: Route, body: bytes) -> tuple[_Asked, bool]:
    """What a body asks for, and whether no key is in it twice. Raises as `read_request`."""
    if route.is_native and not body.strip():
        raise BadRequest("missing request body")
    document, exact = decode_document(body)
    asked = _asked(route, document)
    return asked, exact and not (isinstance(document, dict) and len(asked.fields) < len(document))


def _background(route: Route, fields: JsonObject, shapes: Sequence[Shape]) -> Shape | None:
    """By which the request is known to be beside its user's turns."""
    shape = shape_of(route, fields, shapes)
    return shape if shape is not None and shape.background else None


def _unread(
    route: Route, fields: JsonObject, body: bytes, *, strip_attribution: bool
) -> tuple[JsonObject, list[str]]:
    """The fields without what a client sends that the model is not to read; what was changed."""
    changed = list[str]()
    if route.dialect == "anthropic" and strip_attribution:
        kept = without_attribution(fields)
        changed = ["system"] if kept is not fields else []
        fields = kept
    if _WAIT_MARK in body:
        kept = without_waits(route, fields)
        changed += ["thinking"] if kept is not fields else []
        fields = kept
    return fields, changed


@value
class _Asked:
    """The fields of a body that decide what becomes of it, each of its type. `fields`: all, under
    the names by which Go knows them. `max_tokens`: as in `Envelope`.
    """

    fields: JsonObject
    model: str
    stream: bool
    options: JsonObject
    max_tokens: int | None


def _asked(route: Route, document: JsonValue) -> _Asked:
    """Read a body in one pass, once everything that the route demands is there.

    Raises BadRequest, ModelNotFound: with the text that Ollama answers for this body on this route.
    """
    body = Body(document, within=f"{route.name}.")
    is_native = route.is_native
    generates = route.kind == "generate"
    model = body.string("model")
    stream = generates and body.flag("stream", default=is_native)
    if not model and route.dialect == "anthropic":
        raise BadRequest(MODEL_REQUIRED)
    if route.path in _PROMPTED:
        body.string("prompt")
    limit = body.integer(route.limit_field) if route.limit_field else None
    if route.path in _GIVEN_INPUT:
        _check_input(route, body.get("input"))
    elif route.path not in _PROMPTED:
        within = f"{route.name}.messages." if is_native else ""
        _check_messages(route, messages_of(body, within=within), limit)
    options = body.map("options") if is_native else {}
    if is_native and generates:
        wanted = options.get("num_predict")
        limit = min(int(wanted), MAX_INT) if _is_number(wanted) and wanted >= 0 else None
    elif limit is not None and limit <= 0:
        limit = None  # Ollama reads 0 as no limit
    _check_model(route, model)
    return _Asked(fields=body.fields, model=model, stream=stream, options=options, max_tokens=limit)


def _check_model(route: Route, model: str) -> None:
    if not model:
        raise (
            ModelNotFound("model '' not found")
            if route.path in _LOOKED_UP_FIRST
            else BadRequest(MODEL_REQUIRED)
        )
    if not is_model_name(model):
        raise BadRequest(INVALID_NAME)


def _written(fields: JsonObject, body: bytes) -> bytes:
    if len(body) > LARGE_BYTES:
        return encode_large(fields)
    # nothing is escaped for HTML
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _kind(route: Route, fields: JsonObject) -> WorkKind:
    """A native request without prompt or messages loads the model, with `keep_alive` 0 it unloads
    it.
    """
    if not route.is_native:
        return route.kind
    stay_ns = keep_alive_ns(fields.get("keep_alive"))
    content = {Endpoint.CHAT: "messages", Endpoint.GENERATE: "prompt"}.get(route.path)
    if content is None or fields.get(content):
        return route.kind
    return "unload" if stay_ns == 0 else "load"


def _with_own_options(
    fields: JsonObject, options: JsonObject, num_ctx: int | None
) -> tuple[JsonObject, list[str]]:
    """A native body without what only the owner decides, and with the pinned context length; what
    was changed.
    """
    wanted: JsonObject = {}
    for key, setting in options.items():
        if key.lower() == "num_ctx" and num_ctx is not None:
            wanted["num_ctx"] = num_ctx
        elif key.lower() not in _LOAD_TIME_OPTIONS:
            wanted[key] = setting
    if num_ctx is not None:
        wanted["num_ctx"] = num_ctx
    changed = [
        f"options.{name}" for name in {**options, **wanted} if options.get(name) != wanted.get(name)
    ]
    if "keep_alive" in fields:
        fields = {key: value for key, value in fields.items() if key != "keep_alive"}
        changed.insert(0, "keep_alive")
    return (fields if wanted == options else {**fields, "options": wanted}), changed


def counted(route: Route, body: bytes, fields: JsonObject) -> tuple[bytes, JsonObject]:
    """The body of a stream that reports its usage also where its caller does not ask for it, and
    its fields; both as they are where nothing is to be added.

    Args:
        fields: those that `read_request` has read.
    """
    added = asking_for_usage(route, fields)
    if added is None:
        return body, fields
    asking = {**fields, **added}
    if fields.keys() & added.keys():
        return _written(asking, body), asking
    return _with_first(added, body), asking


def _with_first(added: JsonObject, body: bytes) -> bytes:
    """These fields first in the object, and everything else as it came."""
    head, brace, rest = body.partition(b"{")
    return head + brace + encode(added)[1:-1] + b"," + rest


def seeded(route: Route, body: bytes, fields: JsonObject, seed: int) -> bytes:
    """The body with `seed` (0 to 2**31 - 1) where its route has one and the caller gave none, or
    gave null.

    Args:
        fields: those that `read_request` has read.
    """
    sampling = _sampling(route, fields)
    if route.path not in _SEEDED or sampling.get("seed") is not None:
        return body
    added: JsonObject = {"seed": seed}
    if route.is_native:
        others = {name: one for name, one in sampling.items() if name != "seed"}
        added = {"options": added | others}
    # Where the field is there already (a null, or options), the body is written anew. Else the seed
    # goes before the first field, and every other byte stays as it came.
    if fields.keys() & added.keys():
        return _written({**fields, **added}, body)
    return _with_first(added, body)


def ways_on(
    route: Route,
    body: bytes,
    fields: JsonObject,
    *,
    only_replay: bool,
    continue_diverged: bool,
) -> tuple[ResumeMode, ...]:
    """How a stream of a body that is to be `seeded` can go on after an interruption, the best way
    first: who chose an answer that repeats itself (by a seed, or temperature 0) is given that one
    where it can be.

    It is known before the stream begins: whom the scheduler interrupts depends on it.
    """
    continued: tuple[ResumeMode, ...] = ()
    if not only_replay and _is_read_quickly(body) and native_form(route.path, fields) is not None:
        continued = ("continued",)
    sampling = _sampling(route, fields)
    temperature = sampling.get("temperature")
    seed = sampling.get("seed")
    is_cold = _is_number(temperature) and temperature == 0
    takes_seed = route.path in _SEEDED
    is_fixed = takes_seed and _is_number(seed) and int(seed) % _SEEDS != RANDOM_SEED % _SEEDS
    if is_cold or is_fixed:
        return ("replayed", *continued) if continue_diverged else ("replayed",)
    return (*continued, "replayed") if takes_seed and seed is None else continued


def _sampling(route: Route, fields: JsonObject) -> JsonObject:
    """Where a body says how its text is drawn."""
    if not route.is_native:
        return fields
    options = fields.get("options")
    return options if isinstance(options, dict) else {}


def _is_read_quickly(body: bytes) -> bool:
    if len(body) <= _CONTINUED_VALUES:
        return True  # no value is shorter than a byte
    if len(body) > _CONTINUED_BYTES:
        return False
    try:
        check_structure(body, max_values=_CONTINUED_VALUES)
    except BadRequest:
        return False
    return True


def _is_number(one: JsonValue) -> TypeGuard[int | float]:
    return (
        isinstance(one, int | float)
        and not isinstance(one, bool)
        and (isinstance(one, int) or math.isfinite(one))
    )


def tokens_of(characters: int, attachments: int = 0) -> int:
    """Tokens for so many characters of text and attachments."""
    return -(-characters * 2 // 7) + attachments * ATTACHMENT_TOKENS


def prompt_tokens(fields: Mapping[str, JsonValue]) -> int:
    """Estimated tokens of everything a request of any dialect feeds to its model, tool definitions
    included; `fields` are `folded`.
    """
    images = fields.get("images")
    characters = 0
    attachments = len(images) if isinstance(images, list) else 0
    pending = [fields[name] for name in _TEXT_FIELDS if name in fields]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            characters += len(one)
        elif isinstance(one, list):
            pending.extend(one)
        elif isinstance(one, dict):
            kind = one.get("type")
            images = one.get("images")
            if isinstance(kind, str) and kind in _ATTACHMENTS:  # a JSON schema may list several
                attachments += 1
                continue
            attachments += len(images) if isinstance(images, list) else 0
            pending.extend(
                item for key, item in one.items() if key not in _NOT_TEXT and key != "images"
            )
    return tokens_of(characters, attachments)


def without_attribution(fields: JsonObject) -> JsonObject:
    """The fields of a Messages body without Claude Code's attribution line; the very same object
    where there is none.

    The line opens the system prompt and changes with every request, so no two turns share a prefix
    and every turn is processed from its first token again. A block that holds nothing else is
    dropped, and the whole `system` where nothing else is left.
    """
    system = fields.get("system")
    if isinstance(system, str):
        kept: JsonValue = _ATTRIBUTION.sub("", system)
    elif isinstance(system, list):
        kept = [block for block in map(_unattributed, system) if block is not None]
    else:
        return fields
    if kept == system:
        return fields
    return {
        key: kept if key == "system" else one
        for key, one in fields.items()
        if key != "system" or kept not in ("", [])
    }


def _unattributed(block: JsonValue) -> JsonValue:
    """None for a block that held nothing else."""
    text = block.get("text") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(text, str):
        return block
    kept = _ATTRIBUTION.sub("", text)
    return {**block, "text": kept} if kept or not text else None


def count_tokens(body: bytes) -> bytes:
    """`{"input_tokens": N}` for a Messages body: characters of system, tools and messages / 3.5,
    256 for an image. Raises BadRequest: as `/v1/messages` would for the same body; `max_tokens` is
    not asked for, as in the original.
    """
    asked = Body(decode(body))
    model = asked.string("model")
    if not model:
        raise BadRequest(MODEL_REQUIRED)
    if not messages_of(asked):
        raise BadRequest("messages is required")
    if not is_model_name(model):
        raise BadRequest(INVALID_NAME)
    return encode({"input_tokens": prompt_tokens(asked.fields)})


def keep_alive_ns(value: JsonValue) -> int | None:
    """Nanoseconds that a `keep_alive` asks for, None for absent or null; negative ones mean for
    ever and are returned as 2**63 - 1. Raises GoJsonError for anything else than a number or a Go
    duration.
    """
    if value is None:
        return None
    if isinstance(value, str):
        duration_ns = _duration_ns(value)
    elif isinstance(value, bool | list | dict):
        raise GoJsonError(f"Unsupported type: '{_GO_TYPES[type(value)]}'")
    else:
        duration_ns = int(min(max(value, -1), _LONGEST_S) * 1_000_000_000)
    return duration_ns if 0 <= duration_ns <= MAX_INT else MAX_INT


def _duration_ns(text: str) -> int:
    """A Go duration (`1h30m`, `-1.5s`, `0`) in nanoseconds."""
    parts = _PART.findall(text) if _DURATION.fullmatch(text) else None
    total_ns = sum(float(number) * _UNIT_NS[unit] for number, unit in parts or ())
    if parts is None or total_ns > MAX_INT:
        raise GoJsonError(f"time: {_wrong_duration(text)}")
    return int(-total_ns if text.startswith("-") else total_ns)


def _wrong_duration(text: str) -> str:
    """What Go says of a text that is no duration, or too long a one."""
    shown = _go_quoted(text)
    at = 1 if text.startswith(("-", "+")) else 0
    while (number := _NUMBER.match(text, at)) is not None:
        unit = _NOT_NUMBER.match(text, number.end())
        if unit is None:
            return f"missing unit in duration {shown}"
        if unit[0] not in _UNIT_NS:
            return f"unknown unit {_go_quoted(unit[0])} in duration {shown}"
        at = unit.end()
    return f"invalid duration {shown}"


def _go_quoted(text: str) -> str:
    """As Go's `time` quotes a duration: bytes that are not printable ASCII as `\\xc3`."""
    shown = "".join(
        chr(byte) if 0x20 <= byte < 0x80 else f"\\x{byte:02x}"
        for byte in text[:_SHOWN_CHARS]
        .replace("\\", "\\\\")
        .replace('"', '\\"')
        .encode(errors="replace")
    )
    return f'"{shown}"'


def is_model_name(name: str) -> bool:
    """Whether Ollama can parse `name` as `[host/][namespace/]model[:tag]` (types/model/name.go)."""
    return len(name) <= MAX_NAME_CHARS and _MODEL_NAME.fullmatch(name) is not None


def _check_messages(route: Route, messages: list[Body], limit: int | None) -> None:
    if route.path is Endpoint.CHAT:
        for message in messages:
            message.string("content")
    elif route.path is Endpoint.ANTHROPIC_MESSAGES and (limit is None or limit <= 0):
        raise BadRequest("max_tokens is required and must be positive")
    elif not messages:
        raise BadRequest(
            "messages is required"
            if route.path is Endpoint.ANTHROPIC_MESSAGES
            else "[] is too short - 'messages'"
        )


def messages_of(body: Body, *, within: str = "") -> list[Body]:
    """The messages of a chat body, none if absent; `within`: see `Body.objects`.

    Raises BadRequest where they are too many or not an array of objects.
    """
    _check_count(body.array("messages"), "messages")
    return body.objects("messages", within=within)


def _check_input(route: Route, given: JsonValue) -> None:
    if route.path is Endpoint.OPENAI_EMBEDDINGS and given in (None, []):
        raise BadRequest("invalid input")
    items = given if isinstance(given, list) else []
    _check_count(items, "inputs")
    if route.kind == "embed" and not (
        isinstance(given, str | list | None) and all(isinstance(item, str) for item in items)
    ):
        raise BadRequest(INVALID_INPUT)


def _check_count(items: list[JsonValue], what: str) -> None:
    if len(items) > MAX_ITEMS:
        raise BadRequest(f"too many {what}: {len(items)}, at most {MAX_ITEMS} are accepted")
