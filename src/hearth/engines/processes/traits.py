"""What is true of every engine whose servers Hearth starts itself, whatever they are."""

from __future__ import annotations

from hearth.config.engines import ENGINE_TITLES
from hearth.dialects.routes import WORK_ROUTES
from hearth.engines.continuations import Opens, RenderedContinuations
from hearth.engines.llama_server.common_form import common_form
from hearth.engines.openai_server.pages import PAGES


class ProcessesTraits:
    """The part of `Engine` that needs no server."""

    title = ENGINE_TITLES["processes"]
    addresses = PAGES | frozenset(WORK_ROUTES)
    loads_on_request = True
    loads_can_be_cut = True
    on_card = True
    ignores_case = True
    loses_slots = False

    @staticmethod
    def canonical(name: str) -> str:
        """As the configuration has it."""
        return name

    @staticmethod
    def pins_context(path: str) -> bool:
        """A server is started with its context."""
        del path
        return False

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"add models.{model}.run, the command that starts its server"

    @staticmethod
    def how_to_manage(url: str) -> str:
        del url
        return "change `models` in the configuration and restart Hearth"

    def continuations(self: Opens) -> RenderedContinuations:
        """As llama.cpp's; a server that renders no prompts says so when it is asked."""
        return RenderedContinuations(self, common_form)
