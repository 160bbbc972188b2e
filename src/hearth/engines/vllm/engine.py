"""vLLM as an engine: one model, with the LoRA adapters that it lists.

Source of the routes: vLLM's documentation of its sleep mode, 0.33. They answer 200 whatever was
freed, so the reading of the card is what counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hearth.dialects.gojson import JsonObject
from hearth.engines.openai_server.sleeping import SleepingControl, SleepingServer
from hearth.engines.vllm.calls import VllmCalls
from hearth.engines.vllm.traits import VllmTraits
from hearth.errors import BackendTimeout, BackendUnreachable, LoadError
from hearth.types import SleepLevel

VERSION = "/version"
IS_SLEEPING = "/is_sleeping"
SLEEP: Mapping[SleepLevel, str] = MappingProxyType(
    {"offload": "/sleep?level=1&mode=abort", "discard": "/sleep?level=2&mode=abort"}
)
WAKING: Mapping[SleepLevel, tuple[tuple[str, JsonObject | None], ...]] = MappingProxyType(
    {
        "offload": (("/wake_up", None),),
        "discard": (
            ("/wake_up?tags=weights", None),
            ("/collective_rpc", {"method": "reload_weights"}),
            ("/wake_up?tags=kv_cache", None),
        ),
    }
)


class VllmControl(SleepingControl):
    """As `SleepingControl`."""

    started_with = "start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"

    async def is_asleep(self) -> bool:
        if not self.levels:
            return False
        said = await self._questions.read(IS_SLEEPING, "is_sleeping", "an object with the same")
        if said["is_sleeping"] is not True:
            self.level = None
        elif self.level is None:  # since before this gateway
            self.level = self.levels[-1]
        return self.level is not None

    async def sleep(self, level: SleepLevel) -> None:
        """It would cut off what runs; nothing does. Raises LoadError."""
        await self._told(SLEEP[level])
        self.level = level
        if not await self.is_asleep():
            raise LoadError("vLLM was put to sleep, and says that it is awake")

    async def wake(self) -> None:
        """What holds no weights reads them anew. Raises LoadError."""
        if not await self.is_asleep():
            return
        for path, fields in WAKING[self.level or self.levels[-1]]:
            await self._told(path, fields)
        if await self.is_asleep():
            raise LoadError("vLLM was woken, and says that it sleeps")

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


class Vllm(SleepingServer, VllmTraits):
    """The vLLM at one address; see `SleepingServer`."""

    _control: VllmControl
    control_of = VllmControl
    calls_of = VllmCalls
