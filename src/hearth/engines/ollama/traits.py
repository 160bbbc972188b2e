"""What is true of every Ollama, wherever it is."""

from __future__ import annotations

import re
from functools import lru_cache

from hearth.config.engines import ENGINE_TITLES
from hearth.dialects.gojson import JsonObject
from hearth.dialects.routes import INFERENCE_ROUTES, INFO_ROUTES, MANAGEMENT_ROUTES
from hearth.engines.continuations import Opens, RenderedContinuations
from hearth.engines.sleepless import Sleepless


@lru_cache(maxsize=256)
def canonical_model(name: str) -> str:
    """The name that Ollama lists for what a caller wrote: default registry and library dropped,
    `:latest` where there is no tag. Source: Ollama's name rules
    (`registry.ollama.ai/library/NAME:latest`). Case is kept; compare case-insensitively where
    callers' spellings meet.
    """
    short = name.removeprefix("registry.ollama.ai/").removeprefix("library/")
    return short if ":" in short.rpartition("/")[2] else f"{short}:latest"


class OllamaTraits(Sleepless):
    """The part of `Engine` that needs no server; for adapters and for what stands in for one."""

    title = ENGINE_TITLES["ollama"]
    addresses = frozenset({*INFERENCE_ROUTES, *INFO_ROUTES, *MANAGEMENT_ROUTES})
    loads_on_request = True
    counts_unasked = False
    loads_can_be_cut = True
    """Closing the connection of a load ends it (6 of 6 within a second on 0.33)."""
    on_card = True
    ignores_case = True
    loses_slots = True
    """Seen with 0.33 where tokens come fast: 3 slots in 75 streams that were cut off, and with one
    slot nothing answers any more.
    """
    processes = re.compile(r"(?i:ollama)|(?:^|/)llama-server[^/]*$")
    """Before 0.30 it ran models in a process of its own name, since then in one called
    `llama-server` each.
    """

    @staticmethod
    def saves(model: str) -> bool:
        del model
        return False

    @staticmethod
    def canonical(name: str) -> str:
        return canonical_model(name)

    @staticmethod
    def pins_context(path: str) -> bool:
        """The compatible APIs take no `num_ctx`."""
        return path.startswith("/api/")

    @staticmethod
    def check_request(path: str, fields: JsonObject) -> None:
        """It says no itself."""

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"ollama pull {model}"

    @staticmethod
    def how_to_manage(url: str) -> str:
        return f"ask Ollama itself (the `ollama` command sends no key): OLLAMA_HOST={url}"

    def continuations(self: Opens) -> RenderedContinuations:
        return RenderedContinuations(self)
