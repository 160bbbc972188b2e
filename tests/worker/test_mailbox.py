"""The mailbox: every fact once, in order, one decision at a time."""

from __future__ import annotations

import asyncio

from hearth.queue.worker import Mailbox
from hearth.scheduling.inputs import Cancelled, Input
from hearth.types import Sequence
from tests.support.virtual_time import in_virtual_time


def fact(number: int) -> Cancelled:
    return Cancelled(sequences=(Sequence(number),))


class Decider:
    """Writes down what it decides upon; while it decides upon 1 it reports 2 and 3."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []
        self.deciding = 0
        self.mailbox = Mailbox(self.decide)

    def decide(self, fact_: Input, not_before: float) -> None:
        assert isinstance(fact_, Cancelled)
        assert not self.deciding
        self.deciding += 1
        (sequence,) = fact_.sequences
        if sequence == 1:
            self.mailbox.post(fact(2))
            self.mailbox.post(fact(3), not_before=7.0)
        self.seen.append((sequence, not_before))
        self.deciding -= 1

    @property
    def order(self) -> list[int]:
        return [number for number, _ in self.seen]


@in_virtual_time
async def test_a_fact_is_decided_upon_within_the_report_once_somebody_runs():
    decider = Decider()
    running = asyncio.create_task(decider.mailbox.run())
    await asyncio.sleep(0)
    decider.mailbox.post(fact(5), not_before=2.5)
    assert decider.seen == [(5, 2.5)]
    running.cancel()


@in_virtual_time
async def test_what_is_reported_during_a_decision_follows_it_in_order():
    decider = Decider()
    running = asyncio.create_task(decider.mailbox.run())
    await asyncio.sleep(0)
    decider.mailbox.post(fact(1))
    assert decider.seen == [(1, 0.0), (2, 0.0), (3, 7.0)]
    running.cancel()


@in_virtual_time
async def test_what_was_reported_before_waits_for_somebody_to_run_and_so_does_what_comes_after():
    decider = Decider()
    for number in (4, 1):
        decider.mailbox.post(fact(number))
    assert decider.order == []
    running = asyncio.create_task(decider.mailbox.run())
    await asyncio.sleep(0)
    assert decider.order == [4, 1, 2, 3]
    running.cancel()
    await asyncio.sleep(0)
    decider.mailbox.post(fact(6))
    assert decider.order == [4, 1, 2, 3]


@in_virtual_time
async def test_one_at_a_time_can_be_taken_by_hand():
    decider = Decider()
    decider.mailbox.post(fact(1))
    await decider.mailbox.take_one()
    assert decider.order == [1]
    await decider.mailbox.take_one()
    await decider.mailbox.take_one()
    assert decider.order == [1, 2, 3]
    waiting = asyncio.create_task(decider.mailbox.take_one())
    await asyncio.sleep(1.0)
    assert not waiting.done()
    decider.mailbox.post(fact(4))
    await waiting
    assert decider.order == [1, 2, 3, 4]
