"""`/v1/chat/completions` and `/v1/completions`: OpenAI's chat and text completions as Ollama answers them.

Field order and the grouping of events into writes as in ollama/ollama v0.33.0-rc2 (`openai` and `middleware`). Called by the server's
route table only.
"""

from __future__ import annotations

from dataclasses import dataclass

from hearth.dialects.gojson import JsonObject, bool_field, encode, integer_field, object_field, string_field
from hearth.emulator.errors import OllamaError, RunnerDied
from hearth.emulator.exchange import EVENTS, Call, Server, Sink, read_struct, send_v1
from hearth.emulator.logprobs import logprobs_of
from hearth.emulator.openai_asks import chat_ask, completion_ask
from hearth.emulator.session import Ask, Finished, Session, check_capabilities, open_session
from hearth.emulator.text import Piece, ToolCall

_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    shown: str
    chat: bool
    stream: bool
    include_usage: bool
    logprobs: bool
    top_logprobs: int
    ask: Ask


async def chat_completions(server: Server, call: Call, sink: Sink) -> None:
    """Raises `OllamaError`."""
    fields = read_struct(call, "openai.ChatCompletionRequest")
    request = _request(fields, "ChatCompletionRequest", chat_ask(fields), chat=True)
    await _answer(server, request, sink, task="chat")


async def completions(server: Server, call: Call, sink: Sink) -> None:
    """Raises `OllamaError`."""
    fields = read_struct(call, "openai.CompletionRequest")
    request = _request(fields, "CompletionRequest", completion_ask(fields), chat=False)
    await _answer(server, request, sink, task="generate")


def _request(fields: JsonObject, struct: str, ask: Ask, *, chat: bool) -> _Request:
    stream_options = object_field(fields, "stream_options", struct, "openai.StreamOptions")
    top = (integer_field(fields, "top_logprobs", struct) or 0) if chat else 0
    return _Request(
        shown=string_field(fields, "model", struct),
        chat=chat,
        stream=bool(bool_field(fields, "stream", struct)),
        include_usage=bool(bool_field(stream_options, "include_usage", "StreamOptions")),
        logprobs=chat and bool(bool_field(fields, "logprobs", struct)),
        top_logprobs=top,
        ask=ask,
    )


async def _answer(server: Server, request: _Request, sink: Sink, *, task: str) -> None:
    if not 0 <= request.top_logprobs <= 20:
        raise OllamaError(400, "top_logprobs must be between 0 and 20")
    if not request.shown and request.chat:
        raise OllamaError(400, "model is required")
    installed = server.catalogue.require(request.shown)
    check_capabilities(installed, request.shown, task=task, ask=request.ask)
    events = _Events(server, request)
    async with open_session(server, installed, request.ask) as session:
        if request.ask.render_only:
            await _send_rendered(events, session, sink, stream=request.stream)
        elif request.stream:
            sink.prepare(EVENTS)
            await _stream(events, session, sink)
        else:
            await send_v1(sink, events.whole(await session.speak()))


async def _send_rendered(events: _Events, session: Session, sink: Sink, *, stream: bool) -> None:
    """Nothing is said; a chat that does not stream shows its prompt."""
    if not stream:
        await send_v1(sink, events.rendered(session.rendered()))
        return
    await sink.whole(_event(events.piece(Piece(text=""))), EVENTS)


async def _stream(events: _Events, session: Session, sink: Sink) -> None:
    async def say(piece: Piece) -> None:
        await sink.chunk(_event(events.piece(piece)))

    try:
        finished = await session.speak(say, v1=True)
    except RunnerDied:
        if not sink.started:
            raise
        await sink.chunk(_event(events.broken()))
        return
    if finished.plan.tool is not None:
        await sink.chunk(_event(events.tool_call(finished.plan.tool)))
    if finished.plan.reason is not None:
        await sink.chunk(b"".join(map(_event, events.ending(finished))) + _DONE)


def _event(value: JsonObject) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


