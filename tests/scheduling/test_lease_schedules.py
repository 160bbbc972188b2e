"""The random schedules, with leases of other programs that come, are renewed and end at any moment:
during loads, unloads, cuts and drains, while the model server is away, two at once, larger than the
card.

`DecisionChecker` judges every decision: nothing is sent to what has to go or loaded into leased
room, and no more goes than has to. At the end all leases are over and every item has ended once;
whoever had seen a part of an answer that can go on has got the rest.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from hearth.scheduling.actions import Action, Fail, Stop, Unload
from hearth.scheduling.waiting import Entry
from hearth.types import Sequence
from tests.scheduling.shell import Shell
from tests.scheduling.test_mixed_schedules import MixedSchedule
from tests.scheduling.test_schedules import Schedule, played
from tests.support.examples import EXAMPLES

BLOCK = 2_000
BLOCKS = 1 if EXAMPLES == 1 else 4 * EXAMPLES
SIZES_GB = (None, 1.0, 4.0, 8.0, 12.0, 16.0, 99.0)
OFTEN = 0.3
LASTS_S = (None, None, 2.0, 30.0, 500.0)


class Programs:
    """What other programs do beside what happens in a schedule."""

    def __init__(self, shell: Shell, number: int) -> None:
        self.leases = 0
        self._shell = shell
        self._rng = Random(number)

    def act(self) -> bool:
        """Perhaps one takes memory, renews what it has, or gives it back."""
        rng = self._rng
        shell = self._shell
        if rng.random() >= OFTEN:
            return False
        lease_id = rng.choice(("game", "render"))
        if lease_id in shell.device.leases.taken and rng.random() < 0.7:
            shell.lease_ended(lease_id)
            return True
        lasts_s = rng.choice(LASTS_S)
        shell.lease(
            rng.choice(SIZES_GB),
            lease_id=lease_id,
            grace_s=rng.choice((0.0, 4.0)),
            until=None if lasts_s is None else shell.now + lasts_s,
        )
        self.leases += 1
        return True

    def end(self) -> None:
        for lease_id in list(self._shell.device.leases.taken):
            self._shell.lease_ended(lease_id)


class BesidePrograms(Schedule):
    """Whose programs take the card instead of some trouble."""

    def __init__(self, number: int) -> None:
        self.programs = Programs(self, number)
        super().__init__(number)

    def trouble(self) -> None:
        if not self.programs.act():
            super().trouble()

    def heal(self) -> None:
        self.programs.end()
        super().heal()


class LeasedSchedule(BesidePrograms):
    """`run` raises AssertionError where a rule is broken."""

    def __init__(self, number: int) -> None:
        self.begun_streams: set[int] = set()
        self.seen: Counter[str] = Counter()
        super().__init__(number)

    def something(self) -> None:
        if not self.programs.act():
            super().something()

    def settle(self) -> None:
        self.programs.end()
        self.orders += 2 * self.programs.leases  # each may have cost loads
        super().settle()

    # The judge.

    def first_byte(self, sequence: int, *, forwarded: bool = False) -> list[str]:
        item = self.gateway.entries[Sequence(sequence)].item
        if forwarded and item.ways:
            self.begun_streams.add(sequence)
        return super().first_byte(sequence, forwarded=forwarded)

    def _note(self, action: Action) -> None:
        match action:
            case Fail(sequence=sequence, why="card_taken"):
                may_go_on = sequence in self.begun_streams and not self.is_faulty
                assert not may_go_on, f"{sequence} had begun and is given up"
                self.seen["given up"] += 1
            case Stop(sequence=sequence):
                self.seen["stopped"] += self.gateway.entries[sequence].for_lease
            case Unload(why="lease"):
                self.seen["unloaded"] += 1
            case _:
                pass
        super()._note(action)

    def nothing_is_left_lying(self, waiting: list[Entry]) -> None:
        if self.device.residency.cutting is None:  # else what it was for may claim what is there
            super().nothing_is_left_lying([entry for entry in waiting if self.may_start(entry)])

    def bands_come_first(self, waiting: list[Entry], started: list[Entry]) -> None:
        super().bands_come_first([entry for entry in waiting if self.may_start(entry)], started)

    def may_start(self, entry: Entry) -> bool:
        """Leases are not in its way, and it is bound to no model that it has not named."""
        resident = self.device.residency.residents.get(entry.wanted_model or "")
        must_go = resident is not None and resident.yields_at is not None
        is_as_asked = entry.wanted_model == entry.item.model
        return is_as_asked and not must_go and not self.device.is_barred_to(entry)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_schedule_with_leases_breaks_a_rule(block: int):
    seen: Counter[str] = Counter()
    for schedule in played(LeasedSchedule, range(block * BLOCK, block * BLOCK + BLOCK)):
        seen += schedule.seen
        seen["leases"] += schedule.programs.leases
    assert seen >= Counter({"leases": BLOCK, "stopped": 100, "unloaded": 100, "given up": 20}), seen


class MixedLeasedSchedule(BesidePrograms, MixedSchedule):
    """The same on models of several engines, with aliases, and with faults."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_schedule_with_several_engines_and_leases_breaks_a_rule(block: int):
    seen: Counter[str] = Counter()
    for schedule in played(
        MixedLeasedSchedule, range(block * BLOCK // 2, (block + 1) * BLOCK // 2)
    ):
        seen += schedule.seen
        seen["leases"] += schedule.programs.leases
    assert seen >= Counter({"leases": BLOCK // 2, "card_taken": 20, "v": BLOCK // 2}), seen
