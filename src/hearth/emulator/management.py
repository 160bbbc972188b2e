"""The routes that list what is installed and in memory, and those that change what is installed.

Nothing is ever fetched: pulling a name that is installed succeeds, any other fails as it does
without a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from hearth.dialects.errors import error_object
from hearth.dialects.gojson import Body, JsonObject, JsonValue, encode
from hearth.emulator.models import (
    GIB,
    EmulatedModel,
    Installed,
    OllamaError,
    QualifiedName,
    valid_name,
)
from hearth.emulator.wire import JSON, NDJSON, EmulatedCall, timestamp


async def root(call: EmulatedCall) -> None:
    await call.whole(b"Ollama is running", "text/plain; charset=utf-8")


async def version(call: EmulatedCall) -> None:
    await call.json({"version": "0.33.0"})


async def status(call: EmulatedCall) -> None:
    """Cloud features are off."""
    await call.json({"cloud": {"disabled": True, "source": "env"}})


async def tags(call: EmulatedCall) -> None:
    """Installed models, newest first."""
    models: list[JsonValue] = [
        {
            "name": one.name.short,
            "model": one.name.short,
            "modified_at": timestamp(one.model.created_wall),
            "size": one.model.size_bytes,
            "digest": one.digest,
            "details": one.model.details
            | {
                "context_length": one.model.context_tokens,
                "embedding_length": one.model.embedding_length,
            },
            "capabilities": [*one.model.capabilities],
        }
        for one in call.catalogue.newest_first()
    ]
    await call.json({"models": models})


async def ps(call: EmulatedCall) -> None:
    """Models in memory, latest expiry first; their size is that of weights and about 8 % of buffers
    at least.
    """
    models: list[JsonValue] = [
        {
            "name": runner.name,
            "model": runner.name,
            "size": int(max(runner.model.vram_gib, runner.model.size_gib * 1.08) * GIB),
            "digest": runner.digest,
            "details": runner.model.details,
            "expires_at": timestamp(runner.expires_wall),
            "size_vram": runner.vram_bytes,
            "context_length": runner.key[0],
        }
        for runner in call.engine.runners()
    ]
    await call.json({"models": models})


async def v1_models(call: EmulatedCall) -> None:
    """Installed models in OpenAI's list."""
    await call.json(
        {
            "object": "list",
            "data": [_v1_model(one.name.short, one) for one in call.catalogue.newest_first()],
        }
    )


async def v1_model(call: EmulatedCall) -> None:
    """One installed model in OpenAI's shape; raises `OllamaError` 404 with the completed name."""
    await call.json(
        _v1_model(call.tail, call.catalogue.require(call.tail, shown=valid_name(call.tail).short))
    )


def _v1_model(shown: str, installed: Installed) -> JsonObject:
    return {
        "id": shown,
        "object": "model",
        "created": int(installed.model.created_wall),
        "owned_by": installed.name.namespace,
    }


async def show(call: EmulatedCall) -> None:
    """The facts of one model; raises `OllamaError` 404 with the completed name for a missing
    one.
    """
    text = _named(call.read())
    if not text:
        raise OllamaError(400, "model is required")
    installed = call.catalogue.require(text, shown=valid_name(text).short)
    model = installed.model
    family = installed.model.family
    parameters = "\n".join(
        f"{name:<30} {encode(value).decode()}" for name, value in model.parameters.items()
    )
    await call.json(
        {
            "modelfile": f"FROM {installed.name.short}\nTEMPLATE {model.template}\n",
            **({"parameters": parameters} if parameters else {}),
            "template": model.template,
            **({"system": model.system} if model.system else {}),
            "details": model.details,
            "model_info": {
                "general.architecture": family,
                "general.basename": model.name,
                f"{family}.context_length": model.context_tokens,
                f"{family}.embedding_length": model.embedding_length,
            },
            "tensors": [],
            "capabilities": [*model.capabilities],
            "modified_at": timestamp(model.created_wall),
        }
    )


def _named(body: Body) -> str:
    """The model's name; older clients put it under `name`."""
    return body.string("model") or body.string("name")


