"""The bytes that a fake Ollama answers with: native lines, OpenAI and Anthropic events, errors in each dialect's own shape.

Pure: what is said comes in as arguments. Key order and framing follow answers of a real Ollama 0.33. Used by `fake_ollama` only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any
from zlib import crc32

from hearth.types import Headers, InstalledModel, ResidentModel
from tests.support.virtual_time import WALL_AT_START

NATIVE_JSON = b"application/json; charset=utf-8"
EMBED_PATHS = frozenset({"/api/embed", "/api/embeddings", "/v1/embeddings"})
TEXT_PATHS = frozenset({"/api/generate", "/api/chat", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"})
OUT_OF_ORDER = "timed out waiting for llama-server to start"
RUNNER_DIED = "an error was encountered while running the model: unexpected EOF"
VERSION = "0.33.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How one call is served.

    Attributes:
        service_s: from the call to its last byte.
        first_byte_s: from the call to its first byte, where it streams (else the answer comes as a whole at the end).
        words: the text, one chunk each.
        frames: the chunks of a stream as they are, in place of the words.
        done_reason: of a native stream.
    """

    service_s: float = 1.0
    first_byte_s: float = 0.1
    words: tuple[str, ...] = (" alpha", " beta", " gamma")
    prompt_tokens: int = 10
    frames: tuple[bytes, ...] = ()
    done_reason: str = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer: `chunks` are the HTTP chunks of the body, the last one carrying the dialect's terminator."""

    status: int
    headers: Headers
    chunks: tuple[bytes, ...]

    def cut_to(self, chunks: tuple[bytes, ...]) -> Answer:
        headers = tuple((name, value) for name, value in self.headers if name != b"content-length")
        return Answer(status=self.status, headers=headers, chunks=chunks)


def needs_model(path: str) -> bool:
    return path.partition("?")[0] in EMBED_PATHS | TEXT_PATHS


def is_embedding(path: str) -> bool:
    return path.partition("?")[0] in EMBED_PATHS


def listing(path: str, installed: tuple[InstalledModel, ...], resident: tuple[ResidentModel, ...]) -> Answer:
    """The routes that compute nothing; 404 for those that do not exist."""
    known: dict[str, dict[str, Any]] = {
        "/api/version": {"version": VERSION},
        "/api/tags": {
            "models": [{"name": one.name, "model": one.name, "size": 1, "digest": one.digest, "details": {}} for one in installed]
        },
        "/api/ps": {"models": [_listed(model) for model in resident]},
        "/api/show": {"modelfile": "", "details": {}, "model_info": {}, "capabilities": ["completion"]},
        "/v1/models": {"object": "list", "data": [{"id": one.name, "object": "model", "owned_by": "library"} for one in installed]},
    }
    route = path.partition("?")[0]
    if route in known:
        return _json(known[route], route)
    return Answer(status=404, headers=((b"content-type", b"text/plain"),), chunks=(b"404 page not found",))


def _listed(model: ResidentModel) -> dict[str, Any]:
    sizes = {"size": round(model.size_mib * 1048576), "size_vram": round(model.vram_mib * 1048576)}
    return {"name": model.name, "model": model.name, **sizes, "context_length": model.context_tokens}


def answer(path: str, body: Mapping[str, Any], service: Service, at: float) -> Answer:
    """What Ollama would say to a call with this body, first asked at loop time `at`."""
    route = path.partition("?")[0]
    if route in EMBED_PATHS:
        return _json(_embedding(route, body, service), route)
    if not _is_streaming(route, body):
        return _json(_whole(route, body, service, at), route)
    if route.startswith("/v1/"):
        events = service.frames or _events(route, body, service)
        return Answer(status=200, headers=((b"content-type", b"text/event-stream"),), chunks=events)
    return Answer(
        status=200, headers=((b"content-type", b"application/x-ndjson"),), chunks=service.frames or _native_lines(route, body, service, at)
    )


