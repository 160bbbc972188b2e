"""Requests for speech, pictures and ranks: only what the queue must know of them is read."""

from __future__ import annotations

from hearth.dialects.gojson import Body, JsonObject, JsonValue, decode_document, encode
from hearth.dialects.request import INVALID_NAME, MODEL_REQUIRED, is_model_name, prompt_tokens
from hearth.dialects.routes import Endpoint, Route
from hearth.errors import BadRequest
from hearth.types import frozen

_REQUIRED = {
    Endpoint.SPEECH: ("input",),
    Endpoint.IMAGES: ("prompt",),
    Endpoint.RERANK: ("query", "documents"),
}
_BYTES_PER_TOKEN = 4


@frozen
class MediaRequest:
    """What a body asks for.

    Attributes:
        model: as the caller wrote it. streaming: its bytes reach the caller as they come.
        prompt_tokens: an estimate. prompt: the words that it is about. fields: all of the body.
    """

    model: str
    streaming: bool
    prompt_tokens: int
    prompt: str
    fields: JsonObject


def read_media(route: Route, body: bytes) -> MediaRequest:
    """Raises BadRequest: it is no JSON object, names no model, or lacks what its server cannot do
    without, so that no model is loaded for nothing.
    """
    document, _ = decode_document(body, whole=True)
    asked = Body(document)
    model = asked.string("model")
    check_name(model)
    for name in _REQUIRED[route.path]:
        _check_given(name, asked.get(name))
    is_rerank = route.kind == "rerank"
    return MediaRequest(
        model=model,
        streaming=route.kind == "speak" or (route.kind == "image" and asked.flag("stream")),
        prompt_tokens=len(body) // _BYTES_PER_TOKEN if is_rerank else prompt_tokens(asked.fields),
        prompt=asked.string(_REQUIRED[route.path][0]),
        fields=asked.fields,
    )


def check_name(model: str) -> None:
    """Raises BadRequest: it is no name that a model can have."""
    if not model:
        raise BadRequest(MODEL_REQUIRED)
    if not is_model_name(model):
        raise BadRequest(INVALID_NAME)


def _check_given(name: str, given: JsonValue) -> None:
    if not given:
        raise BadRequest(f"{name} is required")
    if not isinstance(given, list if name == "documents" else str):
        kind = "an array" if name == "documents" else "a text"
        raise BadRequest(f"{name} must be {kind}")


def naming(fields: JsonObject, model: str) -> bytes:
    """The body with another name of its model."""
    return encode({**fields, "model": model})
