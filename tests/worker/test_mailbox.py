"""The mailbox: every fact once, in order, one decision at a time, within the report once somebody runs."""

from __future__ import annotations

import asyncio

from hearth.queue.worker import Mailbox
from hearth.scheduling.inputs import Cancelled, Input
from hearth.types import Sequence
from tests.support.virtual_time import in_virtual_time


class Decider(Mailbox):
    """Writes down what it decides upon; while it decides upon 1 it reports 2 and 3."""

    def __init__(self) -> None:
        super().__init__(self.decide)
        self.seen: list[tuple[int, float]] = []
        self.deciding = False

    def report(self, number: int, not_before: float = 0.0) -> None:
        self.post(Cancelled(sequences=(Sequence(number),)), not_before=not_before)

    def decide(self, fact: Input, not_before: float) -> None:
        assert isinstance(fact, Cancelled)
        assert not self.deciding
        self.deciding = True
        (number,) = fact.sequences
        if number == 1:
            self.report(2)
            self.report(3, not_before=7.0)
        self.seen.append((number, not_before))
        self.deciding = False


@in_virtual_time
async def test_what_was_reported_waits_for_somebody_to_run_and_is_decided_upon_at_once_and_in_order_then():
    decider = Decider()
    decider.report(4)
    decider.report(1)
    assert decider.seen == []
    running = asyncio.create_task(decider.run())
    await asyncio.sleep(0)
    assert decider.seen == [(4, 0.0), (1, 0.0), (2, 0.0), (3, 7.0)]
    decider.report(5, not_before=2.5)
    assert decider.seen[4:] == [(5, 2.5)]
    running.cancel()
    await asyncio.sleep(0)
    decider.report(6)
    assert len(decider.seen) == 5


@in_virtual_time
async def test_one_at_a_time_can_be_taken_by_hand():
    decider = Decider()
    decider.report(1)
    for count in (1, 2, 3):
        await decider.take_one()
        assert [number for number, _ in decider.seen] == [1, 2, 3][:count]
    waiting = asyncio.create_task(decider.take_one())
    await asyncio.sleep(1.0)
    assert not waiting.done()
    decider.report(4)
    await waiting
