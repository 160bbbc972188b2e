"""A whole answer from the stream of the same request, in the words of the engine.

An engine may only notice that a caller has left while it streams, so it is always asked for a
stream; who has asked for a whole answer gets what the stream says, put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from hearth.dialects.claude_answer import assembled
from hearth.dialects.frames import at, frames_in
from hearth.dialects.gojson import JsonObject, JsonValue
from hearth.dialects.routes import Endpoint, Route

_OF_CHUNKS = frozenset({"choices", "object", "usage", "timings"})


def streaming_fields(route: Route, fields: JsonObject) -> JsonObject:
    """What makes a request stream, and its stream say all that a whole answer says."""
    asked: JsonObject = {**fields, "stream": True}
    if route.path in (Endpoint.OPENAI_CHAT, Endpoint.OPENAI_COMPLETIONS):
        asked["stream_options"] = {"include_usage": True}
    return asked


def folded_answer(route: Route, stream: bytes) -> JsonObject:
    """The answer that the frames of a stream make, or the error that they end with; one that was
    cut lacks its end.
    """
    frames = [frame.fields for frame in frames_in(route, stream) if frame.fields]
    failed = next((fields for fields in frames if fields.get("error")), None)
    if failed is not None:
        return {"error": failed["error"]}
    return _FOLDS[route.path](iter(frames))


def _chat(frames: Iterator[JsonObject]) -> JsonObject:
    return _completed(frames, "chat.completion", _add_delta, _message)


def _completion(frames: Iterator[JsonObject]) -> JsonObject:
    return _completed(frames, "text_completion", _add_text, lambda choice: choice)


def _completed(
    frames: Iterator[JsonObject],
    kind: str,
    add: Callable[[JsonObject, JsonObject], None],
    finished: Callable[[JsonObject], JsonObject],
) -> JsonObject:
    head: JsonObject = {}
    counted: JsonObject = {}
    choices: dict[int, JsonObject] = {}
    for fields in frames:
        head |= {name: one for name, one in fields.items() if name not in _OF_CHUNKS}
        counted |= {name: fields[name] for name in ("usage", "timings") if fields.get(name)}
        listed = fields.get("choices")
        for part in listed if isinstance(listed, list) else ():
            index = at(part, ("index",))
            if isinstance(part, dict) and isinstance(index, int):
                add(choices.setdefault(index, {"index": index}), part)
    whole: list[JsonValue] = [finished(choices[index]) for index in sorted(choices)]
    return {"choices": whole, **head, "object": kind, **counted}


def _add_text(choice: JsonObject, part: JsonObject) -> None:
    _add_entries(choice, part.get("logprobs"))
    choice["text"] = f"{choice.get('text') or ''}{part.get('text') or ''}"
    choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")


def _add_delta(choice: JsonObject, part: JsonObject) -> None:
    delta = part.get("delta")
    for name, one in delta.items() if isinstance(delta, dict) else ():
        if name == "tool_calls":
            _add_calls(choice, one)
        elif name == "role":
            choice[name] = one
        elif isinstance(one, str):
            choice[name] = f"{choice.get(name) or ''}{one}"
    _add_entries(choice, part.get("logprobs"))
    choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")


def _add_entries(choice: JsonObject, logprobs: JsonValue) -> None:
    """Log probabilities of the tokens."""
    entries = at(logprobs, ("content",))
    if isinstance(entries, list):
        before = at(choice, ("logprobs", "content"))
        known = before if isinstance(before, list) else []
        choice["logprobs"] = {"content": [*known, *entries]}


def _add_calls(choice: JsonObject, parts: JsonValue) -> None:
    known = choice.setdefault("tool_calls", [])
    calls = known if isinstance(known, list) else []
    for part in parts if isinstance(parts, list) else ():
        index = at(part, ("index",))
        call = next((one for one in calls if at(one, ("index",)) == index), None)
        if not isinstance(part, dict):
            continue
        if not isinstance(call, dict):
            calls.append({**part, "function": dict(_object(part.get("function")))})
            continue
        function = _object(call.get("function"))
        for name, one in _object(part.get("function")).items():
            function[name] = f"{function.get(name) or ''}{one or ''}"


def _message(choice: JsonObject) -> JsonObject:
    """The choice of a whole answer."""
    calls = choice.pop("tool_calls", None)
    outside = ("index", "finish_reason", "logprobs")
    message = {name: one for name, one in choice.items() if name not in outside}
    content = message.pop("content", None) or (None if calls else "")
    whole: JsonObject = {"role": "assistant", "content": content, **message}
    if isinstance(calls, list):
        whole["tool_calls"] = [
            {name: one for name, one in _object(call).items() if name != "index"} for call in calls
        ]
    around: JsonObject = {name: choice[name] for name in outside if name in choice}
    return {**around, "message": whole}


def _response(frames: Iterator[JsonObject]) -> JsonObject:
    """The last event holds it whole."""
    ended = [fields for fields in frames if isinstance(fields.get("response"), dict)]
    return _object(ended[-1]["response"]) if ended else {}


def _object(given: JsonValue) -> JsonObject:
    return given if isinstance(given, dict) else {}


_FOLDS: Mapping[Endpoint, Callable[[Iterator[JsonObject]], JsonObject]] = MappingProxyType(
    {
        Endpoint.OPENAI_CHAT: _chat,
        Endpoint.OPENAI_COMPLETIONS: _completion,
        Endpoint.OPENAI_RESPONSES: _response,
        Endpoint.ANTHROPIC_MESSAGES: assembled,
    }
)
