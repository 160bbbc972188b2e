"""A llama-server as an engine.

What it serves itself goes through as bytes; Ollama's own routes are translated. Its one model is
there for as long as it listens, so nothing is ever loaded or unloaded; but one that was started
with `--sleep-idle-seconds` drops its model by itself, and is woken by a load.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hearth.clock import Clock
from hearth.engines.continuations import Opens
from hearth.engines.data_path import DataPath
from hearth.engines.llama_server.control import Control
from hearth.engines.llama_server.pages import shown
from hearth.engines.llama_server.slots import Slots
from hearth.engines.llama_server.traits import API, LlamaServerTraits
from hearth.engines.openai_server.adapter import Staying
from hearth.engines.openai_server.calls import OpenAiCalls, Place, Upstream
from hearth.engines.openai_server.exchanges import Ready
from hearth.engines.openai_server.pages import page
from hearth.types import LoadOptions

MISTAKES = re.compile(
    r"Failed to parse (?:messages|tools|tool choice)\b|.* is too large to process"
    r"|(?:image|audio) input is not supported"
)
"""What the server says of a request that is wrong, as if the fault were its own."""


def calls_of_llama_cpp(opens: Opens, clock: Clock, place: Place, upstream: Upstream) -> OpenAiCalls:
    """Those to servers of llama.cpp; the arguments are as of `OpenAiCalls`."""
    return OpenAiCalls(opens, API, clock=clock, place=place, upstream=upstream, mistakes=MISTAKES)


class LlamaServer(Staying, LlamaServerTraits):
    """The llama-server at one address. ConfigError for no such address.

    Args:
        url: `http://host:port`, with a path prefix where a proxy wants one. api_key: that it
        requires, empty for none. setting: where its URL is written, for messages. name: as of
        `Control`. connect_timeout_s: of the work's connections. control_timeout_s: of every
        question about itself. slots: makes the owner of its slots, where its conversations are
        saved. keeps_room: as of `Control`.
    """

    _control: Control

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        connect_timeout_s: float,
        api_key: str = "",
        setting: str = "engines.main.url",
        name: str = "",
        control_timeout_s: float,
        slots: Callable[[DataPath], Slots] | None = None,
        keeps_room: bool = False,
    ) -> None:
        place = Place(title=self.title, setting=setting)
        data_path = DataPath(url, connect_timeout_s=connect_timeout_s, api_key=api_key)
        control = Control(
            url,
            api_key=api_key,
            place=place,
            timeout_s=control_timeout_s,
            name=name,
            keeps_room=keeps_room,
        )
        self.slots = None if slots is None else slots(data_path)
        calls = calls_of_llama_cpp(self.slots or data_path, clock, place, control.upstream)
        super().__init__(clock=clock, data_path=data_path, control=control, calls=calls)
        self.installed = control.installed
        self.resident = control.resident

    async def _page(self, path: str, body: bytes) -> Ready:
        served = await self._control.served()
        since_wall_s = self._since(served.digest)
        is_there = not self._control.is_asleep
        return page(path, body, shown(served, since_wall_s, is_there=is_there))

    # What is there, and stays.

    async def capabilities(self, model: str) -> frozenset[str] | None:
        await self._find(model)
        return (await self._control.served()).capabilities

    # While it sleeps.

    @property
    def loads_on_request(self) -> bool:
        """Only one that sleeps has anything to load."""
        return self._control.is_asleep

    async def is_asleep(self) -> bool:
        """By a look at it now, which does not wake it."""
        await self._control.version()
        return self._control.is_asleep

    async def load(self, model: str, options: LoadOptions) -> None:
        await super().load(model, options)
        if self._control.is_asleep:
            await self._control.wake()

    async def unload(self, model: str) -> None:
        await self._find(model)
        if not self._control.is_asleep:
            await super().unload(model)
