"""The requests and results of Anthropic's batches (`/v1/messages/batches`).

Their requests come in one body and are kept as an input file like those of OpenAI's batches, so
that all that follows is the same; what is written of each in the end is Anthropic's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from hearth.dialects.gojson import JsonObject, encode_large
from hearth.dialects.routes import Endpoint
from hearth.errors import BadRequest
from hearth.types import JsonMapping

_CUSTOM_ID = re.compile(rb'\{"custom_id":"([^"]*)"')
_ERROR_TYPES = {
    "bad_request": "invalid_request_error",
    "forbidden": "permission_error",
    "invalid_request": "invalid_request_error",
    "model_not_allowed": "permission_error",
    "model_not_found": "not_found_error",
}
"""By code; everything else is an `api_error`."""


def input_of(requests: Iterable[tuple[str, JsonObject]], *, large: bool) -> bytes:
    """The input file of these requests (`custom_id`, `params`), those of a `large` body written in
    pieces.

    Raises BadRequest for a custom_id that comes twice.
    """
    seen = set[str]()
    lines = bytearray()
    for place, (custom_id, params) in enumerate(requests):
        if custom_id in seen:
            raise BadRequest(f"requests.{place}.custom_id: an earlier request has it, too")
        seen.add(custom_id)
        line: JsonObject = {
            "custom_id": custom_id,
            "method": "POST",
            "url": Endpoint.ANTHROPIC_MESSAGES.value,
            "body": params,
        }
        lines += encode_large(line) if large else _compact(line)
        lines += b"\n"
    return bytes(lines)


def _compact(value: JsonMapping) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def custom_id_in(line: bytes) -> str:
    """The custom_id of a line of such a file, whatever else is wrong with it."""
    found = _CUSTOM_ID.match(line)
    return "" if found is None else found[1].decode()


def is_result(document: object, *, succeeded: bool) -> bool:
    """Whether an answer is what a result may hold: a message, or an error."""
    if not isinstance(document, Mapping):
        return False
    return succeeded or (document.get("type") == "error" and "error" in document)


def with_answer(custom_id: str, answer: bytes, *, succeeded: bool) -> bytes:
    """A result with the answer as the model server wrote it, in a line without its end."""
    result = b'{"type":"succeeded","message":%b}' if succeeded else b'{"type":"errored","error":%b}'
    return _line(custom_id, result % answer)


def without_answer(
    custom_id: str, code: str, message: str, undone: Literal["cancelled", "expired"] | None
) -> bytes:
    """The result of a request without an answer; `undone`: why it was not tried to its end."""
    if undone is not None:
        kind = {"cancelled": "canceled", "expired": "expired"}[undone]
        return _line(custom_id, _compact({"type": kind}))
    error = {"type": _ERROR_TYPES.get(code, "api_error"), "message": message}
    shown = {"type": "error", "error": error}
    return _line(custom_id, _compact({"type": "errored", "error": shown}))


def _line(custom_id: str, result: bytes) -> bytes:
    return b'{"custom_id":%b,"result":%b}' % (json.dumps(custom_id).encode(), result)
