"""Whether a bug strikes now: the switched-on quirks of one emulated server, with their counts and draws.

State of one server; it must never act, only answer. Called by the engine and by whoever executes a request.
"""

from __future__ import annotations

import math
import random
from collections import Counter

from hearth.emulator.quirks import Quirk, QuirkName, settings_of

_MID_STREAM_PIECES = 3


class Faults:
    """Asking counts: each question is asked once per occasion.

    Args:
        quirks: what is switched on; raises `ConfigError` when one is given twice.
        rng: decides where a quirk has a probability.
    """

    def __init__(self, quirks: frozenset[Quirk], rng: random.Random) -> None:
        self._settings = settings_of(quirks)
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
