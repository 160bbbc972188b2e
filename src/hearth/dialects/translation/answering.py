"""An answer of OpenAI's chat, text completions or embeddings in the words of another dialect.

A generation comes as a stream of chunks and is read part by part; the writer of the dialect says it
again, as a stream or whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from hearth.dialects.claude_blocks import decoded_arguments
from hearth.dialects.errors import stream_error
from hearth.dialects.frames import WholeFrames, at, object_in
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.messages_writer import MessagesWriter
from hearth.dialects.request import prompt_tokens
from hearth.dialects.responses_writer import (
    INCOMPLETE,
    RESPONSE_REPEATS,
    ResponsesWriter,
    response_in_progress,
)
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint, Route
from hearth.dialects.stream import CACHED_COUNT, MOST_NANOSECONDS, count_in, fields_in
from hearth.dialects.translation.answer_parts import TORN, arguments_in, goes_on, is_torn
from hearth.dialects.writers import (
    AnswerPart,
    Generation,
    NativeWriter,
    TextPart,
    ToolCall,
    Writer,
)
from hearth.errors import BackendError

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
        self._call: _Call | None = None
        self._usage: JsonObject = {}
        self._timings: JsonObject = {}

    @property
    def is_in_call(self) -> bool:
        """A tool call has begun that is not whole yet."""
        return self._call is not None

    def feed(self, chunk: bytes) -> Iterator[AnswerPart]:
        """The parts of the answer that are whole now."""
        for line in self._frames.feed(chunk).split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.is_over = self._reason is not None
            else:
                fields = fields_in(payload)
                if is_torn(payload, fields):
                    fields = {"error": TORN}
                yield from self._parts(fields)

    def _parts(self, fields: JsonObject) -> Iterator[AnswerPart]:
        self.error = self.error or fields.get("error")
        self._usage = _object(fields.get("usage")) or self._usage
        self._timings = _object(fields.get("timings")) or self._timings
        choice = at(fields, ("choices", 0))
        if choice is None or self.error:
            return
        delta = _object(at(choice, ("delta",)))
        for call in map(_object, _list(delta.get("tool_calls"))):
            if self._call is None or not self._call.takes(call):
                yield from self._whole_call()
                self._call = _Call(call)
            self._call.add(call)
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        text = delta.get("content", at(choice, ("text",))) or delta.get("refusal")
        if isinstance(text, list):
            thought = thought or _thought_in(text)
            text = _text_in(text)
        if isinstance(thought, str) and thought:
            yield TextPart(text=thought, thinking=True)
        if isinstance(text, str) and text:
            logprobs = _list(at(choice, ("logprobs", "content")))
            yield TextPart(text=text, logprobs=[_without_id(entry) for entry in logprobs])
        reason = at(choice, ("finish_reason",))
        if isinstance(reason, str):
            yield from self._whole_call()
            self._reason = _REASONS.get(reason, reason)

    def _whole_call(self) -> Iterator[AnswerPart]:
        call = self._call
        self._call = None
        if call is not None:
            yield call.whole()

    def done(self, total_ns: int, parts: list[AnswerPart] | None = None) -> Generation:
        """The end of the answer; `total_ns`: what it took as a whole."""
        prompt = count_in(self._usage, "prompt_tokens") or 0
        cached = count_in(_object(self._usage.get("prompt_tokens_details")), "cached_tokens") or 0
        return Generation(
            parts=parts or [],
            reason=self._reason,
            prompt_tokens=prompt,
            output_tokens=count_in(self._usage, "completion_tokens") or 0,
            cached_tokens=min(cached, prompt),
            total_ns=total_ns,
            prompt_ns=_nanoseconds(self._timings, "prompt_ms"),
            output_ns=_nanoseconds(self._timings, "predicted_ms"),
        )


class _Call:
    """A tool call that comes bit by bit."""

    def __init__(self, first: JsonObject) -> None:
        self._first = first
        self._id = self._name = self._arguments = ""

    def takes(self, part: JsonObject) -> bool:
        """It is a part of this call."""
        return goes_on(self._first, part)

    def add(self, part: JsonObject) -> None:
        self._id = self._id or _string(part.get("id"))
        self._name += _string(at(part, ("function", "name")))
        self._arguments += arguments_in(at(part, ("function", "arguments")))

    def whole(self) -> ToolCall:
        arguments = decoded_arguments(self._arguments)
        return ToolCall(
            call_id=self._id, name=self._name, arguments=arguments, written=self._arguments
        )


def writer_for(
    route: Route, fields: JsonObject, model: str, name: str, created_wall_s: float
) -> Writer:
    """What writes the answer to a translated request with these fields.

    Args:
        name: that ids are made of. created_wall_s: in seconds since 1970.
    """
    if route.is_native:
        return NativeWriter(model, chat=route.path is Endpoint.CHAT)
    if route.dialect == "anthropic":
        return MessagesWriter(f"msg_{name}", model, estimated_tokens=prompt_tokens(fields))
    asked = {repeated: fields.get(repeated) for repeated in RESPONSE_REPEATS}
    response = response_in_progress(name, model, asked, created_wall_s)
    return ResponsesWriter(f"msg_{name}", response, incomplete=INCOMPLETE, shows_thoughts=True)


class DialectStream:
    """Says a stream again in the words of a writer's dialect."""

    def __init__(self, route: Route, writer: Writer) -> None:
        self._chunks = Chunks()
        self._route = route
        self._writer = writer
        self._is_over = False

    @property
    def is_in_call(self) -> bool:
        """A tool call has begun, of which no frame tells yet."""
        return self._chunks.is_in_call

    def feed(self, chunk: bytes, wall_s: float, total_ns: int) -> list[bytes]:
        """The frames that can be said now.

        Args:
            wall_s: now, in seconds since 1970. total_ns: since the request was sent.
        """
        frames: list[bytes] = []
        if self._is_over:
            return frames
        for part in self._chunks.feed(chunk):
            frames += self._writer.write(part, wall_s)
        if self._chunks.error:
            self._is_over = True
            error = BackendError(said_error(self._chunks.error))
            frames.append(stream_error(self._route, error, number=self._writer.next_number))
        elif self._chunks.is_over:
            frames += self.end(wall_s, total_ns)
        return frames

    def end(self, wall_s: float, total_ns: int) -> list[bytes]:
        """The frames after the last part, once; none where the answer was cut. Some servers end
        their stream without saying so.
        """
        done = self._chunks.done(total_ns)
        if self._is_over or done.reason is None:
            return []
        self._is_over = True
        if self._route.is_native:
            return [encode(self._writer.whole(done, wall_s) | _cached(done)) + b"\n"]
        return self._writer.end(done, wall_s)


