"""The known bugs of a real Ollama that can be switched on, by name, and what their values mean.

Values and their reading only; whether a bug strikes now is decided in `faults`. Called by `cli`, tests and whoever builds an `Emulator`.
What each of them is in Ollama, with its issue, is in `docs/emulator.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What there is to know of a quirk.

    Attributes:
        says: one line for `--help`.
        value: what stands after `=`, for people; empty where there is none.
        default: the value that a bare name means, as text.
        read: the setting that a text means; raises `ValueError`.
    """

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


def settings_of(quirks: frozenset[Quirk]) -> Mapping[QuirkName, Setting]:
    """Every quirk's setting by name; raises `ConfigError` when one is given twice."""
    settings = {quirk.name: quirk.setting for quirk in quirks}
    if len(settings) < len(quirks):
        raise ConfigError([f"a quirk is given twice: {', '.join(sorted(map(str, quirks)))}"])
    return settings


def _every(text: str) -> float:
    """A count: every n-th."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _probability(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


def _factor(text: str) -> float:
    value = float(text)
    if not 1 <= value < math.inf:
        raise ValueError(text)
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise ValueError(text)
    return value


def _switch(text: str) -> float:
    if text not in {"on", "off"}:
        raise ValueError(text)
    return float(text == "on")


def _none(text: str) -> float:
    if text:
        raise ValueError(text)
    return 1.0


def _load(text: str) -> Setting:
    """Which load: its number as a float, or a model's name; an empty text is every load."""
    return _every(text) if text.isdigit() else text


KINDS: Final[Mapping[QuirkName, Kind]] = MappingProxyType(
    {
        QuirkName.EVICTION_WEDGE: Kind(
            says="keep_alive revives a model that waits to go (always on; `off` ends it)",
            value="on or off",
            default="on",
            read=_switch,
        ),
        QuirkName.SLOT_LEAK: Kind(
            says="leaving in mid-stream costs a slot until the model is unloaded",
            value="a probability above 0 and up to 1",
            default="1",
            read=_probability,
        ),
        QuirkName.DEAD_RUNNER: Kind(
            says="a model's process dies after 3 requests and stays listed",
            value="a number of requests",
            default="3",
            read=_every,
        ),
        QuirkName.NO_DONE: Kind(
            says="answers end cleanly without their last line or event",
            value="which answers: every n-th",
            default="1",
            read=_every,
        ),
        QuirkName.EMPTY_ERROR_CHUNK: Kind(
            says="a /v1 stream breaks off and does not say so",
            value="which streams: every n-th",
            default="1",
            read=_every,
        ),
        QuirkName.ENDLESS_LOAD: Kind(
            says="a load never ends",
            value="the number of the load or the name of a model (every load where nothing is said)",
            read=_load,
        ),
        QuirkName.BUSY_503: Kind(
            says="every second request is refused as if too many waited",
            value="which requests: every n-th",
            default="2",
            read=_every,
        ),
        QuirkName.CPU_OFFLOAD: Kind(
            says="a model too large for the card runs 7 times slower",
            value="how many times slower",
            default="7",
            read=_factor,
        ),
        QuirkName.IGNORES_DISCONNECT: Kind(
            says="leaving is noticed only when the prompt has been read",
            read=_none,
        ),
        QuirkName.STUCK_UNLOAD: Kind(
            says="a model that was told to go stays listed",
            value="seconds (for ever where nothing is said)",
            default="inf",
            read=_seconds,
        ),
        QuirkName.CACHE_DRIFT: Kind(
            says="a seeded request that finds its prompt cached may say something else",
            value="a probability above 0 and up to 1, a third of it at temperature 0",
            default="0.43",
            read=_probability,
        ),
    }
)
