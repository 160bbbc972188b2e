"""The picture: that it can be drawn of anything, and what goes into it. How it looks was looked at."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from random import Random

import matplotlib.image

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.simulation.engine import Run, Span, simulate
from hearth.simulation.plots import DOTS_PER_INCH, WIDTH_IN, draw_means_png, draw_png, merged
from hearth.simulation.traces import parse_trace
from tests.support.cases import for_each
from tests.support.workloads import Mix, random_workload


def runs(seed: int, *policies: PolicyName, internal: float = 0.3) -> dict[str, Run]:
    house = random_workload(Random(seed), Mix(jobs=60, internal=internal))
    return {policy.value: simulate(house, house.settings(SchedulerSettings(), policy)) for policy in policies}


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    height, width, _ = matplotlib.image.imread(BytesIO(png)).shape
    return width, height


@for_each(
    ("pairs", "spans"),
    [
        ([(0, 1), (5, 6)], [(0, 1), (5, 1)]),
        ([(0, 2), (1, 3)], [(0, 3)]),
        ([(0, 9), (1, 3)], [(0, 9)]),
        ([(0, 1), (1.4, 2)], [(0, 2)]),
        ([(4, 5), (0, 1)], [(0, 1), (4, 1)]),
        ([(None, 1), (2, None)], []),
    ],
)
def test_what_cannot_be_told_apart_is_drawn_as_one_bar(pairs, spans):
    assert merged(pairs, 0.5) == spans


def test_a_picture_grows_with_its_policies_and_not_in_width():
    one, two = (size(draw_png(runs(3, *policies))) for policies in ([PolicyName.FIFO], [PolicyName.FIFO, PolicyName.AFFINITY]))
    assert one[0] == two[0] == WIDTH_IN * DOTS_PER_INCH
    assert two[1] > one[1]


@for_each(
    "change",
    [
        lambda run: replace(run, records=[replace(each, model="b") for each in run.records]),
        lambda run: replace(run, stops=[Span(model="a", start=0.0, end=1.0)]),
        lambda run: replace(run, swaps=[replace(each, start=each.start - 0.5, end=each.end - 0.5) for each in run.swaps]),
    ],
)
def test_what_a_run_did_is_in_its_picture_and_not_only_in_its_numbers(change):
    header = '{"models": {"a": {}, "b": {}}, "swap_s": {"": {"a": 2, "b": 7}}, "resident": ["a"]}'
    requests = [f'{{"id": {number}, "model": "{model}", "service_s": 1}}' for number, model in enumerate("aba")]
    house = parse_trace("\n".join([header, *requests]), source="t")
    run = simulate(house, house.settings(SchedulerSettings(), PolicyName.FIFO))
    assert draw_png({"x": run}) == draw_png({"x": run})
    assert draw_png({"x": run}) != draw_png({"x": change(run)})


def oddly_named() -> dict[str, Run]:
    trace = '{"models": {"$a_b$^{": {}}, "resident": ["$a_b$^{"]}\n{"id": 0, "model": "$a_b$^{", "service_s": 1}'
    house = parse_trace(trace, source="t")
    return {"$x$": simulate(house, house.settings(SchedulerSettings(), PolicyName.FIFO))}


@for_each(
    "drawn", [runs(3, PolicyName.FIFO, internal=0.0), runs(3, PolicyName.FIFO, internal=1.0), {"fifo": Run()}, oddly_named()]
)  # one lane; nothing at all; names that would be bad formulas
def test_a_run_of_any_kind_has_a_picture(drawn: dict[str, Run]):
    assert size(draw_png(drawn, title="$\\nonsense$"))[0] == WIDTH_IN * DOTS_PER_INCH


def test_mean_waits_have_a_row_for_each_workload_and_a_mark_for_each_policy():
    one, two = draw_means_png({"day": {"fifo": 2.0}}), draw_means_png({"day": {"fifo": 2.0}, "$night$": {"fifo": 90.0}})
    assert size(two)[1] > size(one)[1]
    assert draw_means_png({"day": {"fifo": 2.0, "affinity": 1.0}}) != one
