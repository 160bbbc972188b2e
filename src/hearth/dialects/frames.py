"""The frames of a stream, lines of NDJSON or events of SSE, and what they say, as far as two
streams can be compared by it.

A frame ends at LF (native) or at an empty line (SSE), as Ollama writes them; CR, U+0085 and U+2028
are text. A frame says text that grows, and marks that stand for themselves. Text is compared letter
by letter however it is cut into frames; a mark (a block that opens, a tool call, a finish reason)
is compared whole; names, dates and counters differ between two runs of one request and are not
compared. Source: Ollama v0.33.0-rc2, `api/types.go`, `openai/openai.go`, `openai/responses.go`,
`anthropic/anthropic.go`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType

from hearth.dialects.gojson import GoJsonError, JsonObject, JsonValue, decode, encode
from hearth.dialects.routes import Endpoint, Route
from hearth.types import frozen, without_none

_EVENT = re.compile(rb"^event: ?([^\n]*)\n", re.MULTILINE)
_DATA = re.compile(rb"^data: ?([^\n]*)", re.MULTILINE)


class WholeFrames:
    """Holds back the part of a stream that does not yet make a whole frame, so that what goes on
    always ends where a frame ends.
    """

    def __init__(self, route: Route) -> None:
        self._end = frame_end(route)
        self._rest = bytearray()

    @property
    def rest(self) -> bytes:
        """What is held back: the beginning of one frame, empty between frames."""
        return bytes(self._rest)

    @property
    def held_bytes(self) -> int:
        """How much that is."""
        return len(self._rest)

    def feed(self, chunk: bytes) -> bytes:
        """The frames that `chunk` completes, empty for none; the very chunk where it ends with a
        frame, as Ollama's do.
        """
        if not self._rest and chunk.endswith(self._end):
            return chunk
        known = max(0, len(self._rest) - len(self._end))
        self._rest += chunk
        cut = self._rest.rfind(self._end, known) + len(self._end)
        if cut < len(self._end):
            return b""
        whole = bytes(self._rest[:cut])
        del self._rest[:cut]
        return whole

    def split(self, chunk: bytes) -> list[bytes]:
        """As `feed`, one element per frame, each with its end; an empty line too many belongs to
        the frame before it.
        """
        *frames, extra = self.feed(chunk).split(self._end)
        whole = [frame + self._end for frame in frames]
        if extra:
            whole[-1] += extra
        return whole


@frozen
class Frame:
    """One frame.

    Attributes:
        head, payload, foot: its bytes, in this order; `payload` is what the frame carries (JSON, or
        `[DONE]`), empty for SSE comments. fields: the decoded payload, empty where it is not one
        JSON object.
    """

    head: bytes
    payload: bytes
    foot: bytes
    fields: JsonObject = field(default_factory=dict)

    @property
    def raw(self) -> bytes:
        return self.head + self.payload + self.foot

    @property
    def event(self) -> str:
        """The name on the SSE event line; the payload's own `type` where there is no such line;
        empty for neither.
        """
        named = _EVENT.search(self.head)
        if named:
            return named.group(1).decode(errors="replace")
        kind = self.fields.get("type")
        return kind if isinstance(kind, str) else ""

    def saying(self, fields: JsonObject) -> Frame:
        """The frame with another payload; itself where that says the same."""
        if fields == self.fields:
            return self
        return Frame(head=self.head, payload=encode(fields), foot=self.foot, fields=fields)


def frame_end(route: Route) -> bytes:
    """What ends a frame; also what must follow an unfinished frame before anything else can be sent
    on the stream.
    """
    return b"\n" if route.is_native else b"\n\n"


def frame_of(route: Route, raw: bytes) -> Frame:
    """The frame in `raw`, which may lack its end."""
    if route.is_native:
        payload = raw.removesuffix(b"\n")
        return Frame(head=b"", payload=payload, foot=raw[len(payload) :], fields=object_in(payload))
    found = list(_DATA.finditer(raw))
    if not found:
        return Frame(head=raw, payload=b"", foot=b"")
    start = found[0].start(1)
    end = found[-1].end()
    return Frame(
        head=raw[:start], payload=raw[start:end], foot=raw[end:], fields=object_in(raw[start:end])
    )


def frames_in(route: Route, data: bytes) -> Iterator[Frame]:
    """The whole frames of a stream, each read when its turn comes."""
    return (frame_of(route, raw) for raw in WholeFrames(route).split(data))


def event(fields: JsonObject) -> bytes:
    """A server-sent event that says its type before its data."""
    return f"event: {fields['type']}\ndata: ".encode() + encode(fields) + b"\n\n"


def object_in(payload: bytes) -> JsonObject:
    """The JSON object in `payload`; empty where it is anything else, or nested deeper than `gojson`
    reads.
    """
    try:
        value = decode(payload)
    except GoJsonError:
        return {}
    return value if isinstance(value, dict) else {}


_NAMES = frozenset({"id", "item_id", "call_id", "created", "created_at"})
_COUNTS = frozenset(
    {
        "total_duration",
        "load_duration",
        "prompt_eval_count",
        "prompt_eval_duration",
        "eval_count",
        "eval_duration",
    }
)
_VOLATILE = _NAMES | _COUNTS | {"completed_at", "sequence_number", "usage", "logprobs", "context"}
"""Keys whose values may differ between two runs that say the same."""
_VERBATIM = frozenset({"input", "arguments", "metadata", "tools"})
"""Keys whose values are the model's or the caller's own words: nothing inside them is volatile,
whatever its key.
"""

ROLE = "role"
"""The channel of the one word that OpenAI's first delta says before the model does."""

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """One text in a frame.

    Attributes:
        channel: texts of one channel that follow one another are one text to the reader. path:
        where the text is in the payload. optional: the key goes when nothing of its text is left
        (Go's `omitempty`); others keep an empty text.
    """

    channel: str
    path: Path
    text: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class FrameReading:
    """What a frame says, in the order in which its reader takes it: all texts, then all marks.

    Attributes:
        calls: where the native tool calls are, one mark each, before any other mark.
        is_error: the stream ends with an error in the dialect's own form.
    """

    slots: tuple[Slot, ...] = ()
    marks: tuple[bytes, ...] = ()
    calls: Path | None = None
    is_error: bool = False


