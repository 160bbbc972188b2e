"""What packing is for: the first byte of short prompts that came together with long ones, measured as on roseinfer's page."""

from __future__ import annotations

from hearth.config.settings import PackingMode, PackingSettings
from tests.scheduling.batching import Ask, Seen, Server, served

PAGE = Server(slots=128, step_s=0.0166, prompt_token_s=5e-6)
"""A small model on a fast card, as on the page: 64 rounds of the mix take it 1.1 s."""
MIX = {number: Ask(at=0.0008 * number, prompt_tokens=(1, 512, 1, 1)[number % 4], output_tokens=32) for number in range(1, 129)}
"""The page's: 128 requests within a tenth of a second, the prompts 512, 1, 1 and 1 units long in turn."""


def run(mode: PackingMode, *, every: int = 8) -> Seen:
    return served(MIX, PackingSettings(mode=mode, prefill_max_tokens=256, lookahead=64, force_fifo_every=every), PAGE)


def test_the_baseline_is_the_one_that_the_page_measured() -> None:
    """1144 ms there; otherwise the comparison below would say nothing about it."""
    assert 1.0 < run(PackingMode.FIFO).percentile_s(0.99) < 1.2


def test_packing_lowers_the_time_to_first_byte_of_nearly_all_by_two_fifths_and_serves_no_fewer_tokens() -> None:
    fifo, pack = run(PackingMode.FIFO), run(PackingMode.PACK)
    assert pack.percentile_s(0.99) <= 0.6 * fifo.percentile_s(0.99)
    assert pack.percentile_s(0.50) <= 0.2 * fifo.percentile_s(0.50)
    assert pack.answered_at <= fifo.answered_at


def test_long_prompts_are_served_in_the_end_however_many_short_ones_keep_coming() -> None:
    """Short prompts enough to fill every round; with one round in eight in order, the long one gets its turn."""
    short = {number: Ask(at=0.008 * number, prompt_tokens=100, output_tokens=2) for number in range(2, 500)}
    asks = short | {50: Ask(at=0.4, prompt_tokens=512, output_tokens=2)}

    def wait_s(every: int) -> float:
        packing = PackingSettings(mode=PackingMode.PACK, prefill_max_tokens=256, force_fifo_every=every)
        return served(asks, packing, PAGE).first_byte_s[50]

    assert wait_s(every=8) < 0.5
    assert wait_s(every=0) > 3.0
