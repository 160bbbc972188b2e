"""Where answers come from: an Ollama, or an emulator of our own."""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import struct
import urllib.request
from contextlib import AsyncExitStack
from http.client import HTTPException

from hearth.backends.ollama_control import OllamaControl
from hearth.clock import Clock
from hearth.config.settings import BackendMode
from hearth.emulator.service_model import default_profiles
from hearth.errors import BackendError
from hearth.events import EmulatorStarted
from hearth.observability.sinks import EventFanout
from hearth.types import SERVICE

CONTROL_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 2.0
_ANSWER_BYTES = 4096
_CREDENTIALS = struct.Struct("3i")


def hearth_problem(url: str) -> str | None:
    """Why `ollama.url` must not be this; None where no Hearth answers there. Blocks for up to two seconds.

    Hearth in front of itself would ask itself for ever, and two in a row would each believe that the GPU is theirs.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/healthz", timeout=PROBE_TIMEOUT_S) as answer:
            said = json.loads(answer.read(_ANSWER_BYTES))
    except (OSError, ValueError, HTTPException):
        return None
    if not isinstance(said, dict) or said.get("service") != SERVICE:
        return None
    return f"ollama.url: a Hearth answers at {url}, not an Ollama; write the address of Ollama, usually http://127.0.0.1:11434"


class OllamaClaim:
    """Tells Hearths on this machine that share an Ollama of each other.

    Holds a name among the abstract sockets of Linux: no file is left behind, and the kernel takes it back when the process ends.

    Attributes:
        shared: what to tell the owner; empty where nobody else on this machine schedules that Ollama.
    """

    def __init__(self, url: str) -> None:
        self.shared = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = b"\0hearth-" + hashlib.sha256(url.encode()).hexdigest()[:16].encode()
        try:
            self._socket.bind(name)
            self._socket.listen()
        except OSError as error:  # any other than this one: then nothing is known of others
            self.release()
            if error.errno == errno.EADDRINUSE:
                self.shared = (
                    f"another Hearth ({_holder_of(name)}) schedules the same Ollama at {url}: stop one of them, or their swaps fight"
                )

    def release(self) -> None:
        """Let the next one have it."""
        self._socket.close()


def _holder_of(name: bytes) -> str:
    """The process that listens there, as far as it can be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0.0)
        try:
            caller.connect(name)
            process, _user, _group = _CREDENTIALS.unpack(caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        except OSError:
            process = 0
    return f"process {process}" if process else "another process"


async def find_backend(mode: BackendMode, url: str, *, clock: Clock, events: EventFanout, closing: AsyncExitStack) -> tuple[str, bool]:
    """Where answers come from, and whether they are made up: then by an emulator that `closing` stops."""
    reason = await _why_emulate(mode, url)
    if reason is None:
        return url, False
    from hearth.emulator.server import Emulator  # noqa: PLC0415 - 50 ms of imports that a house with an Ollama never needs

    emulator = Emulator(default_profiles(), clock=clock)
    closing.push_async_callback(emulator.stop)
    url = await emulator.start("127.0.0.1", 0)
    events.emit(EmulatorStarted(at=clock.monotonic(), url=url, reason=reason))
    return url, True


async def _why_emulate(mode: BackendMode, url: str) -> str | None:
    """Why the emulator has to answer; None where an Ollama does or has to."""
    if mode is BackendMode.OLLAMA:
        return None
    if mode is BackendMode.EMULATOR:
        return "it was asked for"
    probe = OllamaControl(url, timeout_s=CONTROL_TIMEOUT_S)
    try:
        await probe.version()
    except BackendError:
        return f"no Ollama answers at {url}"
    else:
        return None
    finally:
        await probe.aclose()