class _Events:
    """The JSON objects of one answer, keys in Go's order."""

    def __init__(self, server: Server, request: _Request) -> None:
        self._server = server
        self._request = request
        self._id = f"{'chatcmpl' if request.chat else 'cmpl'}-{server.rng.randrange(999)}"
        self._created = int(server.engine.clock.wall())
        self._begun = False

    def piece(self, piece: Piece) -> JsonObject:
        if not self._request.chat:
            return self._text_chunk(piece.text, None)
        said: JsonObject = {"content": "", "reasoning": piece.text} if piece.thinking else {"content": piece.text}
        return self._chat_chunk(self._delta(said), None, (piece,))

    def tool_call(self, call: ToolCall) -> JsonObject:
        return self._chat_chunk(self._delta({"content": "", "tool_calls": [self._tool_call(call)]}), None)

    def broken(self) -> JsonObject:
        """The last chunk of a stream whose runner died: empty text, no model, and nothing after it."""
        chunk = self._chat_chunk({"content": ""}, None) if self._request.chat else self._text_chunk("", None)
        return chunk | {"model": ""}

    def ending(self, finished: Finished) -> list[JsonObject]:
        reason = _reason(finished)
        last = self._chat_chunk({}, reason) if self._request.chat else self._text_chunk("", reason)
        return [last, self._usage_chunk(finished)] if self._request.include_usage else [last]

    def rendered(self, prompt: str) -> JsonObject:
        head = self._head("chat.completion" if self._request.chat else "text_completion")
        usage: JsonObject = {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
        if not self._request.chat:
            return head | self._made_by() | {"choices": [self._text_choice("", None)]} | usage
        choice: JsonObject = {"index": 0, "message": {"role": "", "content": ""}, "finish_reason": None}
        shown: JsonObject = {"_debug_info": {"rendered_template": prompt}}
        return head | self._made_by() | {"choices": [choice]} | usage | shown

    def whole(self, finished: Finished) -> JsonObject:
        head = self._head("chat.completion" if self._request.chat else "text_completion")
        choice = self._chat_choice(finished) if self._request.chat else self._text_choice(finished.text, _reason(finished))
        return head | self._made_by() | {"choices": [choice], "usage": _usage(finished)}

    def _delta(self, said: JsonObject) -> JsonObject:
        begun, self._begun = self._begun, True
        return said if begun else {"role": "assistant", **said}

    def _chat_chunk(self, delta: JsonObject, reason: str | None, pieces: tuple[Piece, ...] = ()) -> JsonObject:
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": reason, **self._logprobs(pieces)}
        return self._head("chat.completion.chunk") | self._made_by() | {"choices": [choice]}

    def _text_chunk(self, text: str, reason: str | None) -> JsonObject:
        chunk = self._head("text_completion") | {"choices": [self._text_choice(text, reason)]} | self._made_by()
        zero: JsonObject = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return chunk | {"usage": zero} if self._request.include_usage else chunk

    def _usage_chunk(self, finished: Finished) -> JsonObject:
        usage: JsonObject = {"usage": _usage(finished)}
        if self._request.chat:
            return self._head("chat.completion.chunk") | self._made_by() | {"choices": []} | usage
        return self._head("text_completion") | {"choices": []} | self._made_by() | usage

    def _head(self, kind: str) -> JsonObject:
        return {"id": self._id, "object": kind, "created": self._created}

    def _made_by(self) -> JsonObject:
        return {"model": self._request.shown, "system_fingerprint": "fp_ollama"}

    def _chat_choice(self, finished: Finished) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": finished.text}
        if finished.thinking:
            message["reasoning"] = finished.thinking
        if finished.plan.tool is not None:
            message["tool_calls"] = [self._tool_call(finished.plan.tool)]
        return {"index": 0, "message": message, "finish_reason": _reason(finished), **self._logprobs(finished.plan.pieces)}

    def _text_choice(self, text: str, reason: str | None) -> JsonObject:
        return {"text": text, "index": 0, "finish_reason": reason}

    def _tool_call(self, call: ToolCall) -> JsonObject:
        function: JsonObject = {"name": call.name, "arguments": encode(call.arguments).decode()}
        return {"id": self._server.hex_id("call_", 8), "index": 0, "type": "function", "function": function}

    def _logprobs(self, pieces: tuple[Piece, ...]) -> JsonObject:
        if not (self._request.logprobs and pieces):
            return {}
        return {"logprobs": {"content": logprobs_of(pieces, top=self._request.top_logprobs)}}


def _reason(finished: Finished) -> str | None:
    return "tool_calls" if finished.plan.tool is not None else finished.plan.reason


def _usage(finished: Finished) -> JsonObject:
    prompt, output = finished.measured.prompt_tokens, finished.measured.eval_tokens
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


async def transcriptions(server: Server, call: Call, sink: Sink) -> None:
    """`POST /v1/audio/transcriptions`: no emulated model hears anything."""
    del server, sink
    if not call.body.startswith(b"--"):
        text = "failed to parse multipart form: request Content-Type isn't multipart/form-data"
        raise OllamaError(400, text, at_bind=True)
    raise OllamaError(400, "this model does not support audio")
