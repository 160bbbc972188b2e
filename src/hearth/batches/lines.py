"""The requests in an input file: where each begins, and whether it can be run. Pure; never more than one line in memory.

What is wrong with a line is said in OpenAI's words where it has some (`code`), and never quotes the line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from hearth.admission.gate import may_use
from hearth.batch_types import BatchLine, Problem
from hearth.config.settings import Settings
from hearth.dialects.gojson import LARGE_BYTES, GoJsonError, check_structure, decode
from hearth.dialects.routes import Endpoint
from hearth.errors import BadRequest, HearthError, ModelNotFound
from hearth.jobs.requests import body_of, envelope_of

ENDPOINTS = (
    Endpoint.OPENAI_CHAT.value,
    Endpoint.OPENAI_COMPLETIONS.value,
    Endpoint.OPENAI_EMBEDDINGS.value,
    Endpoint.OPENAI_RESPONSES.value,
)
"""What batches may ask for."""
MAX_CUSTOM_ID_CHARS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLine:
    """A line of a file; `text` is None where it is longer than any request may be. `start` and `length` in bytes, without its end."""

    line: int
    start: int
    length: int
    text: bytes | None


class Splitter:
    """Cuts a file into lines as it comes, without those that say nothing; lines are counted from 1, those too."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pieces: list[bytes] = []
        self._line = 1
        self._start = 0
        self._length = 0

    def feed(self, data: bytes) -> list[RawLine]:
        """The lines that end in the next bytes of the file."""
        *ended, rest = data.split(b"\n")
        found = [line for piece in ended if (line := self._close(piece)) is not None]
        self._grow(rest)
        return found

    def end(self) -> list[RawLine]:
        """The last line, where no line break ends it."""
        last = self._close(b"")
        return [] if last is None else [last]

    def _grow(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._length <= self._limit_bytes:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def _close(self, piece: bytes) -> RawLine | None:
        self._grow(piece)
        text = b"".join(self._pieces) if self._length <= self._limit_bytes else None
        line = RawLine(line=self._line, start=self._start, length=self._length, text=text)
        self._line, self._start = self._line + 1, self._start + self._length + 1
        self._pieces, self._length = [], 0
        return None if text is not None and not text.strip() else line


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the lines of a batch are held to; `models`: patterns of those that its caller may use."""

    endpoint: str
    models: tuple[str, ...]
    settings: Settings


def check_line(raw: RawLine, terms: Terms) -> BatchLine | Problem:
    """The request in a line, its model as it is written there; or the first thing that is wrong with it."""
    if raw.text is None:
        return Problem(code="line_too_long", message="This line is longer than server.max_body_mib allows.", line=raw.line)
    try:
        check_structure(raw.text)
    except BadRequest as error:
        return Problem(code="invalid_request", message=error.message, line=raw.line)
    value = _parsed(raw.text)
    if value is None:
        return Problem(code="invalid_json_line", message="This line is not parseable as a JSON object.", line=raw.line)
    return _wrong_envelope(value, raw.line, terms.endpoint) or _checked_body(value, raw, terms)


def request_in(text: bytes, endpoint: str) -> bytes:
    """The body of the request in a line that was checked, as its route takes it."""
    value = _parsed(text) or {}
    return body_of(endpoint, cast("dict[str, object]", value["body"]), large=len(text) > LARGE_BYTES)


def _parsed(text: bytes) -> dict[str, object] | None:
    try:
        value: object = decode(text) if len(text) > LARGE_BYTES else json.loads(text)
    except (ValueError, RecursionError, GoJsonError):
        return None
    return value if isinstance(value, dict) else None


def _wrong_envelope(value: Mapping[str, object], line: int, endpoint: str) -> Problem | None:
    for name in ("custom_id", "method", "url", "body"):
        if value.get(name) is None:
            return Problem(code="missing_required_parameter", message=f"Missing required parameter: '{name}'.", line=line, param=name)
    custom_id, body = value["custom_id"], value["body"]
    named = isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS and custom_id.isprintable()
    streams = isinstance(body, dict) and bool(body.get("stream"))
    rules = (
        (named, "invalid_custom_id", f"custom_id must be 1 to {MAX_CUSTOM_ID_CHARS} printable characters.", "custom_id"),
        (value["method"] == "POST", "invalid_method", "The method must be POST.", "method"),
        (value["url"] == endpoint, "invalid_url", f"The url must be the endpoint of the batch, {endpoint}.", "url"),
        (isinstance(body, dict), "invalid_request", "The body must be an object.", "body"),
        (not streams, "invalid_request", "A batch cannot stream; leave stream out.", "body.stream"),
    )
    broken = next((rule for rule in rules if not rule[0]), None)
    return None if broken is None else Problem(code=broken[1], message=broken[2], line=line, param=broken[3])


def _checked_body(value: Mapping[str, object], raw: RawLine, terms: Terms) -> BatchLine | Problem:
    body = value["body"]
    assert isinstance(body, dict)
    try:
        model = envelope_of(terms.endpoint, body_of(terms.endpoint, body, large=raw.length > LARGE_BYTES), terms.settings).model
    except ModelNotFound as error:
        return Problem(code="model_not_found", message=error.message, line=raw.line, param="body.model")
    except HearthError as error:
        return Problem(code="invalid_request", message=error.message, line=raw.line, param="body")
    if not may_use(terms.models, model):
        says = "The key that sent this batch may not use this model."
        return Problem(code="model_not_allowed", message=says, line=raw.line, param="body.model")
    return BatchLine(line=raw.line, custom_id=str(value["custom_id"]), model=model, start=raw.start, length=raw.length)
