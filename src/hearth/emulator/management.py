"""The routes that change what is installed: show, create, pull, push, copy, delete and blobs.

Nothing is ever fetched: pulling a name that is installed succeeds, any other fails as it does without a network. Called by the server's
route table only.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from hearth.dialects.gojson import JsonObject, JsonValue, bool_field, encode, lookup, object_field, string_field
from hearth.emulator.durations import timestamp
from hearth.emulator.errors import OllamaError, error_body
from hearth.emulator.exchange import JSON, NDJSON, Call, Server, Sink, break_off, read_struct, send_json
from hearth.emulator.models import EmulatedModel, Installed, details_of, valid_name
from hearth.emulator.names import ModelName
from hearth.types import Dialect


async def show(server: Server, call: Call, sink: Sink) -> None:
    """The facts of one model; raises `OllamaError` 404 with the completed name for a missing one."""
    fields = read_struct(call, "api.ShowRequest")
    text = _named(fields, "ShowRequest")
    if not text:
        raise OllamaError(400, "model is required")
    installed = server.catalogue.require(text, shown=valid_name(text).short)
    await send_json(sink, _shown(installed))


def _named(fields: JsonObject, struct: str) -> str:
    """The model's name; older clients put it under `name`."""
    return string_field(fields, "model", struct) or string_field(fields, "name", struct)


def _shown(installed: Installed) -> JsonObject:
    model = installed.model
    parameters = "\n".join(f"{name:<30} {encode(value).decode()}" for name, value in model.parameters.items())
    shown: JsonObject = {"modelfile": f"FROM {installed.name.short}\nTEMPLATE {model.template}\n"}
    shown |= {"parameters": parameters} if parameters else {}
    shown |= {"template": model.template}
    shown |= {"system": model.system} if model.system else {}
    capabilities: list[JsonValue] = [*model.profile.capabilities]
    rest: JsonObject = {"tensors": [], "capabilities": capabilities, "modified_at": timestamp(model.created_wall)}
    return shown | {"details": details_of(model), "model_info": _model_info(model)} | rest


def _model_info(model: EmulatedModel) -> JsonObject:
    family = model.profile.family
    return {
        "general.architecture": family,
        "general.basename": model.profile.name,
        f"{family}.context_length": model.profile.context_tokens,
        f"{family}.embedding_length": model.profile.embedding_length,
    }


async def create(server: Server, call: Call, sink: Sink) -> None:
    """A new model from an installed one; building from files is not emulated and is refused with 400."""
    fields = read_struct(call, "api.CreateRequest")
    struct = "CreateRequest"
    name, base_text = string_field(fields, "model", struct), string_field(fields, "from", struct)
    valid_name(name)
    if not base_text:
        raise OllamaError(400, 'neither "from" or "files" was specified')
    progress = _Progress(sink, streaming=bool_field(fields, "stream", struct) is not False)
    base = server.catalogue.find(base_text)
    if base is None:
        await progress.fail(_unreachable(valid_name(base_text)))
        return
    server.catalogue.put(name, _derived(base.model, fields, server.engine.clock.wall()))
    await _tell_layers(progress, base, fields)


def _derived(base: EmulatedModel, fields: JsonObject, now_wall: float) -> EmulatedModel:
    parameters = object_field(fields, "parameters", "CreateRequest", "map[string]interface {}")
    return replace(
        base,
        parameters={**base.parameters, **parameters},
        system=string_field(fields, "system", "CreateRequest") or base.system,
        template=string_field(fields, "template", "CreateRequest") or base.template,
        templated=base.templated or bool(string_field(fields, "template", "CreateRequest")),
        created_wall=now_wall,
    )


async def _tell_layers(progress: _Progress, base: Installed, fields: JsonObject) -> None:
    await progress.status(f"using existing layer sha256:{base.model.weights.removeprefix('sha256-')}")
    for key in ("template", "system", "parameters"):
        value = lookup(fields, key)
        if value:
            await progress.status(f"creating new layer sha256:{sha256(encode({key: value})).hexdigest()}")
    await progress.status("writing manifest")
    await progress.success()


async def pull(server: Server, call: Call, sink: Sink) -> None:
    """Progress of a download that is already there; an unknown model ends in the error of a machine without a network."""
    fields = read_struct(call, "api.PullRequest")
    text = _named(fields, "PullRequest")
    name = valid_name(text)
    progress = _Progress(sink, streaming=bool_field(fields, "stream", "PullRequest") is not False)
    await progress.status("pulling manifest")
    installed = server.catalogue.find(text)
    if installed is None:
        await progress.fail(_unreachable(name))
        return
    await _transfer(progress, installed, verb="pulling")


