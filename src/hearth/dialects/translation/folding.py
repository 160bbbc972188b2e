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
from hearth.dialects.translation.answer_parts import TORN, arguments_in, goes_on, is_torn

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
    frames: list[JsonObject] = []
    for frame in frames_in(route, stream):
        if is_torn(frame.payload, frame.fields):
            return {"error": TORN}
        frames += [frame.fields] if frame.fields else []
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
    head, choices = _completed(frames, "delta")
    return {
        "choices": [_message(choice) for choice in choices],
        **head,
        "object": "chat.completion",
    }


def _completion(frames: Iterator[JsonObject]) -> JsonObject:
    head, choices = _completed(frames, "text")
    whole: list[JsonValue] = [{"text": "", **choice.around, **choice.said} for choice in choices]
    return {"choices": whole, **head, "object": "text_completion"}


class _Choice:
    """A choice that grows; `around`: what is said beside its text."""

    def __init__(self, index: int) -> None:
        self.around: JsonObject = {"index": index, "finish_reason": None}
        self._said: JsonObject = {}
        self._texts: dict[str, list[str]] = {}
        """Joined at the end: a copy of a long text for each of its parts would take too long."""

    @property
    def said(self) -> JsonObject:
        texts = {name: "".join(parts) for name, parts in self._texts.items()}
        return {**texts, **self._said}

    def add(self, name: str, one: JsonValue) -> None:
        """What comes to a field of what it says."""
        if name == "tool_calls":
            _add_calls(self._said, one)
        elif name == "role":
            self._said[name] = one
        elif isinstance(one, str) and name not in self._said:
            self._texts.setdefault(name, []).append(one)
        elif one is not None:
            text = "".join(self._texts.pop(name, ()))
            self._said[name] = _joined(self._said.get(name, text), one)

    def add_around(self, part: JsonObject, *, but: str) -> None:
        """How it ended, and log probabilities of the tokens."""
        for name, one in part.items():
            if name == "logprobs" and isinstance(one, dict):
                self.around[name] = _joined(self.around.get(name), one)
            elif name not in (but, "index", "logprobs") and one is not None:
                self.around[name] = one


def _completed(frames: Iterator[JsonObject], says: str) -> tuple[JsonObject, list[_Choice]]:
    """What the chunks say as a whole, and their choices; `says`: the field with what one says."""
    head: JsonObject = {}
    counted: JsonObject = {}
    choices: dict[int, _Choice] = {}
    for fields in frames:
        head |= {name: one for name, one in fields.items() if name not in _OF_CHUNKS}
        counted |= {name: fields[name] for name in ("usage", "timings") if fields.get(name)}
        listed = fields.get("choices")
        for part in listed if isinstance(listed, list) else ():
            index = at(part, ("index",))
            if not (isinstance(part, dict) and isinstance(index, int)):
                continue
            choice = choices.setdefault(index, _Choice(index))
            said = part.get(says)
            for name, one in said.items() if isinstance(said, dict) else [(says, said)]:
                choice.add(name, one)
            choice.add_around(part, but=says)
    return head | counted, [choices[index] for index in sorted(choices)]


def _joined(before: JsonValue, one: JsonValue) -> JsonValue:
    """What a field has come to: texts and lists grow, also inside of objects. A content may change
    from plain text to parts, and back.
    """
    if isinstance(before, list):
        before.extend(_parts(one))  # in place, as texts are joined at the end
        return before
    if isinstance(one, list):
        return [*_parts(before), *one]
    if isinstance(before, dict) and isinstance(one, dict):
        names = {**before, **one}
        return {name: _joined(before.get(name), one.get(name)) for name in names}
    if isinstance(before, str) and isinstance(one, str):
        return before + one
    return before if one is None else one


def _parts(given: JsonValue) -> list[JsonValue]:
    if isinstance(given, list):
        return given
    return [{"type": "text", "text": given}] if isinstance(given, str) and given else []


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


def _message(choice: _Choice) -> JsonObject:
    """The choice of a whole answer."""
    message = choice.said
    calls = message.pop("tool_calls", None)
    content = message.pop("content", None) or (None if calls else "")
    whole: JsonObject = {"role": "assistant", "content": content, **message}
    if isinstance(calls, list):
        whole["tool_calls"] = [
            {name: one for name, one in _object(call).items() if name != "index"} for call in calls
        ]
    return {**choice.around, "message": whole}


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
