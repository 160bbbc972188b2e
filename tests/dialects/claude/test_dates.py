"""Dates worked out by hand are those of the calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hearth.dialects.writers import rfc3339
from tests.support.examples import EXAMPLES


@settings(max_examples=100 * EXAMPLES)
@given(st.integers(0, 250_000_000_000 // 100), st.integers(0, 511))
@example(951_782_400, 0)
@example(1_835_395_199, 256)
@example(4_107_542_400, 0)
def test_every_second_has_the_date_of_the_calendar_and_fractions_are_written_as_go_writes_them(second: int, part: int) -> None:
    written = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).isoformat().removesuffix("+00:00")
    assert rfc3339(second) == f"{written}Z"
    if part and second < 4 * 10**9:
        assert rfc3339(second + part / 512) == written + f"{part / 512:.9f}".strip("0") + "Z"
