"""The routes that tell what is installed and in memory, and those that change what is installed.

Nothing is ever fetched: pulling a name that is installed succeeds, any other fails as it does without a network.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from hearth.dialects.gojson import JsonObject, JsonValue, bool_field, encode, lookup, object_field, string_field
from hearth.emulator.engine import Runner
from hearth.emulator.models import EmulatedModel, Installed, ModelName, OllamaError, details_of, error_body, valid_name
from hearth.emulator.wire import JSON, NDJSON, Call, timestamp
from hearth.types import Dialect

_VERSION = "0.33.0"


async def root(call: Call) -> None:
    await call.whole(b"Ollama is running", "text/plain; charset=utf-8")


async def version(call: Call) -> None:
    await call.json({"version": _VERSION})


async def status(call: Call) -> None:
    """Cloud features are off."""
    await call.json({"cloud": {"disabled": True, "source": "env"}})


async def tags(call: Call) -> None:
    """Installed models, newest first."""
    await call.json({"models": [_listed(one) for one in call.server.catalogue.newest_first()]})


async def ps(call: Call) -> None:
    """Models in memory, latest expiry first; one that is being loaded is absent."""
    await call.json({"models": [_resident(one) for one in call.server.engine.resident()]})


async def v1_models(call: Call) -> None:
    """Installed models in OpenAI's list."""
    await call.json({"object": "list", "data": [_v1_model(one.name.short, one) for one in call.server.catalogue.newest_first()]})


async def v1_model(call: Call) -> None:
    """One installed model in OpenAI's shape; raises `OllamaError` 404 with the completed name."""
    installed = call.server.catalogue.require(call.tail, shown=valid_name(call.tail).short)
    await call.json(_v1_model(call.tail, installed))


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


async def show(call: Call) -> None:
    """The facts of one model; raises `OllamaError` 404 with the completed name for a missing one."""
    fields = call.struct("api.ShowRequest")
    text = _named(fields, "ShowRequest")
    if not text:
        raise OllamaError(400, "model is required")
    installed = call.server.catalogue.require(text, shown=valid_name(text).short)
    await call.json(_shown(installed))


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


async def create(call: Call) -> None:
    """A new model from an installed one; building from files is not emulated and is refused with 400."""
    fields = call.struct("api.CreateRequest")
    struct = "CreateRequest"
    name, base_text = string_field(fields, "model", struct), string_field(fields, "from", struct)
    valid_name(name)
    if not base_text:
        raise OllamaError(400, 'neither "from" or "files" was specified')
    progress = _Progress(call, streaming=bool_field(fields, "stream", struct) is not False)
    base = call.server.catalogue.find(base_text)
    if base is None:
        await progress.fail(_unreachable(valid_name(base_text)))
        return
    call.server.catalogue.put(name, _derived(base.model, fields, call.server.engine.clock.wall()))
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


async def pull(call: Call) -> None:
    """Progress of a download that is already there; an unknown model ends in the error of a machine without a network."""
    fields = call.struct("api.PullRequest")
    text = _named(fields, "PullRequest")
    name = valid_name(text)
    progress = _Progress(call, streaming=bool_field(fields, "stream", "PullRequest") is not False)
    await progress.status("pulling manifest")
    installed = call.server.catalogue.find(text)
    if installed is None:
        await progress.fail(_unreachable(name))
        return
    await _transfer(progress, installed, verb="pulling")


async def push(call: Call) -> None:
    """Progress of an upload that goes nowhere; raises `OllamaError` 404 for a missing model."""
    fields = call.struct("api.PushRequest")
    text = _named(fields, "PushRequest")
    if not text:
        raise OllamaError(400, "model is required")
    installed = call.server.catalogue.require(text, template="model '{}' not found")
    progress = _Progress(call, streaming=bool_field(fields, "stream", "PushRequest") is not False)
    await progress.status("retrieving manifest")
    await _transfer(progress, installed, verb="pushing")


async def _transfer(progress: _Progress, installed: Installed, *, verb: str) -> None:
    digest, size = installed.model.weights.replace("sha256-", "sha256:"), installed.model.size_bytes
    await progress.tell({"status": f"{verb} {digest[7:19]}", "digest": digest, "total": size, "completed": size})
    for step in ("verifying sha256 digest", "writing manifest") if verb == "pulling" else ("pushing manifest",):
        await progress.status(step)
    await progress.success()


async def copy(call: Call) -> None:
    """A second name for the same weights; raises `OllamaError` 404."""
    fields = call.struct("api.CopyRequest")
    source, destination = string_field(fields, "source", "CopyRequest"), string_field(fields, "destination", "CopyRequest")
    valid_name(source)
    valid_name(destination)
    installed = call.server.catalogue.require(source, template='model "{}" not found')
    call.server.catalogue.put(destination, replace(installed.model, created_wall=call.server.engine.clock.wall()))
    await call.whole()


async def delete(call: Call) -> None:
    """Forget a name. A running copy stays loaded. Raises `OllamaError` 404."""
    fields = call.struct("api.DeleteRequest")
    call.server.catalogue.remove(_named(fields, "DeleteRequest"))
    await call.whole()


async def find_blob(call: Call) -> None:
    """200 when the digest in the path is known; raises `OllamaError` 404."""
    if call.tail not in call.server.catalogue.blobs:
        raise OllamaError(404, f'blob "{call.tail}" not found')
    await call.whole()


async def put_blob(call: Call) -> None:
    """201 for a new blob, 200 for a known one; raises `OllamaError` 400 when the body has another digest. Only the digest is kept."""
    if call.tail in call.server.catalogue.blobs:
        await call.whole()
        return
    digest = f"sha256:{sha256(call.body).hexdigest()}"
    if digest != call.tail:
        raise OllamaError(400, f'digest mismatch, expected "{call.tail}", got "{digest}"')
    call.server.catalogue.blobs.add(digest)
    await call.whole(status=201)


class _Progress:
    """Progress lines; without streaming only the end is sent."""

    def __init__(self, call: Call, *, streaming: bool) -> None:
        self._call = call
        self._streaming = streaming
        if streaming:
            call.prepare(NDJSON)

    async def tell(self, line: JsonObject) -> None:
        if self._streaming:
            await self._call.send([encode(line) + b"\n"])

    async def status(self, *texts: str) -> None:
        for text in texts:
            await self.tell({"status": text})

    async def success(self) -> None:
        await self.status("success")
        if not self._streaming:
            await self._call.whole(encode({"status": "success"}), JSON)

    async def fail(self, error: OllamaError) -> None:
        if self._streaming:
            await self._call.break_off(error)
        else:
            await self._call.whole(error_body(error, Dialect.OLLAMA), JSON, status=error.status)


def _unreachable(name: ModelName) -> OllamaError:
    """What pulling says where there is no network: a registry on loopback refuses, any other cannot be resolved."""
    bare, _, port = name.host.partition(":")
    reason = f": lookup {bare} on 198.51.100.53:53: no such host"
    if bare == "localhost":
        reason = f" 127.0.0.1:{port or 443}: connect: connection refused"
    url = f"https://{name.host}/v2/{name.namespace}/{name.model}/manifests/{name.tag}"
    return OllamaError(500, f'pull model manifest: Get "{url}": dial tcp{reason}')
