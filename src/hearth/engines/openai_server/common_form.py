"""A request of any dialect in the common form, as a server with OpenAI's API reads it, where its
answer can be continued as plain text.

Such a server differs from Ollama in what it takes beside the fields of OpenAI's API, in having no
defaults of that API, and in reading the prompt of a text completion as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from hearth.dialects.frames import at
from hearth.dialects.gojson import JsonObject, folded
from hearth.dialects.native_form import Native, native_form
from hearth.dialects.routes import Endpoint
from hearth.engines.openai_server.calls import with_thoughts

_OPENAI = frozenset({Endpoint.OPENAI_CHAT, Endpoint.OPENAI_COMPLETIONS})
LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")


def common_form_of(
    path: Endpoint, fields: JsonObject, *, known: AbstractSet[str], options: Mapping[str, str]
) -> Native | None:
    """The common form; None where an answer cannot be continued.

    The Responses of such servers have no numbers by which a later frame could follow an earlier
    one.

    Args:
        known: the fields of OpenAI's routes that are understood; with any other one, such as a
        grammar, the rest of an answer cannot be asked for alone. options: Ollama's names of the
        sampling options, by the server's own.
    """
    if path is Endpoint.OPENAI_RESPONSES:
        return None
    if path not in _OPENAI:
        return native_form(path, fields)
    given: JsonObject = {name: one for name, one in folded(fields).items() if one is not None}
    whole_choice = given.get("n", 1) == 1 and given.get("tool_choice", "auto") == "auto"
    if not given.keys() <= known or not whole_choice:
        return None
    native = native_form(path, with_thoughts(given, "reasoning_content", "reasoning"))
    if native is None:
        return None
    sampling: JsonObject = {own: given[name] for name, own in options.items() if name in given}
    sampling |= {name: native.options[name] for name in ("stop",) if name in native.options}
    limit = next((given[name] for name in LIMITS if name in given), None)
    sampling |= {} if limit is None else {"num_predict": limit}
    if path is Endpoint.OPENAI_COMPLETIONS:
        asked: JsonObject = {"model": given.get("model"), "prompt": given["prompt"], "raw": True}
        return replace(native, fields=asked, options=sampling, turns=False)
    forbids = at(given.get("chat_template_kwargs"), ("enable_thinking",)) is False
    return replace(native, options=sampling, thinks=native.thinks and not forbids)
