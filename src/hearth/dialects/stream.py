"""How an answer ends, and what it reports of itself, in each dialect.

Status and HTTP framing do not say whether a stream is whole: Ollama ends streams cleanly in the
middle of an answer, so one without its dialect's terminator is truncated. Nothing is parsed while a
stream runs. Lines end at LF only: U+2028, U+0085 and CR are text.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from hearth.dialects.frames import frames_in, object_in
from hearth.dialects.gojson import (
    JSON_SPACE,
    LARGE_BYTES,
    GoJsonError,
    JsonObject,
    decode,
    encode,
)
from hearth.dialects.routes import MEDIA_ROUTES, Endpoint, Route
from hearth.dialects.writers import NativeWriter
from hearth.errors import BackendProtocolError, HearthError, ProxyFailed
from hearth.types import (
    JSON_BODY,
    NO_USAGE,
    BackendCall,
    Completion,
    Headers,
    Usage,
    value,
    without_none,
)

LINE_CAP_BYTES = 4 * 1024 * 1024
"""Longest line that is understood: the last line of a long native answer lists its whole context,
some 8 bytes per token.
"""

_TRIM_AT_BYTES = 64 * 1024
_KEPT_LINES = 16
"""The terminator and the usage of every dialect lie within the last five frames of at most three
lines each.
"""

CACHED_COUNT = "prompt_cached_count"
"""In native answers that Hearth has translated; Ollama has no such counter."""
MOST_TOKENS = 10**9
MOST_NANOSECONDS = 10**15
"""Of one answer (11 days).

