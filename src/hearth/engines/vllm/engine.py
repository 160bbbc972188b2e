"""vLLM as an engine: one model, with the LoRA adapters that it lists.

They are there for as long as it runs; one whose owner allows it is put to sleep to make room, and
woken by a load. Source of the routes: vLLM's documentation of its sleep mode, 0.33. They answer 200
whatever was freed, so the reading of the card is what counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from hearth.clock import Clock
from hearth.dialects.gojson import JsonObject, encode
from hearth.engines.openai_server.control import Control
from hearth.engines.openai_server.engine import OpenAiServer
from hearth.engines.openai_server.questions import said_in
from hearth.engines.vllm.calls import VllmCalls
from hearth.engines.vllm.traits import API, VllmTraits
from hearth.errors import BackendTimeout, BackendUnreachable, LoadError
from hearth.types import JSON_BODY, BackendCall, LoadOptions, ResidentModel, SleepLevel

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


class VllmControl(Control):
    """Asks a vLLM about itself, and puts it to sleep.

    Attributes:
        levels: at which it may sleep; empty: it is not asked whether it sleeps. level: at which it
        sleeps, None where it does not.
    """

    levels: tuple[SleepLevel, ...] = ()
    level: SleepLevel | None = None

    async def resident(self) -> tuple[ResidentModel, ...]:
        return () if await self._is_asleep() else await super().resident()

    async def _is_asleep(self) -> bool:
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
        if not await self._is_asleep():
            raise LoadError("vLLM was put to sleep, and says that it is awake")

    async def wake(self) -> None:
        """Whenever that is done. What holds no weights reads them anew. Raises LoadError."""
        if not await self._is_asleep():
            return
        for path, fields in WAKING[self.level or self.levels[-1]]:
            await self._told(path, fields)
        if await self._is_asleep():
            raise LoadError("vLLM was woken, and says that it sleeps")

    async def _told(self, path: str, fields: JsonObject | None = None) -> None:
        body, headers = (b"", ()) if fields is None else (encode(fields), JSON_BODY)
        call = BackendCall(method="POST", path=path, headers=headers, body=body)
        said = await said_in(await self._questions.open(call))
        if said.status == HTTPStatus.NOT_FOUND:
            raise LoadError(
                f"POST {path} answered 404: start vLLM with --enable-sleep-mode and"
                " VLLM_SERVER_DEV_MODE=1"
            )
        if said.status != HTTPStatus.OK:
            raise LoadError(f"POST {path} answered {said.status}: {said.error}")

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
        elastic: it stands for others on other machines. sleep: the levels at which it may sleep.
    """

    _control: VllmControl
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
        sleep: tuple[SleepLevel, ...] = (),
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
        self._control.levels = () if elastic else sleep
        self.loads_on_request = bool(self._control.levels)

    # Asleep.

    def sleeps(self, model: str) -> tuple[SleepLevel, ...]:
        del model
        return self._control.levels

    def asleep(self) -> Mapping[str, SleepLevel]:
        level = self._control.level
        models = self._control.last_served.models
        return {} if level is None else {model.name: level for model in models}

    async def sleep(self, model: str, level: SleepLevel) -> None:
        await self._find(model)
        await self._control.sleep(level)

    async def load(self, model: str, options: LoadOptions) -> None:
        await super().load(model, options)
        await self._control.wake()

    async def unload(self, model: str) -> None:
        """It cannot be stopped, so it sleeps as deeply as it may."""
        levels = self._control.levels
        if not levels:
            await super().unload(model)
        await self._find(model)
        if self._control.level != levels[-1]:
            await self._control.wake()
            await self._control.sleep(levels[-1])
