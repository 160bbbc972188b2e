"""An answer of OpenAI's routes in the words of Ollama's own.

A generation comes as a stream of chunks and is read part by part; the writers of the native dialect
say it again, as a stream or whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from hearth.dialects.claude_blocks import decoded_arguments
from hearth.dialects.frames import WholeFrames, at, object_in
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.stream import CACHED_COUNT, MOST_NANOSECONDS, count_in, fields_in
from hearth.dialects.writers import AnswerPart, Generation, NativeWriter, TextPart, ToolCall

_ROUTE = INFERENCE_ROUTES[Endpoint.OPENAI_CHAT]
_REASONS = {"tool_calls": "stop", "function_call": "stop", "content_filter": "refusal"}


class Chunks:
    """Reads a stream of `/v1/chat/completions` or `/v1/completions`.

    Attributes:
        error: what the engine says went wrong within the stream, as it says it. is_over: the end
        has come.
    """

    def __init__(self) -> None:
        self.error: JsonValue = None
        self.is_over = False
        self._frames = WholeFrames(_ROUTE)
        self._reason: str | None = None
        self._calls: dict[int, _Call] = {}
        self._usage: JsonObject = {}
        self._timings: JsonObject = {}

    @property
    def is_in_call(self) -> bool:
        """A tool call has begun that is not whole yet."""
        return bool(self._calls)

    def feed(self, chunk: bytes) -> Iterator[AnswerPart]:
        """The parts of the answer that are whole now."""
        for line in self._frames.feed(chunk).split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.is_over = self._reason is not None
            else:
                yield from self._parts(fields_in(payload))

    def _parts(self, fields: JsonObject) -> Iterator[AnswerPart]:
        self.error = self.error or fields.get("error")
        self._usage = _object(fields.get("usage")) or self._usage
        self._timings = _object(fields.get("timings")) or self._timings
        choice = at(fields, ("choices", 0))
        if choice is None or self.error:
            return
        delta = _object(at(choice, ("delta",)))
        for call in _list(delta.get("tool_calls")):
            index = _index(call)
            if index not in self._calls:
                yield from self._take_calls()
                self._calls[index] = _Call()
            self._calls[index].add(call)
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        text = delta.get("content", at(choice, ("text",)))
        if isinstance(thought, str) and thought:
            yield TextPart(text=thought, thinking=True)
        if isinstance(text, str) and text:
            logprobs = _list(at(choice, ("logprobs", "content")))
            yield TextPart(text=text, logprobs=[_without_id(entry) for entry in logprobs])
        reason = at(choice, ("finish_reason",))
        if isinstance(reason, str):
            yield from self._take_calls()
            self._reason = _REASONS.get(reason, reason)

    def _take_calls(self) -> Iterator[AnswerPart]:
        for call in self._calls.values():
            yield call.whole()
        self._calls.clear()

    def done(self, total_ns: int, parts: list[AnswerPart] | None = None) -> Generation:
        """The end of the answer; `total_ns`: what it took as a whole."""
        prompt = count_in(self._usage, "prompt_tokens")
        cached = at(self._usage, ("prompt_tokens_details", "cached_tokens"))
        return Generation(
            parts=parts or [],
            reason=self._reason,
            prompt_tokens=prompt or 0,
            output_tokens=count_in(self._usage, "completion_tokens") or 0,
            cached_tokens=cached if isinstance(cached, int) else 0,
            total_ns=total_ns,
            prompt_ns=_nanoseconds(self._timings, "prompt_ms"),
            output_ns=_nanoseconds(self._timings, "predicted_ms"),
        )


class _Call:
    """A tool call that comes bit by bit."""

    def __init__(self) -> None:
        self._id = self._name = self._arguments = ""

    def add(self, call: JsonValue) -> None:
        self._id = self._id or _string(at(call, ("id",)))
        self._name += _string(at(call, ("function", "name")))
        self._arguments += _string(at(call, ("function", "arguments")))

    def whole(self) -> ToolCall:
        arguments = decoded_arguments(self._arguments)
        return ToolCall(
            call_id=self._id, name=self._name, arguments=arguments, written=self._arguments
        )


class NativeStream:
    """Says a stream again as lines of `/api/chat` or `/api/generate`."""

    def __init__(self, path: Endpoint, model: str) -> None:
        self._chunks = Chunks()
        self._writer = NativeWriter(model, chat=path is Endpoint.CHAT)
        self._is_over = False

    @property
    def is_in_call(self) -> bool:
        """A tool call has begun, of which no line tells yet."""
        return self._chunks.is_in_call

    def feed(self, chunk: bytes, wall_s: float, total_ns: int) -> list[bytes]:
        """The lines that can be said now.

        Args:
            wall_s: now, in seconds since 1970. total_ns: since the request was sent.
        """
        lines: list[bytes] = []
        if self._is_over:
            return lines
        for part in self._chunks.feed(chunk):
            lines += self._writer.write(part, wall_s)
        if self._chunks.error:
            self._is_over = True
            lines.append(encode({"error": said_error(self._chunks.error)}) + b"\n")
        elif self._chunks.is_over:
            self._is_over = True
            done = self._chunks.done(total_ns)
            lines.append(encode(self._writer.whole(done, wall_s) | _cached(done)) + b"\n")
        return lines


def native_whole(
    path: Endpoint, model: str, stream: bytes, wall_s: float, total_ns: int
) -> JsonObject:
    """A whole native answer from a whole stream, or the error that it ends with; one that says
    `"done":false` where the stream was cut.
    """
    chunks = Chunks()
    parts = [*chunks.feed(stream)]
    if chunks.error:
        return {"error": chunks.error}
    done = chunks.done(total_ns, parts)
    writer = NativeWriter(model, chat=path is Endpoint.CHAT)
    return writer.whole(done, wall_s) | _cached(done)


def _cached(done: Generation) -> JsonObject:
    return {CACHED_COUNT: done.cached_tokens} if done.cached_tokens else {}


def native_embedding(path: Endpoint, model: str, answer: bytes, total_ns: int) -> JsonObject | None:
    """A native answer from one of `/v1/embeddings`; None where it is none."""
    said = object_in(answer)
    listed = _list(said.get("data"))
    placed = {_index(one): at(one, ("embedding",)) for one in listed}
    vectors = [placed.get(index) for index in range(len(listed))]
    if not all(isinstance(vector, list) for vector in vectors):
        return None
    if path is Endpoint.EMBEDDINGS:
        return {"embedding": vectors[0] if vectors else []}
    counted = count_in(_object(said.get("usage")), "prompt_tokens")
    answered: JsonObject = {"model": model, "embeddings": vectors, "total_duration": total_ns}
    return answered | ({} if counted is None else {"prompt_eval_count": counted})


def said_error(error: JsonValue) -> str:
    """The text of an error, in OpenAI's form or as a bare text."""
    said = at(error, ("message",)) if isinstance(error, dict) else error
    return said if isinstance(said, str) else "the model server reported an error"


def _without_id(entry: JsonValue) -> JsonValue:
    """Log probabilities as Ollama lists them: without the numbers of the tokens."""
    if not isinstance(entry, dict):
        return entry
    kept = {name: one for name, one in entry.items() if name != "id"}
    if isinstance(tops := kept.get("top_logprobs"), list):
        kept["top_logprobs"] = [_without_id(top) for top in tops]
    return kept


def _nanoseconds(timings: JsonObject, name: str) -> int:
    spent_ms = timings.get(name)
    if isinstance(spent_ms, int | float) and 0 <= spent_ms <= MOST_NANOSECONDS / 1e6:
        return round(spent_ms * 1e6)
    return 0


def _index(given: JsonValue) -> int:
    index = at(given, ("index",))
    return index if isinstance(index, int) else 0


def _object(given: JsonValue) -> JsonObject:
    return given if isinstance(given, dict) else {}


def _list(given: JsonValue) -> list[JsonValue]:
    return given if isinstance(given, list) else []


def _string(given: JsonValue) -> str:
    return given if isinstance(given, str) else ""
