"""A router of llama.cpp's server as an engine.

What its models serve themselves goes through as bytes; Ollama's own routes are translated. It must
neither load nor unload by itself, since it would do so by counting models, whatever their size, and
its queue can leave requests waiting for ever.
"""

from __future__ import annotations

from hearth.clock import Clock
from hearth.engines.llama_router.control import Control
from hearth.engines.llama_router.pages import shown
from hearth.engines.llama_router.path import RouterPath
from hearth.engines.llama_router.traits import LlamaRouterTraits
from hearth.engines.llama_server.starting import Starting
from hearth.engines.openai_server.exchanges import Ready
from hearth.engines.openai_server.pages import page


class LlamaRouter(Starting, LlamaRouterTraits):
    """The router at one address. ConfigError for no such address.

    Args:
        url: `http://host:port`, with a path prefix where a proxy wants one. api_key: that it
        requires, empty for none. setting: where its URL is written, for messages.
        connect_timeout_s: of the work's connections. control_timeout_s: of every question and
        order.
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
        control_timeout_s: float,
    ) -> None:
        super().__init__(
            url,
            make_control=lambda place: Control(
                url, api_key=api_key, place=place, timeout_s=control_timeout_s
            ),
            make_path=RouterPath,
            clock=clock,
            connect_timeout_s=connect_timeout_s,
            api_key=api_key,
            setting=setting,
        )

    async def _page(self, path: str, body: bytes) -> Ready:
        control = self._control
        installed = await control.installed()
        about = shown(await control.models(), installed, await control.version(), self._since)
        return page(path, body, about)

    async def capabilities(self, model: str) -> frozenset[str] | None:
        return (await self._control.find(model)).capabilities
