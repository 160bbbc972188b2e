"""What an address and this machine say before a gateway relies on them: does anything listen, is it
Ollama, is another Hearth there.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import socket
import struct
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from urllib.parse import urlsplit

from hearth.config.settings import ENGINE_URL
from hearth.engines.ollama.engine import Ollama
from hearth.errors import BackendError
from hearth.types import SERVICE

CONNECT_TIMEOUT_S = 2.0
PROBE_TIMEOUT_S = 2.0
CLAIM_LOOKS = 5
CLAIM_LOOK_S = 0.002
"""Whoever has bound the name listens there a moment later."""
_ANSWER_BYTES = 4096
_USUALLY = {
    "Ollama": "http://127.0.0.1:11434",
    "llama-server": "http://127.0.0.1:8080",
    "vLLM": "http://127.0.0.1:8000",
    "SGLang": "http://127.0.0.1:30000",
    "LM Studio": "http://127.0.0.1:1234",
}
_CREDENTIALS = struct.Struct("3i")


async def listens(url: str) -> bool:
    """Whether anything does there; so does what takes a connection and then says nothing, like an
    Ollama that hangs.
    """
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


async def server_at(url: str) -> bool:
    """Whether an Ollama answers there, and not another Hearth."""
    if not await listens(url):
        return False
    probe = Ollama(url, connect_timeout_s=CONNECT_TIMEOUT_S)
    try:
        await probe.version()
    except BackendError:
        return False
    finally:
        await probe.aclose()
    return await asyncio.to_thread(hearth_problem, url) is None


def hearth_problem(url: str, setting: str = ENGINE_URL, title: str = "Ollama") -> str | None:
    """Why this setting must not be this; None where no Hearth answers there. Blocks for up to two
    seconds.

    Hearth in front of itself would ask itself for ever, and two in a row would each believe that
    the GPU is theirs.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/healthz", timeout=PROBE_TIMEOUT_S) as answer:
            body = json.loads(answer.read(_ANSWER_BYTES))
    except (OSError, ValueError, HTTPException):
        return None
    if not isinstance(body, dict) or body.get("service") != SERVICE:
        return None
    usually = f", usually {_USUALLY[title]}" if title in _USUALLY else ""
    return f"{setting}: Hearth answers at {url}, not {title}; set the address of {title}{usually}"


def claim_server(url: str, title: str = "Ollama") -> tuple[socket.socket, str]:
    """Take a name for a model server among Linux's abstract sockets, so that Hearths on this
    machine that share one know of each other.

    Returns what holds it until it is closed, which the kernel does at the end of the process; and
    what to tell the owner, empty where nobody else has the name.
    """
    holding = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name = b"\0hearth-" + hashlib.sha256(url.encode()).hexdigest()[:16].encode()
    try:
        holding.bind(name)
        holding.listen()
    except OSError as error:  # any other than this one: then nothing is known of others
        holding.close()
        if error.errno == errno.EADDRINUSE:
            holder = _holder_of(name)
            return (
                holding,
                (
                    f"another Hearth ({holder}) schedules the same {title} at {url}: stop one of"
                    " them, or they undo each other's swaps"
                ),
            )
    return holding, ""


def _holder_of(name: bytes) -> str:
    for _ in range(CLAIM_LOOKS):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller, suppress(OSError):
            caller.settimeout(0.0)
            caller.connect(name)
            process, _user, _group = _CREDENTIALS.unpack(
                caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            return f"process {process}"
        time.sleep(CLAIM_LOOK_S)
    return "another process"
