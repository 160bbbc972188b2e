"""What is true of every Ollama, wherever it is."""

from __future__ import annotations

from hearth.dialects.routes import INFERENCE_ROUTES, INFO_ROUTES, MANAGEMENT_ROUTES
from hearth.types import canonical_model


class OllamaTraits:
    """The part of `Engine` that needs no server; for adapters and for what stands in for one."""

    title = "Ollama"
    addresses = frozenset({*INFERENCE_ROUTES, *INFO_ROUTES, *MANAGEMENT_ROUTES})
    loads_can_be_cut = True
    """Closing the connection of a load ends it (6 of 6 within a second on 0.33)."""
    canonical = staticmethod(canonical_model)

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"ollama pull {model}"
