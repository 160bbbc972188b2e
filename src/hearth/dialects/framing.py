"""Tells a whole stream from a broken one, and what it reported of itself, by looking at its end.

Status and HTTP framing do not say it: Ollama ends streams cleanly in the middle of an answer, so a stream without its own dialect's
terminator is truncated. Sans-IO; must never parse while a stream runs, hold more than its last lines, or change a byte. Lines end at LF
only: U+2028, U+0085 and CR are text.
"""

from __future__ import annotations

import json
import re

from hearth.dialects.gojson import JsonObject
from hearth.dialects.routes import Endpoint, Route
from hearth.types import NO_USAGE, Dialect, Usage, WorkKind, value

LINE_CAP_BYTES = 4 * 1024 * 1024
"""Longest line that is understood: the last line of a long native answer lists its whole context, some 8 bytes per token."""

_TRIM_AT_BYTES = 64 * 1024
_KEPT_LINES = 16
"""The terminator and the usage of every dialect lie within the last five frames of at most three lines each."""

MOST_TOKENS, MOST_NANOSECONDS = 10**9, 10**15
"""Of one answer (11 days). What reports more reports nothing: it would spoil what is learned of the model, and no database holds it."""
_EMBED_TAIL_BYTES = 512
_EMBED_TOKENS = re.compile(rb'"(?:prompt_eval_count|prompt_tokens)":\s*([0-9]{1,9})(?![0-9])')
_RESPONSES_ENDS = ("response.completed", "response.incomplete", "response.failed")


@value
class Ending:
    """How a stream ended.

    Attributes:
        complete: the dialect's own terminator was the last thing that came.
        reported_error: an error in the dialect's own form was.
        usage: what the last lines report; all None where they report nothing.
    """

    complete: bool
    reported_error: bool
    usage: Usage


class StreamTail:
    """The end of one stream; `feed` every chunk, then ask for the `ending`, once: that parses the last lines."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._tail = bytearray()
        self._trim_at_bytes = _TRIM_AT_BYTES

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes, cut anywhere."""
        self._tail += chunk
        if len(self._tail) > self._trim_at_bytes:
            self._trim()

    def _trim(self) -> None:
        start = len(self._tail)
        for _ in range(_KEPT_LINES + 1):
            start = self._tail.rfind(b"\n", 0, start)
            if start < 0:
                break
        del self._tail[: max(start + 1, len(self._tail) - LINE_CAP_BYTES)]
        self._trim_at_bytes = max(_TRIM_AT_BYTES, 2 * len(self._tail))

    def ending(self) -> Ending:
        """What the last lines say."""
        frames = self._frames()
        last = frames[0] if frames else b""
        said = _object(last)
        kind = said.get("type")
        return Ending(
            complete=self._is_terminator(last, said),
            reported_error=bool(said.get("error")) or kind in ("error", "response.failed"),
            usage=self._usage(frames),
        )

    def _is_terminator(self, last: bytes, said: JsonObject) -> bool:
        if self._route.dialect is Dialect.OLLAMA:
            return said.get("done") is True
        if self._route.dialect is Dialect.ANTHROPIC:
            return said.get("type") == "message_stop"
        if self._route.path is Endpoint.OPENAI_RESPONSES:
            return said.get("type") in _RESPONSES_ENDS
        return last == b"[DONE]"

    def _usage(self, frames: list[bytes]) -> Usage:
        for frame in frames:
            found = _usage(self._route, _object(frame))
            if found != NO_USAGE:
                return found
        return NO_USAGE

    def _frames(self) -> list[bytes]:
        """The payloads of the last lines, latest first."""
        lines = [line.strip() for line in reversed(self._tail.rsplit(b"\n", _KEPT_LINES + 1)[-_KEPT_LINES - 1 :])]
        if self._route.dialect is Dialect.OLLAMA:
            return [bytes(line) for line in lines if line]
        return [bytes(line[5:].strip()) for line in lines if line.startswith(b"data:")]


@value
class WholeAnswer:
    """What an answer that came in one piece says of itself. `usage` is empty for errors and for whatever is not JSON."""

    complete: bool
    usage: Usage


def read_whole(route: Route, body: bytes) -> WholeAnswer:
    """Read an answer that came in one piece. One that the model server broke off says so only by an absence.

    Source: recordings of Ollama after more than 30 equal tokens: 200 with `"done":false`, or a choice without `finish_reason`.
    """
    if route.kind is WorkKind.EMBED:
        found = _EMBED_TOKENS.search(body, max(0, len(body) - _EMBED_TAIL_BYTES))
        return WholeAnswer(complete=True, usage=Usage() if found is None else Usage(prompt_tokens=int(found.group(1))))
    said = _object(body)
    return WholeAnswer(complete=_is_complete(route, said), usage=_usage(route, said))


def _is_complete(route: Route, said: JsonObject) -> bool:
    if "_debug_info" in said:  # it was asked for the rendering of its prompt alone
        return True
    if route.dialect is Dialect.OLLAMA:
        return said.get("done") is True
    choices = said.get("choices")
    if not isinstance(choices, list):
        return bool(said)
    return all(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices)


def _usage(route: Route, said: JsonObject) -> Usage:
    if route.dialect is Dialect.OLLAMA:
        return native_usage(said)
    response = said.get("response")
    usage = (response if isinstance(response, dict) else said).get("usage")
    if not isinstance(usage, dict):
        return Usage()
    prompt = _count(usage, "input_tokens" if "input_tokens" in usage else "prompt_tokens")
    output = _count(usage, "output_tokens" if "output_tokens" in usage else "completion_tokens")
    if not prompt and not output:
        return Usage()  # `/v1/completions` fills every chunk but the last with zeros
    return Usage(prompt_tokens=prompt, output_tokens=output)


def native_usage(said: JsonObject) -> Usage:
    """Counters and timings of a native answer; absent keys are None, though Ollama also omits zeros."""
    return Usage(
        prompt_tokens=_count(said, "prompt_eval_count"),
        output_tokens=_count(said, "eval_count"),
        load_s=_seconds(said, "load_duration"),
        prompt_s=_seconds(said, "prompt_eval_duration"),
        decode_s=_seconds(said, "eval_duration"),
    )


def _count(fields: JsonObject, name: str) -> int | None:
    value = fields.get(name)
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None  # and no bool


def _seconds(fields: JsonObject, name: str) -> float | None:
    value = fields.get(name)
    return value / 1e9 if type(value) is int and 0 <= value <= MOST_NANOSECONDS else None


def _object(data: bytes) -> JsonObject:
    """Ollama's own words need none of the care that a caller's need."""
    try:
        value = json.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
