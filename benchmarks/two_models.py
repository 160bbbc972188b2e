"""An Ollama with two models of which one fits into the memory.

Each is llama.cpp's server with SmolLM2-135M, started when it is loaded and ended when it is
unloaded, so that its prompt cache ends with it, as Ollama's does.

`python -m benchmarks.two_models PORT MODEL_FILE` speaks the control routes; `/v1` goes through to
the model that is named.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import aiohttp
from aiohttp import web

from tests.support.fields import Fields

MODELS = ("coder:latest", "writer:latest")
SIZE_MIB = 5 * 1024
"""Each says it has that, and the card has room for one."""
_AT = "2026-11-01T00:00:00Z"
_LOOK_S = 0.05
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "server", "content-length"}
)


class TwoModels:
    """The one that is loaded, and its process."""

    def __init__(self, file: str, session: aiohttp.ClientSession) -> None:
        self._file = file
        self._session = session
        self._model = ""
        self._url = ""
        self._process: Process | None = None
        self._lock = asyncio.Lock()

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application()
        app.router.add_get("/api/version", self._version)
        app.router.add_get("/api/tags", self._tags)
        app.router.add_get("/api/ps", self._ps)
        app.router.add_post("/api/generate", self._residency)
        app.router.add_route("POST", "/v1/{rest:.*}", self._proxy)
        return app

    async def end(self) -> None:
        """Unload what is loaded."""
        if self._process is None:
            return
        process = self._process
        self._process = None
        self._model = ""
        process.terminate()
        await process.wait()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.33.0"})

    async def _tags(self, _: web.Request) -> web.Response:
        return web.json_response({"models": [_listed(name) for name in MODELS]})

    async def _ps(self, _: web.Request) -> web.Response:
        loaded = [self._model] if self._process is not None else []
        more = {
            "expires_at": "2318-01-01T00:00:00Z",
            "size_vram": SIZE_MIB * 1024 * 1024,
            "context_length": 32768,
        }
        return web.json_response({"models": [_listed(name) | more for name in loaded]})

    async def _residency(self, request: web.Request) -> web.Response:
        asked = await request.json()
        model = asked["model"]
        stays = asked.get("keep_alive") != 0
        async with self._lock:
            if stays:
                await self._load(model)
            elif model == self._model:
                await self.end()
        answer = {
            "model": model,
            "created_at": _AT,
            "response": "",
            "done": True,
            "done_reason": "load" if stays else "unload",
        }
        return web.json_response(answer)

    async def _load(self, model: str) -> None:
        if model == self._model and self._process is not None:
            return
        await self.end()
        command = ("-m", "tests.engines.llamacpp.serving", self._file, model)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=PIPE, stdout=PIPE
        )
        if self._process.stdout is None:
            raise RuntimeError("the model server has no output")
        self._url = (await self._process.stdout.readline()).decode().strip()
        while not await self._is_ready():  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(_LOOK_S)
        self._model = model

    async def _is_ready(self) -> bool:
        async with self._session.get(f"{self._url}/health") as answer:
            return answer.status == web.HTTPOk.status_code

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        async with self._lock:
            await self._load(json.loads(body)["model"])
        headers = {"content-type": "application/json"}
        async with self._session.post(
            self._url + request.raw_path, data=body, headers=headers
        ) as answer:
            kept = {
                name: text
                for name, text in answer.headers.items()
                if name.lower() not in _HOP_BY_HOP
            }
            passed = web.StreamResponse(status=answer.status, headers=kept)
            with suppress(ConnectionResetError):
                await passed.prepare(request)
                async for chunk in answer.content.iter_any():
                    await passed.write(chunk)
                await passed.write_eof()
        return passed


def _listed(name: str) -> Fields:
    return {
        "name": name,
        "model": name,
        "modified_at": _AT,
        "size": SIZE_MIB * 1024 * 1024,
        "digest": f"{MODELS.index(name):064x}",
        "details": {"format": "gguf", "family": "llama", "families": ["llama"]},
    }


async def _serve(port: int, file: str) -> None:
    connector = aiohttp.TCPConnector(force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, trust_env=False
    ) as session:
        models = TwoModels(file, session)
        runner = web.AppRunner(models.app(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
            await models.end()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2]))
