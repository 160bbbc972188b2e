"""Parts in which servers send an answer and its tool calls."""

from __future__ import annotations

from hearth.dialects.frames import at
from hearth.dialects.gojson import JsonObject, JsonValue, encode

TORN = "the model server sent a part of its answer that is no JSON"


def is_torn(payload: bytes, fields: JsonObject) -> bool:
    """The payload of a frame was to be an object, and is read as none (`fields` are empty)."""
    return not fields and payload.startswith(b"{") and payload.strip() != b"{}"


def goes_on(call: JsonObject, part: JsonObject) -> bool:
    """The part goes on with a call whose first part is known. Some servers number no call, or each
    as the first: there a name and an id of its own begin another one.
    """
    index = part.get("index")
    if index is not None and index != call.get("index"):
        return False
    is_named = bool(part.get("id") and at(part, ("function", "name")))
    return not (is_named and part.get("id") != call.get("id"))


def arguments_in(given: JsonValue) -> str:
    """The arguments in their JSON text; some servers send the object itself."""
    if isinstance(given, dict):
        return encode(given).decode()
    return given if isinstance(given, str) else ""
