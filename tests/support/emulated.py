"""The emulator without its sockets: an engine over `hearth.emulator`, on the test's own
loop, also in virtual time.

An answer is the emulator's own, chunk by chunk, at its own instants; a caller who leaves is a
handler that is cancelled, as its HTTP server does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self, cast

from aiohttp import web

from hearth.dialects.routes import Endpoint
from hearth.emulator import generation
from hearth.emulator.engine import EmulatedServer
from hearth.emulator.models import Installed, OllamaError
from hearth.emulator.prompts import Ask, read_options
from hearth.emulator.wire import CallHandler, EmulatedCall
from hearth.engines.ollama.traits import OllamaTraits, canonical_model
from hearth.errors import BackendError, BadRequest, ModelNotFound
from hearth.types import (
    BackendCall,
    Headers,
    InstalledModel,
    LoadOptions,
    ResidentModel,
)

HANDLERS: Mapping[str, CallHandler] = {
    Endpoint.CHAT: generation.chat,
    Endpoint.GENERATE: generation.generate,
    Endpoint.OPENAI_CHAT: generation.chat_completions,
    Endpoint.OPENAI_COMPLETIONS: generation.completions,
    Endpoint.OPENAI_RESPONSES: generation.responses,
    Endpoint.ANTHROPIC_MESSAGES: generation.messages,
}
MIB = 1024 * 1024


class _Asked:
    """As much of a web request as a call looks at."""

    def __init__(self, path: str) -> None:
        self.path = path


class _Call(EmulatedCall):
    """One whose answer goes into a queue: the status first, then chunks, None at the end."""

    def __init__(self, call: BackendCall, engine: EmulatedServer) -> None:
        super().__init__(
            cast("web.Request", _Asked(call.path)), engine, engine.clock.monotonic(), call.body
        )
        self.news: asyncio.Queue[int | bytes | None] = asyncio.Queue()
        self.media = ""
        self._status: int | None = None

    @property
    def started(self) -> bool:
        return self._status is not None

    def prepare(self, content_type: str, *, status: int = 200) -> None:
        self.media = content_type
        self._planned = status

    def _begin(self, status: int) -> None:
        if self._status is None:
            self._status = status
            self.news.put_nowait(status)

    async def send(self, chunks: Any) -> None:
        for chunk in chunks:
            self._begin(self._planned)
            self.news.put_nowait(chunk)

    async def whole(
        self, body: bytes = b"", content_type: str | None = None, *, status: int = 200
    ) -> None:
        self.media = content_type or ""
        self._begin(status)
        self.news.put_nowait(body)


class _Exchange:
    """The answer to a call that a task is working on."""

    def __init__(self, call: _Call, task: asyncio.Task[None]) -> None:
        self._call = call
        self._task = task
        self.status = 0

    @property
    def headers(self) -> Headers:
        return ((b"content-type", self._call.media.encode()),)

    async def head(self) -> None:
        news = await self._call.news.get()
        if not isinstance(news, int):
            raise BackendError("the emulator ended without an answer")
        self.status = news

    async def take(self) -> tuple[bytes, ...]:
        news = await self._call.news.get()
        return (news,) if isinstance(news, bytes) else ()

    def close(self) -> None:
        self._task.cancel()


class EmulatedOllama(OllamaTraits):
    """The `Engine` of one emulated server; `async with` it.

    `altered` may change a call on its way to it.
    """

    def __init__(self, engine: EmulatedServer) -> None:
        self.engine = engine
        self.calls: list[BackendCall] = []
        self.altered: Callable[[BackendCall], BackendCall] = lambda call: call
        self._listed: tuple[InstalledModel, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self.engine._loop_task = asyncio.create_task(self.engine._load_in_order())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engine._end()

    async def open(self, call: BackendCall) -> _Exchange:
        self.calls.append(call)
        made = _Call(self.altered(call), self.engine)
        task = asyncio.create_task(self._answer(made, HANDLERS[call.path.partition("?")[0]]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        exchange = _Exchange(made, task)
        try:
            await exchange.head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _answer(self, call: _Call, handler: CallHandler) -> None:
        try:
            await handler(call)
        except (BadRequest, OllamaError) as error:
            await call.refuse(error)
        call.news.put_nowait(None)

    async def aclose(self) -> None:
        return None

    async def version(self) -> str:
        return "0.33.0"

    async def installed(self) -> tuple[InstalledModel, ...]:
        listed = tuple(
            InstalledModel(name=known.name.short, digest=known.digest)
            for known in self.engine.catalogue.newest_first()
        )
        if listed != self._listed:
            self._listed = listed
        return self._listed

    async def resident(self) -> tuple[ResidentModel, ...]:
        return tuple(
            ResidentModel(
                name=runner.name,
                size_mib=max(runner.model.size_bytes, runner.vram_bytes) / MIB,
                vram_mib=runner.vram_bytes / MIB,
                context_tokens=runner.key[0],
            )
            for runner in self.engine.runners()
            if not runner.died.is_set()
        )

    async def capabilities(self, model: str) -> frozenset[str] | None:
        return frozenset(self._find(model).model.capabilities)

    async def memory_mib(self) -> float | None:
        return None

    async def load(self, model: str, options: LoadOptions) -> None:
        wanted = {} if options.num_ctx is None else {"num_ctx": options.num_ctx}
        installed = self._find(model)
        ask = Ask(model=model, stream=False, options=dict(wanted))
        read = read_options(
            installed.model, ask, default_num_ctx=self.engine.default_context_tokens
        )
        async with self.engine.lease(installed, read.load_key, float("inf")):
            pass

    async def unload(self, model: str) -> None:
        self.engine.expire(self._find(model))

    def _find(self, model: str) -> Installed:
        found = self.engine.catalogue.find(model)
        if found is None:
            raise ModelNotFound(f"model '{model}' not found")
        return found

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        del model, options, timeout_s
        return True

    def kill(self, model: str) -> None:
        """The process of a model ends."""
        with suppress(OllamaError):
            self.engine.kill_runner(canonical_model(model))
