"""A server of speech, pictures and ranks that answers with what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import BodyPartReader, web

from tests.support.fields import Fields
from tests.support.listening import listening

SOUND = bytes(range(256)) * 64
"""What it says, in any voice."""


@dataclass
class Asked:
    """A request that has come in whole. `file`: of a form, its name, media type and content."""

    path: str
    body: Fields = field(default_factory=dict)
    raw: bytes = b""
    fields: list[tuple[str, str]] = field(default_factory=list)
    file: tuple[str, str, bytes] = ("", "", b"")
    length: str = ""


class MediaServer:
    """Lists `models`. While `gate` is not set, no answer begins, and while `rest` is not, no sound
    goes on. `status`: what it refuses everything with. `breaks`: how many answers of sound end
    within. `keeps_files`: else what it is sent is read and forgotten.
    """

    def __init__(self, *models: str) -> None:
        self.models = models
        self.asked: list[Asked] = []
        self.left = 0
        self.status = 200
        self.keeps_files = True
        self.forgotten_bytes = 0
        self.breaks = 0
        self.gate = asyncio.Event()
        self.rest = asyncio.Event()
        self.gate.set()
        self.rest.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": model} for model in self.models]})
        if request.path.rpartition("/")[2] not in _ANSWERED:
            return web.json_response({"error": {"message": "no such route"}}, status=404)
        if not self.keeps_files:
            async for piece in request.content.iter_chunked(2**16):
                self.forgotten_bytes += len(piece)
            return web.json_response({"text": "hi"})
        asked = await _read(request)
        self.asked.append(asked)
        try:
            await self.gate.wait()
            if self.status != 200:
                return web.json_response({"error": {"message": "odd"}}, status=self.status)
            return await self._answer(request, asked)
        except asyncio.CancelledError:
            self.left += 1
            raise

    async def _answer(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        if asked.path.endswith("/speech"):
            return await self._speak(request)
        if asked.path.endswith("/rerank"):
            found = [{"index": 0, "relevance_score": 0.5}]
            return web.json_response({"results": found, "usage": {"prompt_tokens": 7}})
        if asked.path.endswith("/generations"):
            return web.json_response({"created": 1, "data": [{"b64_json": "aGk="}]})
        if dict(asked.fields).get("response_format") == "srt":
            return web.Response(text="1\n00:00:00,000 --> 00:00:01,000\nhi\n")
        return web.json_response({"text": "hi"})

    async def _speak(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "audio/mpeg"})
        await response.prepare(request)
        await response.write(SOUND[:1000])
        await self.rest.wait()
        if self.breaks:
            self.breaks -= 1
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(SOUND[1000:])
        return response


_ANSWERED = ("speech", "transcriptions", "translations", "generations", "rerank")


async def _read(request: web.Request) -> Asked:
    asked = Asked(request.path, length=request.headers.get("Content-Length", ""))
    if not request.content_type.startswith("multipart/"):
        asked.raw = await request.read()
        asked.body = json.loads(asked.raw)
        return asked
    async for part in await request.multipart():
        assert isinstance(part, BodyPartReader)
        content = bytes(await part.read())
        if part.name == "file":
            media_type = part.headers.get("Content-Type", "")
            asked.file = (part.filename or "", media_type, content)
        else:
            asked.fields.append((part.name or "", content.decode()))
    return asked


@asynccontextmanager
async def media_server(*models: str) -> AsyncIterator[tuple[MediaServer, str]]:
    """One that listens, and its URL."""
    server = MediaServer(*models)
    app = web.Application(client_max_size=1024**3)
    app.router.add_route("*", "/{path:.*}", server.handle)
    async with listening(app) as url:
        try:
            yield server, url
        finally:
            server.gate.set()
            server.rest.set()
