"""vLLM as an engine: one model, with the LoRA adapters that it lists.

They are there for as long as it runs. Putting it to sleep is not used.
"""

from __future__ import annotations

from hearth.clock import Clock
from hearth.engines.openai_server.control import Control
from hearth.engines.openai_server.engine import OpenAiServer
from hearth.engines.vllm.calls import VllmCalls
from hearth.engines.vllm.traits import API, VllmTraits
from hearth.errors import BackendTimeout, BackendUnreachable

VERSION = "/version"


class VllmControl(Control):
    """Asks a vLLM about itself."""

    async def version(self) -> str:
        """Raises BackendUnreachable as the port says. What stands before several has a version of
        its own, if any.
        """
        if self._reach is not None:
            return await super().version()
        try:
            said = await self._questions.read(VERSION, "version", "an object with `version`")
        except BackendTimeout as error:
            raise BackendUnreachable from error
        version = said.get("version")
        return version if isinstance(version, str) else "unknown"


class Vllm(OpenAiServer, VllmTraits):
    """The vLLM at one address; see `OpenAiServer`.

    Args:
        elastic: it stands for others on other machines.
    """

    api = API
    control_of = VllmControl
    calls_of = VllmCalls

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        connect_timeout_s: float,
        control_timeout_s: float,
        api_key: str = "",
        setting: str = "engines.main.url",
        elastic: bool = False,
    ) -> None:
        super().__init__(
            url,
            clock=clock,
            connect_timeout_s=connect_timeout_s,
            control_timeout_s=control_timeout_s,
            api_key=api_key,
            setting=setting,
            elastic=elastic,
        )
        self.on_card = not elastic
