"""Dates worked out by hand are those of the calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.dialects.writers import rfc3339
from tests.support.examples import EXAMPLES


@settings(max_examples=100 * EXAMPLES)
@given(st.integers(0, 250_000_000_000 // 100))
def test_every_second_has_the_date_of_the_calendar(second):
    assert rfc3339(second) == (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")


@settings(max_examples=40 * EXAMPLES)
@given(st.integers(10**9, 4 * 10**9), st.integers(1, 511))
def test_fractions_are_written_as_go_writes_them(second, part):
    fraction = f"{part / 512:.9f}".strip("0")
    assert rfc3339(second + part / 512) == rfc3339(second).replace("Z", f"{fraction}Z")


def test_leap_days():
    assert rfc3339(951_782_400) == "2000-02-29T00:00:00Z"
    assert rfc3339(1_835_395_199.5) == "2028-02-28T23:59:59.5Z"
    assert rfc3339(4_107_542_400) == "2100-03-01T00:00:00Z"
