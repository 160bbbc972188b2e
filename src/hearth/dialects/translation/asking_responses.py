"""A request of OpenAI's Responses as one of OpenAI's chat.

Left out is what does not reach a model's text: storing, cache keys, metadata, what is included of
thoughts, and what else is in `_LEFT_OUT`. Source: OpenAI's reference of `POST /v1/responses`,
October 2026.
"""

from __future__ import annotations

from hearth.dialects.gojson import Body, JsonObject, JsonValue
from hearth.dialects.routes import Endpoint
from hearth.dialects.translation.asking_messages import content_of
from hearth.dialects.translation.parts import (
    Asked,
    ServerApi,
    going_on,
    image_part,
    refuse_others,
    refused,
    schema_format,
    streamed,
    thinking,
)
from hearth.types import without_none

_STORED = ("previous_response_id", "conversation", "prompt")
_CARRIED = frozenset(
    {
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "parallel_tool_calls",
        "reasoning",
        "stream",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
    }
)
_LEFT_OUT = frozenset(
    {
        "access_programs",
        "client_metadata",
        "include",
        "max_tool_calls",
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
    }
)
"""`max_tool_calls` counts only calls of tools that run on OpenAI's servers."""
_CHECKED = frozenset({*_STORED, "background", "top_logprobs", "truncation"})
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_ROLES = ("system", "developer", "user", "assistant")
_LOGPROBS = "message.output_text.logprobs"


def asked_of_responses(body: Body, api: ServerApi) -> Asked:
    """See `asking.asked_of`."""
    _refuse(body)
    messages = _messages(body, api)
    sampling = {
        "max_tokens": body.integer("max_output_tokens"),
        **{name: body.get(name) for name in ("temperature", "top_p", "parallel_tool_calls")},
        "verbosity": body.object("text").get("verbosity"),
    }
    asked: JsonObject = {
        "model": body.get("model"),
        "messages": [*messages],
        **without_none(sampling),
        **_tools(body),
        **_choice(body.get("tool_choice")),
        **thinking(body.object("reasoning").get("effort"), api, "reasoning.effort"),
        **_format(body.object("text").object("format")),
        **streamed(),
        **going_on(messages, api, "input"),
    }
    return Asked(path=Endpoint.OPENAI_CHAT, fields=asked)


def _refuse(body: Body) -> None:
    """What cannot be carried as a whole."""
    for name in _STORED:
        if body.get(name) is not None:
            raise refused(name, "nothing is stored; send the whole conversation as `input`")
    if body.flag("background"):
        raise refused("background", "leave it out")
    if body.get("truncation") not in (None, "disabled"):
        raise refused("truncation", "it refuses prompts that are longer than its context")
    if body.integer("top_logprobs") or _LOGPROBS in body.array("include"):
        raise refused("top_logprobs", "ask /v1/chat/completions for log probabilities")
    refuse_others(body, _CARRIED | _LEFT_OUT | _CHECKED)


def _messages(body: Body, api: ServerApi) -> list[JsonObject]:
    given = body.get("input")
    instructions = body.string("instructions")
    turns: list[JsonObject] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*turns, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise refused("input", "give a text or a list of items")
    conversation = _Conversation(turns, api)
    for place, item in enumerate(given):
        conversation.add(Body(item, f"input[{place}]"), f"input[{place}]")
    return conversation.finished()


