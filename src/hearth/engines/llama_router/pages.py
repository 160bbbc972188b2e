"""What Ollama's pages show of a router."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hearth.config.engines import ENGINE_TITLES
from hearth.dialects.stream import count_in
from hearth.engines.llama_router.models import LOADED, MOST_BYTES, RouterModel
from hearth.engines.openai_server.pages import Shown, ShownModel
from hearth.types import InstalledModel


def shown(
    models: Iterable[RouterModel],
    installed: Iterable[InstalledModel],
    version: str,
    since: Callable[[str], float],
) -> Shown:
    """`since`: when the model with a digest was first seen, in seconds since 1970."""
    digests = {each.name: each.digest for each in installed}
    return Shown(
        title=ENGINE_TITLES["llama_router"],
        version=version,
        models=[
            _shown(model, name, digests.get(name, ""), since)
            for model in models
            for name in model.names
        ],
    )


def _shown(model: RouterModel, name: str, digest: str, since: Callable[[str], float]) -> ShownModel:
    is_own = name == model.name
    quantization = model.weights.get("ftype")
    return ShownModel(
        name=name,
        owner="llamacpp",
        since_wall_s=since(digest),
        digest=digest,
        abilities=model.abilities,
        size_bytes=model.size_bytes,
        vram_mib=model.resident.vram_mib if is_own and model.status == LOADED else None,
        context_tokens=model.context_tokens,
        parameters=count_in(model.weights, "n_params", MOST_BYTES) or 0,
        format="gguf",
        quantization=quantization if isinstance(quantization, str) else "",
    )
