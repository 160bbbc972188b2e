"""Reads the answer to an HTTP request as a client does that knows when one is whole."""

from __future__ import annotations

import json

import aiohttp


async def read_to_its_end(answer: aiohttp.ClientResponse) -> bytes:
    """The body, to its proper end: for a stream of Ollama's own API also a connection that breaks
    off behind an error line. Raises aiohttp.ClientPayloadError for any other.
    """
    body = bytearray()
    try:
        async for chunk in answer.content.iter_any():
            body += chunk
    except aiohttp.ClientPayloadError:
        if not ends_with_an_error_line(bytes(body)):
            raise
    return bytes(body)


def ends_with_an_error_line(body: bytes) -> bool:
    *_, last = body.splitlines() or [b""]
    return body.endswith(b"\n") and last.startswith(b"{") and "error" in json.loads(last)
