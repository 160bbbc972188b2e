"""The control path to Ollama: what is installed, what is in memory, load this, drop that.

A load belongs to the gateway and not to whoever asked for it: a caller that stops waiting never cancels the HTTP call, because Ollama would
abort the load for everybody who waits for it. It decides nothing about when to swap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hearth.errors import BackendGone
from hearth.types import InstalledModel, LoadOptions, ResidentModel

if TYPE_CHECKING:
    from hearth.backends.ollama_client import ControlClient

T = TypeVar("T")


class OllamaControl:
    """`ModelControl` by way of the official client.

    Every call but `probe` runs in a task of its own and ends by itself, answered or timed out, whether or not anybody still waits.

    Args:
        base_url: `http://host:port`.
        timeout_s: of every call but `load` and `probe`, connection included.
    """

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._opened: ControlClient | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def version(self) -> str:
        """Raises BackendUnreachable, BackendGone, BackendProtocolError (not an Ollama)."""
        return await self._owned(self._client().server_version())

    async def installed(self) -> tuple[InstalledModel, ...]:
        """Raises BackendUnreachable, BackendTimeout, BackendGone, BackendProtocolError."""
        return await self._owned(self._client().installed())

    async def resident(self) -> tuple[ResidentModel, ...]:
        """Raises BackendUnreachable, BackendTimeout, BackendGone, BackendProtocolError."""
        return await self._owned(self._client().resident())

    async def load(self, model: str, options: LoadOptions, timeout_s: float) -> None:
        """Raises ModelNotFound, SwapTimedOut, SwapFailed, BackendUnreachable. Success is the server's word: look at `resident`."""
        await self._owned(self._client().load(model, options, timeout_s))

    async def unload(self, model: str) -> None:
        """Raises ModelNotFound, SwapFailed, BackendUnreachable. Dropping what is not loaded succeeds."""
        await self._owned(self._client().unload(model))

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        """Has no task of its own: a token for nobody is not worth a slot."""
        return await self._client().probe(model, options, timeout_s)

    async def aclose(self) -> None:
        """Drop the calls that still run and the client. Whoever awaits one of them gets BackendGone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        client, self._opened = self._opened, None
        if client is not None:
            await client.close()  # type: ignore[no-untyped-call]  # untyped in the package

    async def _owned(self, call: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or caller.cancelling():
                raise
            raise BackendGone("The connection to the model server was closed.") from None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it when nobody awaits the call any more

    def _client(self) -> ControlClient:
        if self._opened is None:
            from hearth.backends.ollama_client import ControlClient  # noqa: PLC0415  # a third of a second that `hearth --help` must not pay

            self._opened = ControlClient(self._base_url, timeout_s=self._timeout_s)
        return self._opened
