"""Ollama's pages about models, as a server with OpenAI's API makes them; shapes as Ollama's.

What the server does not say is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from urllib.parse import unquote

from hearth.dialects.frames import object_in
from hearth.dialects.gojson import JsonObject, JsonValue, encode, lookup
from hearth.dialects.writers import rfc3339
from hearth.engines.openai_server.exchanges import PLAIN, Ready
from hearth.types import MIB, frozen

FOREVER = "9999-12-31T23:59:59Z"
PAGES = frozenset(
    {
        "/",
        "/api/version",
        "/api/tags",
        "/api/ps",
        "/api/show",
        "/v1/models",
        "/v1/models/{model:path}",
    }
)
"""Those of `dialects.routes.INFO_ROUTES` that are made here."""
_V1_MODEL = "/v1/models/"


@frozen
class ShownModel:
    """What is shown of a model; `since_wall_s`: when it was first seen, in seconds since 1970.

    Attributes:
        abilities: what the server says that it can. vram_mib: None where it is not in memory.
        context_tokens: of each slot.
    """

    name: str
    owner: str
    since_wall_s: float
    digest: str = ""
    abilities: tuple[str, ...] = ("completion",)
    size_bytes: int = 0
    vram_mib: float | None = None
    context_tokens: int | None = None
    parameters: int = 0
    format: str = ""
    quantization: str = ""
    template: str = ""


@frozen
class Shown:
    """What is shown of a server: what it is, which version, and its models."""

    title: str
    version: str
    models: Sequence[ShownModel]

    def of(self, name: str) -> ShownModel | None:
        """The model of this name."""
        return next((one for one in self.models if one.name.lower() == name.lower()), None)


def page(path: str, body: bytes, shown: Shown) -> Ready:
    """The answer to a request for one of the pages."""
    make = _MADE.get(path)
    if make is not None:
        return make(shown)
    if path == "/api/show":
        asked = object_in(body)
        return _show(str(lookup(asked, "model") or lookup(asked, "name") or ""), shown)
    return _of_one(unquote(path.removeprefix(_V1_MODEL)), shown)


def _root(shown: Shown) -> Ready:
    return Ready(200, f"{shown.title} is running".encode(), PLAIN)


def _version(shown: Shown) -> Ready:
    return _json({"version": shown.version})


def _tags(shown: Shown) -> Ready:
    return _json({"models": [_tag(model) for model in shown.models]})


def _resident(shown: Shown) -> Ready:
    listed: list[JsonValue] = [
        _tag(model)
        | {
            "expires_at": FOREVER,
            "size_vram": round(model.vram_mib * MIB),
            "context_length": model.context_tokens,
        }
        for model in shown.models
        if model.vram_mib is not None
    ]
    return _json({"models": listed})


def _models(shown: Shown) -> Ready:
    listed: list[JsonValue] = [_entry(model) for model in shown.models]
    return _json({"object": "list", "data": listed})


def _of_one(name: str, shown: Shown) -> Ready:
    model = shown.of(name)
    if model is not None:
        return _json(_entry(model))
    said: JsonObject = {
        "message": f"The model '{name}' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    return Ready(404, encode({"error": said}))


def _json(fields: JsonObject) -> Ready:
    return Ready(200, encode(fields))


def _entry(model: ShownModel) -> JsonObject:
    created = int(model.since_wall_s)
    return {"id": model.name, "object": "model", "created": created, "owned_by": model.owner}


def _tag(model: ShownModel) -> JsonObject:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": rfc3339(model.since_wall_s),
        "size": model.size_bytes,
        "digest": model.digest,
        "details": _details(model),
        "capabilities": [*model.abilities],
    }


def _details(model: ShownModel) -> JsonObject:
    return {
        "parent_model": "",
        "format": model.format,
        "family": "",
        "families": [],
        "parameter_size": f"{model.parameters / 1e6:.1f}M" if model.parameters else "",
        "quantization_level": model.quantization,
    }


def _show(name: str, shown: Shown) -> Ready:
    model = shown.of(name)
    if model is None:
        return Ready(404, encode({"error": f"model '{name}' not found"}))
    about: JsonObject = {
        "general.architecture": "llama",
        "general.parameter_count": model.parameters,
        "llama.context_length": model.context_tokens,
    }
    return _json(
        {
            "modelfile": "",
            "parameters": "",
            "template": model.template,
            "details": _details(model),
            "model_info": about,
            "capabilities": [*model.abilities],
        }
    )


_MADE: Mapping[str, Callable[[Shown], Ready]] = MappingProxyType(
    {
        "/": _root,
        "/api/version": _version,
        "/api/tags": _tags,
        "/api/ps": _resident,
        "/v1/models": _models,
    }
)
