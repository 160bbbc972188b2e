"""What is true of every llama-swap, wherever it is."""

from __future__ import annotations

from hearth.config.engines import ENGINE_TITLES
from hearth.dialects.routes import MEDIA_ROUTES
from hearth.engines.llama_server.traits import LlamaServerTraits


class LlamaSwapTraits(LlamaServerTraits):
    """The part of `Engine` that needs no server. What its models' servers can do is up to these: it
    is written for llama.cpp's.
    """

    title = ENGINE_TITLES["llama_swap"]
    addresses = LlamaServerTraits.addresses | frozenset(MEDIA_ROUTES)
    loads_on_request = True
    loads_can_be_cut = True
    """An unload ends a server that is starting, with those of 2026."""

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"add it to llama-swap's configuration under models: {model}"

    @staticmethod
    def how_to_manage(url: str) -> str:
        return f"ask llama-swap itself: {url}/ui"