async def push(server: Server, call: Call, sink: Sink) -> None:
    """Progress of an upload that goes nowhere; raises `OllamaError` 404 for a missing model."""
    fields = read_struct(call, "api.PushRequest")
    text = _named(fields, "PushRequest")
    if not text:
        raise OllamaError(400, "model is required")
    installed = server.catalogue.require(text, template="model '{}' not found")
    progress = _Progress(sink, streaming=bool_field(fields, "stream", "PushRequest") is not False)
    await progress.status("retrieving manifest")
    await _transfer(progress, installed, verb="pushing")


async def _transfer(progress: _Progress, installed: Installed, *, verb: str) -> None:
    digest, size = installed.model.weights.replace("sha256-", "sha256:"), installed.model.size_bytes
    await progress.tell({"status": f"{verb} {digest[7:19]}", "digest": digest, "total": size, "completed": size})
    for step in ("verifying sha256 digest", "writing manifest") if verb == "pulling" else ("pushing manifest",):
        await progress.status(step)
    await progress.success()


async def copy(server: Server, call: Call, sink: Sink) -> None:
    """A second name for the same weights; raises `OllamaError` 404."""
    fields = read_struct(call, "api.CopyRequest")
    source, destination = string_field(fields, "source", "CopyRequest"), string_field(fields, "destination", "CopyRequest")
    valid_name(source)
    valid_name(destination)
    installed = server.catalogue.require(source, template='model "{}" not found')
    server.catalogue.put(destination, replace(installed.model, created_wall=server.engine.clock.wall()))
    await sink.whole(b"", None)


async def delete(server: Server, call: Call, sink: Sink) -> None:
    """Forget a name. A running copy stays loaded. Raises `OllamaError` 404."""
    fields = read_struct(call, "api.DeleteRequest")
    server.catalogue.remove(_named(fields, "DeleteRequest"))
    await sink.whole(b"", None)


async def find_blob(server: Server, call: Call, sink: Sink) -> None:
    """200 when the digest in the path is known; raises `OllamaError` 404."""
    if call.tail not in server.catalogue.blobs:
        raise OllamaError(404, f'blob "{call.tail}" not found')
    await sink.whole(b"", None)


async def put_blob(server: Server, call: Call, sink: Sink) -> None:
    """201 for a new blob, 200 for a known one; raises `OllamaError` 400 when the body has another digest. Only the digest is kept."""
    if call.tail in server.catalogue.blobs:
        await sink.whole(b"", None)
        return
    digest = f"sha256:{sha256(call.body).hexdigest()}"
    if digest != call.tail:
        raise OllamaError(400, f'digest mismatch, expected "{call.tail}", got "{digest}"')
    server.catalogue.blobs.add(digest)
    await sink.whole(b"", None, status=201)


class _Progress:
    """Progress lines; without streaming only the end is sent."""

    def __init__(self, sink: Sink, *, streaming: bool) -> None:
        self._sink = sink
        self.streaming = streaming
        if streaming:
            sink.prepare(NDJSON)

    async def tell(self, line: JsonObject) -> None:
        if self.streaming:
            await self._sink.chunk(encode(line) + b"\n")

    async def status(self, text: str) -> None:
        await self.tell({"status": text})

    async def success(self) -> None:
        await self.status("success")
        if not self.streaming:
            await self._sink.whole(encode({"status": "success"}), JSON)

    async def fail(self, error: OllamaError) -> None:
        if self.streaming:
            await break_off(error, self._sink)
        else:
            await self._sink.whole(error_body(error, Dialect.OLLAMA, ""), JSON, status=error.status)


def _unreachable(name: ModelName) -> OllamaError:
    """What pulling says where there is no network: a registry on loopback refuses, any other cannot be resolved."""
    bare, _, port = name.host.partition(":")
    reason = f": lookup {bare} on 198.51.100.53:53: no such host"
    if bare == "localhost":
        reason = f" 127.0.0.1:{port or 443}: connect: connection refused"
    url = f"https://{name.host}/v2/{name.namespace}/{name.model}/manifests/{name.tag}"
    return OllamaError(500, f'pull model manifest: Get "{url}": dial tcp{reason}')
