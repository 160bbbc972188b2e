"""A request of any dialect in the common form, as a llama-server reads it, where its answer can be
continued as plain text.
"""

from __future__ import annotations

from hearth.dialects.gojson import JsonObject
from hearth.dialects.native_form import Native
from hearth.dialects.routes import Endpoint
from hearth.engines.openai_server.common_form import LIMITS, common_form_of

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
_KNOWN = frozenset(
    {
        *SAMPLING,
        *LIMITS,
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
    """The common form; None where an answer cannot be continued."""
    return common_form_of(path, fields, known=_KNOWN, options={name: name for name in SAMPLING})
