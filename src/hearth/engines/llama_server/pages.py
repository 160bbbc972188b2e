"""Ollama's pages about models, as a llama-server's one model makes them; shapes as Ollama's.

What the server does not say is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hearth.dialects.frames import object_in
from hearth.dialects.gojson import JsonObject, JsonValue, encode, lookup
from hearth.dialects.writers import rfc3339
from hearth.engines.llama_server.control import Served
from hearth.engines.llama_server.exchanges import PLAIN, Ready
from hearth.types import MIB

FOREVER = "9999-12-31T23:59:59Z"
RUNNING = b"llama-server is running"
_V1_MODEL = "/v1/models/"


def page(path: str, body: bytes, served: Served, since_wall_s: float) -> Ready:
    """The answer to a request for one of the pages; `since_wall_s`: when this model was first
    seen.
    """
    make = _MADE.get(path)
    if make is not None:
        return make(served, since_wall_s)
    if path == "/api/show":
        asked = object_in(body)
        return _show(str(lookup(asked, "model") or lookup(asked, "name") or ""), served)
    return _of_one(path.removeprefix(_V1_MODEL), served, since_wall_s)


def _root(_: Served, __: float) -> Ready:
    return Ready(200, RUNNING, PLAIN)


def _version(served: Served, _: float) -> Ready:
    return _json({"version": served.build})


def _tags(served: Served, since_wall_s: float) -> Ready:
    return _json({"models": [_tag(name, served, since_wall_s) for name in served.names]})


def _resident(served: Served, since_wall_s: float) -> Ready:
    shown = _tag(served.names[0], served, since_wall_s)
    shown |= {
        "expires_at": FOREVER,
        "size_vram": round(served.resident.vram_mib * MIB),
        "context_length": served.context_tokens,
    }
    return _json({"models": [shown]})


def _models(served: Served, since_wall_s: float) -> Ready:
    listed: list[JsonValue] = [_entry(name, since_wall_s) for name in served.names]
    return _json({"object": "list", "data": listed})


def _of_one(name: str, served: Served, since_wall_s: float) -> Ready:
    if name.lower() in {each.lower() for each in served.names}:
        return _json(_entry(name, since_wall_s))
    said: JsonObject = {
        "message": f"The model '{name}' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    return Ready(404, encode({"error": said}))


def _json(fields: JsonObject) -> Ready:
    return Ready(200, encode(fields))


def _entry(name: str, since_wall_s: float) -> JsonObject:
    return {"id": name, "object": "model", "created": int(since_wall_s), "owned_by": "llamacpp"}


def _tag(name: str, served: Served, since_wall_s: float) -> JsonObject:
    return {
        "name": name,
        "model": name,
        "modified_at": rfc3339(since_wall_s),
        "size": served.size_bytes,
        "digest": served.digest,
        "details": _details(served),
        "capabilities": [*served.abilities],
    }


def _details(served: Served) -> JsonObject:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": "",
        "families": [],
        "parameter_size": f"{served.parameters / 1e6:.1f}M" if served.parameters else "",
        "quantization_level": served.quantization,
    }


def _show(name: str, served: Served) -> Ready:
    if name.lower() not in {each.lower() for each in served.names}:
        return Ready(404, encode({"error": f"model '{name}' not found"}))
    about: JsonObject = {
        "general.architecture": "llama",
        "general.parameter_count": served.parameters,
        "llama.context_length": served.context_tokens,
    }
    return _json(
        {
            "modelfile": "",
            "parameters": "",
            "template": served.template,
            "details": _details(served),
            "model_info": about,
            "capabilities": [*served.abilities],
        }
    )


_MADE: Mapping[str, Callable[[Served, float], Ready]] = MappingProxyType(
    {
        "/": _root,
        "/api/version": _version,
        "/api/tags": _tags,
        "/api/ps": _resident,
        "/v1/models": _models,
    }
)
