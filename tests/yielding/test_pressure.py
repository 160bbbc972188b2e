"""When other programs take memory of the card: the rule, reading by reading."""

from __future__ import annotations

import pytest

from hearth.config.scheduler_settings import YieldSettings
from hearth.yielding.pressure import (
    AGAIN_S,
    LONGEST_CALM_S,
    QUIET_S,
    SETTLED_S,
    CardMemory,
    Pressure,
)

GIB = 1024.0
CARD_MIB = 24 * GIB
SETTINGS = YieldSettings()
"""1.5 GiB of headroom, calm for 60 s."""
BEAT_S = 2.0


class Followed:
    """The rule over a card with models of one size, which go and come back with the lease.

    `taken` has when a lease was taken, and `ended` when it ended.
    """

    def __init__(self, models_gib: float = 19.0, settings: YieldSettings = SETTINGS) -> None:
        self.rule = Pressure()
        self.now = 0.0
        self.models_mib = models_gib * GIB
        self.settings = settings
        self.taken: list[float] = []
        self.ended: list[float] = []

    def read(self, foreign_gib: float, for_s: float = 2 * BEAT_S, leased_gib: float = 0.0) -> float:
        """Have others hold so much for so long; returns GiB of the lease then."""
        until = self.now + for_s
        while self.now < until:
            before = self.rule.wanted_mib
            models_mib = 0.0 if before else self.models_mib
            card = CardMemory(
                foreign_mib=foreign_gib * GIB,
                free_mib=max(0.0, CARD_MIB - models_mib - foreign_gib * GIB),
                leased_mib=leased_gib * GIB,
            )
            self.rule.look(card, self.settings, self.now)
            if self.rule.wanted_mib and not before:
                self.taken.append(self.now)
            elif before and not self.rule.wanted_mib:
                self.ended.append(self.now)
            self.now += BEAT_S
        return self.rule.wanted_mib / GIB

    def lost(self, for_s: float) -> None:
        """The card says nothing for so long."""
        self.rule.look(None, self.settings, self.now)
        self.now += for_s


@pytest.mark.parametrize(
    ("models_gib", "gib", "wanted_gib"),
    [
        pytest.param(19.0, [0.5, 4.5], 5.5, id="what has grown and the headroom"),
        pytest.param(19.0, [0.5, 2.5], 0.0, id="enough is free"),
        pytest.param(22.0, [0.5, 0.9], 0.0, id="a desktop breathes"),
        pytest.param(22.0, [0.5, 1.0], 2.0, id="it has grown by as much as counts"),
        pytest.param(19.0, [4.5], 0.0, id="what is there at the start is theirs"),
        pytest.param(19.0, [4.5, 0.5, 4.5], 5.5, id="growth is from the least"),
        pytest.param(19.0, [0.5, 4.5, 8.5], 9.5, id="the lease grows with them"),
        pytest.param(19.0, [0.5, 8.5, 4.5], 9.5, id="it does not shrink at once"),
    ],
)
def test_others_get_what_they_have_taken_and_headroom(models_gib, gib, wanted_gib):
    card = Followed(models_gib)
    assert [card.read(each) for each in gib][-1] == wanted_gib


def test_it_takes_two_readings():
    card = Followed()
    card.read(0.5)
    assert [card.read(each, BEAT_S) for each in (8.0, 0.5, 8.0, 0.5, 8.0)] == [0.0] * 5
    assert card.read(8.0, BEAT_S) == 9.0


def test_it_ends_when_nothing_was_needed_for_the_calm_time():
    card = Followed()
    card.read(0.5)
    card.read(8.5, 100.0)
    assert card.read(0.5, 60.0) == 9.5
    assert card.read(0.5, 2 * BEAT_S) == 0.0
    assert card.ended[0] - card.taken[0] == pytest.approx(100.0 + 60.0, abs=2 * BEAT_S)


def test_a_lease_shrinks_to_what_was_needed_in_half_an_hour():
    card = Followed()
    card.read(0.5)
    card.read(12.5)
    assert card.read(4.5, SETTLED_S - 100.0) == 13.5
    assert card.read(6.5, 200.0) == 7.5


def test_a_program_that_breathes_keeps_its_lease():
    card = Followed()
    card.read(0.5)
    for _ in range(20):
        card.read(8.5, 600.0)
        card.read(7.0, 600.0)
    assert (len(card.taken), card.ended) == (1, [])