def error(path: str, status: int, text: str) -> Answer:
    if path.startswith("/v1/messages"):
        kind = "not_found_error" if status == 404 else "api_error"
        return _json({"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_0"}, path, status)
    if path.startswith("/v1/"):
        kind = "not_found_error" if status == 404 else "api_error"
        return _json({"error": {"message": text, "type": kind, "param": None, "code": None}}, path, status)
    return _json({"error": text}, path, status)


def error_line(text: str) -> bytes:
    """The line that ends a native stream whose runner has died."""
    return _line({"error": text})


def _is_streaming(route: str, body: Mapping[str, Any]) -> bool:
    return bool(body.get("stream", not route.startswith("/v1/")))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _json(value: Mapping[str, Any], route: str, status: int = 200) -> Answer:
    is_native = not route.startswith("/v1/")
    body = _line(value).rstrip(b"\n") if is_native else _line(value)
    headers = ((b"content-type", NATIVE_JSON if is_native else b"application/json"), (b"content-length", b"%d" % len(body)))
    return Answer(status=status, headers=headers, chunks=(body,))


def _created(at: float) -> str:
    return datetime.fromtimestamp(WALL_AT_START + at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _said(route: str, text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}} if route == "/api/chat" else {"response": text}


def _timings(service: Service) -> dict[str, int]:
    decode_s = max(0.0, service.service_s - service.first_byte_s)
    return {
        "total_duration": round(service.service_s * 1e9),
        "load_duration": 1_000_000,
        "prompt_eval_count": service.prompt_tokens,
        "prompt_eval_duration": round(service.first_byte_s * 1e9),
        "eval_count": len(service.words),
        "eval_duration": round(decode_s * 1e9),
    }


def _native_lines(route: str, body: Mapping[str, Any], service: Service, at: float) -> tuple[bytes, ...]:
    head = {"model": body["model"], "created_at": _created(at)}
    said = [_line({**head, **_said(route, word), "done": False}) for word in service.words]
    return (*said, _line({**head, **_said(route, ""), "done": True, "done_reason": service.done_reason, **_timings(service)}))


def rendering(path: str, body: Mapping[str, Any], at: float) -> Answer:
    """The prompt that a body becomes, for `_debug_render_only`: each turn with its role, then the assistant's, unless it has begun."""
    turns = body.get("messages") or [{"role": "user", "content": body.get("prompt", "")}]
    thought = "".join(f"<think>{turn['thinking']}</think>" for turn in turns if turn.get("thinking"))
    prompt = "".join(f"<{turn['role']}>{thought if turn['role'] == 'assistant' else ''}{turn['content']}" for turn in turns)
    prompt += "" if turns[-1]["role"] == "assistant" else "<assistant>"
    said = {"message": {"role": "", "content": ""}} if path == "/api/chat" else {"response": ""}
    shown = {"_debug_info": {"rendered_template": body["prompt"] if body.get("raw") else prompt}}
    return _json({"model": body["model"], "created_at": _created(at), **said, "done": False, **shown}, path)


def _whole(route: str, body: Mapping[str, Any], service: Service, at: float) -> dict[str, Any]:
    text, spoken = "".join(service.words), len(service.words)
    if route == "/v1/messages":
        usage = {"input_tokens": service.prompt_tokens, "output_tokens": spoken}
        content = [{"type": "text", "text": text}]
        head = {"id": "msg_0", "type": "message", "role": "assistant", "model": body["model"]}
        return {**head, "content": content, "stop_reason": "end_turn", "usage": usage}
    if route.startswith("/v1/"):
        is_chat = route == "/v1/chat/completions"
        kind = "chat.completion" if is_chat else "text_completion"
        said = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        usage = {"prompt_tokens": service.prompt_tokens, "completion_tokens": spoken, "total_tokens": service.prompt_tokens + spoken}
        choice = {"index": 0, **said, "finish_reason": "stop"}
        return {"id": "chatcmpl-0", "object": kind, "created": 0, "model": body["model"], "choices": [choice], "usage": usage}
    head = {"model": body["model"], "created_at": _created(at)}
    return {**head, **_said(route, text), "done": True, "done_reason": "stop", **_timings(service)}


def vector_of(text: str) -> list[float]:
    """What `/api/embed` and `/v1/embeddings` make of a text: another vector for another text, whatever comes with it."""
    return [0.25, crc32(text.encode()) / 2**20]


