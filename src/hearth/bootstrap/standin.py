"""Whether the emulator may answer in place of an Ollama that is not there.

Only for somebody who tries Hearth out: nothing is configured, nobody's service manager runs it, and nothing listens at the default
address. Everybody else waits for the model server, since to a real program a made-up answer is worse than none.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from hearth.config.settings import Settings
from hearth.events import EmulatorStarted, Event
from hearth.ports import HandlingSink

CONNECT_TIMEOUT_S = 2.0


class StderrNotice(HandlingSink):
    """Tells whoever runs a program that embeds Hearth, and takes no events, who answers it."""

    _handlers: Mapping[type[Event], Callable[[Any], None]]

    def __init__(self) -> None:
        self._handlers = {EmulatorStarted: self._started}

    def _started(self, event: EmulatorStarted) -> None:
        sys.stderr.write(f"hearth: THE EMULATOR ANSWERS, so answers are made up: {event.reason}\n")


def named_server(settings: Settings) -> str:
    """The setting that says that there is a model server, empty where none does. The file as it is shipped has none of them."""
    given = {
        "ollama.url": "url" in settings.ollama.model_fields_set,
        "auth.keys": settings.auth.keys,
        "models": settings.models,
        "gpu.home_model": settings.gpu.home_model,
        "cloud.api_key": settings.cloud.api_key,
    }
    return next((name for name, value in given.items() if value), "")


_MANAGERS = {
    "NOTIFY_SOCKET": "systemd",
    "SUPERVISOR_ENABLED": "supervisord",
    "RC_SVCNAME": "OpenRC",
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
}
"""By a variable that each of them sets for what it runs."""


def service_manager(environ: Mapping[str, str], *, pid: int, parent_pid: int, at_terminal: bool) -> str:
    """What keeps this process running, empty where somebody has started it by hand."""
    for variable, manager in _MANAGERS.items():
        if environ.get(variable):
            return manager
    # What is started in a terminal of a desktop inherits this from the terminal's own unit.
    own_unit = environ.get("SYSTEMD_EXEC_PID") == str(pid) or not at_terminal
    if environ.get("INVOCATION_ID") and own_unit:
        return "systemd"
    job = environ.get("XPC_SERVICE_NAME", "0")
    if job not in {"", "0"} and not job.startswith("application."):
        return "launchd"
    # So it is in a container that runs nothing else, where process 1 may be a shim of the container's engine.
    return "init" if pid == 1 or (parent_pid == 1 and not at_terminal) else ""


def this_service_manager() -> str:
    """`service_manager` of this process."""
    try:
        at_terminal = os.isatty(0)
    except OSError:
        at_terminal = False
    return service_manager(os.environ, pid=os.getpid(), parent_pid=os.getppid(), at_terminal=at_terminal)


async def listens(url: str) -> bool:
    """Whether anything does there; so does what takes a connection and then says nothing, like an Ollama that hangs."""
    address = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
    except TimeoutError:
        return True
    except OSError:
        return False
    writer.transport.abort()
    return True
