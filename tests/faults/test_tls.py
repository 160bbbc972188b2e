"""A stranger who answers in Claude's place is told nothing: neither the key nor a byte of the prompt."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hearth.backends.claude import ClaudeBackend
from hearth.errors import BackendError
from hearth.types import CloudCall

CERTIFICATE = Path(__file__).with_name("self_signed.pem")
"""For localhost and 127.0.0.1, signed by itself; good for nothing but this test."""


@asynccontextmanager
async def stranger(*, tls: bool) -> AsyncIterator[tuple[int, bytearray]]:
    """Listens on loopback; the port, and what it was told."""
    told = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.extend(await reader.read(65536))
        writer.close()

    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], told


@pytest.mark.parametrize(("tls", "host"), [(True, "localhost"), (True, "127.0.0.1"), (False, "localhost")])
async def test_without_a_certificate_that_somebody_vouches_for_or_without_tls_nothing_is_said(tls: bool, host: str, monkeypatch):
    monkeypatch.setenv("PYTHONHTTPSVERIFY", "0")
    backend = ClaudeBackend()
    async with stranger(tls=tls) as (port, told):
        call = CloudCall(model="m", body=b'{"model": "m"}', base_url=f"https://{host}:{port}", api_key="sk-a-secret")
        with pytest.raises(BackendError) as caught:
            await backend.open(call)
        assert "sk-a-secret" not in repr(caught.value)
        assert not tls or bytes(told) == b""
        assert not any(word in told for word in (b"sk-a-secret", b"model"))
    await backend.aclose()
