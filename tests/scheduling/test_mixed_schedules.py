"""Thousands of random schedules with faults (`tests.scheduling.test_schedules`) on a device that
has models of three engines: `a`, `b` and `c` are loaded on request, `v` stays on the card, `far`
stays elsewhere. Any of the three may be away while another answers.

`DecisionChecker` judges every decision: nothing that stays, or is away, is loaded, unloaded or
sent anything. At the end all engines are back, and every item has ended once.
"""

from __future__ import annotations

from collections import Counter

import pytest

from hearth.scheduling import inputs
from hearth.scheduling.actions import Action, Dispatch, Fail
from hearth.types import Lane, Priority
from tests.scheduling.test_schedules import LANES, PROMPTS, Schedule, played
from tests.support.examples import EXAMPLES

ENGINES = (frozenset({"a", "b", "c"}), frozenset({"v"}), frozenset({"far"}))
ASKED_FOR = ("a", "b", "c", "v", "v", "far", "a/v", "b/far/v", None)
STAYING = ("v", "far")


class MixedSchedule(Schedule):
    """One schedule and its judge. `run` raises AssertionError where a rule is broken."""

    def __init__(self, number: int) -> None:
        super().__init__(4 * number + 3)  # of those with faults
        self.outages = 0
        self.seen: Counter[str] = Counter()
        self.list_all()
        for model in STAYING:
            self.tell(inputs.Loaded(model=model, vram_mib=self.rng.choice((None, 4096.0))))

    def list_all(self) -> None:
        self.tell(
            inputs.ModelsListed(
                names=frozenset().union(*ENGINES),
                staying=frozenset(STAYING),
                off_card=ENGINES[2],
                whole_loads=frozenset({"b"}),
            )
        )

    def arrives(self) -> None:
        rng = self.rng
        self.accepted += 1
        lane = rng.choice(LANES)
        self.arrive(
            rng.choice(ASKED_FOR),
            lane=lane,
            priority=rng.choice(tuple(Priority)),
            background="title" if lane is Lane.EXTERNAL and rng.random() < 0.3 else "",
            caller=rng.choice(("one", "two")),
            task_type="small" if rng.random() < 0.2 else None,
            prompt_tokens=rng.choice(PROMPTS),
            resumable=rng.random() < 0.5,
        )

    def trouble(self) -> None:
        match self.rng.randrange(6):
            case 0 | 1:
                self.goes_or_returns()
            case 2:
                self.list_all()
            case 3:
                self.tell(inputs.Loaded(model=self.rng.choice(STAYING)))
            case _:
                super().trouble()

    def goes_or_returns(self) -> None:
        """Another set of engines is away, and what is reported of them comes now, later or not."""
        rng = self.rng
        gone = rng.sample(ENGINES, rng.choice((0, 1, 1, 2)))
        away = frozenset[str]().union(*gone)
        self.outages += bool(away)
        self.tell(inputs.ModelsAway(models=away))
        if rng.random() < 0.7:
            running = self.device.residency.residents.values()
            lost = [n for each in running if each.model in away for n in each.running]
            for sequence in lost:
                self.fail(sequence, "backend_gone")
        if self.loading and self.loading[0].model in away and rng.random() < 0.7:
            self.load_failed()

    def _note(self, action: Action) -> None:
        super()._note(action)
        if isinstance(action, Dispatch | Fail):
            self.seen[action.model if isinstance(action, Dispatch) else action.why] += 1

    def heal(self) -> None:
        self.list_all()
        self.tell(inputs.ModelsAway(models=frozenset()))
        while self.unloading:  # perhaps of one that was unlisted when it came
            self.unloaded()
        for model in STAYING:
            self.tell(inputs.Loaded(model=model))
        super().heal()


BLOCK = 1_500
BLOCKS = 1 if EXAMPLES == 1 else 6 * EXAMPLES


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_schedule_with_several_engines_breaks_a_rule(block: int):
    seen: Counter[str] = Counter()
    for schedule in played(MixedSchedule, range(block * BLOCK, block * BLOCK + BLOCK)):
        seen.update(schedule.seen)
        seen["outages"] += schedule.outages
    expected = {"a": BLOCK, "v": BLOCK, "far": BLOCK // 2, "outages": BLOCK, "backend_down": 30}
    assert seen > Counter(expected)