def test_bursts_are_one_lease():
    card = Followed()
    for _ in range(40):
        card.read(0.5, 40.0)
        card.read(8.5, 10.0)
    assert (len(card.taken), card.ended) == (1, [])


def test_what_others_hold_for_half_an_hour_is_theirs_if_it_is_little():
    card = Followed(22.0)
    card.read(0.5)
    assert card.read(1.5, SETTLED_S - 100.0) == 2.5
    assert card.read(1.5, 300.0) == 0.0
    assert card.read(1.9, 60.0) == 0.0
    assert card.read(2.0, 60.0) == 2.0


def test_a_program_that_has_grown_by_more_keeps_it_as_long_as_it_runs():
    card = Followed()
    card.read(0.5)
    card.read(14.5, 8 * 3600.0)
    assert card.read(14.5) == 15.5
    card.read(0.5, 100.0)
    assert len(card.ended) == 1


def test_slow_growth_is_no_pressure():
    card = Followed(22.0)
    for step in range(100):
        assert card.read(0.3 + step * 0.01, 120.0) == 0.0


def videos(card: Followed, gaps_s: list[float]) -> list[float]:
    """Calm times after videos with so long between them."""
    for gap_s in gaps_s:
        card.read(1.2, 180.0)
        card.read(0.5, gap_s)
    calm_s = []
    for taken, ended in zip(card.taken, card.ended, strict=False):
        calm_s.append(ended - taken - 180.0)
    return calm_s


def test_models_that_had_to_go_again_stay_away_twice_as_long_each_time():
    card = Followed(22.0)
    card.read(0.5)
    calm_s = videos(card, [min(60.0 * 2**n, 1800.0) + 120.0 for n in range(8)])
    assert calm_s == pytest.approx([60, 120, 240, 480, 960, 1800, 1800, 1800], abs=2 * BEAT_S)
    assert max(calm_s) <= LONGEST_CALM_S + 2 * BEAT_S


@pytest.mark.parametrize(
    ("quiet_s", "calm_s"), [(AGAIN_S - 60, 240.0), (AGAIN_S + 60, 120.0), (QUIET_S + 60, 60.0)]
)
def test_after_a_quiet_time_they_come_back_as_fast_as_at_first(quiet_s, calm_s):
    card = Followed(22.0)
    card.read(0.5)
    found = videos(card, [120.0, 120.0 + quiet_s, 600.0])
    assert found == pytest.approx([60.0, 120.0, calm_s], abs=2 * BEAT_S)


def test_numbers_that_are_missing_end_nothing():
    card = Followed()
    card.read(0.5)
    card.read(8.5)
    card.read(0.5, 40.0)
    card.lost(7200.0)
    assert card.read(0.5, 10.0) == 9.5
    assert card.read(0.5, 30.0) == 0.0


def test_one_reading_after_missing_ones_is_not_enough():
    card = Followed()
    card.read(0.5)
    card.read(8.5, BEAT_S)
    card.lost(60.0)
    assert card.read(8.5, BEAT_S) == 0.0
    assert card.read(8.5, BEAT_S) == 9.5


def test_what_somebody_with_a_lease_takes_is_no_pressure():
    card = Followed(12.0)
    card.read(0.5)
    assert card.read(10.5, 600.0, leased_gib=10.0) == 0.0
    assert card.read(10.5, 600.0) == 0.0  # nor what is left when the lease has ended
    card.read(0.5)
    assert card.read(11.5, 60.0, leased_gib=10.0) == 2.5  # but what others take beside it is


def test_what_is_there_when_others_with_leases_are_is_theirs():
    card = Followed()
    assert card.read(8.5, leased_gib=1.0) == 0.0
    assert card.read(8.5) == 0.0


def test_a_lease_that_somebody_ended_beside_another_is_not_taken_again():
    card = Followed()
    card.read(0.5)
    assert card.read(4.9, leased_gib=1.0) == 5.0
    card.rule.settle()
    assert card.read(4.9, 600.0, leased_gib=1.0) == 0.0


def test_a_lease_of_everything_leaves_nothing_to_wish_for():
    card = Followed()
    card.read(0.5)
    assert card.read(8.5, 60.0, leased_gib=float("inf")) == 0.0


def test_a_lease_that_somebody_ended_is_not_taken_again():
    card = Followed()
    card.read(0.5)
    assert card.read(8.5) == 9.5
    card.rule.settle()
    assert card.read(8.5, 600.0) == 0.0
    assert card.read(9.5) == 2.5
