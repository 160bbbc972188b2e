"""What benchmarks compute from what they have measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.driver import Load
from benchmarks.findings import Finding, as_json, number, quantile
from benchmarks.overhead import added_latencies_ms
from benchmarks.slot import gaps_ms
from benchmarks.startup import by_package


def finding(measured: float | None, target: float | None) -> Finding:
    return Finding(subject="s", name="n", unit="ms", measured=measured, target=target)


@pytest.mark.parametrize(
    ("measured", "target", "verdict"),
    [(0.5, 0.5, "ok"), (0.51, 0.5, "over"), (None, 0.5, ""), (0.5, None, "")],
)
def test_a_number_is_over_only_when_it_exceeds_its_target(measured, target, verdict):
    assert finding(measured, target).verdict == verdict


def test_findings_become_json_with_their_verdicts():
    written = json.loads(json.dumps(as_json([finding(2.0, 1.0)])))
    assert written == [{"subject": "s", "name": "n", "unit": "ms", "measured": 2.0, "target": 1.0, "note": "", "verdict": "over"}]


@pytest.mark.parametrize(("value", "text"), [(0.12345, "0.123"), (12.345, "12.3"), (1234.5, "1,234")])
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


def test_a_quantile_is_a_value_that_was_measured():
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 1.0) == 3.0
    with pytest.raises(IndexError):
        quantile([], 0.5)


def load(*latencies_s: float) -> Load:
    return Load(cpu_s=0.0, took_s=1.0, latencies_s=list(latencies_s), first_s=[latency / 2 for latency in latencies_s])


def test_added_latency_compares_rounds_pairwise():
    through, direct = [load(3e-3), load(5e-3)], [load(1e-3), load(1e-3)]
    assert added_latencies_ms(through, direct, 0.5, first=False) == pytest.approx([2.0, 4.0])
    assert added_latencies_ms(through, direct, 0.5, first=True) == pytest.approx([1.0, 2.0])
    with pytest.raises(ValueError, match="shorter"):
        added_latencies_ms(through, direct[:1], 0.5, first=False)


def test_a_gap_runs_from_an_end_to_the_next_arrival_and_nothing_else():
    log = [("arrived", 1.0), ("ended", 2.0), ("arrived", 2.5), ("closed", 3.0), ("arrived", 4.0), ("ended", 5.0), ("arrived", 5.25)]
    assert gaps_ms(log) == pytest.approx([500.0, 250.0])


def test_import_times_are_summed_by_package_and_other_lines_are_ignored():
    report = (
        "import time: self [us] | cumulative | imported package\nimport time:  1500 | 1500 |   a.b\nimport time: 700 | 2200 | a\nnoise\n"
    )
    assert by_package(report) == {"a": 2}
