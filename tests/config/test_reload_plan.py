"""When a file is looked at and when what was found is tried: the pure plan, driven by hand or through a short simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from hearth.config.loading import digest_of
from hearth.config.reload import (
    BLIND_POLL_S,
    ORDER_GAP_S,
    POLL_S,
    WRITING_S,
    ReloadPlan,
)
from tests.support.cases import for_each

OLD, NEW, HALF = b"old", b"new", b"ne"
Fact = Callable[["Desk"], None]


def token(content: bytes | None) -> str:
    return "gone" if content is None else digest_of(content)


@dataclass
class Desk:
    """A file, its watch and the plan, in a time that jumps from one thing to the next."""

    blind: bool = False
    polls: bool = True
    content: bytes | None = OLD
    now: float = 0.0
    tries: list[tuple[float, bytes | None]] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = ReloadPlan(digest_of(OLD), 0.0, polls=self.polls)

    def save(self, content: bytes | None, *, writing: bool = False) -> None:
        """The file changes; where changes are reported, the plan hears of it."""
        self.content = content
        if not self.blind:
            self.plan.touched(self.now, writing=writing)

    def noise(self) -> None:
        """Something else happens in the directory."""
        self.plan.touched(self.now)

    def play(self, *facts: tuple[float, Fact], until: float) -> None:
        """Let every fact happen at its instant and carry out what the plan says."""
        coming = [*facts, (until, lambda desk: None)]
        for at, happen in coming:
            while self.plan.wake_at() <= at:
                self.now = max(self.now, self.plan.wake_at())
                self._carry_out(self.plan.step(self.now))
            self.now = at
            happen(self)

    def _carry_out(self, step: str | None) -> None:
        found, gone = token(self.content), self.content is None
        if step == "look":
            self.looks.append(self.now)
        if step == "obey" or (step == "look" and self.plan.looked(found, self.now, gone=gone, blind=self.blind)):
            self.plan.tried(found)
            self.tries.append((round(self.now, 3), self.content))


def save(content: bytes | None, *, writing: bool = False) -> Fact:
    return lambda desk: desk.save(content, writing=writing)


def order(desk: Desk) -> None:
    desk.plan.ordered()


def test_a_saved_file_is_tried_once_within_half_a_second():
    desk = Desk()
    desk.play((5.0, save(NEW)), until=60.0)
    assert desk.tries == [(5.4, NEW)]


def test_a_file_that_was_only_touched_or_saved_unchanged_is_not_tried():
    desk = Desk()
    desk.play((5.0, save(OLD)), (6.0, lambda each: each.noise()), until=60.0)
    assert desk.tries == []


@for_each("gap_s", [0.001, 0.1, 0.29])
def test_a_file_that_is_written_in_steps_is_tried_when_it_is_complete(gap_s):
    """Truncated, half written, complete; each within the quiet time of the one before."""
    desk = Desk()
    desk.play((5.0, save(b"")), (5.0 + gap_s, save(HALF)), (5.0 + 2 * gap_s, save(NEW)), until=60.0)
    assert [content for _, content in desk.tries] == [NEW]
    assert desk.tries[0][0] <= 6.0 + 2 * gap_s


def test_a_writer_that_holds_the_file_open_is_waited_for():
    desk = Desk()
    desk.play((5.0, save(b"", writing=True)), (6.0, save(HALF, writing=True)), (7.0, save(NEW, writing=True)), (7.0, save(NEW)), until=60.0)
    assert desk.tries == [(7.4, NEW)]


def test_a_look_without_a_reason_does_not_cut_a_writer_short():
    desk = Desk()
    desk.play((9.0, save(HALF, writing=True)), (12.0, save(NEW, writing=True)), (12.0, save(NEW)), until=60.0)
    assert 10.0 in desk.looks
    assert desk.tries == [(12.4, NEW)]


def test_a_writer_that_never_closes_the_file_is_not_waited_for_for_ever():
    desk = Desk()
    desk.play((5.0, save(NEW, writing=True)), until=60.0)
    assert [content for _, content in desk.tries] == [NEW]
    assert desk.tries[0][0] <= 5.0 + WRITING_S + 0.2


def test_a_content_that_lasted_for_one_look_only_is_never_tried():
    desk = Desk()
    desk.play((5.0, save(HALF)), (5.35, lambda each: setattr(each, "content", NEW)), until=60.0)
    assert [content for _, content in desk.tries] == [NEW]


def test_a_restless_directory_neither_starves_a_change_nor_causes_tries():
    desk = Desk()
    noise: list[tuple[float, Fact]] = [(at / 100, lambda each: each.noise()) for at in range(100, 1000)]
    desk.play(*sorted([*noise, (5.005, save(NEW))], key=lambda pair: pair[0]), until=20.0)
    assert [content for _, content in desk.tries] == [NEW]
    assert desk.tries[0][0] <= 6.3
    assert len(desk.looks) < 40


def test_a_thousand_writes_in_five_seconds_are_few_tries_and_the_last_one_counts():
    desk = Desk()
    writes: list[tuple[float, Fact]] = [(5 + n / 200, save(b"%d" % n)) for n in range(1000)]
    desk.play(*writes, until=60.0)
    assert len(desk.tries) <= 2
    assert desk.tries[-1][1] == b"999"


@pytest.mark.parametrize(("blind", "within_s"), [(False, POLL_S + 0.4), (True, BLIND_POLL_S + 0.31)])
def test_a_change_that_nobody_reports_is_found_by_looking(blind, within_s):
    desk = Desk(blind=blind)
    desk.play((25.01, lambda each: setattr(each, "content", NEW)), until=60.0)
    assert [content for _, content in desk.tries] == [NEW]
    assert desk.tries[0][0] - 25.01 <= within_s


def test_a_file_that_is_replaced_by_deleting_and_writing_anew_is_never_seen_as_gone():
    desk = Desk()
    desk.play((5.0, save(None)), (5.9, save(NEW)), until=60.0)
    assert [content for _, content in desk.tries] == [NEW]


def test_a_file_that_is_gone_is_tried_once_and_again_when_it_is_back_with_what_it_had():
    desk = Desk()
    desk.play((5.0, save(None)), (100.0, save(OLD)), until=200.0)
    assert desk.tries == [(6.3, None), (100.4, OLD)]


def test_a_bad_content_is_tried_once_and_the_good_one_after_it_also_where_it_is_the_old_one():
    """prometheus-operator #4708: after a bad file, the good one was never picked up."""
    desk = Desk()
    desk.play((5.0, save(HALF)), (50.0, save(OLD)), until=100.0)
    assert [content for _, content in desk.tries] == [HALF, OLD]


def test_an_order_is_obeyed_at_once_and_many_within_a_second_are_two_tries():
    desk = Desk(polls=False)
    desk.play(*[(5 + n / 100, order) for n in range(100)], until=60.0)
    assert [at for at, _ in desk.tries] == [5.0, 5.0 + ORDER_GAP_S]


def test_without_a_watch_only_orders_lead_anywhere():
    desk = Desk(polls=False)
    desk.play((5.0, order), until=1000.0)
    assert (desk.tries, desk.looks) == ([(5.0, OLD)], [])


def test_a_touch_during_a_look_leads_to_another_look():
    plan = ReloadPlan(digest_of(OLD), 0.0, polls=False)
    plan.touched(1.0)
    assert plan.step(1.3) == "look"
    plan.touched(1.31)
    assert plan.looked(token(OLD), 1.32, gone=False, blind=False) is False
    assert plan.wake_at() == pytest.approx(1.61)
    assert plan.step(1.61) == "look"
