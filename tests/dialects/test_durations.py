"""keep_alive is read as Ollama reads it."""

from __future__ import annotations

import pytest

from hearth.dialects.gojson import GoJsonError, JsonValue
from hearth.dialects.validation import keep_alive_ns
from tests.support.cases import for_each

FOR_EVER_NS = 2**63 - 1
S = 10**9
NS: list[tuple[JsonValue, int | None]] = [
    (None, None),
    *((nothing, 0) for nothing in (0, 0.0, -0.0, "0", "-0", "0s", "0m0.0s")),
    *((given, 300 * S) for given in (300, "5m", "+300s")),
    *((given, 5400 * S) for given in ("1h30m", "1.5h")),
    *((given, 10**9 // 2) for given in (0.5, ".5s", "500ms", "0.s500ms")),
    ("1\u00b5s", 1_000),
    *((given, FOR_EVER_NS) for given in (-1, -0.5, "-1m", 1e300)),
]


@for_each(("given", "expected_ns"), NS)
def test_numbers_are_seconds_and_strings_are_go_durations(given: JsonValue, expected_ns: int | None) -> None:
    assert keep_alive_ns(given) == expected_ns


@for_each("given", ["", "-", ".", "m", "five", "5", "1h5", "5x", "5 m", "9" * 30 + "s", "9999999999h", True, [], {}])
def test_anything_else_is_refused(given: JsonValue) -> None:
    with pytest.raises(GoJsonError, match="duration"):
        keep_alive_ns(given)
