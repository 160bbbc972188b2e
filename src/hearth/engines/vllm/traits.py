"""What is true of every vLLM, wherever it is. Source: vLLM 0.32 and recordings of it."""

from __future__ import annotations

import re

from hearth.config.engines import ENGINE_TITLES
from hearth.dialects.gojson import Body, JsonObject, JsonValue
from hearth.dialects.native_form import Native
from hearth.dialects.routes import Endpoint
from hearth.dialects.translation.parts import ServerApi
from hearth.engines.continuations import Opens, RenderedContinuations
from hearth.engines.openai_server.common_form import LIMITS, common_form_of
from hearth.engines.openai_server.traits import ALWAYS, OpenAiTraits

TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
AS_IT_IS: JsonObject = {"add_special_tokens": False}
"""Has a prompt read as it is, with no token put before it."""
SAMPLING = {
    "frequency_penalty": "frequency_penalty",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "repeat_penalty": "repetition_penalty",
    "seed": "seed",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}
API = ServerApi(
    serves=ALWAYS,
    options={**SAMPLING, "num_predict": "max_tokens", "stop": "stop"},
    thoughts="reasoning",
    renders=TOKENIZE,
    raw=AS_IT_IS,
)
_KNOWN = frozenset(
    {
        *SAMPLING.values(),
        *LIMITS,
        "chat_template_kwargs",
        "messages",
        "metadata",
        "model",
        "n",
        "parallel_tool_calls",
        "response_format",
        "stop",
        "store",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
        "user",
    }
)


class VllmTraits(OpenAiTraits):
    """The part of `Engine` that needs no server."""

    title = ENGINE_TITLES["vllm"]
    api = API
    addresses = OpenAiTraits.addresses - {Endpoint.SPEECH.value, Endpoint.IMAGES.value}
    on_card = True
    processes = re.compile(r"(?i:vllm)")

    @staticmethod
    def how_to_install(model: str) -> str:
        return f"start vLLM with it: vllm serve {model}"

    @staticmethod
    def how_to_manage(url: str) -> str:
        return f"start the vLLM at {url} with another model"

    def continuations(self: Opens) -> RenderedContinuations:
        return RenderedContinuations(self, common_form)


def common_form(path: Endpoint, fields: JsonObject) -> Native | None:
    """The common form; None where an answer cannot be continued.

    vLLM puts a token before the prompt of a text completion that no rendering shows, and messages
    of several parts together in ways of its own.
    """
    if path is Endpoint.OPENAI_COMPLETIONS:
        return None
    if path is Endpoint.ANTHROPIC_MESSAGES and not _is_plain(Body(fields)):
        return None
    options = {own: name for name, own in SAMPLING.items()}
    return common_form_of(path, fields, known=_KNOWN, options=options)


def _is_plain(body: Body) -> bool:
    """Messages of one text each, and nothing that shapes their prompt in another way."""
    shaped = any(body.get(name) for name in ("tools", "thinking", "output_config"))
    return not shaped and all(_is_text(one.get("content")) for one in body.objects("messages"))


def _is_text(content: JsonValue) -> bool:
    if isinstance(content, list):
        [*blocks] = content
        return len(blocks) == 1 and isinstance(blocks[0], dict) and blocks[0].get("type") == "text"
    return isinstance(content, str)
