"""Whether the emulator may answer in place of a model server that is not there, and the way to
one that comes.

Only for somebody who tries Hearth out: nothing is configured, nobody's service manager runs it, and
nothing listens at the default address. Everybody else waits for the model server, since to a real
program a made-up answer is worse than none.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hearth.bootstrap.probing import claim_server, server_at
from hearth.config.settings import ENGINE_URL, BackendMode, Settings
from hearth.events import EmulatorStarted, EmulatorStopped, Event, SmallModelAnswers
from hearth.events.handling import HandlingSink
from hearth.gateway import BackendIdentity, Gateway
from hearth.queue.learned import LearnedEstimates
from hearth.scheduling.inputs import GpuSampled, ServerReplaced, Switched
from hearth.types import JsonMapping

LEARNED_OF_SERVER = "scheduler"
LEARNED_OF_EMULATOR = "scheduler.emulator"
"""Under which names the estimates are kept."""
LOOK_INTERVAL_S = 1.0
"""A server that was started is found this fast; a look at a closed port costs next to nothing."""


class StderrNotice(HandlingSink):
    """Tells whoever runs a program that embeds Hearth, and takes no events, who answers it."""

    _handlers: Mapping[type[Event], Callable[[Any], None]]

    def __init__(self) -> None:
        self._handlers = {
            EmulatorStarted: self._started,
            EmulatorStopped: self._stopped,
            SmallModelAnswers: self._small,
        }

    def _started(self, event: EmulatorStarted) -> None:
        sys.stderr.write(f"hearth: THE EMULATOR ANSWERS, so answers are made up: {event.reason}\n")

    def _small(self, event: SmallModelAnswers) -> None:
        sys.stderr.write(f"hearth: {event.model}, a small model, answers: {event.reason}\n")

    def _stopped(self, event: EmulatorStopped) -> None:
        sys.stderr.write(f"hearth: the emulator answers no more: {event.reason}\n")


def named_server(settings: Settings) -> str:
    """The setting that says that there is a model server, empty where none does.

    The file as it is shipped has none of them.
    """
    given = {
        ENGINE_URL: "url" in settings.engine.model_fields_set,
        "engines": settings.engines,
        "auth.keys": settings.auth.keys,
        "models": settings.models,
        "gpu.home_model": settings.gpu.home_model,
        "cloud.api_key": settings.cloud.api_key,
    }
    return next((name for name, value in given.items() if value), "")


_MANAGERS = {
    "INVOCATION_ID": "systemd",
    "SUPERVISOR_ENABLED": "supervisord",
    "RC_SVCNAME": "OpenRC",
    "pm_id": "pm2",
}
"""By a variable that each of them sets for what it runs, and that everything inherits which is
started by that.
"""
_CONTAINER = "a container"
_PARENTS = {
    "tini": _CONTAINER,
    "docker-init": _CONTAINER,
    "catatonit": _CONTAINER,
    "dumb-init": _CONTAINER,
    "runsv": "runit",
    "s6-supervise": "s6",
    "supervise": "daemontools",
    "supervise-daemo": "OpenRC",
    "PM2": "pm2",
}
"""By the first word of the name of the process that starts Hearth, of which the kernel keeps 15
letters. The first four are what the engine of a container may start as process 1, with the one
program of the container as its child.
"""
_SHELLS = {"sh", "bash", "dash", "ash", "ksh", "zsh", "busybox"}


class Parent(NamedTuple):
    """The process above this one. `name` and `program` are empty where they cannot be known."""

    pid: int
    name: str = ""
    program: str = ""
    """What runs as it, without its directory: the shell, where it is a script."""


def parent_at(proc: Path, pid: int) -> Parent:
    """The process with that number in a directory such as `/proc`."""
    name = ""
    program = ""
    with suppress(OSError):
        name = (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    with suppress(OSError):
        command = (proc / str(pid) / "cmdline").read_bytes()
        program = Path(os.fsdecode(command.partition(b"\0")[0])).name
    return Parent(pid, name, program)


def service_manager(
    environ: Mapping[str, str], *, pid: int, parent: Parent, at_terminal: bool
) -> str:
    """What keeps this process running, empty where somebody has started it by hand.

    A shell inherits the variables of the service that a terminal, an editor or a runner of CI is,
    so they count without a terminal only.
    """
    if environ.get("NOTIFY_SOCKET") or environ.get("SYSTEMD_EXEC_PID") == str(pid):
        return "systemd"
    if pid == 1:
        return _CONTAINER
    above = _manager_above(parent, at_terminal=at_terminal)
    if above or at_terminal:
        return above
    job = environ.get("XPC_SERVICE_NAME", "0")
    if job not in {"", "0"} and not job.startswith("application."):
        return "launchd"
    return next((manager for variable, manager in _MANAGERS.items() if environ.get(variable)), "")


def _manager_above(parent: Parent, *, at_terminal: bool) -> str:
    """What the parent is. To be the child of process 1 says nothing: so is what was started in the
    background by a shell that has ended. But where process 1 is itself a shell, it is the script
    that a container was started with.
    """
    if parent.pid == 1 and parent.program in _SHELLS:
        return "" if at_terminal else _CONTAINER
    return _PARENTS.get(parent.name.partition(" ")[0], "")


def this_service_manager() -> str:
    """`service_manager` of this process."""
    at_terminal = False
    with suppress(OSError):
        at_terminal = os.isatty(0)
    parent = parent_at(Path("/proc"), os.getppid())
    return service_manager(os.environ, pid=os.getpid(), parent=parent, at_terminal=at_terminal)


class StandIn:
    """Looks for the model server in whose place the emulator answers. Once it is there, or
    something is configured, the gateway goes to it.

    What runs finishes on the emulator, and nothing starts meanwhile. So no answer and nothing that
    is learned belongs to both, and the scheduler never believes that one has in memory what the
    other has loaded.

    Args:
        turn_to: has the engine of the gateway use another address.
        learned: what is kept of the estimates, where there is a store.
        stop_emulator: once nobody is answered by it. closing: gives the server's claim back.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        turn_to: Callable[[str], None],
        learned: LearnedEstimates | None,
        stop_emulator: Callable[[], Awaitable[None]],
        closing: AsyncExitStack,
    ) -> None:
        self.over = asyncio.Event()
        """The model server of the configuration answers, or is waited for."""
        self._gateway = gateway
        self._worker = gateway.worker
        self._turn_to = turn_to
        self._learned = learned
        self._stop_emulator = stop_emulator
        self._closing = closing

    async def run(self) -> None:
        """Until cancelled."""
        while not self.over.is_set():
            reason = await self.reason()
            if reason:
                await self._hand_over(reason)
            if not self.over.is_set():
                await asyncio.sleep(LOOK_INTERVAL_S)
        await asyncio.Event().wait()

    async def reason(self) -> str:
        """Why the emulator may not answer any more, empty where it may."""
        settings = self._gateway.settings
        if settings.engines:
            return ""  # taken at the next start: this engine may be of another kind
        named = named_server(settings)
        if named:
            return f"{named} is configured"
        url = settings.engine_row.url
        return f"{self._gateway.engines.title} answers at {url}" if await server_at(url) else ""

    async def _hand_over(self, reason: str) -> None:
        self._worker.post(Switched(what="handing_over", on=True))
        try:
            await self._nothing_runs()
            if self._worker.admission.back_in_s is not None:  # the gateway ends
                return
            if self._learned is None:
                self._replace(reason, None)
            else:
                await self._learned.turn_to(LEARNED_OF_SERVER, partial(self._replace, reason))
            await self._worker.watch.look()
            await self._stop_emulator()
        finally:
            self._worker.post(Switched(what="handing_over", on=False))

    async def _nothing_runs(self) -> None:
        view = self._worker.runtime.view
        async for _ in self._worker.changes():
            if not view.running and view.swap is None:
                return

    def _replace(self, reason: str, learned: JsonMapping | None) -> None:
        gateway = self._gateway
        url = self._gateway.settings.engine_row.url
        self._turn_to(url)
        claim, shared = claim_server(url)
        self._closing.callback(claim.close)
        self._worker.post(GpuSampled(capacity_mib=None))  # its memory went with the emulator
        self._worker.post(ServerReplaced(learned=learned))
        gateway.answer_from(
            BackendIdentity(mode=BackendMode.AUTO.value, url=url, emulator=False),
            (shared,) if shared else (),
        )
        gateway.events.emit(EmulatorStopped(at=gateway.clock.monotonic(), url=url, reason=reason))
        self.over.set()
