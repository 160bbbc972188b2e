"""What is true of every LM Studio, wherever it is. Source: its documentation of November 2026."""

from __future__ import annotations

import re

from hearth.config.engines import ENGINE_TITLES
from hearth.dialects.routes import MEDIA_ROUTES
from hearth.dialects.translation.parts import ServerApi
from hearth.engines.lmstudio.pulling import PULL
from hearth.engines.openai_server.traits import ALWAYS, SAMPLING, OpenAiTraits

API = ServerApi(
    serves=ALWAYS,
    options={
        **{name: name for name in (*SAMPLING, "repeat_penalty", "top_k")},
        "num_predict": "max_tokens",
    },
    tells_template=False,
    goes_on=False,
)


class LmStudioTraits(OpenAiTraits):
    """The part of `Engine` that needs no server."""

    title = ENGINE_TITLES["lmstudio"]
    api = API
    addresses = (OpenAiTraits.addresses - frozenset(MEDIA_ROUTES)) | {PULL}
    loads_on_request = True
    loads_can_be_cut = False
    """No route ends a load."""
    on_card = True
    processes = re.compile(r"(?i:lm[ -]?studio|llmworker)")

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"lms get {model}"

    @staticmethod
    def how_to_manage(url: str) -> str:
        return f"use LM Studio itself, or `lms`, beside the server at {url}"
