"""keep_alive is read as Ollama reads it."""

from __future__ import annotations

import pytest

from hearth.dialects.gojson import GoJsonError, JsonValue
from hearth.dialects.validation import keep_alive_ns
from tests.support.cases import for_each

FOR_EVER_NS = 2**63 - 1


@for_each(
    ("value", "expected_ns"),
    [
        (None, None),
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        ("0", 0),
        ("-0", 0),
        ("0s", 0),
        ("0m0.0s", 0),
        (300, 300_000_000_000),
        (1.5, 1_500_000_000),
        ("5m", 300_000_000_000),
        ("1h30m", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("1.5h", 5_400_000_000_000),
        ("100ms", 100_000_000),
        ("1\u00b5s", 1_000),
        ("+10s", 10_000_000_000),
        (-1, FOR_EVER_NS),
        (-0.5, FOR_EVER_NS),
        ("-1m", FOR_EVER_NS),
        (1e300, FOR_EVER_NS),
    ],
)
def test_numbers_are_seconds_and_strings_are_go_durations(value: JsonValue, expected_ns: int | None) -> None:
    assert keep_alive_ns(value) == expected_ns


@for_each(
    ("value", "text"),
    [
        ("5", 'time: missing unit in duration "5"'),
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        (".", 'time: invalid duration "."'),
        ("m", 'time: invalid duration "m"'),
        ("five", 'time: invalid duration "five"'),
        ("5x", 'time: invalid duration "5x"'),
        ("5 m", 'time: invalid duration "5 m"'),
        ("1h5", 'time: missing unit in duration "1h5"'),
        ("9" * 30 + "s", f'time: invalid duration "{"9" * 30}s"'),
        ("9999999999h", 'time: invalid duration "9999999999h"'),
        (True, "Unsupported type: 'bool'"),
        ([], "Unsupported type: '[]interface {}'"),
        ({}, "Unsupported type: 'map[string]interface {}'"),
    ],
)
def test_anything_else_is_refused_with_ollamas_text(value: JsonValue, text: str) -> None:
    with pytest.raises(GoJsonError) as raised:
        keep_alive_ns(value)
    assert raised.value.message == text
