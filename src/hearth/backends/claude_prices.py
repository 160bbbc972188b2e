"""What Claude models cost, from the list that comes with `genai-prices`. Never asks the network: its own updates stay off.

The package takes 0.2 s of CPU to import, so that happens on first use and in a thread. Named by `bootstrap` only.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import TYPE_CHECKING

from hearth.types import Price, Rates

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice

_KINDS = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok")
_OF_INPUT = {"cache_read_mtok": Decimal("0.1"), "cache_write_mtok": Decimal("1.25"), "cache_write_1h_mtok": Decimal(2)}
"""Anthropic's usual prices of its cache as multiples of the input price, for models whose entry does not say."""


class ClaudePrices:
    """The list, read at each question: some prices change on a date."""

    async def price_of(self, model: str) -> Price | None:
        """Today's price; None where the list does not have the model."""
        return await asyncio.to_thread(_price_of, model)


def _price_of(model: str) -> Price | None:
    from genai_prices import Usage, calc_price  # noqa: PLC0415 - see above

    try:
        found = calc_price(Usage(input_tokens=1, output_tokens=1), model, provider_id="anthropic").model_price
    except LookupError:
        return None
    return _price(found)


def _price(found: ModelPrice) -> Price | None:
    if not (_base(found, "input_mtok") and _base(found, "output_mtok")):
        return None
    starts = [start for kind in _KINDS if (start := _start(found, kind)) is not None]
    usual = _rates(found, long=False)
    return Price(usual=usual, long=_rates(found, long=True), long_from_tokens=min(starts)) if starts else Price(usual=usual)


def _rates(found: ModelPrice, *, long: bool) -> Rates:
    base = {kind: (_long(found, kind) if long else _base(found, kind)) for kind in _KINDS}
    usd = {kind: float(price if price is not None else (base["input_mtok"] or 0) * _OF_INPUT[kind]) for kind, price in base.items()}
    return Rates.in_usd(
        input_usd=usd["input_mtok"],
        output_usd=usd["output_mtok"],
        cache_read_usd=usd["cache_read_mtok"],
        cache_write_usd=usd["cache_write_mtok"],
        cache_write_hour_usd=usd["cache_write_1h_mtok"],
    )


def _base(found: ModelPrice, kind: str) -> Decimal | None:
    price = getattr(found, kind, None)
    return price if price is None or isinstance(price, Decimal) else Decimal(price.base)


def _long(found: ModelPrice, kind: str) -> Decimal | None:
    """The dearest tier of a price that depends on the length of the prompt."""
    price = getattr(found, kind, None)
    return price if price is None or isinstance(price, Decimal) else max(Decimal(price.base), *(tier.price for tier in price.tiers))


def _start(found: ModelPrice, kind: str) -> int | None:
    tiers = getattr(getattr(found, kind, None), "tiers", None)
    return min(tier.start for tier in tiers) if tiers else None
