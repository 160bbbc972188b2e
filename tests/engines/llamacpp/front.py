"""The thin layer of Ollama that a bare llama.cpp server lacks: version, tags, ps, load and unload
of its one model; `/v1` goes through.

What it proxies it neither reads nor changes, apart from keeping the request bodies for the tests to
look at. A caller that leaves takes its call to the engine with it. Source of the shapes: Ollama's
`docs/api.md`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import aiohttp
from aiohttp import web

from tests.support.fields import Fields
from tests.support.listening import listening

MODEL = "tiny:latest"
BETWEEN_LOOKS_S = 2.5

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "server", "content-length"}
)
_AT = "2026-11-01T00:00:00Z"
_LISTED = {
    "name": MODEL,
    "model": MODEL,
    "modified_at": _AT,
    "size": 500_000,
    "digest": "0" * 64,
    "details": {
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "125K",
        "quantization_level": "F32",
    },
}


class Front:
    """Speaks Ollama's control routes for the engine at `engine_url`."""

    def __init__(self, engine_url: str, session: aiohttp.ClientSession) -> None:
        self._engine_url = engine_url
        self._session = session
        self._loaded = False
        self.bodies: list[Fields] = []
        """Of the proxied requests, in order."""
        self.breaks_after: int | None = None
        """Events of the next stream after which nothing more of it is passed on, until its
        connection breaks with `break_off`.
        """
        self.break_off = asyncio.Event()
        self.warm: Callable[[], bool] = lambda: True
        """Whether the engine may use its prompt cache for the next request; a swap leaves none."""

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application()
        for path, said in (("version", {"version": "0.33.0"}), ("tags", {"models": [_LISTED]})):
            app.router.add_get(f"/api/{path}", partial(_said, said))
        app.router.add_get("/api/ps", self._ps)
        app.router.add_post("/api/generate", self._residency)
        app.router.add_post("/api/chat", self._chat)
        app.router.add_route("*", "/v1/{rest:.*}", self._proxy)
        return app

    async def busy(self) -> bool:
        """Whether the engine's slot is at work."""
        return await self.written() is not None

    async def written(self) -> int | None:
        """The tokens that the engine has written of the answer it is at; None where it is at
        none.
        """
        async with self._session.get(f"{self._engine_url}/slots") as answer:
            (slot,) = await answer.json()
        return int(slot["next_token"][0]["n_decoded"]) if slot["is_processing"] else None

    async def written_until_idle(self) -> int:
        """The same, as it was last seen before the engine came to rest."""
        last = 0
        # Each look at `/slots` puts off the engine's own look for a caller who has left, a second
        # after the last.
        await asyncio.sleep(BETWEEN_LOOKS_S)
        while (written := await self.written()) is not None:
            last = written
            await asyncio.sleep(BETWEEN_LOOKS_S)
        return last

    async def _ps(self, _: web.Request) -> web.Response:
        resident = _LISTED | {
            "expires_at": "2318-01-01T00:00:00Z",
            "size_vram": _LISTED["size"],
            "context_length": 32768,
        }
        return web.json_response({"models": [resident] if self._loaded else []})

    async def _chat(self, request: web.Request) -> web.Response:
        # Shows how a conversation is rendered; it says nothing here.
        return web.json_response(await self._rendered(await request.json()))

    async def _rendered(self, asked: Fields) -> Fields:
        async with self._session.post(
            f"{self._engine_url}/apply-template", json={"messages": asked["messages"]}
        ) as answer:
            prompt = (await answer.json())["prompt"]
        return {
            "model": asked["model"],
            "done": False,
            "_debug_info": {"rendered_template": prompt},
        }

    async def _raw(self, request: web.Request, asked: Fields) -> web.StreamResponse:
        """The engine's own completion, as lines of NDJSON, or as one of them."""
        options = asked["options"]
        names = {
            "num_predict": "n_predict",
            "stop": "stop",
            "seed": "seed",
            "temperature": "temperature",
            "top_p": "top_p",
        }
        wanted = {theirs: options[ours] for ours, theirs in names.items() if ours in options}
        body = {
            "prompt": asked["prompt"],
            "stream": asked["stream"],
            "cache_prompt": self.warm(),
            **wanted,
        }
        if not asked["stream"]:
            async with self._session.post(f"{self._engine_url}/completion", json=body) as answer:
                return web.Response(
                    body=_line(asked["model"], await answer.json()), content_type="application/json"
                )
        passed = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        async with self._session.post(f"{self._engine_url}/completion", json=body) as answer:
            with suppress(ConnectionResetError):
                await passed.prepare(request)
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        await passed.write(_line(asked["model"], json.loads(line[6:])))
                await passed.write_eof()
        return passed

    async def _residency(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if asked.get("raw"):
            return await self._raw(request, asked)
        if asked.get("prompt"):
            return web.json_response(
                {"error": "this engine is behind the /v1 routes only"}, status=501
            )
        self._loaded = asked.get("keep_alive") != 0
        reason = "load" if self._loaded else "unload"
        return web.json_response(
            {
                "model": asked["model"],
                "created_at": _AT,
                "response": "",
                "done": True,
                "done_reason": reason,
            }
        )

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = json.loads(body) if body else {}
        if asked.get("_debug_render_only"):
            return web.json_response(await self._rendered(asked))
        self.bodies.append(asked)
        if asked:
            body = json.dumps({**asked, "cache_prompt": self.warm()}).encode()
        headers = {"content-type": "application/json"}
        async with self._session.request(
            request.method, self._engine_url + request.raw_path, data=body, headers=headers
        ) as answer:
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in _HOP_BY_HOP
            }
            passed = web.StreamResponse(status=answer.status, headers=kept)
            with suppress(ConnectionResetError):  # the caller left between two chunks
                await passed.prepare(request)
                if self.breaks_after is not None:
                    await self._break(request, passed, answer.content)
                async for chunk in answer.content.iter_any():
                    await passed.write(chunk)
                await passed.write_eof()
        return passed

    async def _break(
        self, request: web.Request, passed: web.StreamResponse, content: aiohttp.StreamReader
    ) -> None:
        """Events are counted, not chunks: how many come in a chunk is as the machine is loaded."""
        left, self.breaks_after = self.breaks_after, None
        while left:
            line = await content.readline()
            await passed.write(line)
            left -= line == b"\n"
        await self.break_off.wait()
        assert request.transport is not None
        request.transport.abort()


async def _said(said: Fields, _: web.Request) -> web.Response:
    return web.json_response(said)


def _line(model: str, said: Fields) -> bytes:
    """A piece of a completion as Ollama writes it."""
    line: Fields = {
        "model": model,
        "created_at": _AT,
        "response": said["content"],
        "done": said["stop"],
    }
    if said["stop"]:
        line["done_reason"] = "length" if said["stop_type"] == "limit" else "stop"
        line |= {
            "total_duration": 1,
            "prompt_eval_count": said["tokens_evaluated"],
            "eval_count": said["tokens_predicted"],
        }
    return json.dumps(line).encode() + b"\n"


@asynccontextmanager
async def open_front(engine_url: str) -> AsyncIterator[tuple[Front, str]]:
    """A front that listens, and its URL."""
    # the engine drops a connection after a number of requests, without a word
    connector = aiohttp.TCPConnector(force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector, trust_env=False, timeout=timeout
    ) as session:
        front = Front(engine_url, session)
        async with listening(front.app()) as url:
            yield front, url
