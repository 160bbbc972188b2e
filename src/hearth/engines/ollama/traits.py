"""What is true of every Ollama, wherever it is."""

from __future__ import annotations

import re

from hearth.dialects.routes import INFERENCE_ROUTES, INFO_ROUTES, MANAGEMENT_ROUTES
from hearth.engines.ollama.continuations import OllamaContinuations, Opens
from hearth.types import canonical_model


class OllamaTraits:
    """The part of `Engine` that needs no server; for adapters and for what stands in for one."""

    title = "Ollama"
    addresses = frozenset({*INFERENCE_ROUTES, *INFO_ROUTES, *MANAGEMENT_ROUTES})
    loads_can_be_cut = True
    """Closing the connection of a load ends it (6 of 6 within a second on 0.33)."""
    loses_slots = True
    """Seen with 0.33 where tokens come fast: 3 slots in 75 streams that were cut off, and with one
    slot nothing answers any more.
    """
    processes = re.compile(r"(?i:ollama)|(?:^|/)llama-server[^/]*$")
    """Before 0.30 it ran models in a process of its own name, since then in one called
    `llama-server` each.
    """

    @staticmethod
    def canonical(name: str) -> str:
        return canonical_model(name)

    @staticmethod
    def pins_context(path: str) -> bool:
        """The compatible APIs take no `num_ctx`."""
        return path.startswith("/api/")

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"ollama pull {model}"

    def continuations(self: Opens) -> OllamaContinuations:
        return OllamaContinuations(self)
