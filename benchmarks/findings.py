"""What a benchmark says: numbers beside their targets, as a table for people, Markdown for the
documentation, JSON for programs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number.

    Attributes:
        subject: the benchmark it belongs to.
        measured: Hearth's; None where it could not be measured; `note` says why.
        target: the most that it may be, for `at_least` the least; None where it is only told.
        beside: the same measure of others, or at other sizes, in the same unit.
    """

    subject: str
    name: str
    unit: str
    measured: float | None
    target: float | None = None
    at_least: bool = False
    beside: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def verdict(self) -> str:
        """`ok`, `over` or `under`; empty without a target or a measurement."""
        if self.target is None or self.measured is None:
            return ""
        if self.at_least:
            return "ok" if self.measured >= self.target else "under"
        return "ok" if self.measured <= self.target else "over"

    def remark(self, *, without: Collection[str] = ()) -> str:
        """What stands in the last column: the others, then the note."""
        others = ", ".join(
            f"{name} {number(value)}" for name, value in self.beside.items() if name not in without
        )
        return "; ".join(text for text in (others, self.note) if text)

    def amount(self, value: float | None) -> str:
        """With its unit; `-` for None."""
        return "-" if value is None else f"{number(value)} {self.unit}".strip()


def as_json(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """The findings as JSON can hold them, with their verdicts."""
    return [{**asdict(finding), "verdict": finding.verdict} for finding in findings]


def table(findings: Sequence[Finding]) -> Table:
    """One row per finding."""
    shown = Table(title="what Hearth costs")
    for heading in ("", "measure", "target", "measured", "", "beside it"):
        shown.add_column(heading, justify="right" if heading in ("target", "measured") else "left")
    for finding in findings:
        colour = {"ok": "green", "over": "red", "under": "red"}.get(finding.verdict, "default")
        target = "" if finding.target is None else finding.amount(finding.target)
        verdict = f"[{colour}]{finding.verdict}[/]"
        shown.add_row(
            finding.subject,
            finding.name,
            target,
            finding.amount(finding.measured),
            verdict,
            finding.remark(),
        )
    return shown


def markdown(findings: Sequence[Finding], others: Mapping[str, str]) -> str:
    """The same as a page shows it, with a column for each of `others` (name, heading) that was
    measured.
    """
    shown = {
        name: heading
        for name, heading in others.items()
        if any(name in finding.beside for finding in findings)
    }
    headings = ["", "measure", "target", "measured", "", *shown.values(), ""]
    rows = [
        headings,
        ["---"] * len(headings),
        *(_cells(finding, list(shown)) for finding in findings),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(finding: Finding, columns: Sequence[str]) -> list[str]:
    target = (
        ""
        if finding.target is None
        else f"{'≥' if finding.at_least else '≤'} {finding.amount(finding.target)}"
    )
    beside = [number(finding.beside[name]) if name in finding.beside else "" for name in columns]
    return [
        finding.subject,
        finding.name,
        target,
        finding.amount(finding.measured),
        finding.verdict,
        *beside,
        finding.remark(without=columns),
    ]


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all values do not exceed (nearest rank); `values` must not be
    empty.
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
