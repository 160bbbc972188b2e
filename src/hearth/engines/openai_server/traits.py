"""What is true of every server with OpenAI's API, wherever it is."""

from __future__ import annotations

import re

from hearth.config.engines import ENGINE_TITLES
from hearth.dialects.gojson import JsonObject
from hearth.dialects.routes import INFERENCE_ROUTES, MEDIA_ROUTES, Endpoint
from hearth.dialects.translation.parts import ServerApi
from hearth.engines.openai_server.calls import check_request
from hearth.engines.openai_server.pages import PAGES
from hearth.engines.port import Continuations
from hearth.engines.sleepless import Sleepless

SAMPLING = (
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "stop",
    "temperature",
    "top_p",
)
ALWAYS = frozenset({Endpoint.OPENAI_CHAT, Endpoint.OPENAI_COMPLETIONS, Endpoint.OPENAI_EMBEDDINGS})
"""Every such server is taken to have them; one that has not says so itself."""
API = ServerApi(
    serves=ALWAYS,
    options={**{name: name for name in SAMPLING}, "num_predict": "max_tokens"},
    tells_template=False,
    goes_on=False,
    ends_texts=True,
)


class OpenAiTraits(Sleepless):
    """The part of `Engine` that needs no server."""

    title = ENGINE_TITLES["openai"]
    api: ServerApi = API
    """Of its kind."""
    addresses = PAGES | frozenset(INFERENCE_ROUTES) | frozenset(MEDIA_ROUTES)
    """Which of the media it has, it says itself."""
    loads_on_request = False
    loads_can_be_cut = False
    on_card = False
    """Its models are on other machines, or their memory is not Hearth's to give."""
    loses_slots = False
    counts_unasked = False
    ignores_case = True
    """The adapter writes names as the server lists them."""
    processes = re.compile(r"(?!)")
    """Of none is it known that it serves this engine."""

    @staticmethod
    def saves(model: str) -> bool:
        del model
        return False

    def canonical(self, name: str) -> str:
        """As the server says it."""
        return name

    @staticmethod
    def pins_context(path: str) -> bool:
        """The server decides on the context."""
        del path
        return False

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"have the server offer {model}: Hearth serves what its /v1/models lists"

    @staticmethod
    def how_to_manage(url: str) -> str:
        return f"ask the server itself: {url}"

    def check_request(self, path: str, fields: JsonObject) -> None:
        check_request(INFERENCE_ROUTES[path], fields, self.api)

    def continuations(self) -> Continuations | None:
        """In OpenAI's API no answer can be continued as text."""
        return None
