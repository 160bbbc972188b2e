"""A whole answer from the stream of the same request, in the words of the engine.

An engine may only notice that a caller has left while it streams, so it is always asked for a
stream; who has asked for a whole answer gets what the stream says, put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from hearth.dialects.claude_answer import assembled
from hearth.dialects.frames import at, frames_in
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.routes import Endpoint, Route
from hearth.dialects.translation.call_parts import arguments_in, goes_on

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


def stream_of(answer: JsonObject) -> bytes:
    """The stream that a whole answer of chat or text completions would be folded from."""
    choices = answer.get("choices")
    parts = [_part(choice) for choice in (choices if isinstance(choices, list) else ())]
    kind = answer.get("object")
    named = {"object": f"{kind}.chunk"} if kind == "chat.completion" else {}
    head: JsonObject = {**answer, **named, "choices": [*parts]}
    counted: JsonObject = {**head, "choices": [], "usage": head.pop("usage", None)}
    chunks = [head, counted] if counted["usage"] else [head]
    return b"".join(
        [*[b"data: " + encode(chunk) + b"\n\n" for chunk in chunks], b"data: [DONE]\n\n"]
    )


def _part(choice: JsonValue) -> JsonObject:
    """A choice as the one chunk of its stream."""
    fields = dict(_object(choice))
    if "message" not in fields:
        return fields
    message = _object(fields.pop("message"))
    calls = message.get("tool_calls")
    numbered: list[JsonValue] = [
        {"index": number, **_object(call)}
        for number, call in enumerate(calls if isinstance(calls, list) else ())
    ]
    return {**fields, "delta": {**message, **({"tool_calls": numbered} if numbered else {})}}


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
    choice["text"] = f"{choice.get('text') or ''}{part.get('text') or ''}"
    _add_others(choice, part, but="text")


def _add_delta(choice: JsonObject, part: JsonObject) -> None:
    message = _object(choice.get("message"))
    choice["message"] = message
    for name, one in _object(part.get("delta")).items():
        if name == "tool_calls":
            _add_calls(message, one)
        elif one is not None:
            message[name] = one if name == "role" else _joined(message.get(name), one)
    _add_others(choice, part, but="delta")


def _joined(before: JsonValue, one: JsonValue) -> JsonValue:
    """What a field has come to: texts and lists grow, also inside of objects. A content may change
    from parts to plain text.
    """
    match before, one:
        case str(), str():
            return f"{before}{one}"
        case dict(), dict():
            names = {**before, **one}
            return {name: _joined(before.get(name), one.get(name)) for name in names}
        case list(), list():
            return [*before, *one]
        case list(), str():
            return [*before, {"type": "text", "text": one}] if one else before
        case str(), list():
            return [{"type": "text", "text": before}, *one] if before else one
    return before if one is None else one


def _add_others(choice: JsonObject, part: JsonObject, *, but: str) -> None:
    """What is said beside the text: log probabilities of the tokens, and how it ended."""
    for name, one in part.items():
        if name == "logprobs" and isinstance(one, dict):
            choice[name] = _joined(choice.get(name), one)
        elif name not in (but, "index", "logprobs") and one is not None:
            choice[name] = one
    choice.setdefault("finish_reason", None)


def _add_calls(message: JsonObject, parts: JsonValue) -> None:
    if not isinstance(parts, list):
        return
    known = message.setdefault("tool_calls", [])
    calls = known if isinstance(known, list) else []
    for part in parts:
        if not isinstance(part, dict):
            continue
        begun = (call for call in reversed(calls) if isinstance(call, dict))
        call = next((one for one in begun if goes_on(one, part)), None)
        said = _object(part.get("function"))
        written = {**said, "arguments": arguments_in(said.get("arguments"))}
        if call is None:
            calls.append({**part, "function": written})
            continue
        function = _object(call.get("function"))
        for name, one in written.items():
            function[name] = f"{function.get(name) or ''}{one or ''}"


def _message(choice: JsonObject) -> JsonObject:
    """The choice of a whole answer."""
    message = _object(choice.get("message"))
    calls = message.pop("tool_calls", None)
    content = message.pop("content", None) or (None if calls else "")
    whole: JsonObject = {"role": "assistant", "content": content, **message}
    if isinstance(calls, list):
        whole["tool_calls"] = [
            {name: one for name, one in _object(call).items() if name != "index"} for call in calls
        ]
    return {**choice, "message": whole}


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
