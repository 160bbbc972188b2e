"""The figures that README.md and the documentation promise of the assistant's home."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.simulation.homes import figures, homes, in_order_of_arrival, mean_figures
from hearth.simulation.workloads import Workload
from tests.support.places import ROOT

BASE = SchedulerSettings()
AT_ONCE = replace(BASE, scheduling=BASE.scheduling.replace(preemption="at_once"))
PRIORITIES = [build() for build in homes().values()]
NONE = [in_order_of_arrival(each) for each in PRIORITIES]


def lines(page: str) -> list[str]:
    """Of a page, without what makes a figure bold and without its unit."""
    text = (ROOT / page).read_text("utf-8").replace("**", "")
    return text.replace(" loads of its model", "").replace(" loads |", " |").splitlines()


@pytest.mark.parametrize(
    ("readme", "measured", "built", "base", "policy"),
    [
        ("in order of arrival", "streams, in order of arrival", NONE, BASE, PolicyName.FIFO),
        (
            "the assistant interrupts at once",
            "streams, at once",
            PRIORITIES,
            AT_ONCE,
            PolicyName.ADAPTIVE,
        ),
        ("Hearth", "streams", PRIORITIES, BASE, PolicyName.ADAPTIVE),
    ],
)
def test_the_tables_say_what_the_homes_give(
    readme: str, measured: str, built: list[Workload], base: SchedulerSettings, policy: PolicyName
):
    mean = mean_figures(figures(each, base, policy) for each in built)
    wait, p95, swaps, work = (
        mean.mean_loads,
        mean.p95_loads,
        100 * mean.swap_share,
        mean.others_share,
    )
    assert f"| {readme} | {wait:.1f} ({p95:.1f}) | {swaps:.0f} % | {100 * work:.0f} % |" in lines(
        "README.md"
    )
    assert f"| {measured} | {wait:.2f} / {p95:.2f} | {swaps:.1f} % | {work:.3f} |" in lines(
        "docs/scheduling/assistant.md"
    )