def _embedding(route: str, body: Mapping[str, Any], service: Service) -> dict[str, Any]:
    if route == "/api/embeddings":
        return {"embedding": [0.25, -0.5]}
    inputs = body.get("input", "")
    vectors = [vector_of(text) for text in ([inputs] if isinstance(inputs, str) else inputs)]
    if route == "/api/embed":
        timings = {"total_duration": round(service.service_s * 1e9), "load_duration": 1_000_000, "prompt_eval_count": service.prompt_tokens}
        return {"model": body["model"], "embeddings": vectors, **timings}
    data = [{"object": "embedding", "embedding": vector, "index": index} for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": service.prompt_tokens, "total_tokens": service.prompt_tokens}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}


def _events(route: str, body: Mapping[str, Any], service: Service) -> tuple[bytes, ...]:
    if route == "/v1/responses":
        return _responses_events(body, service)
    return _anthropic_events(body, service) if route == "/v1/messages" else _openai_events(route, body, service)


def _responses_events(body: Mapping[str, Any], service: Service) -> tuple[bytes, ...]:
    number = count()

    def event(kind: str, **fields: Any) -> bytes:
        told = {**fields, "sequence_number": next(number), "type": f"response.{kind}"}
        return f"event: response.{kind}\ndata: ".encode() + _line(told) + b"\n"

    text, spoken = "".join(service.words), len(service.words)
    place = {"output_index": 0, "content_index": 0, "item_id": "msg_0"}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    item = {"type": "message", "id": "msg_0", "role": "assistant", "status": "in_progress", "content": []}
    done = {**item, "status": "completed", "content": [{**part, "text": text}]}
    response = {"id": "resp_0", "object": "response", "created_at": 0, "status": "in_progress", "model": body["model"], "output": []}
    usage = {"input_tokens": service.prompt_tokens, "output_tokens": spoken, "total_tokens": service.prompt_tokens + spoken}
    opening = event("created", response=response) + event("in_progress", response=response)
    opening += event("output_item.added", output_index=0, item=item) + event("content_part.added", **place, part=part)
    said = [event("output_text.delta", **place, delta=word, logprobs=[]) for word in service.words]
    end = event("output_text.done", **place, text=text, logprobs=[]) + event("content_part.done", **place, part={**part, "text": text})
    end += event("output_item.done", output_index=0, item=done)
    end += event("completed", response={**response, "status": "completed", "output": [done], "usage": usage})
    return (opening, *said, end)


def _openai_events(route: str, body: Mapping[str, Any], service: Service) -> tuple[bytes, ...]:
    is_chat = route == "/v1/chat/completions"
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    head = {"id": "chatcmpl-0", "object": kind, "created": 0, "model": body["model"]}

    def event(text: str, finish_reason: str | None = None) -> bytes:
        said = {"delta": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        return b"data: " + _line({**head, "choices": [{"index": 0, **said, "finish_reason": finish_reason}]}) + b"\n"

    said = [event(word) for word in service.words]
    end = event("", "stop")
    if (body.get("stream_options") or {}).get("include_usage"):
        spoken = len(service.words)
        usage = {"prompt_tokens": service.prompt_tokens, "completion_tokens": spoken, "total_tokens": service.prompt_tokens + spoken}
        end += b"data: " + _line({**head, "choices": [], "usage": usage}) + b"\n"
    return (*said, end + b"data: [DONE]\n\n")


def _anthropic_events(body: Mapping[str, Any], service: Service) -> tuple[bytes, ...]:
    def event(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: ".encode() + _line({"type": kind, **fields}) + b"\n"

    message = {"id": "msg_0", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    usage = {"input_tokens": service.prompt_tokens, "output_tokens": len(service.words)}
    opening = event("message_start", message={**message, "usage": {"input_tokens": 2, "output_tokens": 0}})
    opening += event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    said = [event("content_block_delta", index=0, delta={"type": "text_delta", "text": word}) for word in service.words]
    end = event("content_block_stop", index=0)
    end += event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage) + event("message_stop")
    return (opening, *said, end)
