"""What requests that are translated for a server with OpenAI's API have in common.

Must never leave out what a caller asks for: what has no counterpart is refused, by the name of its
field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field

from hearth.dialects.frames import at
from hearth.dialects.gojson import Body, JsonObject, JsonValue
from hearth.dialects.routes import Endpoint
from hearth.errors import BadRequest
from hearth.types import frozen, value


@frozen
class ServerApi:
    """What a kind of server makes of OpenAI's API.

    Attributes:
        serves: addresses whose requests go to it as they are. options: the sampling options that it
        takes, by Ollama's names, under its own. thoughts: the field of a message with its thoughts.
        tells_template: whether to think is said to the model's template (`chat_template_kwargs`),
        not by `reasoning_effort`. goes_on: it continues an answer that is begun
        (`continue_final_message`). renders: where it shows how a prompt is rendered, empty for
        nowhere. streams_tool_logprobs: a stream has log probabilities also beside tools. raw: what
        else a text completion is asked, for a prompt that is read as it is. ends_texts: it ends a
        text completion without a limit after a few tokens, as OpenAI does.
    """

    serves: frozenset[Endpoint]
    options: Mapping[str, str]
    thoughts: str = "reasoning_content"
    tells_template: bool = True
    goes_on: bool = True
    renders: str = ""
    streams_tool_logprobs: bool = True
    raw: Mapping[str, JsonValue] = field(default_factory=dict)
    ends_texts: bool = False


@value
class Asked:
    """What a server is asked: where, and with which body."""

    path: Endpoint
    fields: JsonObject


def refused(where: str, why: str) -> BadRequest:
    """The refusal of a field that cannot be carried."""
    return BadRequest(f"`{where}` is not supported by this model server: {why}")


def refuse_others(body: Body, known: AbstractSet[str], where: str = "") -> None:
    """Refuse the first field that is none of the known ones, and asks for anything."""
    for name, wish in body.fields.items():
        asks_nothing = wish in (None, "", [], {}) or wish is False
        if name not in known and not asks_nothing:
            raise refused(f"{where}{name}", "it has no such field")


def streamed() -> JsonObject:
    """What makes a request stream, and its stream say how many tokens there were."""
    return {"stream": True, "stream_options": {"include_usage": True}}


def thinking(wish: JsonValue, api: ServerApi, where: str) -> JsonObject:
    """Whether to think, or how hard, as the server is told; a model without thoughts takes no
    notice. Raises BadRequest for another wish.
    """
    if wish is None:
        return {}
    if not isinstance(wish, bool | str):
        raise refused(where, "give true, false, or a level")
    if not api.tells_template:
        levels = {True: "medium", False: "none"}
        return {"reasoning_effort": wish if isinstance(wish, str) else levels[wish]}
    told: JsonObject = {"enable_thinking": wish is not False}
    if isinstance(wish, str):
        told["reasoning_effort"] = wish
    return {"chat_template_kwargs": told}


def going_on(messages: Sequence[JsonValue], api: ServerApi, where: str) -> JsonObject:
    """What has the model go on with an answer that is begun, where the conversation ends with one;
    only what it adds is sent. Raises BadRequest where the server does not.
    """
    last = messages[-1] if messages else None
    if at(last, ("role",)) != "assistant" or at(last, ("tool_calls",)):
        return {}
    if not api.goes_on:
        raise refused(where, "it does not continue a started answer; end with a user's message")
    return {"continue_final_message": True, "add_generation_prompt": False}


def schema_format(schema: JsonObject, *, name: str = "answer", **others: JsonValue) -> JsonObject:
    """Has the answer follow a JSON schema."""
    described: JsonObject = {"name": name, "schema": schema, **others}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def image_part(url: str, **others: JsonValue) -> JsonObject:
    """An image of a message, by its address or as a data URL."""
    return {"type": "image_url", "image_url": {"url": url, **others}}