class _Conversation:
    """Puts items together into messages: thoughts belong to what the assistant says or calls after
    them, and calls to one message as far as nothing is between them.
    """

    def __init__(self, turns: list[JsonObject], api: ServerApi) -> None:
        self._turns = turns
        self._api = api
        self._thoughts: list[str] = []

    def add(self, item: Body, where: str) -> None:
        match item.get("type") or "message":
            case "message":
                self._say(item, where)
            case "reasoning":
                self._think(_thought(item))
            case "function_call":
                self._call(item)
            case "function_call_output":
                content = _content(item.get("output"), f"{where}.output")
                self._turns.append(
                    {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
                )
            case _:
                raise refused(
                    f"{where}.type", "it knows messages, thoughts, function calls and their outputs"
                )

    def finished(self) -> list[JsonObject]:
        """All messages."""
        if self._thoughts:
            self._assistant("")
        return self._turns

    def _think(self, thought: str) -> None:
        if thought:
            self._thoughts.append(thought)

    def _say(self, item: Body, where: str) -> None:
        role = item.string("role") or "user"
        if role not in _ROLES:
            raise refused(f"{where}.role", f"give one of {', '.join(_ROLES)}")
        content = _content(item.get("content"), f"{where}.content")
        if role == "assistant":
            self._assistant(content)
        else:
            name = "system" if role == "developer" else role
            self._turns.append({"role": name, "content": content})

    def _call(self, item: Body) -> None:
        last = self._turns[-1] if self._turns else {}
        if last.get("role") != "assistant" or self._thoughts:
            last = self._assistant("")
        function: JsonObject = {
            "name": item.get("name"),
            "arguments": item.string("arguments") or "{}",
        }
        call: JsonObject = {"id": item.get("call_id"), "type": "function", "function": function}
        calls = last.setdefault("tool_calls", [])
        if isinstance(calls, list):  # always
            calls.append(call)

    def _assistant(self, content: JsonValue) -> JsonObject:
        turn: JsonObject = {"role": "assistant", "content": content}
        thoughts = "".join(self._thoughts)
        turn |= {self._api.thoughts: thoughts} if thoughts else {}
        self._thoughts.clear()
        self._turns.append(turn)
        return turn


def _thought(item: Body) -> str:
    """What was thought; of OpenAI's own models, whose thoughts are ciphered, nothing can be read
    but the summary.
    """
    texts = item.objects("content") or item.objects("summary")
    return "".join([part.string("text") for part in texts])


def _content(given: JsonValue, where: str) -> JsonValue:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise refused(where, "give a text or a list of parts")
    return content_of([_part(Body(part), f"{where}[{at_}]") for at_, part in enumerate(given)])


def _part(part: Body, where: str) -> JsonObject:
    kind = part.string("type")
    if kind in _TEXTS:
        return {"type": "text", "text": part.string(_TEXTS[kind])}
    if kind == "input_image":
        url = part.string("image_url")
        if not url:
            raise refused(f"{where}.image_url", "give an address or a data URL")
        detail = part.get("detail")
        return image_part(url) if detail is None else image_part(url, detail=detail)
    raise refused(f"{where}.type", "it knows texts and images")


def _tools(body: Body) -> JsonObject:
    tools: list[JsonValue] = []
    for place, tool in enumerate(body.objects("tools")):
        if tool.get("type") != "function":
            raise refused(f"tools[{place}].type", "only functions are supported")
        if tool.get("output_schema"):
            raise refused(f"tools[{place}].output_schema", "write it into the description")
        names = ("name", "description", "parameters", "strict")
        described: JsonObject = without_none({name: tool.get(name) for name in names})
        tools.append({"type": "function", "function": described})
    return {"tools": tools} if tools else {}


def _choice(given: JsonValue) -> JsonObject:
    if given is None:
        return {}
    if given in ("auto", "none", "required"):
        return {"tool_choice": given}
    choice = Body(given if isinstance(given, dict) else {})
    if choice.get("type") != "function":
        raise refused("tool_choice", "give auto, none, required or a function")
    return {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}}


def _format(wanted: Body) -> JsonObject:
    kind = wanted.get("type")
    if kind in (None, "text"):
        return {}
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = wanted.map("schema")
    if kind != "json_schema" or not schema:
        raise refused("text.format", "its type is text, json_object, or json_schema with a schema")
    given = {name: wanted.get(name) for name in ("description", "strict")}
    others: JsonObject = without_none(given)
    return schema_format(schema, name=wanted.string("name") or "answer", **others)
