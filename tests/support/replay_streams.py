"""Streams of every dialect from the gateway's own writers, which other tests hold to recordings;
runs differ in names and cuts. An interrupted one is played: what is sent, said again and continued.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hearth.dialects.frames import WholeFrames, event, frame_of
from hearth.dialects.gojson import JsonObject, encode
from hearth.dialects.messages_writer import MessagesWriter
from hearth.dialects.replay import Replay, Sent
from hearth.dialects.responses_writer import ResponsesWriter, response_in_progress
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.dialects.writers import (
    AnswerPart,
    Generation,
    NativeWriter,
    OpenAiWriter,
    TextPart,
    ToolCall,
    Writer,
)
from hearth.types import LoadedModel, frozen
from tests.support.fields import Fields

ROUTES = [
    "/api/chat",
    "/api/generate",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
]
TEXT_ONLY = frozenset({"/api/generate", "/v1/completions"})
Part = tuple[str, str]
"""`thinking` or `content` with its text; `call` with `[name, arguments]` as JSON."""

_LETTERS = 'ab é😀ß中\u2028\u0085\x00\x1f"\\<&>\n\r\t{}[]:, \u00a0\ufffd�\x7f\b\f'


@frozen
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
    return json.dumps(
        [some_text(rng, 5), {some_text(rng, 4): some_text(rng, 8), "id": rng.randrange(9)}]
    )


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
    writer = _writer(path, run, [item] if item else [])
    wall_s = 1_795_220_000.0 + run.digits() / 512
    written = [*writer.begin(), *reasoned]
    said = list[AnswerPart]()
    for kind, text in answer.parts:
        if kind == "call":
            name, arguments = json.loads(text)
            said.append(ToolCall(call_id=f"call_{run.digits()}", name=name, arguments=arguments))
        else:
            said += [TextPart(text=piece, thinking=kind == "thinking") for piece in run.cut(text)]
    for part in said:
        written += writer.write(part, wall_s)
    counts = {
        "prompt_tokens": run.prompt_tokens,
        "output_tokens": 6,
        "total_ns": run.digits(),
        "output_ns": run.digits(),
    }
    context = (1, 2, 33) if path == "/api/generate" else ()
    written += writer.end(
        Generation(parts=said, reason=answer.reason, context=context, **counts), wall_s
    )
    frames = [
        frame_of(route(path), raw) for raw in WholeFrames(route(path)).split(b"".join(written))
    ]
    if path == "/v1/responses":
        frames = [
            frame.saying({**frame.fields, "sequence_number": number})
            for number, frame in enumerate(frames)
        ]
    return [frame.raw for frame in frames]


def _writer(path: str, run: Run, items: list[JsonObject]) -> Writer:
    name = str(run.digits())
    created_wall_s = 1795220000.0 + run.digits()
    if path.startswith("/api/"):
        return NativeWriter("m", chat=path == "/api/chat")
    if path == "/v1/messages":
        return MessagesWriter(f"msg_{name}", "m", estimated_tokens=2)
    if path == "/v1/responses":
        return ResponsesWriter(
            f"msg_{name}",
            response_in_progress(name, "m", {"tools": [{"id": "mine"}]}, created_wall_s),
            items=items,
        )
    chat = path == "/v1/chat/completions"
    return OpenAiWriter(
        f"chatcmpl-{name}" if chat else f"cmpl-{name}",
        "m",
        chat=chat,
        created_wall_s=created_wall_s,
        made_by="fp_ollama",
        include_usage=run.usage,
    )


def _reasoning(thoughts: str, run: Run) -> tuple[JsonObject, list[bytes]]:
    """The item of a response that shows thoughts, and its events, which the gateway itself never
    writes.
    """
    item: JsonObject = {
        "id": f"rs_{run.digits()}",
        "summary": [{"text": thoughts, "type": "summary_text"}],
        "type": "reasoning",
    }
    place: JsonObject = {"item_id": item["id"], "output_index": 0, "sequence_number": 0}
    kind = "response.reasoning_summary_text"
    return item, [
        event(
            {
                "item": {**item, "summary": []},
                "output_index": 0,
                "sequence_number": 0,
                "type": "response.output_item.added",
            }
        ),
        *(event({"delta": piece, **place, "type": f"{kind}.delta"}) for piece in run.cut(thoughts)),
        event({**place, "text": thoughts, "type": f"{kind}.done"}),
        event(
            {
                "item": item,
                "output_index": 0,
                "sequence_number": 0,
                "type": "response.output_item.done",
            }
        ),
    ]


LIMIT_BYTES = 1_000_000


def chunked(data: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes, cut anywhere: whole, by the byte, or at random places."""
    size = rng.choice((len(data) + 1, 1, 7, 60, 300))
    return [data[start : start + size] for start in range(0, len(data), size)]


