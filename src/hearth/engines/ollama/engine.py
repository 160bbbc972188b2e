"""Ollama as an engine."""

from __future__ import annotations

from hearth.engines.data_path import DataPath
from hearth.engines.ollama.control import Control
from hearth.engines.ollama.traits import OllamaTraits

CONTROL_TIMEOUT_S = 10.0


class Ollama(OllamaTraits):
    """The Ollama at one address, which it reaches in two ways: one carries the work, the other
    decides what is in memory. ConfigError for no such address.

    Args:
        url: `http://host:port`, with a path prefix where a proxy wants one.
        connect_timeout_s: of the work's connections, name resolution included.
        control_timeout_s: of every control call but loads and probes.
        api_key: that a proxy before it requires, empty for none.
        setting: where the owner has written the address.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        control_timeout_s: float = CONTROL_TIMEOUT_S,
        api_key: str = "",
        setting: str = "ollama.url",
    ) -> None:
        data_path = DataPath(url, connect_timeout_s=connect_timeout_s, api_key=api_key)
        self._data_path = data_path
        control = Control(url, timeout_s=control_timeout_s, api_key=api_key, setting=setting)
        self._control = control
        self.open = data_path.open
        self.version = control.version
        self.installed = control.installed
        self.capabilities = control.capabilities
        self.resident = control.resident
        self.memory_mib = control.memory_mib
        self.load = control.load
        self.unload = control.unload
        self.probe = control.probe

    def turn_to(self, url: str) -> None:
        """Send every later call there; those under way end where they are. ConfigError as above."""
        self._data_path.turn_to(url)
        self._control.turn_to(url)

    async def aclose(self) -> None:
        await self._control.aclose()
        await self._data_path.aclose()
