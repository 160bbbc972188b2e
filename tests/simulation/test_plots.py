"""The picture: that it can be drawn of anything, and what goes into it.

How it looks was looked at.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.simulation.engine import GpuSpan, SimulationRun, simulate
from hearth.simulation.workloads import Workload
from tests.simulation.test_measures import run_of
from tests.support.workloads import Mix, random_workload


@pytest.fixture(scope="module")
def plots() -> Any:
    """Matplotlib takes most of a second to import: only the process that draws waits for it."""
    from hearth.simulation import plots  # noqa: PLC0415

    return plots


def drawn(house: Workload, *policies: PolicyName) -> dict[str, SimulationRun]:
    return {
        policy.value: simulate(house, house.settings(SchedulerSettings(), policy))
        for policy in policies or [PolicyName.FIFO]
    }


def house(internal: float = 0.3) -> Workload:
    return random_workload(Random(3), Mix(jobs=60, internal=internal))


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack_from(">II", png, 16)  # what its head says
    return width, height


@pytest.mark.parametrize(
    ("pairs", "spans"),
    [
        ([(0, 1), (5, 6)], [(0, 1), (5, 1)]),
        ([(0, 2), (1, 3)], [(0, 3)]),
        ([(0, 9), (1, 3)], [(0, 9)]),
        ([(0, 1), (1.4, 2)], [(0, 2)]),
        ([(0, 1), (1.5, 2)], [(0, 2)]),
        ([(4, 5), (0, 1)], [(0, 1), (4, 1)]),
        ([(None, 1), (2, None)], []),
    ],
)
def test_what_cannot_be_told_apart_is_drawn_as_one_bar(plots, pairs, spans):
    assert plots.merged(pairs, 0.5) == spans


def test_what_a_run_did_is_in_its_picture_and_not_only_in_its_numbers(plots):
    header = '{"models": {"a": {}, "b": {}}, "swap_s": {"": {"a": 2, "b": 7}}, "resident": ["a"]}'
    run = run_of(
        "\n".join(
            [
                header,
                *(
                    f'{{"id": {number}, "model": "{model}", "service_s": 1}}'
                    for number, model in enumerate("aba")
                ),
            ]
        )
    )
    changed = (
        replace(run, records=[replace(each, model="b") for each in run.records]),
        replace(run, stops=[GpuSpan(model="a", start=0.0, end=1.0)]),
        replace(
            run,
            swaps=[replace(each, start=each.start - 0.5, end=each.end - 0.5) for each in run.swaps],
        ),
    )
    assert plots.draw_png({"x": run}) == plots.draw_png({"x": run})
    assert len({plots.draw_png({"x": each}) for each in (run, *changed)}) == 4


ODD = (
    '{"models": {"$a_b$^{": {}}, "resident": ["$a_b$^{"]}\n{"id": 0, "model": '
    '"$a_b$^{", "service_s": 1}'
)


def test_a_run_of_any_kind_has_a_picture_that_grows_with_its_policies(plots):
    odd = {"$x$": run_of(ODD)}  # names that would be bad formulas
    for runs in (
        drawn(house(internal=0.0)),
        drawn(house(internal=1.0)),
        {"fifo": SimulationRun()},
        odd,
    ):
        assert (
            size(plots.draw_png(runs, title="$\\nonsense$"))[0]
            == plots.WIDTH_IN * plots.DOTS_PER_INCH
        )
    one, two = (
        size(plots.draw_png(drawn(house(), *policies)))
        for policies in ([PolicyName.FIFO], [PolicyName.FIFO, PolicyName.AFFINITY])
    )
    assert (one[0], two[0], two[1] > one[1]) == (
        plots.WIDTH_IN * plots.DOTS_PER_INCH,
        plots.WIDTH_IN * plots.DOTS_PER_INCH,
        True,
    )


def test_mean_waits_have_a_row_for_each_workload_and_a_mark_for_each_policy(plots):
    one = plots.draw_means_png({"day": {"fifo": 2.0}})
    two = plots.draw_means_png({"day": {"fifo": 2.0}, "$night$": {"fifo": 90.0}})
    assert size(two)[1] > size(one)[1]
    assert plots.draw_means_png({"day": {"fifo": 2.0, "affinity": 1.0}}) != one
