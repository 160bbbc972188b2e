"""One run of a model's server, from a free port to an empty tree of processes.

One task owns it: `STARTING > READY > STOPPING > STOPPED`. What others want of it they say through
`stop` and `cut`, and see by its state; the task itself is never cancelled before the tree is gone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from http import HTTPStatus
from typing import TypeAlias

from hearth.clock import Clock, wait_running
from hearth.config.engines import RunSettings
from hearth.dialects.frames import object_in
from hearth.dialects.gojson import JsonObject
from hearth.engines.data_path import DataPath
from hearth.engines.llama_server.control import PROPS
from hearth.engines.llama_server.engine import LlamaServer
from hearth.engines.openai_server.exchanges import whole_body
from hearth.engines.port import Engine
from hearth.engines.processes.commands import ServerCommand
from hearth.engines.processes.hooks import run_hook
from hearth.engines.processes.log import ProcessLog
from hearth.engines.processes.sockets import Listening, listening
from hearth.engines.processes.tree import Tree
from hearth.engines.server_arguments import sleeps_by_itself
from hearth.errors import BackendError, LoadError
from hearth.types import BackendCall, ResidentModel

FIRST_LOOK_S = 0.02
MOST_LOOK_S = 0.25
"""Between two looks whether a server is ready, which get longer."""
STRANGE_LOOKS = 3
"""In a row; a tree that changes while it is looked at may be seen in part."""
ENDING_S = 0.5
"""The system closes the connections of a process a moment before its parent is told of its end."""
ASK_TIMEOUT_S = 5.0
MAX_BODY_BYTES = 16 * 1024**2


class _Over(Exception):
    """The server is of no use any more; says why, in words that go on from `the server of NAME`."""


class State(StrEnum):
    """Where a run is."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


EngineFor: TypeAlias = "Callable[[str, JsonObject | None, Mapping[str, str]], Awaitable[Engine]]"
"""The engine for a server: its URL, what it says of itself as llama.cpp's does, None for another
one, and the variables that it was started with.
"""


