"""What the emulator's card says: the models in its memory, and a load that it warms with."""

from __future__ import annotations

import pytest

from hearth.cli.demo import demo_emulator
from hearth.emulator.card import EmulatedCard
from tests.support.home import LLAMA
from tests.support.http import Caller
from tests.support.stopped_clock import StoppedClock


async def test_the_card_holds_what_is_loaded_and_warms_while_something_runs():
    clock = StoppedClock()
    emulator = demo_emulator(1000.0, clock)
    card = EmulatedCard(emulator, vram_gib=32.0, clock=clock)
    url = await emulator.start()
    try:
        empty = await card.read()
        caller = await Caller.to(url)
        await caller.post("/api/generate", b'{"model": "%s", "prompt": "hi"}' % LLAMA.encode())
        assert (await caller.head())[0] == 200
        loaded = await card.read()
        clock.advance(45.0)
        warm = await card.read()
        caller.leave()
    finally:
        await emulator.stop()
    assert (empty.utilisation_pct, empty.power_w, empty.temperature_c) == (0.0, 28.0, 34)
    assert empty.used_mib == empty.reserved_mib
    assert empty.processes == ()
    assert loaded.used_mib is not None
    assert loaded.used_mib - loaded.reserved_mib == pytest.approx(6.2 * 1024)
    assert (loaded.utilisation_pct, loaded.power_w, loaded.temperature_c) == (97.0, 365.0, 34)
    assert warm.temperature_c == round(71 - 37 / 2.718281828)
