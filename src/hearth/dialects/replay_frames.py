"""Cuts a stream into its frames: lines of NDJSON, events of SSE.

Knows where a frame ends and where its payload lies, never what the payload says. A frame ends at LF (native) or at an empty line (SSE), as
Ollama writes them; CR, U+0085 and U+2028 are text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hearth.dialects.gojson import GoJsonError, JsonObject, decode, encode
from hearth.dialects.routes import Route
from hearth.types import Dialect

_EVENT = re.compile(rb"^event: ?([^\n]*)\n", re.MULTILINE)
_DATA = re.compile(rb"^data: ?([^\n]*)", re.MULTILINE)


class WholeFrames:
    """Holds back the part of a stream that does not yet make a whole frame, so that what goes on always ends where a frame ends."""

    def __init__(self, route: Route) -> None:
        self._end = frame_end(route)
        self._rest = bytearray()

    @property
    def rest(self) -> bytes:
        """What is held back: the beginning of one frame, empty between frames."""
        return bytes(self._rest)

    def feed(self, chunk: bytes) -> bytes:
        """The frames that `chunk` completes, empty for none; the very chunk where it ends with a frame, as Ollama's do."""
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
        """As `feed`, one element per frame, each with its end; an empty line too many belongs to the frame before it."""
        *frames, extra = self.feed(chunk).split(self._end)
        whole = [frame + self._end for frame in frames]
        if extra:
            whole[-1] += extra
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame, or the beginning of one.

    Attributes:
        head, payload, foot: its bytes, in this order; `payload` is what the frame carries (JSON, or `[DONE]`), empty for SSE comments.
        fields: the decoded payload, empty where it is not one JSON object.
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
        """The name on the SSE event line; the payload's own `type` where there is no such line; empty for neither."""
        named = _EVENT.search(self.head)
        kind = self.fields.get("type")
        return named.group(1).decode(errors="replace") if named else kind if isinstance(kind, str) else ""

    def saying(self, fields: JsonObject) -> Frame:
        """The frame with another payload; itself where that says the same."""
        if fields == self.fields:
            return self
        return Frame(head=self.head, payload=encode(fields), foot=self.foot, fields=fields)


def frame_end(route: Route) -> bytes:
    """What ends a frame; also what must follow an unfinished frame before anything else can be said on the stream."""
    return b"\n" if route.dialect is Dialect.OLLAMA else b"\n\n"


def frame_of(route: Route, raw: bytes) -> Frame:
    """The frame in `raw`, which may lack its end."""
    if route.dialect is Dialect.OLLAMA:
        payload = raw.removesuffix(b"\n")
        return Frame(head=b"", payload=payload, foot=raw[len(payload) :], fields=object_in(payload))
    found = list(_DATA.finditer(raw))
    if not found:
        return Frame(head=raw, payload=b"", foot=b"")
    start, end = found[0].start(1), found[-1].end()
    return Frame(head=raw[:start], payload=raw[start:end], foot=raw[end:], fields=object_in(raw[start:end]))


def object_in(payload: bytes) -> JsonObject:
    """The JSON object in `payload`; empty where it is anything else, or nested deeper than `gojson` reads."""
    try:
        value = decode(payload)
    except GoJsonError:
        return {}
    return value if isinstance(value, dict) else {}
