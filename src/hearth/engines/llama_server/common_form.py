"""A request of any dialect in the common form, as a llama-server reads it, where its answer can be
continued as plain text.

It differs from Ollama in what it takes beside the fields of OpenAI's API, in having no defaults of
that API, and in reading the prompt of a text completion as it is.
"""

from __future__ import annotations

from dataclasses import replace

from hearth.dialects.frames import at
from hearth.dialects.gojson import JsonObject, folded
from hearth.dialects.native_form import Native, native_form
from hearth.dialects.routes import Endpoint
from hearth.engines.openai_server.calls import with_thoughts

_OPENAI = frozenset({Endpoint.OPENAI_CHAT, Endpoint.OPENAI_COMPLETIONS})
SAMPLING = (
    "frequency_penalty",
    "min_p",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "presence_penalty",
    "repeat_last_n",
    "repeat_penalty",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
)
_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")
_KNOWN = frozenset(
    {
        *SAMPLING,
        *_LIMITS,
        "cache_prompt",
        "chat_template_kwargs",
        "id_slot",
        "messages",
        "metadata",
        "model",
        "n",
        "parallel_tool_calls",
        "prompt",
        "reasoning_effort",
        "response_format",
        "return_progress",
        "stop",
        "store",
        "stream",
        "stream_options",
        "timings_per_token",
        "tool_choice",
        "tools",
        "user",
    }
)
"""With any other field, such as a grammar, the rest of an answer cannot be asked for alone."""


def common_form(path: Endpoint, fields: JsonObject) -> Native | None:
    """The common form; None where an answer cannot be continued.

    Its Responses have no numbers by which a later frame could follow an earlier one.
    """
    if path is Endpoint.OPENAI_RESPONSES:
        return None
    if path not in _OPENAI:
        return native_form(path, fields)
    given: JsonObject = {name: one for name, one in folded(fields).items() if one is not None}
    whole_choice = given.get("n", 1) == 1 and given.get("tool_choice", "auto") == "auto"
    if not given.keys() <= _KNOWN or not whole_choice:
        return None
    native = native_form(path, with_thoughts(given, "reasoning_content", "reasoning"))
    if native is None:
        return None
    options: JsonObject = {name: given[name] for name in SAMPLING if name in given}
    options |= {name: native.options[name] for name in ("stop",) if name in native.options}
    limit = next((given[name] for name in _LIMITS if name in given), None)
    options |= {} if limit is None else {"num_predict": limit}
    if path is Endpoint.OPENAI_COMPLETIONS:
        asked: JsonObject = {"model": given.get("model"), "prompt": given["prompt"], "raw": True}
        return replace(native, fields=asked, options=options, turns=False)
    forbids = at(given.get("chat_template_kwargs"), ("enable_thinking",)) is False
    return replace(native, options=options, thinks=native.thinks and not forbids)
