"""Recorded exchanges: reading the files, sending the request over a raw socket, and masking what
differs between any two runs.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from hearth.types import frozen

CAPTURES = Path(__file__).parent.parent / "captures"

_MASKS = (
    (rb'"(created_at|expires_at|version)":"[^"]*"', rb'"\1":"*"'),
    (
        rb'"(created_at|completed_at|created|size|(?:total|load|prompt_eval|eval)_duration)":\d+',
        rb'"\1":0',
    ),
    (rb"(chatcmpl-|cmpl-|msg_|resp_|req_)[0-9a-f]+", rb"\1*"),
    (rb"[0-9a-f]{64}", rb"DIGEST"),
    (rb'"(content|response|text|delta|token|rendered_template)":"(?:[^"\\]|\\.)*"', rb'"\1":"*"'),
    (rb'"embedding":"[^"]*"', rb'"embedding":"BASE64"'),
    (rb'"(bytes|context)":\[[\d,]*\]', rb'"\1":[]'),
    (rb"-?\d\.\d+(e-?\d+)?", rb"0.5"),
)


GOS_WORDS = ("_gzip",)
"""How recordings are called whose errors say what Go's parser makes of bytes that are no text: only
their shape is compared.
"""


@frozen
class Exchange:
    request: bytes
    response: bytes


@frozen
class Answer:
    """A response taken apart: masked header lines in wire order, and the masked body, one entry per
    HTTP chunk.
    """

    status: bytes
    headers: tuple[bytes, ...]
    chunks: tuple[bytes, ...]


def read_capture(name: str) -> Exchange:
    raw = (CAPTURES / f"{name}.txt").read_bytes()
    request, rest = raw.removeprefix(b">>> REQUEST\n").split(
        b"\n<<< RESPONSE (raw, chunked framing kept)\n"
    )
    return Exchange(request=request, response=rest[: rest.rindex(b"\n--- recv timings")])


async def send(base_url: str, request: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    reader, writer = await connect(base_url)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


async def connect(base_url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(base_url)
    return await asyncio.open_connection(address.hostname, address.port)


def take_apart(response: bytes) -> Answer:
    head, body = response.split(b"\r\n\r\n", 1)
    status, *headers = head.split(b"\r\n")
    chunked = any(line.lower().startswith(b"transfer-encoding: chunked") for line in headers)
    chunks = dechunk(body) if chunked else (body,)
    return Answer(
        status=status,
        headers=tuple(re.sub(rb"^(Date|Content-Length): .*", rb"\1: *", line) for line in headers),
        chunks=tuple(masked(chunk) for chunk in chunks),
    )


def comparable(name: str, answer: Answer) -> Answer:
    """The answer without the words of its error, where these are those of Go's parser."""
    if not name.endswith(GOS_WORDS):
        return answer
    return replace(
        answer,
        chunks=tuple(
            re.sub(rb'"(error|message)":"(?:[^"\\]|\\.)*"', rb'"\1":"*"', chunk)
            for chunk in answer.chunks
        ),
    )


def dechunk(body: bytes) -> tuple[bytes, ...]:
    chunks = []
    while body:
        size_line, rest = body.split(b"\r\n", 1)
        size = int(size_line, 16)
        if size == 0:
            assert rest == b"\r\n"
            break
        chunks.append(rest[:size])
        assert rest[size : size + 2] == b"\r\n"
        body = rest[size + 2 :]
    return tuple(chunks)


def masked(text: bytes) -> bytes:
    for pattern, replacement in _MASKS:
        text = re.sub(pattern, replacement, text)
    return text
