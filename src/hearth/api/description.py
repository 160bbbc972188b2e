"""What `/openapi.json` says: FastAPI's description of its pages, the other addresses with the
fields that Hearth reads, and the errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from hearth.api.leases import HOLD_PATH
from hearth.api.message_batches import RESULTS_PATH
from hearth.dialects.routes import (
    COUNT_TOKENS_PATH,
    INFERENCE_ROUTES,
    INFO_ROUTES,
    MANAGEMENT_ROUTES,
    MEDIA_ROUTES,
    UPLOADS,
    Endpoint,
)
from hearth.types import __version__

Node = dict[str, Any]

MODELS_TAG = "models"
"""Marks what model servers have too; their own documentation says the rest."""
_TEXT: Node = {"type": "string"}
_FLAG: Node = {"type": "boolean"}
_COUNT: Node = {"type": "integer"}
_FREE: Node = {"type": "object"}
_TEXTS: Node = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_STAY: Node = {"anyOf": [_TEXT, {"type": "number"}]}
_MESSAGES: Node = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"role": _TEXT, "content": {}},
        "required": ["role", "content"],
    },
}
_NATIVE: Node = {"model": _TEXT, "stream": _FLAG, "options": _FREE, "keep_alive": _STAY}
_OPENAI: Node = {
    "model": _TEXT,
    "stream": _FLAG,
    "max_tokens": _COUNT,
    "seed": _COUNT,
    "temperature": {"type": "number"},
}
_HELD: Node = {"gb": {"type": "number"}, "mib": {"type": "number"}, "reason": _TEXT}
_FILE = {
    "file": {"type": "string", "format": "binary"},
    "purpose": {"type": "string", "enum": ["batch"]},
}

_INFERENCE: Mapping[Endpoint, tuple[Node, tuple[str, ...]]] = {
    Endpoint.CHAT: (
        {**_NATIVE, "messages": _MESSAGES, "format": {}, "tools": {"type": "array"}, "think": {}},
        ("model",),
    ),
    Endpoint.GENERATE: (
        {**_NATIVE, "prompt": _TEXT, "system": _TEXT, "suffix": _TEXT, "format": {}, "raw": _FLAG},
        ("model",),
    ),
    Endpoint.EMBED: (
        {"model": _TEXT, "input": _TEXTS, "truncate": _FLAG, "options": _FREE, "keep_alive": _STAY},
        ("model",),
    ),
    Endpoint.EMBEDDINGS: (
        {"model": _TEXT, "prompt": _TEXT, "options": _FREE, "keep_alive": _STAY},
        ("model",),
    ),
    Endpoint.OPENAI_CHAT: (
        {**_OPENAI, "messages": _MESSAGES, "tools": {"type": "array"}},
        ("model", "messages"),
    ),
    Endpoint.OPENAI_COMPLETIONS: ({**_OPENAI, "prompt": _TEXTS}, ("model", "prompt")),
    Endpoint.OPENAI_EMBEDDINGS: (
        {"model": _TEXT, "input": _TEXTS, "encoding_format": _TEXT, "dimensions": _COUNT},
        ("model", "input"),
    ),
    Endpoint.OPENAI_RESPONSES: (
        {"model": _TEXT, "input": {}, "stream": _FLAG, "max_output_tokens": _COUNT},
        ("model", "input"),
    ),
    Endpoint.ANTHROPIC_MESSAGES: (
        {
            "model": _TEXT,
            "max_tokens": _COUNT,
            "messages": _MESSAGES,
            "system": {},
            "stream": _FLAG,
        },
        ("model", "max_tokens", "messages"),
    ),
}
_AUDIO_FORM: Node = {
    "file": {"type": "string", "format": "binary"},
    "model": _TEXT,
    "language": _TEXT,
    "prompt": _TEXT,
    "response_format": _TEXT,
    "temperature": {"type": "number"},
    "stream": _FLAG,
}
_MEDIA: Mapping[Endpoint, tuple[Node, tuple[str, ...]]] = {
    Endpoint.TRANSCRIPTIONS: (_AUDIO_FORM, ("file", "model")),
    Endpoint.TRANSLATIONS: (_AUDIO_FORM, ("file", "model")),
    Endpoint.SPEECH: (
        {"model": _TEXT, "input": _TEXT, "voice": {}, "response_format": _TEXT},
        ("model", "input"),
    ),
    Endpoint.IMAGES: (
        {"model": _TEXT, "prompt": _TEXT, "n": _COUNT, "size": _TEXT, "stream": _FLAG},
        ("model", "prompt"),
    ),
    Endpoint.RERANK: (
        {
            "model": _TEXT,
            "query": _TEXT,
            "documents": {"type": "array", "items": {}},
            "top_n": _COUNT,
        },
        ("model", "query", "documents"),
    ),
}
_PLAIN: Mapping[str, tuple[Node, tuple[str, ...]]] = {
    "/api/show": ({"model": _TEXT, "verbose": _FLAG}, ("model",)),
    "/api/pull": ({"model": _TEXT, "stream": _FLAG, "insecure": _FLAG}, ("model",)),
    "/api/push": ({"model": _TEXT, "stream": _FLAG, "insecure": _FLAG}, ("model",)),
    "/api/create": ({"model": _TEXT, "from": _TEXT, "files": _FREE, "stream": _FLAG}, ("model",)),
    "/api/copy": ({"source": _TEXT, "destination": _TEXT}, ("source", "destination")),
    "/api/delete": ({"model": _TEXT}, ("model",)),
}
_ERROR: Node = {"description": "What is wrong, in the error format of the API that was called"}


def described(routes: Sequence[BaseRoute]) -> Node:
    """The whole description: what FastAPI makes of its routes, and the others."""
    framework = get_openapi(title="Hearth", version=__version__, routes=routes)
    paths = {
        path: {method: _own(operation) for method, operation in methods.items()}
        for path, methods in framework["paths"].items()
    }
    for path, (fields, required) in _INFERENCE.items():
        _add(paths, path, ("POST",), INFERENCE_ROUTES[path].name, _json_body(fields, required))
    for path, (fields, required) in _MEDIA.items():
        schema: Node = {"properties": fields, "required": list(required)}
        media_type = "multipart/form-data" if path in UPLOADS else "application/json"
        _add(paths, path, ("POST",), MEDIA_ROUTES[path].name, _body(media_type, schema))
    _add(
        paths,
        COUNT_TOKENS_PATH,
        ("POST",),
        "CountTokens",
        _json_body({"model": _TEXT, "messages": _MESSAGES, "system": {}}, ("model",)),
    )
    for address, methods in (*INFO_ROUTES.items(), *MANAGEMENT_ROUTES.items()):
        _add(paths, address.replace(":path", ""), methods, "", _body_of(address, methods))
    _add(paths, "/openapi.json", ("GET", "HEAD"), "", None)
    _add(
        paths,
        "/v1/files",
        ("POST",),
        "",
        _body("multipart/form-data", {"properties": _FILE, "required": ["file", "purpose"]}),
    )
    _add(paths, "/v1/files/{file_id}/content", ("GET",), "", None)
    _add(paths, RESULTS_PATH, ("GET",), "", None)
    _add(paths, HOLD_PATH, ("POST",), "", _json_body(_HELD, ()))
    return {**framework, "paths": paths}


def _own(operation: Node) -> Node:
    """What the framework would refuse with 422 is a 400 here."""
    responses = dict(operation["responses"])
    if responses.pop("422", None) is not None:
        responses["400"] = _ERROR
    return {**operation, "responses": responses}


def _add(paths: Node, path: str, methods: Iterable[str], name: str, body: Node | None) -> None:
    for method in methods:
        operation: Node = {
            "tags": [MODELS_TAG],
            "responses": {"200": {"description": "Successful Response"}, "4XX": _ERROR},
        }
        if name:
            operation["summary"] = name
        _, brace, parameter = path.partition("{")
        if brace:
            named = parameter.partition("}")[0]
            operation["parameters"] = [
                {"name": named, "in": "path", "required": True, "schema": _TEXT}
            ]
        if body is not None and method not in ("GET", "HEAD"):
            operation["requestBody"] = body
        paths.setdefault(path, {})[method.lower()] = operation


def _body_of(path: str, methods: Sequence[str]) -> Node | None:
    if path in _PLAIN:
        return _json_body(*_PLAIN[path])
    return (
        _body("application/octet-stream", {"format": "binary"}, kind="string")
        if "POST" in methods
        else None
    )


def _json_body(fields: Node, required: Iterable[str]) -> Node:
    return _body("application/json", {"properties": fields, "required": list(required)})


def _body(media: str, schema: Node, kind: str = "object") -> Node:
    return {"required": True, "content": {media: {"schema": {"type": kind, **schema}}}}
