"""Answers written as streams of every dialect, as the captures show them: frames, key order, where a name is repeated."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hearth.dialects.gojson import JsonObject, encode
from hearth.dialects.routes import INFERENCE_ROUTES, Route

ROUTES = [
    "/api/chat",
    "/api/generate",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
]
TEXT_ONLY = frozenset({"/api/generate", "/v1/completions"})
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
Part = tuple[str, str]
"""`thinking` or `content` with its text; `call` with `[name, arguments]` as JSON."""

_LETTERS = 'ab é😀ß中\u2028\u0085\x00\x1f"\\<&>\n\r\t{}[]:, \u00a0\ufffd�\x7f\b\f'


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model says, and how it ends."""

    parts: tuple[Part, ...]
    reason: str = "stop"

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.parts)


@dataclass(slots=True)
class Run:
    """What differs from run to run: ids, dates, counters, where texts are cut."""

    rng: random.Random
    usage: bool = True
    prompt_tokens: int = 24
    names: dict[str, Any] = field(default_factory=dict)

    def digits(self) -> int:
        return self.rng.randrange(1, 10**6)

    def moment(self) -> str:
        return f"2026-11-21T02:{self.rng.randrange(60):02}:{self.rng.randrange(60):02}.{self.rng.randrange(10**9):09}".rstrip("0") + "1Z"

    def cut(self, text: str) -> Iterator[str]:
        while text:
            size = self.rng.randrange(1, 6)
            yield text[:size]
            text = text[size:]


def some_text(rng: random.Random, longest: int) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randrange(1, longest)))


def some_call(rng: random.Random) -> str:
    return json.dumps([some_text(rng, 5), {some_text(rng, 4): some_text(rng, 8), "id": rng.randrange(9)}])


def some_answer(rng: random.Random, path: str, *, longest: int = 12) -> Answer:
    parts: list[Part] = []
    if path != "/v1/completions" and rng.random() < 0.4:
        parts.append(("thinking", some_text(rng, longest)))
    if rng.random() < 0.9 or not parts:
        parts.append(("content", some_text(rng, longest)))
    if path not in TEXT_ONLY:
        parts.extend(("call", some_call(rng)) for _ in range(rng.choice((0, 0, 1, 2))))
    return Answer(parts=tuple(parts), reason=rng.choice(("stop", "length")))


def stream(path: str, answer: Answer, run: Run) -> list[bytes]:
    """The frames of one run."""
    return list(_WRITERS[path](answer, run))


def route(path: str) -> Route:
    return INFERENCE_ROUTES[path]


def _line(value: JsonObject) -> bytes:
    return encode(value) + b"\n"


def _data(value: JsonObject) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def _event(value: JsonObject) -> bytes:
    return f"event: {value['type']}\ndata: ".encode() + encode(value) + b"\n\n"


def _native(answer: Answer, run: Run, *, chat: bool) -> Iterator[bytes]:
    def frame(said: dict[str, Any], end: dict[str, Any]) -> bytes:
        body = {"message": {"role": "assistant", **said}} if chat else {("response" if k == "content" else k): v for k, v in said.items()}
        return _line({"model": "m", "created_at": run.moment(), **body, **end})

    calls = 0
    for kind, text in answer.parts:
        if kind == "call":
            name, arguments = json.loads(text)
            call = {"id": f"call_{run.digits()}", "function": {"index": calls, "name": name, "arguments": arguments}}
            calls += 1
            yield frame({"content": "", "tool_calls": [call]}, {"done": False})
            continue
        for piece in run.cut(text):
            said = {"content": "", "thinking": piece} if kind == "thinking" else {"content": piece}
            yield frame(said, {"done": False})
        if len(text) % 3 == 0:
            yield frame({"content": ""}, {"done": False})
    counters = {"total_duration": run.digits(), "prompt_eval_count": run.prompt_tokens, "eval_count": 6, "eval_duration": run.digits()}
    context = {} if chat else {"context": [1, 2, 33]}
    yield frame({"content": ""}, {"done": True, "done_reason": answer.reason, **context, **counters})


def _chat(answer: Answer, run: Run) -> Iterator[bytes]:
    return _native(answer, run, chat=True)


def _generate(answer: Answer, run: Run) -> Iterator[bytes]:
    return _native(answer, run, chat=False)


