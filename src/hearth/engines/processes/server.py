"""The server of one model: started when the model is loaded, stopped when it is unloaded, left
alone for a while when it keeps ending.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from functools import partial

from hearth.clock import Clock, new_id
from hearth.config.engines import RunSettings
from hearth.engines.llama_server.conversations import Conversations
from hearth.engines.llama_server.slots import SAVE_S
from hearth.engines.processes.commands import ServerCommand, command_of, program_of
from hearth.engines.processes.crashes import Crashes
from hearth.engines.processes.log import ProcessLog
from hearth.engines.processes.ports import Ports
from hearth.engines.processes.run import EngineFor, Run, State
from hearth.errors import LoadError, ModelLeftAlone
from hearth.events import EngineExited, InternalFault
from hearth.ports import EventSink

UNLOAD_LIMIT_S = 15.0
"""So long after its saving and its grace a server that cannot be ended is not waited for."""


class ModelServer:
    """Starts and stops the server of one model.

    Args:
        name: as callers write it, which is `${MODEL}`. vram_mib, engine_for: as of `Run`.
        conversations: where they are saved before a stop; None where they are not.

    Attributes:
        log: what its servers have written. run: the latest, None before the first.
    """

    def __init__(
        self,
        name: str,
        settings: RunSettings,
        vram_mib: float,
        ports: Ports,
        *,
        clock: Clock,
        events: EventSink,
        engine_for: EngineFor,
        conversations: Conversations | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.log = ProcessLog()
        self.run: Run | None = None
        self._ports = ports
        self._clock = clock
        self._events = events
        self._engine_for = engine_for
        self._vram_mib = vram_mib
        self._conversations = conversations
        self._crashes = Crashes()
        self._last_failure = ""

    @property
    def ready(self) -> Run | None:
        """The run that takes calls now."""
        run = self.run
        return run if run is not None and run.state is State.READY else None

    @property
    def slots(self) -> int | None:
        """Requests that it serves at the same time, as its latest server has said."""
        return None if self.run is None else self.run.slots

    def program(self) -> str:
        """The file of the program that starts it. Raises LoadError: there is none, or a macro
        cannot be replaced.
        """
        return program_of(self.name, self.settings, os.environ)

    async def load(self) -> None:
        """Returns once a server is ready. Cancelling it ends one that is not, at once, and it
        returns when nothing of that is left. Raises LoadError, ModelLeftAlone.
        """
        while self.run is not None and self.run.is_ending:
            await asyncio.wait((self.run.task,))
        run = self.run
        try:
            if run is None or run.state is State.STOPPED:
                run = self._started()
            await asyncio.shield(run.ready)
        except asyncio.CancelledError:
            if run is not None:
                run.cut()
                # its memory is somebody else's once this is over
                await asyncio.wait((run.task,), timeout=UNLOAD_LIMIT_S)
            raise
        except LoadError as error:
            raise self._left_alone_after(error) from error

    def _left_alone_after(self, error: LoadError) -> LoadError:
        left_alone_s = self._crashes.left_alone_s(self._clock.monotonic())
        if not left_alone_s:
            return error
        return ModelLeftAlone(
            f"{error.message}. Its server keeps failing, and is not started again for"
            f" {left_alone_s:.0f} s",
            retry_after_s=left_alone_s,
        )

    def _started(self) -> Run:
        """A new run. Raises LoadError."""
        if self._crashes.left_alone_s(self._clock.monotonic()):
            raise LoadError(self._last_failure)
        port = 0
        try:
            port = self._ports.take()
            run = Run(
                self.name,
                self.settings,
                self._command(port),
                port,
                identity=new_id(""),
                clock=self._clock,
                log=self.log,
                vram_mib=self._vram_mib,
                engine_for=self._engine_for,
                on_exit=self._exited,
            )
        except (LoadError, OSError) as error:
            self._ports.give_back(port)
            why = error.message if isinstance(error, LoadError) else str(error.strerror)
            self._exited(why, None)
            raise LoadError(why) from error
        self.run = run
        run.task.add_done_callback(partial(self._over, port))
        return run

    def _command(self, port: int) -> ServerCommand:
        """Raises LoadError."""
        command = command_of(self.name, self.settings, port, os.environ)
        if self._conversations is None:
            return command
        given = {**os.environ, **command.env}
        own = self._conversations.environment(self.name, command.words, given)
        return replace(command, env={**own, **command.env})

    def _exited(self, how: str, ready_s: float | None) -> None:
        """A server has ended by itself, or could not be used; as of `Run`."""
        now = self._clock.monotonic()
        self._last_failure = how
        if ready_s is not None:
            self._last_failure = f"the server of {self.name} {how}: hearth models log {self.name}"
            self._crashes.served_for(ready_s)
            self._events.emit(EngineExited(at=now, model=self.name, how=how, ready_s=ready_s))
        self._crashes.happened(now)

    def _over(self, port: int, run: asyncio.Task[None]) -> None:
        self._ports.give_back(port)
        if not run.cancelled() and (error := run.exception()) is not None:
            self._events.emit(
                InternalFault(
                    at=self._clock.monotonic(), where="processes", detail=type(error).__name__
                )
            )

    async def unload(self) -> None:
        """Returns once nothing of its server is left. Raises LoadError: that cannot be ended."""
        run = self.run
        if run is None:
            return
        run.stop()
        limit_s = SAVE_S + self.settings.stop_grace_s + UNLOAD_LIMIT_S
        ended, _ = await asyncio.wait((run.task,), timeout=limit_s)
        if not ended or run.left_over:
            raise LoadError(f"processes of {self.name} could not be ended: see `ps`")

    async def aclose(self) -> None:
        """End its server, with its grace."""
        if self.run is not None:
            self.run.stop()
            await asyncio.wait((self.run.task,))