def whole_answer(
    route: Route, writer: Writer, stream: bytes, wall_s: float, total_ns: int
) -> JsonObject | None:
    """A whole answer in the words of a dialect from a whole stream, or the error that it ends with;
    None where it was cut.
    """
    chunks = Chunks()
    parts = [*chunks.feed(stream)]
    if chunks.error:
        return {"error": chunks.error}
    done = chunks.done(total_ns, parts)
    if done.reason is None:
        return None
    return writer.whole(done, wall_s) | (_cached(done) if route.is_native else {})


def _cached(done: Generation) -> JsonObject:
    return {CACHED_COUNT: done.cached_tokens} if done.cached_tokens else {}


def native_embedding(
    path: Endpoint, fields: JsonObject, answer: bytes, total_ns: int
) -> JsonObject | None:
    """A native answer to a request with these fields from one of `/v1/embeddings`; None where it is
    none, or has not a vector for each input.
    """
    said = object_in(answer)
    listed = _list(said.get("data"))
    placed = {_index(one): at(one, ("embedding",)) for one in listed}
    vectors = [placed.get(index) for index in range(len(listed))]
    given = fields.get("input" if path is Endpoint.EMBED else "prompt")
    wanted = len(given) if isinstance(given, list) else 1
    if len(vectors) != wanted or not all(isinstance(vector, list) for vector in vectors):
        return None
    if path is Endpoint.EMBEDDINGS:
        return {"embedding": vectors[0]}
    counted = count_in(_object(said.get("usage")), "prompt_tokens")
    answered: JsonObject = {
        "model": fields.get("model"),
        "embeddings": vectors,
        "total_duration": total_ns,
    }
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


def _text_in(parts: JsonValue) -> str:
    """The texts of a content that comes in parts, as of Mistral's models that think."""
    return "".join([_string(at(part, ("text",))) for part in _list(parts)])


def _thought_in(parts: JsonValue) -> str:
    thoughts = (at(part, ("thinking",)) for part in _list(parts))
    return "".join([_string(one) or _text_in(one) for one in thoughts])


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
