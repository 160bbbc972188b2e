"""What is true of every router, wherever it is."""

from __future__ import annotations

from hearth.config.engines import ENGINE_TITLES
from hearth.engines.llama_server.traits import LlamaServerTraits

ARGUMENTS = "--no-models-autoload --models-max 0"
"""What a router has to be started with."""


class LlamaRouterTraits(LlamaServerTraits):
    """The part of `Engine` that needs no server."""

    title = ENGINE_TITLES["llama_router"]
    loads_on_request = True
    loads_can_be_cut = True
    """An unload while a model loads kills its process at once."""

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"add it to the router's file of models (--models-preset) as [{model}]"

    @staticmethod
    def how_to_manage(url: str) -> str:
        return f"change the router's file of models and restart it; curl {url}/models lists them"
