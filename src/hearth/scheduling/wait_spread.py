"""How far waits exceed what was expected of them, and the bound that is made of that: a learned
ratio, with a limit (decision 22).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import ceil, inf

KEPT_SHARE = 0.92
"""Share of the last waits that a bound would have held for: what is learned lags behind what comes,
so a bound that is to hold for 90 % aims higher.
"""
WAITS = 100  # waits that are remembered of each band
ENOUGH_WAITS = 19  # of fewer, the one that exceeded its expectation most counts
WAIT_RATIO = 2.0
"""A bound is so many times what is expected until enough waits were seen, and may be later, even
where none of the last waits was as long.
"""
# added to both sides of a ratio: half a second instead of a tenth is no wait of five times the
# length
WAIT_OFFSET_S = 1.0
MOST = 1e9  # no wait that was measured is longer


class WaitSpread:
    """How far the last waits of a band exceeded what was expected of them."""

    def __init__(self, seen: Iterable[tuple[float, float]] = ()) -> None:
        """`seen`: what `export` gave."""
        self._ratios: deque[float] = deque(maxlen=WAITS)
        self._waits_s: deque[float] = deque(maxlen=WAITS)
        for ratio, waited_s in seen:
            self._add(float(ratio), float(waited_s))
        self._ratio = WAIT_RATIO
        self._longest_s = inf
        self._settle()

    def learn(self, expected_s: float, waited_s: float) -> None:
        self._add((waited_s + WAIT_OFFSET_S) / (expected_s + WAIT_OFFSET_S), waited_s)
        self._settle()

    def _add(self, ratio: float, waited_s: float) -> None:
        if 0 < ratio <= MOST and 0 <= waited_s <= MOST:
            self._ratios.append(ratio)
            self._waits_s.append(waited_s)

    def _settle(self) -> None:
        """Once for each wait that is learned, since bounds are asked for more often."""
        if len(self._ratios) < ENOUGH_WAITS:
            self._ratio = max((WAIT_RATIO, *self._ratios))
            return
        self._ratio = sorted(self._ratios)[ceil(KEPT_SHARE * len(self._ratios)) - 1]
        self._longest_s = max(self._waits_s)

    def bound_s(self, expected_s: float) -> float:
        """A ratio that short waits have taught says too much of a long one: hence the limit."""
        bound_s = (expected_s + WAIT_OFFSET_S) * self._ratio - WAIT_OFFSET_S
        return max(expected_s, min(bound_s, max(self._longest_s, expected_s * WAIT_RATIO)))

    def export(self) -> list[tuple[float, float]]:
        return list(zip(self._ratios, self._waits_s, strict=True))


UNKNOWN_SPREAD = WaitSpread()
"""Of a band of which no wait has been seen."""
