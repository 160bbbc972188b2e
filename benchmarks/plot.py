"""One picture of a run: Hearth beside the others.

Colours are Okabe and Ito's; every proxy has a hatch or a marker of its own as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks import homes
from benchmarks.findings import Finding, number
from benchmarks.overhead import BARE, HEARTH, LABELS, LITELLM, NGINX, PASSTHROUGH

LOOKS = {
    NGINX: ("#009E73", "//"),
    BARE: ("#CC79A7", "\\\\"),
    PASSTHROUGH: ("#56B4E9", ".."),
    HEARTH: ("#0072B2", ""),
    LITELLM: ("#E69F00", "xx"),
}
LINES = (("#0072B2", "o"), ("#E69F00", "s"), ("#009E73", "^"), ("#CC79A7", "v"), ("#D55E00", "D"))
TARGET = "#000000"
WIDTH_IN = 12.0
PANEL_IN = 3.6
DOTS_PER_INCH = 120

Draw = Callable[[Axes, Sequence[Finding]], None]


def draw_png(findings: Sequence[Finding], caption: str) -> bytes:
    """The picture as PNG; a panel for which nothing was measured is left out.

    Raises ValueError where that is all of them.
    """
    panels = [
        (title, draw, of)
        for title, draw, names in _PANELS
        if (of := [finding for finding in findings if names(finding)])
    ]
    if not panels:
        raise ValueError(
            "nothing was measured that a picture could show: choose overhead, litellm, decisions or"
            " homes"
        )
    columns = min(2, len(panels))
    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(WIDTH_IN * columns / 2, PANEL_IN * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("What Hearth costs", fontsize=13, x=0.01, ha="left")
    figure.supxlabel(caption, fontsize=7, color="#444444", x=0.01, ha="left")
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (title, draw, of) in zip(places, panels, strict=False):
        draw(axes, of)
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    _legend(figure, places)
    out = BytesIO()
    figure.savefig(out, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return out.getvalue()


def _legend(figure: Figure, places: Iterable[Axes]) -> None:
    """One for all panels with bars; panels with lines have their own."""
    shown = {
        label: handle
        for axes in places
        if axes.get_legend() is None
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        shown.values(),
        shown.keys(),
        loc="outside upper right",
        ncols=max(1, len(shown)),
        frameon=False,
        fontsize=9,
    )


def _bars(axes: Axes, findings: Sequence[Finding]) -> None:
    """A group for each subject, a bar for each proxy, a line at what Hearth may take."""
    rows = [_by_proxy(finding) for finding in findings]
    proxies = [proxy for proxy in LOOKS if any(proxy in row for row in rows)]
    width = 0.8 / max(1, len(proxies))
    for place, proxy in enumerate(proxies):
        colour, hatch = LOOKS[proxy]
        at = [group - 0.4 + (place + 0.5) * width for group, row in enumerate(rows) if proxy in row]
        heights = [row[proxy] for row in rows if proxy in row]
        bars = axes.bar(
            at,
            heights,
            width * 0.92,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
            label=LABELS[proxy],
        )
        axes.bar_label(bars, [number(height) for height in heights], fontsize=6, padding=1)
    for group, finding in enumerate(findings):
        if finding.target is not None:
            axes.hlines(
                finding.target, group - 0.45, group + 0.45, color=TARGET, ls="dashed", lw=1.2
            )
    if any(finding.target is not None for finding in findings):
        axes.plot([], [], color=TARGET, ls="dashed", lw=1.2, label="target")
    axes.set_xticks(range(len(findings)), [finding.subject for finding in findings], fontsize=8)
    _logarithmic(axes, findings[0].unit)


def _lines(axes: Axes, findings: Sequence[Finding]) -> None:
    """A line for each policy over the depth of the queue."""
    for finding, (colour, marker) in zip(findings, LINES, strict=False):
        policy, _, deepest = finding.name.partition(", ")
        values = {**finding.beside, deepest.removesuffix(" waiting"): finding.measured or 0.0}
        depths = [int(depth.replace(",", "")) for depth in values]
        axes.plot(depths, list(values.values()), color=colour, marker=marker, lw=1.5, label=policy)
    axes.set_xscale("log")
    axes.set_xlabel("items waiting")
    axes.set_ylabel(findings[0].unit)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, loc="lower center", ncols=len(LINES))


def _trade_off(axes: Axes, findings: Sequence[Finding]) -> None:
    """The wait of an assistant against the work of others: left and up is better."""
    for kind, colour, marker in (("bound", "#999999", ""), ("share", LOOKS[HEARTH][0], "o")):
        points = [finding for finding in findings if finding.name.startswith(kind)]
        label = "knows every return" if kind == "bound" else "Hearth, by others_share"
        line = sorted((finding.measured or 0.0, finding.beside[homes.WORK]) for finding in points)
        axes.plot(
            *zip(*line, strict=True),
            color=colour,
            marker=marker,
            ls="dashed" if kind == "bound" else "-",
            label=label,
        )
    for finding in findings:
        if not finding.name.startswith("bound"):
            place = (finding.measured or 0.0, finding.beside[homes.WORK])
            above = finding.name == "at_once"  # it is nearly where Hearth was before
            offset = (5, 6 if above else -9)
            axes.annotate(
                finding.name.removeprefix("share "),
                place,
                xytext=offset,
                textcoords="offset points",
                fontsize=8,
            )
            if not finding.name.startswith("share"):
                axes.plot(*place, color="#D55E00", marker="s", ls="")
    axes.set_xlabel("the assistant's mean wait, in loads of its model")
    axes.set_ylabel("work of others, as a share")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _logarithmic(axes: Axes, unit: str) -> None:
    axes.set_yscale("log", nonpositive="clip")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(f"{unit}, logarithmic")
    axes.margins(y=0.12)


def _by_proxy(finding: Finding) -> Mapping[str, float]:
    """What can stand on a logarithmic axis: an addition that is lost in the noise may be below
    zero.
    """
    values = {**finding.beside, HEARTH: finding.measured or 0.0}
    return {proxy: value for proxy, value in values.items() if value > 0}


_PANELS: tuple[tuple[str, Draw, Callable[[Finding], bool]], ...] = (
    ("CPU per request", _bars, lambda finding: finding.name == "CPU per request"),
    ("CPU per chunk of a stream", _bars, lambda finding: finding.name == "CPU per chunk"),
    ("Latency added, median", _bars, lambda finding: finding.name == "p50 added"),
    ("Latency added, 99th percentile", _bars, lambda finding: finding.name == "p99 added"),
    (
        "First bytes of a stream, median added",
        _bars,
        lambda finding: finding.name == "first bytes, p50 added",
    ),
    ("One decision", _lines, lambda finding: finding.subject == "a decision"),
    ("The home of an assistant", _trade_off, lambda finding: finding.subject == homes.SUBJECT),
)
