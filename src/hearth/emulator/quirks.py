"""The known bugs of a real Ollama that can be switched on: their names, their values, and whether
one strikes now.

What each of them is in Ollama, with its issue, is in `docs/emulator.md`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import inf
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from hearth.errors import ConfigError

Setting = float | str


QuirkName = Literal[
    "eviction-wedge",
    "slot-leak",
    "dead-runner",
    "no-done",
    "empty-error-chunk",
    "endless-load",
    "busy-503",
    "cpu-offload",
    "ignores-disconnect",
    "stuck-unload",
    "cache-drift",
]
"""What a quirk is called on the command line."""


class QuirkKind(NamedTuple):
    """One line for `--help`, how a value is read (raises ValueError or KeyError), what it is for
    people, and what a bare name means.
    """

    meaning: str
    read: Callable[[str], Setting]
    value: str = ""
    default: str = ""


def parse_quirk(text: str) -> tuple[QuirkName, Setting]:
    """Name and setting of `NAME` or `NAME=VALUE`; raises `ConfigError` for an unknown name, listing
    the known, and for a bad value.
    """
    wanted, has_value, value = text.partition("=")
    for name, kind in KINDS.items():
        if name == wanted:
            try:
                return name, kind.read(value if has_value else kind.default)
            except (ValueError, KeyError) as error:
                raise ConfigError(
                    [f"quirk {name}: cannot be '{value}'; it takes {kind.value or 'no value'}"]
                ) from error
    raise ConfigError([f"unknown quirk '{wanted}'; known are {', '.join(KINDS)}"])


class Faults:
    """What is switched on; raises as `parse_quirk`, and where a quirk has two values.

    `rng` decides where it has a probability.
    """

    def __init__(self, quirks: Iterable[str], rng: random.Random) -> None:
        texts = sorted(set(quirks))
        self._settings = dict(map(parse_quirk, texts))
        if len(self._settings) < len(texts):
            raise ConfigError([f"a quirk is given twice: {', '.join(texts)}"])
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
        probability = self.number("slot-leak")
        return probability > 0 and self._rng.random() < probability

    def drift_after(self, request: str, *, greedy: bool) -> int | None:
        """After how many words a request whose prompt is cached gets another answer than
        where it is not; None for never.

        The same each time: an engine is deterministic for a given history of its cache.
        """
        probability = self.number("cache-drift") / (3 if greedy else 1)
        chance = random.Random(request)  # noqa: S311 - of an emulated engine
        return chance.randrange(20) if chance.random() < probability else None

    def load_never_ends(self, *names: str) -> bool:
        """This load, of the model with these names, hangs; to be asked once per load."""
        wanted = self._settings.get("endless-load")
        self._occasions["endless-load"] += 1
        return wanted in ("", *names, self._occasions["endless-load"])


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
KINDS: Final[Mapping[QuirkName, QuirkKind]] = MappingProxyType(
    {
        "eviction-wedge": QuirkKind(
            "keep_alive revives a model that is to be unloaded (always on; `off` ends it)",
            {"on": 1.0, "off": 0.0}.__getitem__,
            "on or off",
            "on",
        ),
        "slot-leak": QuirkKind(
            "a disconnect in mid-stream costs a slot until the model is unloaded",
            _PROBABILITY,
            _SHARE,
            "1",
        ),
        "dead-runner": QuirkKind(
            "a model's process dies after 3 requests and stays listed",
            _EVERY,
            "a number of requests",
            "3",
        ),
        "no-done": QuirkKind(
            "answers end cleanly without their last line or event",
            _EVERY,
            "which answers: every n-th",
            "1",
        ),
        "empty-error-chunk": QuirkKind(
            "a /v1 stream breaks off and does not say so", _EVERY, "which streams: every n-th", "1"
        ),
        "endless-load": QuirkKind(
            "a load never ends",
            lambda text: _EVERY(text) if text.isdigit() else text,
            "the number of the load or the name of a model (every load if not given)",
        ),
        "busy-503": QuirkKind(
            "every second request is refused as if too many waited",
            _EVERY,
            "which requests: every n-th",
            "2",
        ),
        "cpu-offload": QuirkKind(
            "a model too large for the GPU runs 7 times slower",
            _number(lambda value: 1 <= value < inf),
            "how many times slower",
            "7",
        ),
        "ignores-disconnect": QuirkKind(
            "a disconnect is noticed only when the prompt has been read", {"": 1.0}.__getitem__
        ),
        "stuck-unload": QuirkKind(
            "an unloaded model stays listed",
            _number(lambda value: value >= 0),
            "seconds (forever if not given)",
            "inf",
        ),
        "cache-drift": QuirkKind(
            "a seeded request that finds its prompt cached may get another answer",
            _PROBABILITY,
            f"{_SHARE}, a third of it at temperature 0",
            "0.43",
        ),
    }
)
