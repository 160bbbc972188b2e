"""What a benchmark says: numbers beside their targets, as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number.

    Attributes:
        subject: the benchmark it belongs to.
        measured: None where it could not be measured; `note` says why.
        target: the most that it may be; None where it is only told.
    """

    subject: str
    name: str
    unit: str
    measured: float | None
    target: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """`ok` or `over`; empty without a target or a measurement."""
        if self.target is None or self.measured is None:
            return ""
        return "ok" if self.measured <= self.target else "over"


def as_json(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """The findings as JSON can hold them, with their verdicts."""
    return [{**asdict(finding), "verdict": finding.verdict} for finding in findings]


def table(findings: Sequence[Finding]) -> Table:
    """One row per finding."""
    shown = Table(title="what Hearth costs")
    for heading in ("", "measure", "target", "measured", "", "note"):
        shown.add_column(heading, justify="right" if heading in ("target", "measured") else "left")
    for finding in findings:
        colour = {"ok": "green", "over": "red"}.get(finding.verdict, "default")
        target = "" if finding.target is None else f"{number(finding.target)} {finding.unit}"
        measured = "-" if finding.measured is None else f"{number(finding.measured)} {finding.unit}"
        shown.add_row(finding.subject, finding.name, target, measured, f"[{colour}]{finding.verdict}[/]", finding.note)
    return shown


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all values do not exceed (nearest rank); `values` must not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