class Run:
    """A server that is started when this is made.

    Args:
        vram_mib: that it takes where it does not say so. engine_for: makes the engine that its
        calls go through. on_exit: hears why it is
        of no use, and how many seconds it was ready, None where it never was.

    Attributes:
        ready: done once it is ready; LoadError says why it never will be. engine, resident,
        slots: what its calls go through, what it has in memory, and requests that it serves at the
        same time, once it is ready. was_put_to_sleep: by `sleep`. left_over: something of it could
        not be ended.
    """

    def __init__(
        self,
        name: str,
        settings: RunSettings,
        command: ServerCommand,
        port: int,
        *,
        identity: str,
        clock: Clock,
        log: ProcessLog,
        vram_mib: float,
        engine_for: EngineFor,
        on_exit: Callable[[str, float | None], None],
    ) -> None:
        self._name = name
        self._settings = settings
        self._port = port
        self.url = f"http://127.0.0.1:{port}"
        self._clock = clock
        self._vram_mib = vram_mib
        self._engine_for = engine_for
        self._command = command
        self._log = log
        self.was_put_to_sleep = False
        self._on_exit = on_exit
        loop = asyncio.get_running_loop()
        self.state = State.STARTING
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ready.add_done_callback(_seen)
        self.engine: Engine | None = None
        self.resident: ResidentModel | None = None
        self.slots: int | None = None
        self.left_over = False
        self.tree = Tree(command, os.environ, run=identity, grace_s=settings.stop_grace_s, log=log)
        self._stop: asyncio.Future[None] = loop.create_future()
        self._doubted = asyncio.Event()
        self._is_cut = False
        self._strange_looks = 0
        self._listens = False
        self.task = loop.create_task(self._live(), name=f"server of {name}")

    @property
    def is_ending(self) -> bool:
        """It was asked to end, or does so by itself; something of it may be left."""
        return self.state is not State.STOPPED and (
            self.state is State.STOPPING or self._stop.done() or self.tree.exit.done()
        )

    def stop(self) -> None:
        """End it, with its grace."""
        if not self._stop.done():
            self._stop.set_result(None)

    def cut(self) -> None:
        """End it at once."""
        self._is_cut = True
        self.tree.kill()
        self.stop()

    def doubt(self) -> None:
        """A call has found nobody listening."""
        self._doubted.set()

    @property
    def ending(self) -> str:
        """How it ended or why it ends, for a caller."""
        how = self.tree.exit.result() if self.tree.exit.done() else "was stopped"
        return f"the server of {self._name} {how}: hearth models log {self._name}"

    async def sleep(self) -> None:
        """Raises LoadError: it may be in any state now."""
        self.was_put_to_sleep = True  # as far as requests are concerned, whatever comes of it
        await self._hook(self._command.sleep)

    async def wake(self) -> None:
        """The same."""
        await self._hook(self._command.wake)
        self.was_put_to_sleep = False

    async def _hook(self, words: tuple[str, ...]) -> None:
        timeout_s = self._settings.sleep_timeout_s
        await run_hook(words, self.tree.env, timeout_s=timeout_s, log=self._log)

    async def is_asleep(self) -> bool:
        """It was put to sleep, or has dropped its model by itself, as a llama-server does that was
        told to.
        """
        if self.was_put_to_sleep:
            return True
        engine = self.engine
        if not isinstance(engine, LlamaServer) or not sleeps_by_itself(self._settings.command):
            return False
        try:
            return await engine.is_asleep()
        except BackendError:  # it has just ended, or hangs
            return False

    async def has_ended(self) -> bool:
        """It ends now, or does so within a moment."""
        if self.state is State.READY:
            await asyncio.wait(
                (self.tree.exit, self._stop),
                timeout=ENDING_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        return self.state is not State.READY or self.tree.exit.done()

    async def _live(self) -> None:
        try:
            await self._serve()
        except BackendError as error:
            if not self.ready.done():
                self._on_exit(error.message, None)
                self.ready.set_exception(LoadError(error.message))
        finally:
            await self._end()

    async def _serve(self) -> None:
        """Returns once it is to be stopped, or has ended by itself. Raises LoadError."""
        try:
            if not await self._first(self._get_ready(), self._settings.start_timeout_s):
                return
        except _Over as over:
            raise LoadError(
                f"the server of {self._name} {over}: hearth models log {self._name}"
            ) from over
        self.state = State.READY
        ready_at = self._clock.monotonic()
        self.ready.set_result(None)
        try:
            await self._first(self._lost_its_socket(), None)
        except _Over as over:
            self.state = State.STOPPING
            self._on_exit(str(over), self._clock.monotonic() - ready_at)

    async def _first(self, looks: Awaitable[None], timeout_s: float | None) -> bool:
        """Wait for what `looks` at the server. False: it was stopped meanwhile.

        Raises _Over: it has ended by itself, or took longer; and what `looks` raises.
        """
        look = asyncio.ensure_future(looks)
        awaited = (look, self.tree.exit, self._stop)
        try:
            if timeout_s is None:
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            else:
                await wait_running(awaited, timeout_s)
        finally:
            look.cancel()
            await asyncio.wait((look,))
        if self._is_cut or (self._stop.done() and not self.tree.exit.done()):
            return False
        if self.tree.exit.done():  # by itself: it is not told to stop before this returns
            before = "" if self.state is State.READY else " before it was ready"
            raise _Over(f"{self.tree.exit.result()}{before}")
        if look.cancelled():
            raise _Over(await self._too_late())
        look.result()
        return True

    async def _too_late(self) -> str:
        found = await self._listening()
        where = ""
        if found is not None and found.is_ours and not self._listens:
            where = f"; it listens on port {self._port}, but not at 127.0.0.1"
        elif found is not None and not found.is_ours and found.others:
            ports = ", ".join(map(str, found.others))
            where = f"; it listens on {ports}, not on ${{PORT}}, which is {self._port}"
        timeout_s = self._settings.start_timeout_s
        return f"was not ready within {timeout_s:g} s{where}"

    async def _get_ready(self) -> None:
        """Returns once it is ready, and known. Raises LoadError: it cannot be used."""
        probe = DataPath(self.url, connect_timeout_s=ASK_TIMEOUT_S, max_body_bytes=MAX_BODY_BYTES)
        pause_s = FIRST_LOOK_S
        try:
            while not (await self._is_ours() and await self._is_ready(probe)):
                await asyncio.sleep(pause_s)
                pause_s = min(MOST_LOOK_S, pause_s * 1.5)
            said = await self._said_of_itself(probe)
            self.engine = await self._engine_for(self.url, said, self._command.env)
            await self._ask_what_it_has(self.engine)
        finally:
            await probe.aclose()

    async def _ask_what_it_has(self, engine: Engine) -> None:
        listed = await engine.installed()
        self.slots = listed[0].slots if listed else None
        found = [*await engine.resident(), ResidentModel(name="", size_mib=0.0, vram_mib=0.0)]
        self.resident = replace(
            found[0],
            name=self._name,
            size_mib=found[0].size_mib or self._vram_mib,
            vram_mib=found[0].vram_mib or self._vram_mib,
        )

    async def _listening(self) -> Listening | None:
        return await asyncio.to_thread(listening, self._port, self.tree.processes)

    async def _is_ours(self) -> bool:
        """It listens on its port. Raises LoadError: somebody else does."""
        if self._listens or not await _accepts(self._port):
            return self._listens
        found = await self._listening()
        is_strange = found is not None and found.is_ours is False
        self._strange_looks = self._strange_looks + 1 if is_strange else 0
        if self._strange_looks == STRANGE_LOOKS:
            raise LoadError(
                f"another program listens on port {self._port}, which the server of"
                f" {self._name} was given"
            )
        self._listens = found is None or found.is_ours is True
        return self._listens

    async def _is_ready(self, probe: DataPath) -> bool:
        if self._settings.ready == "port":
            return True
        status, _ = await _asked(probe, self._settings.ready)
        return status == HTTPStatus.OK

    async def _said_of_itself(self, probe: DataPath) -> JsonObject | None:
        status, body = await _asked(probe, PROPS)
        said = object_in(body) if status == HTTPStatus.OK else {}
        return said if "build_info" in said else None

    async def _lost_its_socket(self) -> None:
        """Raises _Over once it was doubted, and does not listen any more."""
        while True:
            await self._doubted.wait()
            self._doubted.clear()
            found = await self._listening()
            if found is not None and not found.is_ours:
                raise _Over(f"does not listen on port {self._port} any more")

    async def _end(self) -> None:
        """Have it save its conversations, close what it was asked through, which it would wait for,
        and end all of it.
        """
        self.state = State.STOPPING
        if not self.ready.done():
            self.ready.set_exception(LoadError(f"the start of {self._name} was given up"))
        try:
            await self._keep_conversations()
            if self.engine is not None:
                await self.engine.aclose()
        finally:
            if self._is_cut:
                self.tree.kill()
            else:
                self.tree.stop()
            self.left_over = not await self.tree.gone()
            self.state = State.STOPPED

    async def _keep_conversations(self) -> None:
        slots = self.engine.slots if isinstance(self.engine, LlamaServer) else None
        if slots is None:
            return
        if self.tree.exit.done():
            slots.crashed()
        elif not self._is_cut:
            await slots.save()


async def _accepts(port: int) -> bool:
    """Somebody takes connections there, which is seen without a look at all sockets."""
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _asked(probe: DataPath, path: str) -> tuple[int, bytes]:
    """Status and body of an answer; 0 where there is none."""
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            exchange = await probe.open(BackendCall(method="GET", path=path))
            return exchange.status, await whole_body(exchange)
    except (BackendError, TimeoutError):
        return 0, b""


def _seen(ready: asyncio.Future[None]) -> None:
    """Nobody may wait for it any more."""
    if not ready.cancelled():
        ready.exception()
