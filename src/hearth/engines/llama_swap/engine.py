"""llama-swap as an engine.

What the servers of its models serve goes through as bytes; Ollama's own routes are translated. It
loads and unloads by rules of its own, too, so that what it lists may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping

from hearth.clock import Clock
from hearth.engines.llama_server.starting import Starting
from hearth.engines.llama_swap.control import Control
from hearth.engines.llama_swap.path import SwapPath
from hearth.engines.llama_swap.traits import LlamaSwapTraits
from hearth.engines.openai_server.exchanges import Ready
from hearth.engines.openai_server.pages import Shown, ShownModel, page


class LlamaSwap(Starting, LlamaSwapTraits):
    """The llama-swap at one address. ConfigError for no such address.

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
            make_path=SwapPath,
            clock=clock,
            connect_timeout_s=connect_timeout_s,
            api_key=api_key,
            setting=setting,
        )

    @property
    def idle_limits_s(self) -> Mapping[str, int]:
        """How long models may go without a request before their servers are stopped, of those that
        ran at the last look and have a limit.
        """
        return self._control.idle_limits_s

    async def _page(self, path: str, body: bytes) -> Ready:
        control = self._control
        running = {model.name for model in await control.resident()}
        models = [
            ShownModel(
                name=known.name,
                owner="llama-swap",
                since_wall_s=self._since(known.digest),
                digest=known.digest,
                vram_mib=0.0 if known.name in running else None,
            )
            for known in await control.installed()
            if not known.remote_host
        ]
        about = Shown(title=self.title, version=await control.version(), models=models)
        return page(path, body, about)

    async def capabilities(self, model: str) -> frozenset[str] | None:
        await self._control.find(model)
        return None
