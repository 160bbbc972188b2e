"""The known bugs of a real Ollama that can be switched on: their names, their values, and whether one strikes now.

What each of them is in Ollama, with its issue, is in `docs/emulator.md`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from hearth.errors import ConfigError

Setting = float | str


class QuirkName(StrEnum):
    """What a quirk is called on the command line."""

    EVICTION_WEDGE = "eviction-wedge"
    SLOT_LEAK = "slot-leak"
    DEAD_RUNNER = "dead-runner"
    NO_DONE = "no-done"
    EMPTY_ERROR_CHUNK = "empty-error-chunk"
    ENDLESS_LOAD = "endless-load"
    BUSY_503 = "busy-503"
    CPU_OFFLOAD = "cpu-offload"
    IGNORES_DISCONNECT = "ignores-disconnect"
    STUCK_UNLOAD = "stuck-unload"
    CACHE_DRIFT = "cache-drift"


class Kind(NamedTuple):
    """One line for `--help`, how a value is read (raises ValueError or KeyError), what it is for people, and what a bare name means."""

    says: str
    read: Callable[[str], Setting]
    value: str = ""
    default: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """One bug, switched on.

    Args:
        value: as after `=` on the command line; None is the default of the quirk.

    Raises:
        ConfigError: the quirk cannot have this value.
    """

    name: QuirkName
    value: str | None = None

    def __post_init__(self) -> None:
        try:
            _ = self.setting
        except (ValueError, KeyError) as error:
            takes = KINDS[self.name].value or "no value"
            raise ConfigError([f"quirk {self.name}: cannot be '{self.value}'; it takes {takes}"]) from error

    @property
    def setting(self) -> Setting:
        """The value as a number, or as text where it is a name."""
        kind = KINDS[self.name]
        return kind.read(kind.default if self.value is None else self.value)

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


def parse_quirk(text: str) -> Quirk:
    """`NAME` or `NAME=VALUE`; raises `ConfigError` for an unknown name, listing the known ones, and for a value that it cannot have."""
    name, has_value, value = text.partition("=")
    if name not in KINDS:
        raise ConfigError([f"unknown quirk '{name}'; known are {', '.join(KINDS)}"])
    return Quirk(name=QuirkName(name), value=value if has_value else None)


class Faults:
    """What is switched on; raises `ConfigError` where a quirk is given twice. `rng` decides where a quirk has a probability."""

    def __init__(self, quirks: frozenset[Quirk], rng: random.Random) -> None:
        self._settings = {quirk.name: quirk.setting for quirk in quirks}
        if len(self._settings) < len(quirks):
            raise ConfigError([f"a quirk is given twice: {', '.join(sorted(map(str, quirks)))}"])
        self._rng = rng
        self._occasions: Counter[QuirkName] = Counter()

    def number(self, name: QuirkName, otherwise: float = 0.0) -> float:
        """The value of a quirk that has a number; `otherwise` where it is off."""
        setting = self._settings.get(name, otherwise)
        return setting if isinstance(setting, int | float) else otherwise

    def strikes(self, name: QuirkName) -> bool:
        """Whether a quirk of every n-th occasion hits this one; to be asked once per occasion."""
        every = self.number(name)
        self._occasions[name] += 1
        return every > 0 and self._occasions[name] % every == 0

    def leaks_a_slot(self) -> bool:
        """The slot of this abandoned stream is lost."""
        probability = self.number(QuirkName.SLOT_LEAK)
        return probability > 0 and self._rng.random() < probability

    def drift_after(self, request: str, *, greedy: bool) -> int | None:
        """After how many words a request whose prompt is cached says something else than it says where it is not; None for never.

        The same each time: an engine is deterministic for a given history of its cache.
        """
        probability = self.number(QuirkName.CACHE_DRIFT) / (3 if greedy else 1)
        chance = random.Random(request)  # noqa: S311 - of an emulated engine
        return chance.randrange(20) if chance.random() < probability else None

    def load_never_ends(self, *names: str) -> bool:
        """This load, of the model with these names, hangs; to be asked once per load."""
        wanted = self._settings.get(QuirkName.ENDLESS_LOAD)
        self._occasions[QuirkName.ENDLESS_LOAD] += 1
        return wanted in ("", *names, self._occasions[QuirkName.ENDLESS_LOAD])


def _number(allowed: Callable[[float], bool]) -> Callable[[str], Setting]:
    def read(text: str) -> Setting:
        value = float(text)
        if not allowed(value):
            raise ValueError(text)
        return value

    return read


_EVERY = _number(lambda value: value >= 1 and value.is_integer())
_PROBABILITY = _number(lambda value: 0 < value <= 1)
_SHARE = "a probability above 0 and up to 1"
KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        QuirkName.EVICTION_WEDGE: Kind(
            "keep_alive revives a model that is to be unloaded (always on; `off` ends it)",
            {"on": 1.0, "off": 0.0}.__getitem__,
            "on or off",
            "on",
        ),
        QuirkName.SLOT_LEAK: Kind("a disconnect in mid-stream costs a slot until the model is unloaded", _PROBABILITY, _SHARE, "1"),
        QuirkName.DEAD_RUNNER: Kind("a model's process dies after 3 requests and stays listed", _EVERY, "a number of requests", "3"),
        QuirkName.NO_DONE: Kind("answers end cleanly without their last line or event", _EVERY, "which answers: every n-th", "1"),
        QuirkName.EMPTY_ERROR_CHUNK: Kind("a /v1 stream breaks off and does not say so", _EVERY, "which streams: every n-th", "1"),
        QuirkName.ENDLESS_LOAD: Kind(
            "a load never ends",
            lambda text: _EVERY(text) if text.isdigit() else text,
            "the number of the load or the name of a model (every load if not given)",
        ),
        QuirkName.BUSY_503: Kind("every second request is refused as if too many waited", _EVERY, "which requests: every n-th", "2"),
        QuirkName.CPU_OFFLOAD: Kind(
            "a model too large for the GPU runs 7 times slower", _number(lambda value: 1 <= value < math.inf), "how many times slower", "7"
        ),
        QuirkName.IGNORES_DISCONNECT: Kind("a disconnect is noticed only when the prompt has been read", {"": 1.0}.__getitem__),
        QuirkName.STUCK_UNLOAD: Kind(
            "an unloaded model stays listed",
            _number(lambda value: value >= 0),
            "seconds (forever if not given)",
            "inf",
        ),
        QuirkName.CACHE_DRIFT: Kind(
            "a seeded request that finds its prompt cached may get another answer",
            _PROBABILITY,
            f"{_SHARE}, a third of it at temperature 0",
            "0.43",
        ),
    }
)
