"""What Ollama's pages show of a llama-server."""

from __future__ import annotations

from hearth.config.engines import ENGINE_TITLES
from hearth.engines.llama_server.control import Served
from hearth.engines.openai_server.pages import Shown, ShownModel


def shown(served: Served, since_wall_s: float, *, is_there: bool) -> Shown:
    """`since_wall_s`: when this model was first seen. `is_there`: it does not sleep."""
    own = served.names[0]
    models = [
        ShownModel(
            name=name,
            owner="llamacpp",
            since_wall_s=since_wall_s,
            digest=served.digest,
            abilities=served.abilities,
            size_bytes=served.size_bytes,
            vram_mib=served.resident.vram_mib if is_there and name == own else None,
            context_tokens=served.context_tokens,
            parameters=served.parameters,
            format="gguf",
            quantization=served.quantization,
            template=served.template,
        )
        for name in served.names
    ]
    return Shown(title=ENGINE_TITLES["llama_server"], version=served.build, models=models)
