"""An Ollama that accepts connections and then says nothing."""

from __future__ import annotations

import asyncio

from hearth.errors import BackendUnreachable
from hearth.types import BackendCall
from tests.support.fake_exchange import FakeExchange
from tests.support.fake_ollama import FakeOllama

CONTROL_TIMEOUT_S = 10.0
"""As of the adapters."""


class SilentOllama(FakeOllama):
    """The fake Ollama, which answers nothing while it `is_silent`."""

    is_silent = False

    async def open(self, call: BackendCall) -> FakeExchange:
        if self.is_silent:
            await asyncio.Event().wait()
        return await super().open(call)

    async def _reach(self) -> None:
        if self.is_silent:
            await asyncio.sleep(CONTROL_TIMEOUT_S)
            raise BackendUnreachable
        await super()._reach()