def sent_of(path: str, data: bytes) -> Sent:
    """What a caller has been given of `data`: its whole frames."""
    sent = Sent(route(path), limit_bytes=LIMIT_BYTES, written_by=LoadedModel())
    sent.feed(b"".join(sent.whole((data,))))
    return sent


def go_on(
    path: str, sent: Sent, data: bytes, rng: random.Random, *, to_its_end: bool = True
) -> bytes:
    """What the caller gets of another run; it is added to `sent` as it goes."""
    replay = Replay(route(path), sent)
    out = b""
    for chunk in chunked(data, rng):
        told_again = replay.feed(chunk)
        assert not told_again or replay.caught_up
        sent.feed(told_again)
        out += told_again
    rest = replay.finish() if to_its_end else b""
    sent.feed(rest)
    return out + rest


def interrupted(path: str, answer: Answer, rng: random.Random) -> bytes:
    """All that the caller sees of an answer that is interrupted up to three times, at any byte."""
    first = b"".join(stream(path, answer, Run(rng=rng)))
    sent = sent_of(path, first[: rng.randrange(1, len(first) + 1)])
    seen = sent.data
    for _ in range(rng.randrange(3)):
        again = b"".join(stream(path, answer, Run(rng=rng)))
        seen += go_on(path, sent, again[: rng.randrange(len(again))], rng, to_its_end=False)
    seen += go_on(path, sent, b"".join(stream(path, answer, Run(rng=rng))), rng)
    assert sent.data == seen
    return seen


def expected(path: str, answer: Answer) -> Answer:
    """The answer as its reader takes it: who calls a tool says so as the reason to end, where the
    dialect has a word for that.
    """
    called = any(kind == "call" for kind, _ in answer.parts)
    by_calls = called and (
        path == "/v1/messages" or (path == "/v1/chat/completions" and answer.reason == "stop")
    )
    return Answer(
        parts=answer.parts,
        reason="stop" if path == "/v1/responses" else "tool_calls" if by_calls else answer.reason,
    )


# Requests for such streams, and what a model server says when one of them goes on.

TURNS = [{"role": "user", "content": "hello"}]
BODIES: dict[str, Fields] = {
    "/api/chat": {"messages": TURNS},
    "/api/generate": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": TURNS, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": "hello", "stream_options": {"include_usage": True}},
    "/v1/messages": {"messages": TURNS, "max_tokens": 9999},
    "/v1/responses": {"input": "hello"},
}

SCHEMA: JsonObject = {"type": "object"}
TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "find", "description": "Finds", "parameters": SCHEMA},
}


def offering(path: str) -> Fields:
    """The tool in the words of a route."""
    told = {"name": "find", "description": "Finds"}
    by_path: Fields = {
        "/v1/messages": {**told, "input_schema": SCHEMA},
        "/v1/responses": {**told, "type": "function", "parameters": SCHEMA, "strict": None},
    }
    return {"tools": [by_path.get(path, TOOL)]}


CHATS = [path for path in ROUTES if path not in ("/api/generate", "/v1/completions")]
TOLD_BY = {"/v1/chat/completions": "tool_calls", "/v1/messages": "tool_calls"}
"""How an answer that calls a tool ends, where that is not `stop`."""


def native_rest(
    rest: str, *, done: str = "stop", cut: Run | None = None, calls: Sequence[str] | None = None
) -> bytes:
    """What a model server says to `raw`; with `calls` to `/api/chat` with the beginning of an
    answer.
    """
    said: list[Fields] = [
        {"content": piece} for piece in (cut or Run(rng=random.Random(1))).cut(rest)
    ]
    for number, (name, arguments) in enumerate(map(json.loads, calls or ())):
        called = {
            "id": f"call_{number}",
            "function": {"index": number, "name": name, "arguments": arguments},
        }
        said.append({"content": "", "tool_calls": [called]})
    counts = {
        "total_duration": 5,
        "prompt_eval_count": 30,
        "eval_count": len(said),
        "eval_duration": 3,
    }
    lines: list[tuple[Fields, Fields]] = [(one, {"done": False}) for one in said]
    lines += [({"content": ""}, {"done": True, "done_reason": done, **counts})]
    head: Fields = {"model": "m", "created_at": "2026-11-21T02:09:14.5Z"}
    shaped = [
        (
            {"response": one["content"]}
            if calls is None
            else {"message": {"role": "assistant", **one}},
            end,
        )
        for one, end in lines
    ]
    return b"".join(encode({**head, **one, **end}) + b"\n" for one, end in shaped)
