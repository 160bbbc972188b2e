"""A model server and a receiver of webhooks that live through every death of the gateway, and
remember what they saw.

The prompt of a generation is the marker of its job. The answer names it together with the number of
this run, so that two runs of one job have two results. Markers that begin with `hold` are not
answered when they come for the first time, while `holding`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Self

from aiohttp import web

from hearth.types import JsonDict
from tests.support.fields import Fields
from tests.support.patience import for_ever

MODELS = ("one:latest", "two:latest")


class ModelServer:
    """For the time of the block, on a free port of loopback.

    Attributes:
        arrivals: the markers of all generations, in the order in which they came.
        told: how often the webhook of each job was called, by job id.
        loads: the models that were loaded, in order.
    """

    def __init__(self) -> None:
        self.arrivals: list[str] = []
        self.told: Counter[str] = Counter()
        self.loads: list[str] = []
        self.moved = asyncio.Event()
        self.holding = True
        self._loaded: list[str] = []
        self._seen: set[str] = set()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.0, handler_cancellation=True
        )

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _answer(self, request: web.Request) -> web.Response:
        self.moved.set()
        if request.path == "/api/generate":
            return web.json_response(await self._generate(await request.json()))
        if request.path == "/hook":
            self.told[request.headers["webhook-id"]] += 1
        pages: JsonDict = {
            "/api/tags": {"models": _listed(MODELS)},
            "/api/ps": {"models": _listed(tuple(self._loaded))},
        }
        return web.json_response(pages.get(request.path, {"version": "0.99.0"}))

    async def _generate(self, asked: Fields) -> object:
        model = asked["model"]
        marker = asked.get("prompt", "")
        said = {
            "model": model,
            "created_at": "2026-01-05T12:00:00Z",
            "done": True,
            "done_reason": "stop",
        }
        if not marker:
            self.loads += [model] * (asked.get("keep_alive") != 0)
            self._loaded = [name for name in self._loaded if name != model] + [model] * (
                asked.get("keep_alive") != 0
            )
            return {**said, "response": ""}
        self.arrivals.append(marker)
        if self.holding and marker.startswith("hold") and marker not in self._seen:
            self._seen.add(marker)
            await for_ever()
        return {
            **said,
            "response": f"{marker} run {len(self.arrivals)}",
            "prompt_eval_count": 3,
            "eval_count": 3,
        }


def _listed(names: tuple[str, ...]) -> list[Fields]:
    one = {"size": 1 << 30, "size_vram": 1 << 30, "context_length": 4096, "details": {}}
    return [{"name": name, "model": name, "digest": name[0] * 64, **one} for name in names]