_Text = tuple[str, Path, bool]
"""Channel, path and whether it is optional, of a text that a frame may have."""
_TEXTS: Mapping[Endpoint, tuple[_Text, ...]] = MappingProxyType(
    {
        Endpoint.CHAT: (
            ("thinking", ("message", "thinking"), True),
            ("content", ("message", "content"), False),
        ),
        Endpoint.GENERATE: (("thinking", ("thinking",), True), ("content", ("response",), False)),
        Endpoint.OPENAI_CHAT: (
            (ROLE, ("choices", 0, "delta", "role"), True),
            ("reasoning", ("choices", 0, "delta", "reasoning"), True),
            ("reasoning", ("choices", 0, "delta", "reasoning_content"), True),
            ("content", ("choices", 0, "delta", "content"), False),
        ),
        Endpoint.OPENAI_COMPLETIONS: (("content", ("choices", 0, "text"), False),),
        Endpoint.ANTHROPIC_MESSAGES: tuple(
            (key, ("delta", key), False)
            for key in ("text", "thinking", "partial_json", "signature")
        ),
    }
)


def read(route: Route, frame: Frame) -> FrameReading:
    """What `frame` says; a payload that is not understood is one mark."""
    if not frame.payload or frame.event == "ping":
        return FrameReading()
    if not frame.fields:
        return FrameReading(marks=(frame.payload,))
    if frame.fields.get("error") or frame.event in ("error", "response.failed"):
        return FrameReading(is_error=True)
    if route.is_native:
        base: Path = ("message",) if route.path is Endpoint.CHAT else ()
        return FrameReading(
            _slots(route.path, frame),
            _native_marks(frame.fields, base),
            calls=(*base, "tool_calls"),
        )
    if route.path in (Endpoint.OPENAI_CHAT, Endpoint.OPENAI_COMPLETIONS):
        return FrameReading(_slots(route.path, frame), _openai_marks(frame.fields))
    slots = _slots(route.path, frame) if frame.event.endswith(("_delta", ".delta")) else ()
    return FrameReading(slots) if slots else FrameReading(marks=(encode(_lasting(frame.fields)),))


def _slots(path: Endpoint, frame: Frame) -> tuple[Slot, ...]:
    texts = (
        ((frame.event, ("delta",), False),) if path is Endpoint.OPENAI_RESPONSES else _TEXTS[path]
    )
    found = (
        (channel, place, at(frame.fields, place), optional) for channel, place, optional in texts
    )
    return tuple(
        Slot(channel, place, text, optional)
        for channel, place, text, optional in found
        if isinstance(text, str)
    )