What reports more reports nothing: it would spoil what is learned of the model, and no database
holds it.
"""
_EMBED_END_BYTES = 512
_EMBED_TOKENS = re.compile(rb'"(?:prompt_eval_count|prompt_tokens)":\s*([0-9]{1,9})(?![0-9])')
_QUOTED_CHARS = 200
_RUNNER_DIED = (
    "an error was encountered while running the model",
    "model runner has unexpectedly stopped",
)
_first_value = json.JSONDecoder().raw_decode
_OF_PROXIES = frozenset({502, 503, 504})
_RESPONSES_ENDS = ("response.completed", "response.incomplete", "response.failed")


@value
class Ending:
    """How an answer ended.

    Attributes:
        complete: of a stream, the dialect's own terminator was the last thing that came.
        reported_error: an error in the dialect's own form was.
        error: what it says, where that is a text.
        died: it looks as it does where the process of the model ends within a stream.
        usage: what it reports of itself; all None where it reports nothing.
    """

    complete: bool
    reported_error: bool
    usage: Usage
    error: str = ""
    died: bool = False


def reports_death(route: Route, fields: JsonObject) -> bool:
    """This frame is what Ollama sends where the process of the model ends within a stream.

    Its Anthropic and Responses streams end without a word then. Source: recordings
    (`midstream_kill_*`).
    """
    if route.is_native:
        error = fields.get("error")
        return isinstance(error, str) and runner_died(error)
    return route.path in _DEATH_MARKS and fields.get("model") == ""


_DEATH_MARKS = {
    Endpoint.CHAT: b'{"error":',
    Endpoint.GENERATE: b'{"error":',
    Endpoint.OPENAI_CHAT: b'"model":""',
    Endpoint.OPENAI_COMPLETIONS: b'"model":""',
}
"""What every frame has by which a death is reported: to look for that costs next to nothing."""


class DeathNotice:
    """Holds back the frame by which a death is reported, so that the caller can be sent the rest of
    the answer in its place. What is followed by anything is none. Chunks have to end with whole
    frames.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self._mark = _DEATH_MARKS.get(route.path)
        self._held = b""

    def without(self, chunks: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """What may be passed on."""
        if self._held and any(chunks):
            chunks = (self._held, *chunks)
            self._held = b""
        if self._mark is None or not chunks or self._mark not in chunks[-1]:
            return chunks
        *_, last = frames_in(self._route, chunks[-1])
        if not (chunks[-1].endswith(last.raw) and reports_death(self._route, last.fields)):
            return chunks
        self._held = last.raw
        return (*chunks[:-1], chunks[-1].removesuffix(last.raw))


class StreamTail:
    """The end of one stream; `feed` every chunk, then ask for the `ending`, once: that parses the
    last lines.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self._beginning = bytearray()
        """Of a message: at least its first frame."""
        self._is_begun = route.dialect != "anthropic"
        self._tail = bytearray()
        self._trim_at_bytes = _TRIM_AT_BYTES

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes, cut anywhere."""
        if not self._is_begun:
            self._beginning += chunk
            is_whole = b"\n\n" in self._beginning
            self._is_begun = is_whole or len(self._beginning) > _TRIM_AT_BYTES
        self._tail += chunk
        if len(self._tail) > self._trim_at_bytes:
            self._tail = bytearray(
                b"\n".join(self._tail.rsplit(b"\n", _KEPT_LINES + 1)[-_KEPT_LINES - 1 :])
            )[-LINE_CAP_BYTES:]
            self._trim_at_bytes = max(_TRIM_AT_BYTES, 2 * len(self._tail))

    def ending(self) -> Ending:
        """What the last lines say."""
        frames = self._frames()
        last = frames[0] if frames else b""
        fields = fields_in(last)
        kind = fields.get("type")
        error = fields.get("error")
        usages = (_usage(self._route, fields_in(frame)) for frame in frames)
        usage = next((usage for usage in usages if usage != NO_USAGE), NO_USAGE)
        complete = self._is_terminator(last, fields)
        reported_error = bool(error) or kind in ("error", "response.failed")
        says_nothing = self._route.path not in _DEATH_MARKS and not (complete or reported_error)
        return Ending(
            complete=complete,
            reported_error=reported_error,
            error=error if isinstance(error, str) else "",
            died=says_nothing or reports_death(self._route, fields),
            usage=self._with_prompt(usage),
        )

    def _with_prompt(self, usage: Usage) -> Usage:
        """llama.cpp's server says what a prompt had only where its message begins."""
        if usage.output_tokens is None or usage.prompt_tokens is not None:
            return usage
        first = next(frames_in(self._route, bytes(self._beginning)), None)
        message = None if first is None else first.fields.get("message")
        if not isinstance(message, dict):
            return usage
        begun = _usage(self._route, message)
        return replace(usage, prompt_tokens=begun.prompt_tokens, cached_tokens=begun.cached_tokens)

    def _is_terminator(self, last: bytes, fields: JsonObject) -> bool:
        if self._route.is_native:
            return fields.get("done") is True
        if self._route.dialect == "anthropic":
            return fields.get("type") == "message_stop"
        if self._route.path is Endpoint.OPENAI_RESPONSES:
            return fields.get("type") in _RESPONSES_ENDS
        return last == b"[DONE]"

    def _frames(self) -> list[bytes]:
        """The payloads of the last lines, latest first."""
        lines = [
            line.strip()
            for line in reversed(self._tail.rsplit(b"\n", _KEPT_LINES + 1)[-_KEPT_LINES - 1 :])
        ]
        if self._route.is_native:
            return [bytes(line) for line in lines if line]
        return [bytes(line[5:].strip()) for line in lines if line.startswith(b"data:")]


def read_whole(route: Route, body: bytes) -> Ending:
    """Read an answer that came in one piece. One that the model server broke off says so only by an
    absence. Source: recordings of Ollama after more than 30 equal tokens: 200 with `"done":false`,
    or a choice without `finish_reason`.
    """
    if route.kind in ("embed", "rerank"):
        # Ollama counts behind the vectors, llama.cpp's server before them
        found = _EMBED_TOKENS.search(
            body, max(0, len(body) - _EMBED_END_BYTES)
        ) or _EMBED_TOKENS.search(body, 0, _EMBED_END_BYTES)
        usage = NO_USAGE if found is None else Usage(prompt_tokens=int(found.group(1)))
        return Ending(complete=True, reported_error=False, usage=usage)
    if route.path in MEDIA_ROUTES:  # text, subtitles or pictures, whose end the framing tells
        return Ending(complete=True, reported_error=False, usage=NO_USAGE)
    fields = fields_in(body)
    return Ending(
        complete=_is_complete(route, fields), reported_error=False, usage=_usage(route, fields)
    )


def _is_complete(route: Route, fields: JsonObject) -> bool:
    if "_debug_info" in fields:  # it was asked for the rendering of its prompt alone
        return True
    if route.is_native:
        return fields.get("done") is True
    choices = fields.get("choices")
    if not isinstance(choices, list):
        return bool(fields)
    return all(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices)


def _usage(route: Route, fields: JsonObject) -> Usage:
    if route.is_native:
        return native_usage(fields)
    response = fields.get("response")
    usage = (response if isinstance(response, dict) else fields).get("usage")
    timings = fields.get("timings")  # llama.cpp's server adds them
    timed = timings if isinstance(timings, dict) else {}
    if not isinstance(usage, dict):
        return _timed_usage(timed) if timed else NO_USAGE
    prompt = count_in(usage, "input_tokens" if "input_tokens" in usage else "prompt_tokens")
    output = count_in(usage, "output_tokens" if "output_tokens" in usage else "completion_tokens")
    if not prompt and not output:
        return NO_USAGE  # `/v1/completions` fills every chunk but the last with zeros
    cached = _cached(usage)
    if prompt is not None and cached is not None and "cache_read_input_tokens" in usage:
        prompt += cached  # Anthropic's `input_tokens` leaves out what was cached
    return Usage(
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=cached,
        prompt_s=_milliseconds(timed, "prompt_ms"),
        decode_s=_milliseconds(timed, "predicted_ms"),
    )


def _timed_usage(timed: JsonObject) -> Usage:
    """The counts that llama.cpp's server has in its timings, where nobody asked for a usage; its
    `prompt_n` leaves out what was cached.
    """
    cached = count_in(timed, "cache_n") or 0
    read = count_in(timed, "prompt_n")
    return Usage(
        prompt_tokens=None if read is None else read + cached,
        output_tokens=count_in(timed, "predicted_n"),
        cached_tokens=cached,
        prompt_s=_milliseconds(timed, "prompt_ms"),
        decode_s=_milliseconds(timed, "predicted_ms"),
    )


def _cached(usage: JsonObject) -> int | None:
    """The tokens of the prompt that were not read again, as OpenAI, its Responses and Anthropic
    name them. llama.cpp's server says it in all three; Ollama in none, but its Responses always
    have a 0 there.
    """
    details = usage.get("prompt_tokens_details")
    responses = usage.get("input_tokens_details")
    if isinstance(details, dict):
        return count_in(details, "cached_tokens")
    if isinstance(responses, dict):
        return count_in(responses, "cached_tokens") or None
    return count_in(usage, "cache_read_input_tokens")


def native_usage(fields: JsonObject) -> Usage:
    """Counters and timings of a native answer; absent keys are None, though Ollama also omits
    zeros.
    """
    return Usage(
        prompt_tokens=count_in(fields, "prompt_eval_count"),
        output_tokens=count_in(fields, "eval_count"),
        cached_tokens=count_in(fields, CACHED_COUNT),
        load_s=_seconds(fields, "load_duration"),
        prompt_s=_seconds(fields, "prompt_eval_duration"),
        decode_s=_seconds(fields, "eval_duration"),
    )


def count_in(fields: JsonObject, name: str, most: int = MOST_TOKENS) -> int | None:
    """A counter that makes sense."""
    value = fields.get(name)
    return value if type(value) is int and 0 <= value <= most else None  # and no bool


def _seconds(fields: JsonObject, name: str) -> float | None:
    duration_ns = count_in(fields, name, MOST_NANOSECONDS)
    return None if duration_ns is None else duration_ns / 1e9


def _milliseconds(fields: JsonObject, name: str) -> float | None:
    spent_ms = fields.get(name)
    if isinstance(spent_ms, int | float) and 0 <= spent_ms <= MOST_NANOSECONDS / 1e6:
        return spent_ms / 1e3
    return None


def fields_in(data: bytes) -> JsonObject:
    """Ollama's own words need none of the care that a caller's need, but for their length: an
    answer may list 20 log probabilities for each token.
    """
    if len(data) > LARGE_BYTES:
        return object_in(data)
    text = data.decode(errors="replace").strip(JSON_SPACE)
    try:
        # `json.loads` looks for white space itself, by two regular expressions: half of its time
        value, end = _first_value(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and end == len(text) else {}


def completion_call(
    prompt_json: bytes,
    model: str,
    max_tokens: int | None,
    *,
    json_mode: bool = False,
    num_ctx: int | None = None,
) -> BackendCall:
    """The `/api/generate` call for one whole answer to a prompt that is JSON already; `json_mode`
    has Ollama force well-formed JSON.
    """
    request: JsonObject = {"model": model, "stream": False}
    if json_mode:
        request["format"] = "json"
    limits = {"num_predict": max_tokens, "num_ctx": num_ctx}
    options: JsonObject = without_none(limits)
    if options:
        request["options"] = options
    body = b'{"prompt":%b,%b' % (prompt_json, encode(request)[1:])
    return BackendCall(
        method="POST",
        path=Endpoint.GENERATE,
        headers=JSON_BODY,
        body=body,
    )


def read_completion(body: bytes, latency_ms: int, model: str) -> Completion:
    """The answer to `completion_call`; counters that Ollama left out are 0. Raises
    BackendProtocolError: not JSON, not an answer, an error, or an answer cut off before its end
    (`done` false).
    """
    try:
        fields = decode(body)
    except GoJsonError as error:
        raise BackendProtocolError(f"the model server sent no JSON: {error.message}") from error
    if not isinstance(fields, dict):
        raise BackendProtocolError("the model server sent JSON that is not an object")
    if fields.get("error"):
        raise BackendProtocolError(
            f"the model server failed: {str(fields['error'])[:_QUOTED_CHARS]}"
        )
    output = fields.get("response")
    if not isinstance(output, str) or fields.get("done") is not True:
        raise BackendProtocolError("the model server ended the answer early")
    usage = native_usage(fields)
    return Completion(
        output=output,
        model=model,
        tokens_in=usage.prompt_tokens or 0,
        tokens_out=usage.output_tokens or 0,
        latency_ms=latency_ms,
    )


def error_text(body: bytes) -> str:
    """What an error answer of any dialect says, shortened; "no reason given" where it says nothing
    readable.
    """
    reason = object_in(body).get("error")
    if isinstance(reason, dict):
        reason = reason.get("message")
    return reason[:_QUOTED_CHARS] if isinstance(reason, str) else "no reason given"


def proxy_failure(status: int, headers: Headers) -> HearthError | None:
    """The error of a proxy that found no model server behind it.

    The model server's own errors are JSON, a proxy's are a page or empty.
    """
    if status not in _OF_PROXIES or dict(headers).get(b"content-type", b"").lower().startswith(
        b"application/json"
    ):
        return None
    failed = ProxyFailed(f"A proxy before the model server answered {status} in its place.")
    failed.status = status
    return failed


def runner_died(error: str) -> bool:
    """Whether an error says that the process of the model ended at its work.

    Ollama starts another one for the next request.
    """
    return error.startswith(_RUNNER_DIED)


def empty_reply(route: Route, model: str, wall_s: float, done_reason: str) -> bytes:
    """What Ollama answers on `route` (chat or generate) where nothing is to be generated; `wall_s`:
    seconds since 1970.
    """
    line = NativeWriter(model, chat=route.path is Endpoint.CHAT).line(wall_s)
    return encode(line | {"done": True, "done_reason": done_reason})
