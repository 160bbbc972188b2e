"""What has become of the configuration since the start: how often it was replaced or refused, and what waits for a restart.

Decides nothing and reads no clock. Kept by the gateway, shown in its status.
"""

from __future__ import annotations

from dataclasses import dataclass

from hearth.config.gateway_config import GatewayConfig
from hearth.config.rendering import differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """What a new configuration has changed: `changed` since the one before, `pending` (restart keys) since the start."""

    changed: tuple[str, ...]
    pending: tuple[str, ...]


class ReloadHistory:
    """Counts and names; instants are seconds since 1970-01-01 UTC.

    Attributes:
        generation: 1 at the start, one more with each configuration that differs from the one before.
        pending: changed keys that wait for a restart.
        problems: why the last file was refused; empty where it was not.
    """

    def __init__(self, config: GatewayConfig, wall_s: float) -> None:
        self._started_with = config.settings
        self._loaded_wall_s = wall_s
        self._tried_wall_s = wall_s
        self._accepted = 0
        self._rejected = 0
        self.generation = 1
        self.pending: tuple[str, ...] = ()
        self.problems: tuple[str, ...] = ()

    def accepted(self, old: GatewayConfig, new: GatewayConfig, wall_s: float) -> Replaced:
        """`new` has taken the place of `old`."""
        changed = tuple(differences(old.settings, new.settings))
        self.pending = tuple(path for path, hot in differences(self._started_with, new.settings).items() if not hot)
        self.generation += bool(changed)
        self.problems = ()
        self._accepted += 1
        self._loaded_wall_s = self._tried_wall_s = wall_s
        return Replaced(changed=changed, pending=self.pending)

    def rejected(self, problems: tuple[str, ...], wall_s: float) -> None:
        """A file was not usable."""
        self.problems = problems
        self._rejected += 1
        self._tried_wall_s = wall_s

    def shown(self, config: GatewayConfig) -> dict[str, object]:
        """The history as status and health show it, with where `config`, the one in force, comes from."""
        return {
            "generation": self.generation,
            "source": str(config.source or "defaults"),
            "problems": list(self.problems),
            "loaded_wall": round(self._loaded_wall_s, 3),
            "last_attempt": round(self._tried_wall_s, 3),
            "reload_count": self._accepted,
            "rejected_count": self._rejected,
            "restart_pending": list(self.pending),
        }
