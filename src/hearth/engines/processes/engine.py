"""Servers that Hearth starts and stops itself, as one engine: a model is loaded by starting its
server, and unloaded by ending it.

A call goes through the engine of its model's server, which is made once the server is ready and
has said what it is.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus

from hearth.clock import Clock
from hearth.config.settings import ModelSettings, Settings
from hearth.dialects.frames import object_in
from hearth.dialects.gojson import LARGE_BYTES, JsonObject, folded
from hearth.dialects.routes import WORK_ROUTES
from hearth.engines.llama_server.conversations import Conversations
from hearth.engines.llama_server.engine import LlamaServer
from hearth.engines.openai_server.calls import failed
from hearth.engines.openai_server.exchanges import Ready
from hearth.engines.openai_server.pages import Shown, ShownModel, page
from hearth.engines.port import Engine, Exchange
from hearth.engines.processes.commands import command_of, digest_of
from hearth.engines.processes.marks import end_marked, is_left_behind
from hearth.engines.processes.memory import resident_mib
from hearth.engines.processes.own_server import OwnServer
from hearth.engines.processes.ports import Ports
from hearth.engines.processes.run import Run, State
from hearth.engines.processes.server import ModelServer
from hearth.engines.processes.traits import ProcessesTraits
from hearth.engines.server_arguments import sleeps_by_itself
from hearth.errors import BackendGone, BackendUnreachable, LoadError, ModelGone, ModelNotFound
from hearth.ports import EventSink
from hearth.types import (
    MIB,
    BackendCall,
    Headers,
    InstalledModel,
    LoadOptions,
    ResidentModel,
    SleepLevel,
    __version__,
)

LEFTOVER_GRACE_S = 10.0
MIB_PER_GIB = 1024.0
_FIRST = re.compile(rb'\s*\{\s*"model"\s*:\s*"([!#-\[\]-~]*)"')
_SPELLED = re.compile(rb'"model"|\\u', re.IGNORECASE)


def models_of(settings: Settings, row: str) -> dict[str, ModelSettings]:
    """The models of a row, by the names that requests call them by. One that names no engine is of
    the only row of this kind.
    """
    rows = [name for name, each in settings.engines.items() if each.kind == "processes"]
    return {
        model.upstream_name or name: model
        for name, model in settings.models.items()
        if model.run is not None and (model.engine == row or (not model.engine and rows == [row]))
    }


class Processes(ProcessesTraits):
    """The models of one row of `engines`.

    Args:
        models: those with `run`, by the names that requests call them by.
        setting: where the ports are written, for messages. conversations: where those of servers of
        llama.cpp are saved before a stop. connect_timeout_s, control_timeout_s:
        as of `LlamaServer`, for each server.
    """

    def __init__(
        self,
        models: Mapping[str, ModelSettings],
        ports: range,
        *,
        setting: str,
        clock: Clock,
        events: EventSink,
        connect_timeout_s: float,
        control_timeout_s: float,
        conversations: Conversations | None = None,
    ) -> None:
        self._clock = clock
        self._since_wall_s = clock.wall()
        self._connect_timeout_s = connect_timeout_s
        self._control_timeout_s = control_timeout_s
        self._conversations = conversations
        self.ports = Ports(ports, setting)
        self.servers = {
            name.lower(): ModelServer(
                name,
                model.run,
                (model.vram_gb or 0.0) * MIB_PER_GIB,
                self.ports,
                clock=clock,
                events=events,
                engine_for=partial(self._engine_for, name),
                conversations=conversations,
            )
            for name, model in models.items()
            if model.run is not None
        }
        commands = (server.settings.command for server in self.servers.values())
        programs = {re.escape(command[0].rpartition("/")[2]) for command in commands}
        self.processes = re.compile(rf"(?:^|/)(?:{'|'.join(sorted(programs)) or '(?!)'})$")
        self._installed: tuple[InstalledModel, ...] = ()
        self._cleaning: asyncio.Task[bool] | None = None
        self._is_closed = False

    async def _engine_for(
        self,
        name: str,
        url: str,
        said: JsonObject | None,
        env: Mapping[str, str],
    ) -> Engine:
        """The engine for a server that is ready."""
        if said is None:
            return OwnServer(
                url,
                clock=self._clock,
                setting=f"models.{name}.run",
                connect_timeout_s=self._connect_timeout_s,
                control_timeout_s=self._control_timeout_s,
            )
        slots = None
        settings = self.servers[name.lower()].settings
        if self._conversations is not None and not sleeps_by_itself(settings.command):
            portless = command_of(name, settings, 0, os.environ)
            inherited = {key: text for key, text in os.environ.items() if key.startswith("LLAMA_")}
            slots = await self._conversations.slots_of(
                name,
                said,
                command=portless.words,
                environment={**inherited, **env, **portless.env},
            )
        return LlamaServer(
            url,
            name=name,
            slots=slots,
            clock=self._clock,
            setting=f"models.{name}.run",
            connect_timeout_s=self._connect_timeout_s,
            control_timeout_s=self._control_timeout_s,
        )

    @property
    def counts_unasked(self) -> bool:
        """Each server that is known does."""
        runs = (server.run for server in self.servers.values() if server.run is not None)
        return all(run.engine is None or run.engine.counts_unasked for run in runs)

    def check_request(self, path: str, fields: JsonObject) -> None:
        """By what the model's server was when it ran last; before the first time nothing is known,
        and the call itself is refused.
        """
        server = self.servers.get(str(fields.get("model") or "").lower())
        run = None if server is None else server.run
        if run is not None and run.engine is not None:
            run.engine.check_request(path, fields)

    def saves(self, model: str) -> bool:
        return self._conversations is not None and self._conversations.saves(model)

    def sleeps(self, model: str) -> tuple[SleepLevel, ...]:
        server = self.servers.get(model.lower())
        run = None if server is None else server.settings
        return ("offload",) if run is not None and run.sleep_command and run.wake_command else ()

    def asleep(self) -> Mapping[str, SleepLevel]:
        ready = {server.name: server.ready for server in self.servers.values()}
        return {
            name: "offload"
            for name, run in ready.items()
            if run is not None and run.was_put_to_sleep
        }

    def end_leftovers(self) -> None:
        """Begin to end what gateways have left behind that are no more; loads wait for it."""
        end = partial(end_marked, is_left_behind, LEFTOVER_GRACE_S)
        self._cleaning = asyncio.get_running_loop().create_task(
            asyncio.to_thread(end), name="ends what earlier runs have left behind"
        )

    def _server(self, model: str) -> ModelServer:
        server = self.servers.get(model.lower())
        if server is None:
            raise ModelNotFound(f"model '{model}' not found")
        return server

    # The data path.

    async def open(self, call: BackendCall) -> Exchange:
        path = call.path.partition("?")[0]
        route = WORK_ROUTES.get(path)
        if route is None:
            return await self._page(path, call)
        name = call.form.model if call.form is not None else await _model_in(call.body)
        server = self.servers.get(name.lower())
        if server is None:
            return failed(route, HTTPStatus.NOT_FOUND, f"model '{name}' not found")
        run = server.ready
        if run is None or run.engine is None or run.was_put_to_sleep:
            raise ModelGone
        try:
            return _OfRun(await run.engine.open(call), run)
        except BackendUnreachable as error:
            run.doubt()
            raise ModelGone from error
        except BackendGone as error:
            raise await _meant_by(error, run) from error

    async def _page(self, path: str, call: BackendCall) -> Ready:
        in_memory = {model.name: model for model in await self.resident()}
        models = [
            ShownModel(
                name=listed.name,
                owner="hearth",
                since_wall_s=self._since_wall_s,
                digest=listed.digest,
                size_bytes=round(in_memory[listed.name].size_mib * MIB) if is_there else 0,
                vram_mib=in_memory[listed.name].vram_mib if is_there else None,
                context_tokens=in_memory[listed.name].context_tokens if is_there else None,
            )
            for listed in await self.installed()
            for is_there in [listed.name in in_memory]
        ]
        answer = page(path, call.body, Shown(title="Hearth", version=__version__, models=models))
        return answer if call.method != "HEAD" else Ready(answer.status, b"", answer.headers)

    # What is there.

    async def version(self) -> str:
        """Hearth's own."""
        return __version__

    async def installed(self) -> tuple[InstalledModel, ...]:
        listed = await asyncio.to_thread(self._listed)
        if listed != self._installed:
            self._installed = listed
        return self._installed

    def _listed(self) -> tuple[InstalledModel, ...]:
        return tuple(
            InstalledModel(
                name=server.name,
                digest=digest_of(server.name, server.settings, os.environ),
                slots=server.slots,
            )
            for server in self.servers.values()
        )

    async def capabilities(self, model: str) -> frozenset[str] | None:
        run = self._server(model).ready
        if run is None or run.engine is None:
            return None
        return await run.engine.capabilities(model)

    async def resident(self) -> tuple[ResidentModel, ...]:
        if self._conversations is not None:
            await asyncio.to_thread(self._conversations.expire)
        ready = [run for server in self.servers.values() if (run := server.ready) is not None]
        asleep = await asyncio.gather(*(run.is_asleep() for run in ready))
        return tuple(
            run.resident
            for run, is_asleep in zip(ready, asleep, strict=True)
            if run.resident is not None and not is_asleep
        )

    async def memory_mib(self) -> float | None:
        latest = [server.run for server in self.servers.values() if server.run is not None]
        # of one that has stopped, the number of its guard may be another program's by now
        runs = [run for run in latest if run.state is not State.STOPPED]
        return await asyncio.to_thread(
            lambda: resident_mib({one for run in runs for one in run.tree.processes()})
        )

    def log_after(self, model: str, number: int) -> tuple[list[str], int]:
        """As of `ProcessLog.after`, of the model's server. Raises ModelNotFound."""
        return self._server(model).log.after(number)

    # Into memory, and out.

    async def load(self, model: str, options: LoadOptions) -> None:
        server = self._server(model)
        if self._cleaning is not None:
            await asyncio.shield(self._cleaning)
        if self._is_closed:
            raise LoadError(f"{model} is not started: Hearth is stopping")
        await server.load()
        run = server.ready
        if run is not None and run.was_put_to_sleep:
            await run.wake()
        elif run is not None and run.engine is not None and await run.is_asleep():
            await run.engine.load(model, options)

    async def sleep(self, model: str, level: SleepLevel) -> None:
        del level  # there is one
        run = self._server(model).ready
        if run is None:
            raise LoadError(f"the server of {model} does not run")
        await run.sleep()

    async def unload(self, model: str) -> None:
        await self._server(model).unload()

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        run = self._server(model).ready
        if run is None or run.engine is None:
            return True  # the request that is about to be sent meets the same and says so
        return await run.engine.probe(model, options, timeout_s)

    async def aclose(self) -> None:
        """End all servers, each within its grace, and start none any more."""
        self._is_closed = True
        if self._cleaning is not None:
            await asyncio.wait((self._cleaning,))
        await asyncio.gather(*(server.aclose() for server in self.servers.values()))


class _OfRun:
    """An `Exchange` whose end says whether its server is gone."""

    def __init__(self, exchange: Exchange, run: Run) -> None:
        self._exchange = exchange
        self._run = run
        self.status = exchange.status
        self.close = exchange.close

    @property
    def headers(self) -> Headers:
        return self._exchange.headers

    async def take(self) -> tuple[bytes, ...]:
        try:
            return await self._exchange.take()
        except BackendGone as error:
            raise await _meant_by(error, self._run) from error


async def _meant_by(error: BackendGone, run: Run) -> BackendGone:
    """A connection may end a moment before its process is known to have ended."""
    return ModelGone(run.ending) if await run.has_ended() else error.again()


async def _model_in(body: bytes) -> str:
    """The model that is asked for, without reading all of a body that begins with its name and has
    no other key that may mean the same.
    """
    found = _FIRST.match(body)
    if found and not _SPELLED.search(body, found.end()):
        return found[1].decode()
    fields = (
        await asyncio.to_thread(object_in, body) if len(body) > LARGE_BYTES else object_in(body)
    )
    return str(folded(fields).get("model") or "")
