"""Money as whole numbers, so that no sum is ever off: amounts in nano-USD, prices in micro-USD for a million tokens.

Pure values and arithmetic; knows no budget and no price list. A bill is rounded up to the next nano-USD.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NANO_PER_USD = 1_000_000_000
MICRO_PER_USD = 1_000_000
MAX_TOKENS = 100_000_000
"""More than any call can use: a count beyond it is a mistake of whoever counted."""


def nano_usd(usd: float) -> int:
    """An amount in US dollars, to the nearest nano-USD."""
    return round(usd * NANO_PER_USD)


def usd(nano: int) -> float:
    """An amount in nano-USD as US dollars, for people and for the store."""
    return nano / NANO_PER_USD


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledTokens:
    """What a call has used, each token in exactly one field; `cache_write` is kept for 5 minutes, `cache_write_hour` for an hour."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_hour: int = 0

    @property
    def prompt(self) -> int:
        """Everything that was read, from wherever."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a million tokens of each kind cost, in micro-USD."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cache_write_hour: int

    @classmethod
    def in_usd(
        cls, *, input_usd: float, output_usd: float, cache_read_usd: float, cache_write_usd: float, cache_write_hour_usd: float
    ) -> Rates:
        """Rates given in US dollars for a million tokens, rounded up."""
        given = (input_usd, output_usd, cache_read_usd, cache_write_usd, cache_write_hour_usd)
        names = ("input", "output", "cache_read", "cache_write", "cache_write_hour")
        return cls(**{name: math.ceil(round(each * MICRO_PER_USD, 3)) for name, each in zip(names, given, strict=True)})

    @property
    def dearest_prompt(self) -> int:
        """The most that a million tokens of a prompt can cost, whether they are cached or not."""
        return max(self.input, self.cache_read, self.cache_write, self.cache_write_hour)

    def cost_nano_usd(self, tokens: BilledTokens) -> int:
        """The bill in nano-USD."""
        total = (
            _sane(tokens.input) * self.input
            + _sane(tokens.output) * self.output
            + _sane(tokens.cache_read) * self.cache_read
            + _sane(tokens.cache_write) * self.cache_write
            + _sane(tokens.cache_write_hour) * self.cache_write_hour
        )
        return -(-total // 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a model costs; `long` in place of `usual` for a call whose prompt is longer than `long_from_tokens`."""

    usual: Rates
    long: Rates | None = None
    long_from_tokens: int = 0

    def cost_nano_usd(self, tokens: BilledTokens) -> int:
        """The bill of a call in nano-USD; counts that nobody can have used are cut."""
        return self._rates(tokens.prompt).cost_nano_usd(tokens)

    def bound_nano_usd(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most that a call with at most so many tokens can cost, in nano-USD: nothing read from a cache, all of it written to one."""
        choices = (self.usual, self._rates(prompt_tokens))
        totals = [prompt_tokens * rates.dearest_prompt + output_tokens * rates.output for rates in choices]
        return -(-max(totals) // 1000)

    def _rates(self, prompt_tokens: int) -> Rates:
        return self.long if self.long is not None and prompt_tokens > self.long_from_tokens else self.usual


def _sane(tokens: int) -> int:
    return min(max(0, tokens), MAX_TOKENS)
