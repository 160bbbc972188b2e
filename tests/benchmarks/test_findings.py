"""What benchmarks compute from what they have measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.driver import Load
from benchmarks.findings import Finding, markdown, quantile
from benchmarks.overhead import Bound, added_latencies_ms
from benchmarks.slot import gaps_ms


def finding(measured: float | None, target: float | None) -> Finding:
    return Finding(subject="s", name="n", unit="ms", measured=measured, target=target)


@pytest.mark.parametrize(
    ("measured", "target", "verdict"),
    [(0.5, 0.5, "ok"), (0.51, 0.5, "over"), (None, 0.5, ""), (0.5, None, "")],
)
def test_a_number_is_over_only_when_it_exceeds_its_target(measured, target, verdict):
    assert finding(measured, target).verdict == verdict


@pytest.mark.parametrize(("measured", "verdict"), [(1.0, "ok"), (0.9, "under"), (None, "")])
def test_a_rate_is_under_only_when_it_falls_short_of_its_target(measured, verdict):
    assert (
        Finding(
            subject="s", name="n", unit="/s", measured=measured, target=1.0, at_least=True
        ).verdict
        == verdict
    )


def test_markdown_has_a_column_per_measured_proxy_and_a_remark_for_the_rest():
    rows = [
        replace(finding(2.0, 1.0), beside={"nginx": 0.5}),
        replace(finding(None, None), beside={"1,000": 3.0}, note="slow"),
    ]
    assert markdown(rows, {"nginx": "nginx 1.22", "litellm": "LiteLLM"}).splitlines()[0::2] == [
        "|  | measure | target | measured |  | nginx 1.22 |  |",
        "| s | n | ≤ 1 ms | 2 ms | over | 0.5 |  |",
    ]
    assert markdown(rows, {"nginx": "nginx 1.22"}).endswith(
        "| s | n |  | - |  |  | 1,000 3; slow |\n"
    )


def test_a_bound_follows_the_other_proxy_and_is_none_without_it():
    bound = Bound(of="nginx", factor=1.25)
    assert bound.limit_us({"nginx": 20.0, "hearth": 900.0}) == 25.0
    assert bound.limit_us({"hearth": 900.0}) is None


def test_a_picture_is_drawn_of_what_was_measured_and_of_nothing_else():
    from benchmarks.plot import draw_png  # noqa: PLC0415 - only the process that draws waits for it

    cpu = Finding(
        subject="1 connection",
        name="CPU per request",
        unit="µs",
        measured=500.0,
        target=300.0,
        beside={"nginx": 20.0},
    )
    depth = Finding(
        subject="a decision",
        name="fifo, 100,000 waiting",
        unit="µs",
        measured=9.0,
        beside={"100": 8.0},
    )
    assert draw_png([cpu, depth, finding(1.0, None)], "a machine").startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="choose"):
        draw_png([finding(1.0, None)], "a machine")


def test_a_quantile_is_a_value_that_was_measured():
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 1.0) == 3.0
    with pytest.raises(IndexError):
        quantile([], 0.5)


def load(*latencies_s: float) -> Load:
    return Load(
        cpu_s=0.0,
        took_s=1.0,
        latencies_s=list(latencies_s),
        first_s=[latency / 2 for latency in latencies_s],
    )


def test_added_latency_compares_rounds_pairwise():
    through = [load(3e-3), load(5e-3)]
    direct = [load(1e-3), load(1e-3)]
    assert added_latencies_ms(through, direct, 0.5, first=False) == pytest.approx([2.0, 4.0])
    assert added_latencies_ms(through, direct, 0.5, first=True) == pytest.approx([1.0, 2.0])
    with pytest.raises(ValueError, match="shorter"):
        added_latencies_ms(through, direct[:1], 0.5, first=False)


def test_a_gap_runs_from_an_end_to_the_next_arrival_and_nothing_else():
    log = [
        ("arrived", 1.0),
        ("ended", 2.0),
        ("arrived", 2.5),
        ("closed", 3.0),
        ("arrived", 4.0),
        ("ended", 5.0),
        ("arrived", 5.25),
    ]
    assert gaps_ms(log) == pytest.approx([500.0, 250.0])