def _openai_chat(answer: Answer, run: Run) -> Iterator[bytes]:
    head: JsonObject = {"id": f"chatcmpl-{run.digits()}", "object": "chat.completion.chunk", "created": 1795220000 + run.digits()}
    head |= {"model": "m", "system_fingerprint": "fp_ollama"}
    role: JsonObject = {"role": "assistant"}
    calls = 0
    for kind, text in answer.parts:
        pieces = [text] if kind == "call" else run.cut(text)
        for piece in pieces:
            delta: JsonObject = {**role, "content": "" if kind != "content" else piece}
            role = {}
            if kind == "thinking":
                delta["reasoning"] = piece
            if kind == "call":
                name, arguments = json.loads(text)
                function: JsonObject = {"name": name, "arguments": encode(arguments).decode()}
                delta["tool_calls"] = [{"id": f"call_{run.digits()}", "index": calls, "type": "function", "function": function}]
                calls += 1
            yield _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _data({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": answer.reason}]})
    if run.usage:
        usage: JsonObject = {"prompt_tokens": run.prompt_tokens, "completion_tokens": 6, "total_tokens": run.prompt_tokens + 6}
        yield _data({**head, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _openai_text(answer: Answer, run: Run) -> Iterator[bytes]:
    head: JsonObject = {"id": f"cmpl-{run.digits()}", "object": "text_completion", "created": 1795220000 + run.digits()}
    zero: JsonObject = {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}} if run.usage else {}
    foot: JsonObject = {"model": "m", "system_fingerprint": "fp_ollama"}

    def frame(text: str, reason: str | None) -> bytes:
        return _data({**head, "choices": [{"text": text, "index": 0, "finish_reason": reason}], **foot, **zero})

    for _, text in answer.parts:
        for piece in run.cut(text):
            yield frame(piece, None)
    yield frame("", answer.reason)
    if run.usage:
        yield _data({**head, "choices": [], **foot, "usage": {"prompt_tokens": 24, "completion_tokens": 6, "total_tokens": 30}})
    yield b"data: [DONE]\n\n"


def _anthropic(answer: Answer, run: Run) -> Iterator[bytes]:
    message: JsonObject = {"id": f"msg_{run.digits():024x}", "type": "message", "role": "assistant", "model": "m", "content": []}
    yield _event({"type": "message_start", "message": {**message, "usage": {"input_tokens": 2, "output_tokens": 0}}})
    for index, (kind, text) in enumerate(answer.parts):
        if kind == "call":
            name, arguments = json.loads(text)
            block: JsonObject = {"type": "tool_use", "id": f"call_{run.digits()}", "name": name, "input": {}}
            deltas: list[JsonObject] = [{"type": "input_json_delta", "partial_json": p} for p in run.cut(encode(arguments).decode())]
        else:
            key = "thinking" if kind == "thinking" else "text"
            block = {"type": key, key: ""}
            deltas = [{"type": f"{key}_delta", key: piece} for piece in run.cut(text)]
        yield _event({"type": "content_block_start", "index": index, "content_block": block})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    usage: JsonObject = {"input_tokens": run.prompt_tokens, "output_tokens": 6}
    yield _event({"type": "message_delta", "delta": {"stop_reason": STOP_REASONS[answer.reason]}, "usage": usage})
    yield _event({"type": "message_stop"})


class _ResponseWriter:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.number = 0
        self.frame: JsonObject = {
            "background": False,
            "completed_at": None,
            "created_at": 1795220000 + run.digits(),
            "id": f"resp_{run.digits()}",
            "metadata": {"id": "mine"},
            "model": "m",
            "object": "response",
            "output": [],
            "status": "in_progress",
            "usage": None,
        }

    def event(self, kind: str, **rest: Any) -> bytes:
        fields: JsonObject = {**rest, "sequence_number": self.number, "type": f"response.{kind}"}
        self.number += 1
        return _event({key: fields[key] for key in sorted(fields)})


def _responses(answer: Answer, run: Run) -> Iterator[bytes]:
    write = _ResponseWriter(run)
    output: list[JsonObject] = []
    yield write.event("created", response=write.frame)
    yield write.event("in_progress", response=write.frame)
    for index, (kind, text) in enumerate(answer.parts):
        frames, item = _response_item(write, index, kind, text)
        output.append(item)
        yield from frames
    usage: JsonObject = {"input_tokens": run.prompt_tokens, "output_tokens": 6, "total_tokens": run.prompt_tokens + 6}
    done: JsonObject = {"completed_at": run.digits(), "output": list(output), "status": "completed", "usage": usage}
    yield write.event("completed", response={**write.frame, **done})


def _response_item(write: _ResponseWriter, index: int, kind: str, text: str) -> tuple[list[bytes], JsonObject]:
    done: JsonObject
    if kind == "call":
        name, arguments = json.loads(text)
        said, call = encode(arguments).decode(), f"call_{write.run.digits()}"
        item: JsonObject = {"arguments": said, "call_id": call, "id": f"fc_{call}", "name": name, "status": "completed"}
        item["type"] = "function_call"
        begun: JsonObject = {**item, "arguments": "", "status": "in_progress"}
        delta, done = "function_call_arguments", {"arguments": said}
    elif kind == "thinking":
        said = text
        item = {"id": f"rs_{write.run.digits()}", "summary": [{"text": text, "type": "summary_text"}], "type": "reasoning"}
        begun = {**item, "summary": []}
        delta, done = "reasoning_summary_text", {"text": text}
    else:
        said = text
        part: JsonObject = {"annotations": [], "logprobs": [], "text": text, "type": "output_text"}
        item = {"content": [part], "id": f"msg_{write.run.digits()}", "role": "assistant", "status": "completed", "type": "message"}
        begun = {**item, "content": []}
        begun["status"] = "in_progress"
        delta, done = "output_text", {"logprobs": [], "text": text}
    place: dict[str, Any] = {"item_id": item["id"], "output_index": index}
    frames = [write.event("output_item.added", item=begun, output_index=index)]
    more: dict[str, Any] = {}
    if delta == "output_text":
        place["content_index"], more = 0, {"logprobs": []}
        frames.append(write.event("content_part.added", part={**part, "text": ""}, **place))
    frames += [write.event(f"{delta}.delta", delta=piece, **more, **place) for piece in write.run.cut(said)]
    frames.append(write.event(f"{delta}.done", **done, **place))
    if delta == "output_text":
        frames.append(write.event("content_part.done", part=part, **place))
    frames.append(write.event("output_item.done", item=item, output_index=index))
    return frames, item


_WRITERS: dict[str, Callable[[Answer, Run], Iterator[bytes]]] = {
    "/api/chat": _chat,
    "/api/generate": _generate,
    "/v1/chat/completions": _openai_chat,
    "/v1/completions": _openai_text,
    "/v1/messages": _anthropic,
    "/v1/responses": _responses,
}