def _native_marks(fields: JsonObject, base: Path) -> tuple[bytes, ...]:
    calls = at(fields, (*base, "tool_calls"))
    marks = (
        [encode(call.get("function")) for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else []
    )
    return (
        (*marks, encode(["done", fields.get("done_reason")]))
        if fields.get("done") is True
        else tuple(marks)
    )


def _openai_marks(fields: JsonObject) -> tuple[bytes, ...]:
    """Ollama sends one choice, and a tool call whole, in one delta; one that came in parts would
    have to come in the same parts.
    """
    if not fields.get("choices"):
        return (b"usage",) if fields.get("usage") else ()
    calls = at(fields, ("choices", 0, "delta", "tool_calls"))
    reason = at(fields, ("choices", 0, "finish_reason"))
    marks = (
        [encode([at(call, ("index",)), at(call, ("function",))]) for call in calls]
        if isinstance(calls, list)
        else []
    )
    return (*marks, encode(["finish", reason])) if isinstance(reason, str) else tuple(marks)


def _lasting(value: JsonValue) -> JsonValue:
    """What must be the same in every run."""
    if isinstance(value, list):
        return [_lasting(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: one if key in _VERBATIM else _lasting(one)
        for key, one in value.items()
        if key not in _VOLATILE
    }


def at(value: JsonValue, path: Path) -> JsonValue:
    """What is at `path` in a decoded payload, None for nothing."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def shortened(frame: Frame, reading: FrameReading, texts: Sequence[str], marks: int) -> Frame:
    """`frame` with these texts in its slots and only the last `marks` of its marks. Log
    probabilities belong to whole tokens, so they go where a text is not the frame's own.
    """
    if marks == len(reading.marks) and all(
        text == slot.text for slot, text in zip(reading.slots, texts, strict=True)
    ):
        return frame
    fields = deepcopy(frame.fields)
    for slot, text in zip(reading.slots, texts, strict=True):
        _put(fields, slot, text)
        if text != slot.text and slot.channel != ROLE:
            _drop_logprobs(fields)
    if reading.calls is not None and marks < len(reading.marks):
        _drop_calls(fields, reading.calls, len(reading.marks) - marks)
    return frame.saying(fields)


def _put(fields: JsonObject, slot: Slot, text: str) -> None:
    parent = at(fields, slot.path[:-1])
    key = slot.path[-1]
    if isinstance(parent, dict) and isinstance(key, str):
        parent[key] = text
        if slot.optional and not text:
            del parent[key]


def _drop_logprobs(fields: JsonObject) -> None:
    choices = fields.get("choices")
    for holder in (fields, *(choices if isinstance(choices, list) else ())):
        if isinstance(holder, dict) and "logprobs" in holder:
            if isinstance(holder["logprobs"], list) and "delta" in fields:
                holder["logprobs"] = []
            else:
                del holder["logprobs"]


def _drop_calls(fields: JsonObject, path: Path, count: int) -> None:
    parent = at(fields, path[:-1])
    calls = at(fields, path)
    if isinstance(parent, dict) and isinstance(calls, list):
        parent["tool_calls"] = calls[count:]
        if not parent["tool_calls"]:
            del parent["tool_calls"]


def identities(route: Route, frame: Frame) -> JsonObject:
    """The names that `frame` gives to things and that later frames repeat, by what they name."""
    fields = frame.fields
    if route.dialect != "openai":
        return {}
    if route.path is not Endpoint.OPENAI_RESPONSES:
        return {key: fields[key] for key in ("id", "created") if key in fields}
    place = fields.get("output_index")
    named = {
        "response": at(fields, ("response", "id")),
        "created": at(fields, ("response", "created_at")),
        f"item {place}": at(fields, ("item", "id")),
        f"call {place}": at(fields, ("item", "call_id")),
    }
    return without_none(named)


def renamed(value: JsonValue, names: Mapping[str | int, JsonValue]) -> JsonValue:
    """A copy in which what `names` lists is called by its other name, wherever a name stands."""
    if isinstance(value, list):
        return [renamed(one, names) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: names.get(one, one)
        if key in _NAMES and isinstance(one, str | int)
        else renamed(one, names)
        for key, one in value.items()
    }
