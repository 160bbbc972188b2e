"""The official clients read an interrupted and continued stream as they read an uninterrupted one."""

from __future__ import annotations

import json
import random

from hearth.dialects.replay import Replay
from tests.dialects.replay_play import sent_of
from tests.dialects.replay_streams import Answer, Run, route, some_text, stream
from tests.dialects.test_official_clients import anthropic_client, ollama_client, openai_client
from tests.support.cases import for_each

CASES = range(12)
MESSAGES = [{"role": "user", "content": "x"}]
SSE = "text/event-stream"


def continued(path: str, case: int) -> tuple[Answer, bytes]:
    """An answer and its stream, interrupted at a random byte, said again and continued."""
    rng = random.Random(f"{path} {case}")
    call = ("call", json.dumps(["look_up", {"word": "a\u00e9" + "b" * rng.randrange(9)}]))
    calls = () if path in ("/v1/completions", "/api/generate") else (call,)
    # U+0085 ends a line for the ollama client and is left out
    texts = tuple(some_text(rng, 30).replace("\u0085", "") + "z" for _ in range(2))
    thinking = () if path == "/v1/completions" else (("thinking", texts[0]),)
    answer = Answer(parts=(*thinking, ("content", texts[1]), *calls))
    first, second = (b"".join(stream(path, answer, Run(rng=rng))) for _ in range(2))
    cut = rng.randrange(1, len(first))
    sent = sent_of(path, first[:cut])
    replay = Replay(route(path), sent)
    return answer, sent.data + replay.feed(second) + replay.finish()


def said(answer: Answer, kind: str) -> str:
    return "".join(text for part, text in answer.parts if part == kind)


def called(answer: Answer) -> list[tuple[str, object]]:
    return [tuple(json.loads(text)) for kind, text in answer.parts if kind == "call"]


@for_each("case", CASES)
def test_the_ollama_client_reads_a_continued_chat(case: int) -> None:
    answer, body = continued("/api/chat", case)
    parts = list(ollama_client(200, "application/x-ndjson", body).chat(model="m", messages=MESSAGES, stream=True))
    assert "".join(part.message.content or "" for part in parts) == said(answer, "content")
    assert "".join(part.message.thinking or "" for part in parts) == said(answer, "thinking")
    calls = [call.function for part in parts for call in part.message.tool_calls or ()]
    assert [(call.name, dict(call.arguments)) for call in calls] == called(answer)
    assert [part.done for part in parts].count(True) == 1


@for_each("case", CASES)
def test_the_ollama_client_reads_a_continued_generation(case: int) -> None:
    answer, body = continued("/api/generate", case)
    parts = list(ollama_client(200, "application/x-ndjson", body).generate(model="m", prompt="x", stream=True))
    assert "".join(part.response or "" for part in parts) == said(answer, "content")
    assert parts[-1].context == [1, 2, 33]


@for_each("case", CASES)
def test_the_openai_client_reads_a_continued_chat(case: int) -> None:
    answer, body = continued("/v1/chat/completions", case)
    chunks = list(
        openai_client(200, SSE, body).chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
    )
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == said(answer, "content")
    calls = [call.function for delta in deltas for call in delta.tool_calls or () if call.function]
    assert [(call.name, json.loads(call.arguments or "")) for call in calls] == called(answer)
    assert chunks[-1].usage is not None


@for_each("case", CASES)
def test_the_openai_client_reads_a_continued_completion(case: int) -> None:
    answer, body = continued("/v1/completions", case)
    chunks = list(openai_client(200, SSE, body).completions.create(model="m", prompt="x", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == said(answer, "content")


@for_each("case", CASES)
def test_the_openai_client_reads_a_continued_response(case: int) -> None:
    answer, body = continued("/v1/responses", case)
    events = list(openai_client(200, SSE, body).responses.create(model="m", input="x", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == said(answer, "content")
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == text


@for_each("case", CASES)
def test_the_anthropic_client_gathers_a_continued_message(case: int) -> None:
    answer, body = continued("/v1/messages", case)
    with anthropic_client(200, SSE, body).messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as events:
        message = events.get_final_message()
    assert "".join(block.thinking for block in message.content if block.type == "thinking") == said(answer, "thinking")
    assert "".join(block.text for block in message.content if block.type == "text") == said(answer, "content")
    assert [(block.name, block.input) for block in message.content if block.type == "tool_use"] == called(answer)
