"""The usage of an OpenAI stream whose caller does not ask for it: asked for, counted, not shown.

Without `stream_options.include_usage` Ollama says nothing of tokens, and OpenAI's libraries do not
send that unless they are asked to. Source: ollama/ollama v0.33.0-rc2, `openai/openai.go`,
`middleware/openai.go`.
"""

from __future__ import annotations

from hearth.dialects.frames import WholeFrames, frame_of
from hearth.dialects.gojson import JsonObject, folded, lookup
from hearth.dialects.routes import Endpoint, Route

_OPTIONS = "stream_options"
_FLAG = "include_usage"
_ROUTES = frozenset({Endpoint.OPENAI_CHAT, Endpoint.OPENAI_COMPLETIONS})
_USAGE = b'"usage":'
_NO_TOKENS = b',"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}\n\n'
"""What ends each chunk of a text completion but the last, where the usage is asked for."""
_MOST_HELD_BYTES = 1024 * 1024


def asking_for_usage(route: Route, fields: JsonObject) -> JsonObject | None:
    """What makes the stream of a request report its usage: the field to add, or to replace one.

    Returns:
        None where its caller asks for it, where it always comes, or where Ollama refuses the field.
    """
    given = fields.get(_OPTIONS)
    if route.path not in _ROUTES or not isinstance(given, dict | None):
        return None
    asked = None if given is None else lookup(given, _FLAG)
    if asked is True or not isinstance(asked, bool | None):
        return None
    others = {} if given is None else folded(given)
    return {_OPTIONS: {**others, _FLAG: True}}


class HiddenUsage:
    """Takes the usage out of a stream again.

    What is left has the bytes and the chunks that it would have had without it.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self._frames: WholeFrames | None = WholeFrames(route)

    def without(self, chunk: bytes) -> bytes:
        """What may be passed on: whole frames; the very chunk where it says nothing of usage."""
        if self._frames is None:
            return chunk
        whole = self._frames.feed(chunk)
        if self._frames.held_bytes > _MOST_HELD_BYTES:
            whole += self.rest()
            self._frames = None
        if _USAGE not in whole:
            return whole
        whole = whole.replace(_NO_TOKENS, b"}\n\n")
        if _USAGE not in whole:
            return whole
        frames = WholeFrames(self._route).split(whole)
        return b"".join(map(self._shown, frames))

    def rest(self) -> bytes:
        """What is held back: the beginning of a frame."""
        return b"" if self._frames is None else self._frames.rest

    def _shown(self, raw: bytes) -> bytes:
        frame = frame_of(self._route, raw)
        if "usage" not in frame.fields:
            return raw
        if not frame.fields.get("choices"):
            return b""
        kept = {name: one for name, one in frame.fields.items() if name != "usage"}
        return frame.saying(kept).raw
