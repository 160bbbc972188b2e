"""Streams of every dialect from the gateway's own writers, which other tests hold to recordings; runs differ in names and cuts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from hearth.dialects.frames import WholeFrames, event, frame_of
from hearth.dialects.gojson import JsonObject
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.dialects.writers import (
    Generation,
    MessagesWriter,
    NativeWriter,
    OpenAiWriter,
    ResponsesWriter,
    Said,
    Text,
    ToolCall,
    Writer,
    response_in_progress,
)

ROUTES = ["/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"]
TEXT_ONLY = frozenset({"/api/generate", "/v1/completions"})
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

    def digits(self) -> int:
        return self.rng.randrange(1, 10**6)

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


def route(path: str) -> Route:
    return INFERENCE_ROUTES[path]


def stream(path: str, answer: Answer, run: Run) -> list[bytes]:
    """The frames of one run."""
    thoughts = "".join(text for kind, text in answer.parts if kind == "thinking")
    item, reasoned = _reasoning(thoughts, run) if thoughts and path == "/v1/responses" else ({}, [])
    writer, wall_s = _writer(path, run, [item] if item else []), 1_795_220_000.0 + run.digits() / 512
    written, said = [*writer.begin(), *reasoned], list[Said]()
    for kind, text in answer.parts:
        if kind == "call":
            name, arguments = json.loads(text)
            said.append(ToolCall(call_id=f"call_{run.digits()}", name=name, arguments=arguments))
        else:
            said += [Text(text=piece, thinking=kind == "thinking") for piece in run.cut(text)]
    for part in said:
        written += writer.say(part, wall_s)
    counts = {"prompt_tokens": run.prompt_tokens, "output_tokens": 6, "total_ns": run.digits(), "output_ns": run.digits()}
    context = (1, 2, 33) if path == "/api/generate" else ()
    written += writer.end(Generation(said=said, reason=answer.reason, context=context, **counts), wall_s)
    frames = [frame_of(route(path), raw) for raw in WholeFrames(route(path)).split(b"".join(written))]
    if path == "/v1/responses":
        frames = [frame.saying({**frame.fields, "sequence_number": number}) for number, frame in enumerate(frames)]
    return [frame.raw for frame in frames]


def _writer(path: str, run: Run, items: list[JsonObject]) -> Writer:
    name, created_wall_s = str(run.digits()), 1795220000.0 + run.digits()
    if path.startswith("/api/"):
        return NativeWriter("m", chat=path == "/api/chat")
    if path == "/v1/messages":
        return MessagesWriter(f"msg_{name}", "m", estimated_tokens=2)
    if path == "/v1/responses":
        return ResponsesWriter(name, response_in_progress(name, "m", {"tools": [{"id": "mine"}]}, created_wall_s), items=items)
    chat = path == "/v1/chat/completions"
    return OpenAiWriter(name, "m", chat=chat, created_wall_s=created_wall_s, made_by="fp_ollama", include_usage=run.usage)


def _reasoning(thoughts: str, run: Run) -> tuple[JsonObject, list[bytes]]:
    """The item of a response that shows thoughts, and its events, which the gateway itself never writes."""
    item: JsonObject = {"id": f"rs_{run.digits()}", "summary": [{"text": thoughts, "type": "summary_text"}], "type": "reasoning"}
    place: JsonObject = {"item_id": item["id"], "output_index": 0, "sequence_number": 0}
    kind = "response.reasoning_summary_text"
    return item, [
        event({"item": {**item, "summary": []}, "output_index": 0, "sequence_number": 0, "type": "response.output_item.added"}),
        *(event({"delta": piece, **place, "type": f"{kind}.delta"}) for piece in run.cut(thoughts)),
        event({**place, "text": thoughts, "type": f"{kind}.done"}),
        event({"item": item, "output_index": 0, "sequence_number": 0, "type": "response.output_item.done"}),
    ]
