"""SGLang as an engine: one model, that may sleep.

Source of the routes: SGLang's documentation for reinforcement learning, and of its native API for
the fields of `/get_server_info`, 0.5. It has none that says whether it sleeps, and memory that was
not released may not be resumed; so what counts is what it was told here.
"""

from __future__ import annotations

from hearth.dialects.gojson import JsonObject
from hearth.engines.openai_server.control import Served
from hearth.engines.openai_server.sleeping import SleepingControl, SleepingServer
from hearth.engines.sglang.traits import SglangTraits
from hearth.errors import BackendTimeout, BackendUnreachable, LoadError
from hearth.types import SleepLevel

SERVER_INFO = "/get_server_info"
RELEASE = "/release_memory_occupation"
RESUME = "/resume_memory_occupation"
REGIONS = ("weights", "kv_cache")
"""Of the memory, in the order in which they come back: the cache takes what the weights leave."""
NEEDED = ("enable_memory_saver", "enable_weights_cpu_backup")
"""Without the first nothing is freed; without the second the weights are lost, and answers wrong.
"""


class SglangControl(SleepingControl):
    """As `SleepingControl`."""

    started_with = "start SGLang with --enable-memory-saver and --enable-weights-cpu-backup"

    async def is_asleep(self) -> bool:
        return self.level is not None

    async def served(self) -> Served:
        """One that is away comes back awake, since it was started anew."""
        try:
            return await super().served()
        except BackendUnreachable:
            self.level = None
            raise

    async def sleep(self, level: SleepLevel) -> None:
        """It would fail if anything ran; nothing does. Raises LoadError."""
        said = await self._about()
        if any(said.get(name) is not True for name in NEEDED):
            raise LoadError(f"SGLang cannot keep its weights asleep: {self.started_with}")
        self.level = level  # one whose answer is lost may sleep
        try:
            await self._told(RELEASE, {"tags": [*reversed(REGIONS)]})
        except LoadError:
            self.level = None
            raise

    async def wake(self) -> None:
        """Raises LoadError; then it is released anew before the next try, as one has to be that
        was started anew meanwhile.
        """
        if self.level is None:
            return
        self.level = None
        for region in REGIONS:
            await self._told(RESUME, {"tags": [region]})

    async def version(self) -> str:
        """Raises BackendUnreachable as the port says."""
        try:
            said = await self._about()
        except BackendTimeout as error:
            raise BackendUnreachable from error
        version = said.get("version")
        return version if isinstance(version, str) else "unknown"

    async def _about(self) -> JsonObject:
        return await self._questions.read(SERVER_INFO, "version", "an object with `version`")


class Sglang(SleepingServer, SglangTraits):
    """The SGLang at one address; see `SleepingServer`."""

    _control: SglangControl
    control_of = SglangControl
