"""A ComfyUI that renders nothing: queue, worker and memory behave as those of its source do
(`server.py`, `execution.py: PromptQueue`, `main.py: prompt_worker`), as a real server and in memory
for virtual time.

`tests/backends/test_comfyui.py` compares the two.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from hearth.backends.comfyui import MAX_ANSWER_BYTES, OTHER_SERVER, TIMEOUT_S
from hearth.types import QueueLook
from tests.support.fake_webhooks import Reply
from tests.support.listening import listening

NODES = 40
WORKFLOW_BYTES = 2_000_000
"""Of a workflow with a mask painted into it: the image stands in it as text."""


@dataclass(order=True)
class Job:
    """What `POST /prompt` puts into the queue; `mib`: what its models take until they are freed."""

    number: int
    seconds: float = field(compare=False)
    mib: float = field(compare=False)

    @property
    def item(self) -> list[Any]:
        """As `/queue` shows it: number, id, workflow, extra data, outputs."""
        workflow = {
            str(node): {"class_type": "KSampler", "inputs": {"seed": node}} for node in range(NODES)
        }
        workflow["1"]["inputs"] = {"image": "A" * WORKFLOW_BYTES}
        return [self.number, f"{self.number:08d}-prompt", workflow, {"client_id": "x"}, ["9"]]


class FakeComfyUi:
    """`async with` it: its worker runs from then on.

    Attributes:
        reply: what every question gets in place of an answer; None for the answer. frees: whether
        `/free` is carried out; a custom node may hold on to its model. refuses_to_free: as one that
        is older than the route. holds_mib: of the card, of which `card.foreign_mib` says so. asked:
        the questions.
    """

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.frees = True
        self.refuses_to_free = False
        self.holds_mib = 0.0
        self.card: Any = None
        self.asked: list[str] = []
        self.released = asyncio.Event()
        self._waiting: list[Job] = []
        self._running: Job | None = None
        self._number = 0
        self._flags: dict[str, bool] = {}
        self._changed = asyncio.Event()
        self._interrupted = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.released.set()
        self._worker.cancel()
        with suppress(asyncio.CancelledError):
            await self._worker

    def post(self, seconds: float, mib: float = 8192.0) -> dict[str, Any]:
        """What `POST /prompt` does and answers: at once."""
        job = Job(self._number, seconds, mib)
        self._number += 1
        heapq.heappush(self._waiting, job)
        self._changed.set()
        return {"prompt_id": job.item[1], "number": job.number, "node_errors": {}}

    def clear(self) -> None:
        """What `POST /queue {"clear": true}` does: what runs goes on."""
        self._waiting.clear()

    def interrupt(self) -> None:
        """What `POST /interrupt` does: the job that runs ends."""
        self._interrupted.set()

    @property
    def queue_info(self) -> dict[str, Any]:
        """Of `GET /prompt`; the running job counts."""
        return {"exec_info": {"queue_remaining": len(self._waiting) + len(self._now())}}

    def _now(self) -> list[Job]:
        return [] if self._running is None else [self._running]

    def free(self, flags: dict[str, Any]) -> None:
        """What `POST /free` does: the worker sees to it between jobs."""
        self._flags |= {name: True for name in ("unload_models", "free_memory") if flags.get(name)}
        self._changed.set()

    async def _work(self) -> None:
        while True:
            if self._waiting:
                self._running = heapq.heappop(self._waiting)
                self._hold(max(self.holds_mib, self._running.mib))
                self._interrupted.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._running.seconds):
                        await self._interrupted.wait()
                self._running = None
            elif not self._flags:
                self._changed.clear()
                await self._changed.wait()
            flags = self._flags
            self._flags = {}
            if flags.get("unload_models", flags.get("free_memory")) and self.frees:
                self._hold(0.0)

    def _hold(self, mib: float) -> None:
        self.holds_mib = mib
        if self.card is not None:
            self.card.foreign_mib = mib

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        body = await request.read()
        if (reply := self.reply) is not None:
            assert request.transport is not None
            if reply.reset:
                request.transport.abort()
            if reply.stall:
                await self.released.wait()
            return web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        match self.asked[-1].replace("/api/", "/"):
            case "GET /prompt":
                return web.json_response(self.queue_info)
            case "POST /prompt":
                return web.json_response(self.post(**json.loads(body)))
            case "GET /queue":
                running, waiting = (
                    [job.item for job in jobs] for jobs in (self._now(), self._waiting)
                )
                return web.json_response({"queue_running": running, "queue_pending": waiting})
            case "POST /free" if not self.refuses_to_free:
                self.free(json.loads(body))
                return web.Response(status=200)
        return web.Response(status=404, text="404: Not Found")


@asynccontextmanager
async def serving(comfyui: FakeComfyUi, port: int = 0) -> AsyncIterator[str]:
    """It on loopback; yields the address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", comfyui.handle)
    async with listening(app, port) as url:
        try:
            yield url
        finally:
            comfyui.released.set()


class MemoryRenderer:
    """The `Renderer` without sockets, for virtual time; `at`: the ComfyUI behind each URL, where
    one runs.
    """

    def __init__(self, at: dict[str, FakeComfyUi]) -> None:
        self.at = at

    async def look(self, url: str) -> QueueLook:
        problem = await self._problem(url, "GET /prompt")
        if problem:
            return QueueLook(problem=problem)
        reply = self.at[url].reply
        if reply is not None:
            return _read(reply.body)
        return QueueLook(jobs=self.at[url].queue_info["exec_info"]["queue_remaining"])

    async def free(self, url: str) -> QueueLook:
        problem = await self._problem(url, "POST /free")
        if not problem and self.at[url].reply is None:
            self.at[url].free({"unload_models": True, "free_memory": True})
        return QueueLook(problem=problem)

    async def _problem(self, url: str, asked: str) -> str:
        comfyui = self.at.get(url)
        if comfyui is None:
            return "connect"
        comfyui.asked.append(asked)
        reply = comfyui.reply
        if reply is None:
            refused = asked == "POST /free" and comfyui.refuses_to_free
            return "http_404" if refused else ""
        if reply.stall:
            await asyncio.sleep(TIMEOUT_S)
            return "timeout"
        if reply.reset:
            return "broken"
        if reply.status == 200:
            return OTHER_SERVER if len(reply.body) > MAX_ANSWER_BYTES else ""
        return f"http_{reply.status}"


def _read(body: bytes) -> QueueLook:
    try:
        jobs = json.loads(body)["exec_info"]["queue_remaining"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return QueueLook(problem=OTHER_SERVER)
    if type(jobs) is not int or jobs < 0:
        return QueueLook(problem=OTHER_SERVER)
    return QueueLook(jobs=jobs)
