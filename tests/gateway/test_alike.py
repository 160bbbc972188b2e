"""Requests that no recording has, sent with and without the gateway: whoever asks cannot tell which
it was.

The recordings say that the emulator answers as Ollama does; this says that the gateway answers as
what is behind it does.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.emulator.captures import Answer, send
from tests.gateway.front import Front, as_owner, seen, without

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = [{"role": "user", "content": "hello"}]
FEW = {"seed": 7, "num_predict": 3}
BODIES: dict[str, tuple[str, Any]] = {
    "duplicate_key": (
        "/api/chat",
        (
            b'{"model":"emb","model":"ma","messages":[{"role":"user","content":"x"}],'
            b'"options":{"seed":1,"num_predict":2}}'
        ),
    ),
    "key_in_capitals": (
        "/api/chat",
        {"MODEL": "ma", "Messages": HELLO, "options": FEW, "STREAM": False},
    ),
    "kelvin_sign": (
        "/api/generate",
        (
            b'{"model":"ma","prompt":"x","\xe2\x84\xaaeep_alive":"5m",'
            b'"options":{"seed":1,"num_predict":2}}'
        ),
    ),
    "long_s": (
        "/api/generate",
        {"model": "ma", "prompt": "x", "\u017ftream": False, "options": FEW},
    ),
    "lone_surrogate": (
        "/api/chat",
        (
            b'{"model":"ma","messages":[{"role":"user","content":"\\ud83d"}],'
            b'"options":{"seed":1,"num_predict":2}}'
        ),
    ),
    "not_utf8": (
        "/api/generate",
        b'{"model":"ma","prompt":"\xff\xfe","options":{"seed":1,"num_predict":2}}',
    ),
    "after_the_value": (
        "/api/generate",
        b' {"model":"ma","prompt":"x","options":{"seed":1,"num_predict":2}} and more',
    ),
    "byte_order_mark": ("/api/generate", b'\xef\xbb\xbf{"model":"ma"}'),
    "null": ("/api/chat", b"null"),
    "list": ("/v1/messages", b"[]"),
    "cut": ("/v1/chat/completions", b'{"model":"ma","mess'),
    "huge_number": ("/api/generate", b'{"model":"ma","prompt":"x","top_p":1e999}'),
    "whole_number_with_a_point": (
        "/v1/chat/completions",
        {"model": "ma", "messages": HELLO, "max_tokens": 3.0},
    ),
    "other_spelling_of_a_model": (
        "/v1/chat/completions",
        {"model": "library/MA:latest", "messages": HELLO, "seed": 7, "max_tokens": 3},
    ),
    "thinking": (
        "/v1/messages",
        {
            "model": "ma",
            "messages": HELLO,
            "max_tokens": 3,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
    ),
    "vectors_short": (
        "/v1/embeddings",
        {"model": "emb", "input": ["a", "b"], "dimensions": 4, "encoding_format": "base64"},
    ),
    "vector_of_tokens": ("/v1/embeddings", {"model": "emb", "input": [1, 2, 3]}),
    "vector_of_nothing": ("/v1/embeddings", {"model": "emb", "input": []}),
    "vector_of_no_text": ("/v1/embeddings", {"model": "emb", "input": ""}),
    "vector_without_a_model": ("/v1/embeddings", {"input": "a"}),
    "vector_with_a_field_of_others": ("/api/embed", {"model": "emb", "input": "a", "stream": "no"}),
    "prompt_of_several": ("/v1/completions", {"model": "ma", "prompt": ["a", "b"]}),
    "response_at_zero": (
        "/v1/responses",
        {"model": "ma", "input": "x", "temperature": 0, "max_output_tokens": 3, "stream": True},
    ),
}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", BODIES)
async def test_an_answer_is_the_same_with_and_without_the_gateway(
    name: str, chunked: bool, front: Front
):
    path, said = BODIES[name]
    body = said if isinstance(said, bytes) else json.dumps(said, ensure_ascii=False).encode()
    direct, through = await asyncio.gather(
        *(send(url, _post(path, body, chunked=chunked)) for url in (front.direct_url, front.url))
    )
    assert _kept(seen(through)) == _kept(seen(direct))


def _post(path: str, body: bytes, *, chunked: bool) -> bytes:
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%b\r\n\r\n" % (
        path.encode(),
        framing,
    )
    pieces = (body[at : at + 7] for at in range(0, len(body), 7))
    return as_owner(head) + (
        b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        if chunked
        else body
    )


def _kept(answer: Answer) -> Answer:
    """All of Hearth's own answers that say goodbye say so in a field of their own connection."""
    return without(answer, b"connection")
