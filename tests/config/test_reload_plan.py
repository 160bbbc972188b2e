"""When a file is looked at and when what was found is tried: the pure plan in a short simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from hearth.config.loading import digest_of
from hearth.config.reload import BLIND_POLL_S, ORDER_GAP_S, POLL_S, WRITING_S, ReloadPlan
from tests.support.cases import for_each

OLD, NEW, HALF = b"old", b"new", b"ne"
Fact = Callable[["Simulation"], None]


def token(content: bytes | None) -> str:
    return "gone" if content is None else digest_of(content)


@dataclass
class Simulation:
    """A file, its watch and the plan, in a time that jumps from one thing to the next."""

    blind: bool = False
    polls: bool = True
    content: bytes | None = OLD
    now: float = 0.0
    tries: list[tuple[float, bytes | None]] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = ReloadPlan(digest_of(OLD), 0.0, polls=self.polls)

    def play(self, *facts: tuple[float, Fact], until: float = 60.0) -> None:
        """Let every fact happen at its instant and carry out what the plan says."""
        for at, happen in [*facts, (until, lambda it: None)]:
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
    """The file changes; where changes are reported, the plan hears of it."""

    def happen(it: Simulation) -> None:
        it.content = content
        if not it.blind:
            it.plan.touched(it.now, writing=writing)

    return happen


def unreported(content: bytes) -> Fact:
    return lambda it: setattr(it, "content", content)


def noise(it: Simulation) -> None:
    """Something else happens in the directory."""
    it.plan.touched(it.now)


def order(it: Simulation) -> None:
    it.plan.ordered()


def in_steps(gap_s: float) -> list[tuple[float, Fact]]:
    return [(5.0, save(b"")), (5.0 + gap_s, save(HALF)), (5.0 + 2 * gap_s, save(NEW))]


WRITER = [(5.0, save(b"", writing=True)), (6.0, save(HALF, writing=True)), (7.0, save(NEW, writing=True)), (7.0, save(NEW))]
LATE_WRITER = [(9.0, save(HALF, writing=True)), (12.0, save(NEW, writing=True)), (12.0, save(NEW))]
PLAYED: dict[str, tuple[list[tuple[float, Fact]], list[tuple[float, bytes | None]]]] = {
    "a saved file is tried once within half a second": ([(5.0, save(NEW))], [(5.4, NEW)]),
    "one that was touched or saved unchanged is not": ([(5.0, save(OLD)), (6.0, noise)], []),
    "one that is written in steps is tried when it is complete": (in_steps(0.001), [(5.402, NEW)]),
    "also in slower ones": (in_steps(0.1), [(5.6, NEW)]),
    "also within the quiet time": (in_steps(0.29), [(5.7, NEW)]),
    "a writer that holds the file open is waited for": (WRITER, [(7.4, NEW)]),
    "a look without a reason does not cut a writer short": (LATE_WRITER, [(12.4, NEW)]),
    "one that never closes the file is not waited for for ever": ([(5.0, save(NEW, writing=True))], [(5.0 + WRITING_S + 0.1, NEW)]),
    "what lasted for one look only is never tried": ([(5.0, save(HALF)), (5.35, unreported(NEW))], [(5.5, NEW)]),
    "a file that is deleted and written anew is never seen as gone": ([(5.0, save(None)), (5.9, save(NEW))], [(6.0, NEW)]),
    "one that is gone is tried once and again when it is back": ([(5.0, save(None)), (50.0, save(OLD))], [(6.3, None), (50.4, OLD)]),
    # prometheus-operator #4708: after a bad file, the good one was never picked up.
    "after a bad content the old one counts again": ([(5.0, save(HALF)), (50.0, save(OLD))], [(5.4, HALF), (50.4, OLD)]),
}


@for_each("name", PLAYED)
def test_when_what_is_tried(name):
    it, (facts, tries) = Simulation(), PLAYED[name]
    it.play(*facts)
    assert it.tries == tries
    assert 10.0 in it.looks or facts[0][0] != 9.0, "there was a look without a reason"


def test_a_restless_directory_neither_starves_a_change_nor_causes_tries():
    it = Simulation()
    restless: list[tuple[float, Fact]] = [(at / 100, noise) for at in range(100, 1000)]
    it.play(*sorted([*restless, (5.005, save(NEW))], key=lambda pair: pair[0]), until=20.0)
    assert [content for _, content in it.tries] == [NEW]
    assert it.tries[0][0] <= 6.3
    assert len(it.looks) < 40


def test_a_thousand_writes_in_five_seconds_are_few_tries_and_the_last_one_counts():
    it = Simulation()
    it.play(*[(5 + n / 200, save(b"%d" % n)) for n in range(1000)])
    assert len(it.tries) <= 2
    assert it.tries[-1][1] == b"999"


@for_each(("blind", "within_s"), [(False, POLL_S + 0.4), (True, BLIND_POLL_S + 0.31)])
def test_a_change_that_nobody_reports_is_found_by_looking(blind, within_s):
    it = Simulation(blind=blind)
    it.play((25.01, unreported(NEW)))
    assert [content for _, content in it.tries] == [NEW]
    assert it.tries[0][0] - 25.01 <= within_s


def test_an_order_is_obeyed_at_once_many_within_a_second_are_two_tries_and_without_a_watch_nothing_else_is_tried():
    it = Simulation(polls=False)
    it.play(*[(5 + n / 100, order) for n in range(100)], until=1000.0)
    assert (it.tries, it.looks) == ([(5.0, OLD), (5.0 + ORDER_GAP_S, OLD)], [])


def test_a_touch_during_a_look_leads_to_another_look():
    plan = ReloadPlan(digest_of(OLD), 0.0, polls=False)
    plan.touched(1.0)
    assert plan.step(1.3) == "look"
    plan.touched(1.31)
    assert plan.looked(token(OLD), 1.32, gone=False, blind=False) is False
    assert plan.wake_at() == pytest.approx(1.61)
    assert plan.step(1.61) == "look"
