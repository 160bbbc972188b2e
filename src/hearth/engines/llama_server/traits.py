"""What is true of every llama-server, wherever it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from hearth.config.engines import ENGINE_TITLES
from hearth.dialects.gojson import JsonObject
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.translation.parts import ServerApi
from hearth.engines.continuations import Opens, RenderedContinuations
from hearth.engines.llama_server.common_form import SAMPLING, common_form
from hearth.engines.openai_server.calls import check_request
from hearth.engines.openai_server.pages import PAGES
from hearth.engines.sleepless import Sleepless

OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in SAMPLING},
        "num_keep": "n_keep",
        "num_predict": "max_tokens",
        "stop": "stop",
    }
)
"""Ollama's options, under the names that the server gives them."""
API = ServerApi(
    serves=frozenset(route.path for route in INFERENCE_ROUTES.values() if not route.is_native),
    options=OPTIONS,
    renders="/apply-template",
    streams_tool_logprobs=False,
)


class LlamaServerTraits(Sleepless):
    """The part of `Engine` that needs no server."""

    title = ENGINE_TITLES["llama_server"]
    addresses = PAGES | frozenset(INFERENCE_ROUTES) | {Endpoint.RERANK.value}
    """It ranks where it was started with `--reranking`, and says so itself where not."""
    loads_can_be_cut = False
    on_card = True
    ignores_case = True
    loses_slots = False
    counts_unasked = True
    """By its timings."""
    processes = re.compile(r"(?:^|/)llama-server[^/]*$")

    @staticmethod
    def saves(model: str) -> bool:
        del model
        return False

    def canonical(self, name: str) -> str:
        """As the server says it."""
        return name

    @staticmethod
    def pins_context(path: str) -> bool:
        """It was started with its context."""
        del path
        return False

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"start llama-server with it: llama-server -m FILE --alias {model}"

    @staticmethod
    def how_to_manage(url: str) -> str:
        return f"start the llama-server at {url} with another model"

    @staticmethod
    def check_request(path: str, fields: JsonObject) -> None:
        check_request(INFERENCE_ROUTES[path], fields, API)

    def continuations(self: Opens) -> RenderedContinuations:
        return RenderedContinuations(self, common_form)
