"""The routes that only tell: root, version, status, tags, ps and the OpenAI model lists.

Must never change anything. Called by the server's route table only.
"""

from __future__ import annotations

from hearth.dialects.gojson import JsonObject
from hearth.emulator.durations import timestamp
from hearth.emulator.exchange import Call, Server, Sink, send_json, send_v1
from hearth.emulator.models import Installed, details_of, valid_name
from hearth.emulator.runners import Runner

_VERSION = "0.33.0"


async def root(_server: Server, _call: Call, sink: Sink) -> None:
    await sink.whole(b"Ollama is running", "text/plain; charset=utf-8")


async def version(_server: Server, _call: Call, sink: Sink) -> None:
    await send_json(sink, {"version": _VERSION})


async def status(_server: Server, _call: Call, sink: Sink) -> None:
    """Cloud features are off."""
    await send_json(sink, {"cloud": {"disabled": True, "source": "env"}})


async def tags(server: Server, _call: Call, sink: Sink) -> None:
    """Installed models, newest first."""
    await send_json(sink, {"models": [_listed(one) for one in server.catalogue.newest_first()]})


async def ps(server: Server, _call: Call, sink: Sink) -> None:
    """Models in memory, latest expiry first; one that is being loaded is absent."""
    await send_json(sink, {"models": [_resident(one) for one in server.engine.resident()]})


async def v1_models(server: Server, _call: Call, sink: Sink) -> None:
    """Installed models in OpenAI's list."""
    await send_v1(sink, {"object": "list", "data": [_v1_model(one.name.short, one) for one in server.catalogue.newest_first()]})


async def v1_model(server: Server, call: Call, sink: Sink) -> None:
    """One installed model in OpenAI's shape; raises `OllamaError` 404 with the completed name."""
    installed = server.catalogue.require(call.tail, shown=valid_name(call.tail).short)
    await send_v1(sink, _v1_model(call.tail, installed))


def _v1_model(shown: str, installed: Installed) -> JsonObject:
    return {"id": shown, "object": "model", "created": int(installed.model.created_wall), "owned_by": installed.name.namespace}


def _listed(installed: Installed) -> JsonObject:
    model = installed.model
    return {
        "name": installed.name.short,
        "model": installed.name.short,
        "modified_at": timestamp(model.created_wall),
        "size": model.size_bytes,
        "digest": installed.digest,
        "details": details_of(model) | {"context_length": model.profile.context_tokens, "embedding_length": model.profile.embedding_length},
        "capabilities": [*model.profile.capabilities],
    }


def _resident(runner: Runner) -> JsonObject:
    return {
        "name": runner.name,
        "model": runner.name,
        "size": runner.model.loaded_bytes,
        "digest": runner.digest,
        "details": details_of(runner.model),
        "expires_at": timestamp(runner.expires_wall),
        "size_vram": runner.vram_bytes,
        "context_length": runner.key.num_ctx,
    }
