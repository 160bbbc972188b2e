"""What is true of every engine whose servers Hearth starts itself, whatever they are."""

from __future__ import annotations

import re

from hearth.config.engines import ENGINE_TITLES
from hearth.engines.llama_server.traits import LlamaServerTraits


class ProcessesTraits(LlamaServerTraits):
    """The part of `Engine` that needs no server; of its servers, that of llama.cpp's."""

    title = ENGINE_TITLES["processes"]
    loads_on_request = True
    loads_can_be_cut = True
    processes = re.compile(r"(?!)")

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"add models.{model}.run, the command that starts its server"

    @staticmethod
    def how_to_manage(url: str) -> str:
        del url
        return "change `models` in the configuration and restart Hearth"
