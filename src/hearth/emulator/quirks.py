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
from typing import Final

from hearth.errors import ConfigError

Setting = float | str
_MID_STREAM_PIECES = 3


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


@dataclass(frozen=True, slots=True)
class Kind:
    """One line for `--help`, how a value is read (raises `ValueError`), what it is for people, and what a bare name means."""

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
        except ValueError as error:
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
    known = {one.value: one for one in QuirkName}
    if name not in known:
        raise ConfigError([f"unknown quirk '{name}'; known are {', '.join(known)}"])
    return Quirk(name=known[name], value=value if has_value else None)


class Faults:
    """Asking counts: each question is asked once per occasion.

    Args:
        quirks: what is switched on; raises `ConfigError` when one is given twice.
        rng: decides where a quirk has a probability.
    """

    def __init__(self, quirks: frozenset[Quirk], rng: random.Random) -> None:
        self._settings = {quirk.name: quirk.setting for quirk in quirks}
        if len(self._settings) < len(quirks):
            raise ConfigError([f"a quirk is given twice: {', '.join(sorted(map(str, quirks)))}"])
        self._rng = rng
        self._occasions: Counter[QuirkName] = Counter()

    @property
    def wedges(self) -> bool:
        """An explicit keep_alive overwrites the mark of a model that waits to be evicted."""
        return self._settings.get(QuirkName.EVICTION_WEDGE) != 0.0

    @property
    def ignores_disconnect(self) -> bool:
        """A prompt is read to its end, whoever has left."""
        return QuirkName.IGNORES_DISCONNECT in self._settings

    @property
    def stuck_s(self) -> float:
        """Seconds that a model which was told to go stays; infinity is until it is let go."""
        return self._number(QuirkName.STUCK_UNLOAD, 0.0)

    def slowdown(self, need_gib: float, card_gib: float) -> float:
        """How many times slower a model runs that needs this much of such a card; a machine without a card has nothing to split."""
        return self._number(QuirkName.CPU_OFFLOAD, 1.0) if 0 < card_gib < need_gib else 1.0

    def kills_after(self, executions: int) -> bool:
        """The runner dies, having executed this many requests since it was loaded."""
        return executions == self._settings.get(QuirkName.DEAD_RUNNER)

    def busy(self) -> bool:
        """This request is refused."""
        return self._strikes(QuirkName.BUSY_503)

    def forgets_the_end(self) -> bool:
        """This answer ends without its last line or event."""
        return self._strikes(QuirkName.NO_DONE)

    def dies_after_pieces(self, *, v1_stream: bool) -> float:
        """After how many pieces of this answer its runner dies; infinity if it lives."""
        return _MID_STREAM_PIECES if v1_stream and self._strikes(QuirkName.EMPTY_ERROR_CHUNK) else math.inf

    def leaks_a_slot(self) -> bool:
        """The slot of this abandoned stream is lost."""
        probability = self._number(QuirkName.SLOT_LEAK, 0.0)
        return probability > 0 and self._rng.random() < probability

    def drift_after(self, request: str, *, greedy: bool) -> int | None:
        """After how many words a request whose prompt is cached says something else than it says where it is not; None for never.

        The same each time: an engine is deterministic for a given history of its cache.
        """
        probability = self._number(QuirkName.CACHE_DRIFT, 0.0) / (3 if greedy else 1)
        chance = random.Random(request)  # noqa: S311 - of an emulated engine
        return chance.randrange(20) if chance.random() < probability else None

    def load_never_ends(self, *names: str) -> bool:
        """This load, of the model with these names, hangs."""
        wanted = self._settings.get(QuirkName.ENDLESS_LOAD)
        self._occasions[QuirkName.ENDLESS_LOAD] += 1
        return wanted == "" or wanted in names or wanted == self._occasions[QuirkName.ENDLESS_LOAD]

    def _strikes(self, name: QuirkName) -> bool:
        every = self._settings.get(name)
        if not isinstance(every, int | float):
            return False
        self._occasions[name] += 1
        return self._occasions[name] % every == 0

    def _number(self, name: QuirkName, otherwise: float) -> float:
        setting = self._settings.get(name, otherwise)
        return setting if isinstance(setting, int | float) else otherwise


def _every(text: str) -> Setting:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _load(text: str) -> Setting:
    """Which load: its number, or a model's name; an empty text is every load."""
    return _every(text) if text.isdigit() else text


def _number(allowed: Callable[[float], bool]) -> Callable[[str], Setting]:
    def read(text: str) -> Setting:
        value = float(text)
        if not allowed(value):
            raise ValueError(text)
        return value

    return read


def _one_of(values: Mapping[str, float]) -> Callable[[str], Setting]:
    def read(text: str) -> Setting:
        if text not in values:
            raise ValueError(text)
        return values[text]

    return read


_PROBABILITY = _number(lambda value: 0 < value <= 1)
_SHARE = "a probability above 0 and up to 1"
KINDS: Final[Mapping[QuirkName, Kind]] = MappingProxyType(
    {
        QuirkName.EVICTION_WEDGE: Kind(
            "keep_alive revives a model that waits to go (always on; `off` ends it)", _one_of({"on": 1.0, "off": 0.0}), "on or off", "on"
        ),
        QuirkName.SLOT_LEAK: Kind("leaving in mid-stream costs a slot until the model is unloaded", _PROBABILITY, _SHARE, "1"),
        QuirkName.DEAD_RUNNER: Kind("a model's process dies after 3 requests and stays listed", _every, "a number of requests", "3"),
        QuirkName.NO_DONE: Kind("answers end cleanly without their last line or event", _every, "which answers: every n-th", "1"),
        QuirkName.EMPTY_ERROR_CHUNK: Kind("a /v1 stream breaks off and does not say so", _every, "which streams: every n-th", "1"),
        QuirkName.ENDLESS_LOAD: Kind(
            "a load never ends", _load, "the number of the load or the name of a model (every load where nothing is said)"
        ),
        QuirkName.BUSY_503: Kind("every second request is refused as if too many waited", _every, "which requests: every n-th", "2"),
        QuirkName.CPU_OFFLOAD: Kind(
            "a model too large for the card runs 7 times slower", _number(lambda value: 1 <= value < math.inf), "how many times slower", "7"
        ),
        QuirkName.IGNORES_DISCONNECT: Kind("leaving is noticed only when the prompt has been read", _one_of({"": 1.0})),
        QuirkName.STUCK_UNLOAD: Kind(
            "a model that was told to go stays listed",
            _number(lambda value: value >= 0),
            "seconds (for ever where nothing is said)",
            "inf",
        ),
        QuirkName.CACHE_DRIFT: Kind(
            "a seeded request that finds its prompt cached may say something else",
            _PROBABILITY,
            f"{_SHARE}, a third of it at temperature 0",
            "0.43",
        ),
    }
)