async def create(call: EmulatedCall) -> None:
    """A new model from an installed one; building from files is not emulated and is refused with
    400.
    """
    body = call.read()
    catalogue = call.catalogue
    name = body.string("model")
    base_text = body.string("from")
    valid_name(name)
    if not base_text:
        raise OllamaError(400, 'neither "from" or "files" was specified')
    streaming = body.flag("stream", default=True)
    found = catalogue.find(base_text)
    if found is None:
        await _send_steps(call, [], streaming=streaming, error=_unreachable(valid_name(base_text)))
        return
    base = found.model
    system = body.string("system")
    template = body.string("template")
    changes = {
        "parameters": base.parameters | body.map("parameters"),
        "system": system or base.system,
        "template": template or base.template,
        "templated": base.templated or bool(template),
    }
    catalogue.put(name, base.model_copy(update=changes), created_wall=call.engine.clock.wall())
    layers = [
        encode({key: value})
        for key in ("template", "system", "parameters")
        if (value := body.get(key))
    ]
    new = [f"creating new layer sha256:{sha256(layer).hexdigest()}" for layer in layers]
    await _send_steps(
        call,
        [f"using existing layer sha256:{base.weights}", *new, "writing manifest"],
        streaming=streaming,
    )


async def pull(call: EmulatedCall) -> None:
    """Progress of a download that is already there; an unknown model ends in the error of a machine
    without a network.
    """
    body = call.read()
    name = valid_name(_named(body))
    streaming = body.flag("stream", default=True)
    installed = call.catalogue.find(_named(body))
    steps: list[str | JsonObject] = ["pulling manifest"]
    if installed is None:
        await _send_steps(call, steps, streaming=streaming, error=_unreachable(name))
        return
    steps += [_transfer("pulling", installed.model), "verifying sha256 digest", "writing manifest"]
    await _send_steps(call, steps, streaming=streaming)


async def push(call: EmulatedCall) -> None:
    """Progress of an upload that goes nowhere; raises `OllamaError` 404 for a missing model."""
    body = call.read()
    if not _named(body):
        raise OllamaError(400, "model is required")
    transfer = _transfer("pushing", call.catalogue.require(_named(body)).model)
    await _send_steps(
        call,
        ["retrieving manifest", transfer, "pushing manifest"],
        streaming=body.flag("stream", default=True),
    )


def _transfer(verb: str, model: EmulatedModel) -> JsonObject:
    size = model.size_bytes
    return {
        "status": f"{verb} {model.weights[:12]}",
        "digest": f"sha256:{model.weights}",
        "total": size,
        "completed": size,
    }


async def _send_steps(
    call: EmulatedCall,
    steps: Sequence[str | JsonObject],
    *,
    streaming: bool,
    error: OllamaError | None = None,
) -> None:
    """A line for each step, and one for the end, success or `error`; without streaming only the end
    is sent.
    """
    if not streaming:
        end = {"status": "success"} if error is None else error_object("ollama", error)
        await call.whole(encode(end), JSON, status=200 if error is None else error.status)
        return
    call.prepare(NDJSON)
    if error is None:
        steps = [*steps, "success"]
    shown = ({"status": step} if isinstance(step, str) else step for step in steps)
    await call.send(encode(step) + b"\n" for step in shown)
    if error is not None:
        await call.break_off(error)


async def copy(call: EmulatedCall) -> None:
    """A second name for the same weights; raises `OllamaError` 404."""
    body = call.read()
    source = body.string("source")
    destination = body.string("destination")
    valid_name(source)
    valid_name(destination)
    installed = call.catalogue.require(source, template='model "{}" not found')
    call.catalogue.put(destination, installed.model, created_wall=call.engine.clock.wall())
    await call.whole()


async def delete(call: EmulatedCall) -> None:
    """Forget a name. A running copy stays loaded. Raises `OllamaError` 404."""
    call.catalogue.remove(_named(call.read()))
    await call.whole()


async def find_blob(call: EmulatedCall) -> None:
    """200 when the digest in the path is known; raises `OllamaError` 404."""
    if call.tail not in call.catalogue.blobs:
        raise OllamaError(404, f'blob "{call.tail}" not found')
    await call.whole()


async def put_blob(call: EmulatedCall) -> None:
    """201 for a new blob, 200 for a known one; raises `OllamaError` 400 when the body has another
    digest. Only the digest is kept.
    """
    known = call.tail in call.catalogue.blobs
    digest = f"sha256:{sha256(call.body).hexdigest()}"
    if not known and digest != call.tail:
        raise OllamaError(400, f'digest mismatch, expected "{call.tail}", got "{digest}"')
    call.catalogue.blobs.add(call.tail)
    await call.whole(status=200 if known else 201)


def _unreachable(name: QualifiedName) -> OllamaError:
    """The error of a pull without a network: a registry on loopback refuses, any other cannot be
    resolved.
    """
    bare, _, port = name.host.partition(":")
    reason = f": lookup {bare} on 198.51.100.53:53: no such host"
    if bare == "localhost":
        reason = f" 127.0.0.1:{port or 443}: connect: connection refused"
    url = f"https://{name.host}/v2/{name.namespace}/{name.model}/manifests/{name.tag}"
    return OllamaError(500, f'pull model manifest: Get "{url}": dial tcp{reason}')
