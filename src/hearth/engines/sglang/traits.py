"""What is true of every SGLang, wherever it is. Source: SGLang's documentation, 0.5."""

from __future__ import annotations

import re

from hearth.config.engines import ENGINE_TITLES
from hearth.dialects.routes import Endpoint
from hearth.dialects.translation.parts import ServerApi
from hearth.engines.openai_server.traits import ALWAYS, SAMPLING, OpenAiTraits

API = ServerApi(
    serves=ALWAYS,
    options={
        **{name: name for name in (*SAMPLING, "min_p", "top_k")},
        "num_predict": "max_tokens",
        "repeat_penalty": "repetition_penalty",
    },
    goes_on=False,
    ends_texts=True,
)


class SglangTraits(OpenAiTraits):
    """The part of `Engine` that needs no server."""

    title = ENGINE_TITLES["sglang"]
    api = API
    addresses = OpenAiTraits.addresses - {Endpoint.SPEECH.value, Endpoint.IMAGES.value}
    on_card = True
    processes = re.compile(r"(?i:sglang)")

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"start SGLang with it: python -m sglang.launch_server --model-path {model}"

    @staticmethod
    def how_to_manage(url: str) -> str:
        return f"start the SGLang at {url} with another model"
