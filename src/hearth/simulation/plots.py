"""One picture of a simulation: what the GPU did under each policy, and how long each lane waited;
of several, the mean waits.

Colours are Okabe and Ito's, which everybody can tell apart; swaps are hatched and lines differ in
their dashes as well, so that nothing depends on colour alone. Needs matplotlib (the extra `plots`),
so it is imported only for `hearth simulate --plot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from hearth.simulation.engine import SimulationRun
from hearth.simulation.measures import summary, swap_pct, waits_s
from hearth.types import Lane

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
LineStyle = Literal["solid", "dashed", "dotted", "dashdot"] | tuple[float, tuple[float, ...]]
DASHES: tuple[LineStyle, ...] = (
    "solid",
    "dashed",
    "dotted",
    "dashdot",
    (0, (5, 1)),
    (0, (3, 1, 1, 1, 1, 1)),
)
MARKERS = ("o", "s", "^", "v", "D", "P")
GREY = "#9A9A9A"
LEASED = "#FBE9C6"
ASLEEP = {"offload": "#C9C9C9", "discard": "#FFFFFF"}
HATCH = {"offload": "", "discard": "....."}
WIDTH_IN = 12.0
ROW_IN = 0.30
STRIP_IN = 0.62
WAITS_IN = 3.7
DOTS_PER_INCH = 120
# parts of the time axis that a picture can show; what is closer together is drawn as one bar
RESOLUTION = 1500
UNITS = (("h", 3600.0), ("min", 60.0))
WAIT_TICKS_S = (0, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400)

Stretch = tuple[float, float]  # (start, length) in seconds


def draw_png(runs: Mapping[str, SimulationRun], *, title: str | None = None) -> bytes:
    """The picture as PNG: a strip per policy in the order given, under them the waits of each lane
    that had any work.
    """
    used = {
        record.model for run in runs.values() for record in run.records if record.model is not None
    }
    models = sorted(used.union(swap.model for run in runs.values() for swap in run.swaps))
    lanes = [
        lane
        for lane in Lane
        if any(record.job.lane is lane for run in runs.values() for record in run.records)
    ]
    strip_in = STRIP_IN + ROW_IN * max(1, len(models))
    figure = Figure(figsize=(WIDTH_IN, strip_in * len(runs) + WAITS_IN + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    parts = figure.subfigures(
        2, 1, squeeze=False, height_ratios=[strip_in * len(runs) + 0.8, WAITS_IN]
    )
    day = parts[0, 0]
    waits = parts[1, 0]
    figure.suptitle(
        _text(f"What the GPU did{f': {title}' if title else ''}"), fontsize=13, x=0.01, ha="left"
    )
    end_s = _end_s(runs)
    unit, unit_s = next(((unit, size) for unit, size in UNITS if end_s >= 3 * size), ("s", 1.0))
    strips = day.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (policy, run) in zip(strips, runs.items(), strict=True):
        _strip(axes, policy, run, models, end_s=end_s, unit_s=unit_s)
    strips[-1].set_xlabel(f"time ({unit})")
    kinds = _kinds()
    if any(run.sleeps for run in runs.values()):
        kinds += _sleep_kinds()
    if any(run.leases for run in runs.values()):
        kinds.append(Patch(facecolor=LEASED, label="another program has memory"))
    day.legend(
        handles=kinds, loc="outside upper right", ncols=len(kinds), frameon=False, fontsize=9
    )
    panels = waits.subplots(1, max(1, len(lanes)), sharey=True, squeeze=False)[0]
    for axes, lane in zip(panels, lanes, strict=False):
        _waits(axes, lane, runs)
    panels[0].set_ylabel("answered requests (%)")
    policies = [
        Line2D([], [], color=_colour(number), ls=_dashes(number), lw=1.8, label=_text(name))
        for number, name in enumerate(runs)
    ]
    waits.legend(
        handles=policies, loc="outside upper right", ncols=len(runs), frameon=False, fontsize=9
    )
    return _png(figure)


def _end_s(runs: Mapping[str, SimulationRun]) -> float:
    """When the last answer of all runs ended, in seconds; at least 1."""
    ends = [record.ended for run in runs.values() for record in run.records]
    return max([1.0, *(ended for ended in ends if ended is not None)])


def _kinds() -> list[Patch]:
    """What the bars of a strip mean."""
    return [
        Patch(facecolor=COLOURS[0], label="answering (a colour per model)"),
        Patch(facecolor="white", edgecolor=COLOURS[0], label="interrupted, done again"),
        Patch(facecolor="#E8E8E8", edgecolor=GREY, hatch="//////", label="being loaded"),
    ]


def _sleep_kinds() -> list[Patch]:
    """What the bars mean of models that sleep."""
    return [
        Patch(facecolor=ASLEEP[level], edgecolor=GREY, hatch=HATCH[level], label=label)
        for level, label in (("offload", "asleep, offloaded"), ("discard", "asleep, discarded"))
    ]


def draw_means_png(means_s: Mapping[str, Mapping[str, float]]) -> bytes:
    """The mean waits of several workloads under each policy as PNG: a row per workload, a mark per
    policy.
    """
    figure = Figure(figsize=(WIDTH_IN, ROW_IN * len(means_s) + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("Mean wait", fontsize=13, x=0.01, ha="left")
    axes = figure.subplots()
    policies = list(dict.fromkeys(policy for waits in means_s.values() for policy in waits))
    for number, policy in enumerate(policies):
        points = [
            (waits[policy], row) for row, waits in enumerate(means_s.values()) if policy in waits
        ]
        axes.plot(
            *zip(*points, strict=True),
            MARKERS[number % len(MARKERS)],
            color=_colour(number),
            ms=8,
            alpha=0.85,
            label=_text(policy),
        )
    _wait_axis(
        axes, max((wait_s for waits in means_s.values() for wait_s in waits.values()), default=1.0)
    )
    axes.set_yticks(range(len(means_s)), [_text(name) for name in means_s], fontsize=9)
    axes.set_ylim(len(means_s) - 0.5, -0.5)
    axes.set_xlabel("mean wait from arrival to start")
    figure.legend(loc="outside upper right", ncols=len(policies), frameon=False, fontsize=9)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    out = BytesIO()
    figure.savefig(out, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return out.getvalue()


def _strip(
    axes: Axes,
    policy: str,
    run: SimulationRun,
    models: Sequence[str],
    *,
    end_s: float,
    unit_s: float,
) -> None:
    """One policy: a row per model with what it served, what was thrown away, and when it was being
    loaded.
    """

    def spans(pairs: Iterable[tuple[float | None, float | None]]) -> list[Stretch]:
        return [
            (start / unit_s, length / unit_s) for start, length in merged(pairs, end_s / RESOLUTION)
        ]

    for row, model in enumerate(models):
        served = spans(
            (r.started, r.ended) for r in run.records if r.model == model and r.wait_s is not None
        )
        stopped = spans((stop.start, stop.end) for stop in run.stops if stop.model == model)
        loading = spans((swap.start, swap.end) for swap in run.swaps if swap.model == model)
        place = (row - 0.4, 0.8)
        for level in ASLEEP:
            slept = [(s.start, s.end) for s in run.sleeps if (s.model, s.level) == (model, level)]
            _asleep(axes, row, level, spans(slept))
        axes.broken_barh(served, place, facecolors=_colour(row), linewidth=0)
        axes.broken_barh(stopped, place, facecolors="white", edgecolors=_colour(row), linewidth=0.8)
        axes.broken_barh(
            loading, place, facecolors="#E8E8E8", edgecolors=GREY, hatch="//////", linewidth=0.4
        )
    for lease in run.leases:
        ended = end_s if lease.ended is None else lease.ended
        axes.axvspan(lease.taken / unit_s, ended / unit_s, color=LEASED, linewidth=0, zorder=0)
    axes.set_yticks(range(len(models)), [_text(model) for model in models], fontsize=9)
    axes.set_ylim(len(models) - 0.45, -0.55)
    axes.set_xlim(0, end_s / unit_s)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(_text(policy), loc="left", fontsize=11, fontweight="bold")
    axes.set_title(_numbers(run), loc="right", fontsize=9, color="#444444")


def _asleep(axes: Axes, row: int, level: str, slept: list[Stretch]) -> None:
    """When a model slept at a level: a narrow bar."""
    place = (row + 0.1, 0.25)
    colour = ASLEEP[level]
    axes.broken_barh(
        slept, place, facecolors=colour, edgecolors=GREY, hatch=HATCH[level], linewidth=0.4
    )


def _numbers(run: SimulationRun) -> str:
    whole = summary(run)
    return (
        f"done after {whole.makespan_s:,.1f} s · answering {whole.busy_pct:.0f} %, loading"
        f" {swap_pct(run):.0f} % of it ({whole.swaps:,} swap{'' if whole.swaps == 1 else 's'}) ·"
        f" mean wait {whole.mean_wait_s:,.1f} s"
    )


def _waits(axes: Axes, lane: Lane, runs: Mapping[str, SimulationRun]) -> None:
    """Which share of a lane's answers had begun after how long; what has waited least stands
    furthest to the left.
    """
    longest_s = 1.0
    for number, run in enumerate(runs.values()):
        waited_s = waits_s(record for record in run.records if record.job.lane is lane)
        if waited_s:
            shares = [100 * (index + 1) / len(waited_s) for index in range(len(waited_s))]
            axes.step(
                [0.0, *waited_s],
                [0.0, *shares],
                where="post",
                color=_colour(number),
                ls=_dashes(number),
                lw=1.8,
            )
            longest_s = max(longest_s, waited_s[-1])
    _wait_axis(axes, longest_s)
    axes.set_ylim(0, 101)
    axes.set_xlabel("wait from arrival to start")
    axes.set_title(
        f"{lane.value} requests that had started after that wait", loc="left", fontsize=10
    )


def _wait_axis(axes: Axes, longest_s: float) -> None:
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.5)
    axes.set_xlim(0, longest_s * 1.1)
    axes.xaxis.set_major_locator(
        FixedLocator([tick for tick in WAIT_TICKS_S if tick <= longest_s * 1.1])
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _duration(value)))
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def merged(pairs: Iterable[tuple[float | None, float | None]], gap_s: float) -> list[Stretch]:
    """The union of intervals, those less than `gap_s` apart taken as one; what has no start or no
    end is left out.
    """
    spans: list[tuple[float, float]] = []
    for start, end in sorted(
        (start, end) for start, end in pairs if start is not None and end is not None
    ):
        if spans and start - spans[-1][1] <= gap_s:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((start, end))
    return [(start, end - start) for start, end in spans]


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _dashes(number: int) -> LineStyle:
    return DASHES[number % len(DASHES)]


def _duration(seconds: float) -> str:
    unit, size = next(((unit, size) for unit, size in UNITS if seconds >= size), ("s", 1.0))
    return f"{seconds / size:g} {unit}"


def _text(name: str) -> str:
    """A name as it is: a dollar sign would begin a formula."""
    return "".join(
        character if character.isprintable() else "\ufffd" for character in name
    ).replace("$", r"\$")
