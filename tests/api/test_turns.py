"""Thousands of calls at once, and everybody else in between."""

from __future__ import annotations

import asyncio
from functools import partial

from hearth.api.turns import TurnLimiter

OTHER = -1


async def test_many_calls_are_made_a_few_per_turn_in_order_with_others_between():
    made = list[int]()
    turns = TurnLimiter(3)
    loop = asyncio.get_running_loop()
    for number in range(8):
        turns.call(partial(made.append, number))
    assert made == [0, 1, 2], "the first are made at once"
    for _ in range(3):
        loop.call_soon(made.append, OTHER)
        await asyncio.sleep(0)
    assert made == [0, 1, 2, 3, 4, 5, OTHER, 6, 7, OTHER, OTHER]
    turns.call(partial(made.append, 8))
    assert made[-1] == 8, "and so is a later one"


async def test_who_comes_while_others_wait_comes_after_them():
    made = list[int]()
    turns = TurnLimiter(1)
    for number in range(3):
        turns.call(partial(made.append, number))
    await asyncio.sleep(0)
    turns.call(partial(made.append, 3))
    for _ in range(3):
        await asyncio.sleep(0)
    assert made == [0, 1, 2, 3]
