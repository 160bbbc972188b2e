"""The bytes that a fake Ollama answers with: answers by the gateway's own writers, which other
tests hold to recordings; listings, errors.

Pure: what is said comes in as arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from hearth.dialects.messages_writer import MessagesWriter
from hearth.dialects.responses_writer import ResponsesWriter, response_in_progress
from hearth.dialects.writers import (
    Generation,
    NativeWriter,
    OpenAiWriter,
    TextPart,
    Writer,
    rfc3339,
)
from hearth.types import Headers, InstalledModel, ResidentModel, frozen
from tests.support.fields import Fields
from tests.support.virtual_time import WALL_AT_START

NATIVE_JSON = b"application/json; charset=utf-8"
EMBED_PATHS = frozenset({"/api/embed", "/api/embeddings", "/v1/embeddings"})
TEXT_PATHS = frozenset(
    {
        "/api/generate",
        "/api/chat",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
    }
)
OUT_OF_ORDER = "timed out waiting for llama-server to start"
RUNNER_DIED = "an error was encountered while running the model: unexpected EOF"
VERSION = "0.33.0"


@frozen
class Answer:
    """A whole answer: `chunks` are the HTTP chunks of the body, the last one carrying the dialect's
    terminator.
    """

    status: int
    headers: Headers
    chunks: tuple[bytes, ...]

    def cut_to(self, chunks: tuple[bytes, ...]) -> Answer:
        headers = tuple((name, value) for name, value in self.headers if name != b"content-length")
        return Answer(status=self.status, headers=headers, chunks=chunks)


@frozen
class Service:
    """How one call is served.

    Attributes:
        service_s: from the call to its last byte. first_byte_s: from the call to its first byte,
        where it streams (else the answer comes as a whole at the end). words: the text, one chunk
        each. frames: the chunks of a stream as they are, in place of the words. done_reason: why
        the answer ends. answer: what is answered, in place of one of the dialect's own. instants_s:
        from the call to each of its chunks, where they do not come evenly.
    """

    service_s: float = 1.0
    first_byte_s: float = 0.1
    words: tuple[str, ...] = (" alpha", " beta", " gamma")
    prompt_tokens: int = 10
    frames: tuple[bytes, ...] = ()
    done_reason: str = "stop"
    answer: Answer | None = None
    instants_s: tuple[float, ...] = ()


def needs_model(path: str) -> bool:
    return path.partition("?")[0] in EMBED_PATHS | TEXT_PATHS


def is_embedding(path: str) -> bool:
    return path.partition("?")[0] in EMBED_PATHS


def listing(
    path: str,
    installed: tuple[InstalledModel, ...],
    resident: tuple[ResidentModel, ...],
    has: frozenset[str] | None = None,
) -> Answer:
    """The routes that compute nothing; 404 for those that do not exist.

    `has`: the capabilities of the model that is shown.
    """
    known: dict[str, Fields] = {
        "/api/version": {"version": VERSION},
        "/api/tags": {
            "models": [
                {
                    "name": one.name,
                    "model": one.name,
                    "size": 1,
                    "digest": one.digest,
                    "details": {},
                }
                | _able(one.capabilities)
                for one in installed
            ]
        },
        "/api/ps": {"models": [_listed(model) for model in resident]},
        "/api/show": {"modelfile": "", "details": {}, "model_info": {}} | _able(has),
        "/v1/models": {
            "object": "list",
            "data": [
                {"id": one.name, "object": "model", "owned_by": "library"} for one in installed
            ],
        },
    }
    route = path.partition("?")[0]
    if route == "/":
        return Answer(
            status=200,
            headers=((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"17")),
            chunks=(b"Ollama is running",),
        )
    if route in known:
        return _json(known[route], route)
    return Answer(
        status=404, headers=((b"content-type", b"text/plain"),), chunks=(b"404 page not found",)
    )


def _able(has: frozenset[str] | None) -> Fields:
    return {} if has is None else {"capabilities": sorted(has)}


def _listed(model: ResidentModel) -> Fields:
    sizes = {"size": round(model.size_mib * 1048576), "size_vram": round(model.vram_mib * 1048576)}
    return {
        "name": model.name,
        "model": model.name,
        **sizes,
        "context_length": model.context_tokens,
    }


def answer(path: str, body: Mapping[str, Any], service: Service, at: float) -> Answer:
    """What Ollama would say to a call with this body, first asked at loop time `at`."""
    route = path.partition("?")[0]
    if route in EMBED_PATHS:
        return _json(_embedding(route, body, service), route)
    writer = _writer(route, body)
    done = _generation(service)
    wall_s = WALL_AT_START + at
    asks_nothing = not body.get("messages" if route == "/api/chat" else "prompt")
    if isinstance(writer, NativeWriter) and asks_nothing:
        return _json(writer.line(wall_s) | {"done": True, "done_reason": "load"}, route)
    if not body.get("stream", not route.startswith("/v1/")):
        return _json(writer.whole(done, wall_s), route)
    kind = b"text/event-stream" if route.startswith("/v1/") else b"application/x-ndjson"
    return Answer(
        status=200,
        headers=((b"content-type", kind),),
        chunks=service.frames or _chunks(writer, done, wall_s),
    )


def _writer(route: str, body: Mapping[str, Any]) -> Writer:
    model = body["model"]
    if route == "/v1/messages":
        return MessagesWriter("msg_0", model, estimated_tokens=2)
    if route == "/v1/responses":
        return ResponsesWriter("msg_0", response_in_progress("0", model, body, 0.0))
    if not route.startswith("/v1/"):
        return NativeWriter(model, chat=route == "/api/chat")
    counts = bool((body.get("stream_options") or {}).get("include_usage"))
    chat = route == "/v1/chat/completions"
    return OpenAiWriter(
        "chatcmpl-0" if chat else "cmpl-0",
        model,
        chat=chat,
        created_wall_s=0.0,
        made_by="fp_ollama",
        include_usage=counts,
    )


def _generation(service: Service) -> Generation:
    return Generation(
        parts=[TextPart(text=word) for word in service.words],
        reason=service.done_reason,
        prompt_tokens=service.prompt_tokens,
        output_tokens=len(service.words),
        total_ns=round(service.service_s * 1e9),
        load_ns=1_000_000,
        prompt_ns=round(service.first_byte_s * 1e9),
        output_ns=round(max(0.0, service.service_s - service.first_byte_s) * 1e9),
    )


def _chunks(writer: Writer, done: Generation, wall_s: float) -> tuple[bytes, ...]:
    """What opens the answer, then each word, then the end."""
    frames = [writer.write(word, wall_s) for word in done.parts]
    opening = b"".join(frames[0][:-1]) if frames else b""
    return tuple(
        filter(None, (opening, *(each[-1] for each in frames), b"".join(writer.end(done, wall_s))))
    )


def error(path: str, status: int, text: str) -> Answer:
    if path.startswith("/v1/messages"):
        kind = "not_found_error" if status == 404 else "api_error"
        return _json(
            {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_0"},
            path,
            status,
        )
    if path.startswith("/v1/"):
        kind = "not_found_error" if status == 404 else "api_error"
        return _json(
            {"error": {"message": text, "type": kind, "param": None, "code": None}}, path, status
        )
    return _json({"error": text}, path, status)


def error_line(text: str) -> bytes:
    """A line that ends a native stream with an error."""
    return _line({"error": text})


def death_notice(path: str) -> list[bytes]:
    """What Ollama says where a runner dies within a stream; nothing on some routes."""
    if not path.startswith("/v1/"):
        return [error_line(RUNNER_DIED)]
    return _writer(path.partition("?")[0], {"model": "m"}).broken()


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _json(value: Mapping[str, Any], route: str, status: int = 200) -> Answer:
    is_native = not route.startswith("/v1/")
    body = _line(value).rstrip(b"\n") if is_native else _line(value)
    headers = (
        (b"content-type", NATIVE_JSON if is_native else b"application/json"),
        (b"content-length", b"%d" % len(body)),
    )
    return Answer(status=status, headers=headers, chunks=(body,))


def rendering(path: str, body: Mapping[str, Any], at: float) -> Answer:
    """The prompt that a body becomes, for `_debug_render_only`: each turn with its role, then the
    assistant's, unless it has begun.
    """
    turns = body.get("messages") or [{"role": "user", "content": body.get("prompt", "")}]
    thought = "".join(
        f"<think>{turn['thinking']}</think>" for turn in turns if turn.get("thinking")
    )
    prompt = "".join(
        f"<{turn['role']}>{thought if turn['role'] == 'assistant' else ''}{turn['content']}"
        for turn in turns
    )
    prompt += "" if turns[-1]["role"] == "assistant" else "<assistant>"
    said = {"message": {"role": "", "content": ""}} if path == "/api/chat" else {"response": ""}
    shown = {"_debug_info": {"rendered_template": body["prompt"] if body.get("raw") else prompt}}
    return _json(
        {
            "model": body["model"],
            "created_at": rfc3339(WALL_AT_START + at),
            **said,
            "done": False,
            **shown,
        },
        path,
    )


def counted(tokens: int, at: float) -> Answer:
    """One token after a prompt of so many, which says how many these are; 0 for a server that does
    not say.
    """
    counts = {"prompt_eval_count": tokens} if tokens else {}
    shown = {
        "created_at": rfc3339(WALL_AT_START + at),
        "response": "x",
        "done": True,
        "done_reason": "length",
        **counts,
        "eval_count": 1,
    }
    return _json({"model": "m", **shown}, "/api/generate")


def vector_of(text: str) -> list[float]:
    """What `/api/embed` and `/v1/embeddings` make of a text: another vector for another text,
    whatever comes with it.
    """
    return [0.25, crc32(text.encode()) / 2**20]


def _embedding(route: str, body: Mapping[str, Any], service: Service) -> Fields:
    if route == "/api/embeddings":
        return {"embedding": [0.25, -0.5]}
    inputs = body.get("input", "")
    vectors = [vector_of(text) for text in ([inputs] if isinstance(inputs, str) else inputs)]
    if route == "/api/embed":
        timings = {
            "total_duration": round(service.service_s * 1e9),
            "load_duration": 1_000_000,
            "prompt_eval_count": service.prompt_tokens,
        }
        return {"model": body["model"], "embeddings": vectors, **timings}
    data = [
        {"object": "embedding", "embedding": vector, "index": index}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": service.prompt_tokens, "total_tokens": service.prompt_tokens}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}
