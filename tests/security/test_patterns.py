"""No pattern takes much longer for a text that it nearly matches: one that takes for ever holds the
loop, and everybody waits for whoever has sent it.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

import hearth

BEGINNINGS = ("", "a/b", "1h", '"model": "', "<", "Hearth: waiting\n")
REPEATED = (*"a1A_ \n\t/;:.-+`*<\\\"'[({$%&=@#,", "a/", "a;", "; ", "1h", "1.", "a.", "a-", "a:")
LONGER = ("a@", "//", "\r\n", "a b", "${", "<think>", "a=", '"a"', "'a'", "Hearth: waiting\n")
ENDS = ("", "\x01")
SIZES = (24, 1000)
"""For what takes twice as long with each letter, and for what takes eight times as long for a text
of twice the length.
"""
MOST_S = 0.1
"""Of the processor. Nothing takes a hundredth of that which goes through a text once."""


def patterns_in(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from patterns_in(each)


def all_patterns() -> dict[re.Pattern[Any], str]:
    """By pattern, a place where it stands."""
    found: dict[re.Pattern[Any], str] = {}
    for module in pkgutil.walk_packages(hearth.__path__, "hearth."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                for pattern in patterns_in(value):
                    found.setdefault(pattern, f"{module.name}.{name}")
    return found


PATTERNS = all_patterns()


def texts() -> Iterator[str]:
    for beginning, repeated, end in product(BEGINNINGS, (*REPEATED, *LONGER), ENDS):
        for size in SIZES:
            yield beginning + (repeated * size)[:size] + end


TEXTS = tuple(texts())


def test_the_patterns_are_found():
    assert len(PATTERNS) > 100


@pytest.mark.parametrize("pattern", PATTERNS, ids=PATTERNS.values())
def test_no_text_takes_a_pattern_long(pattern: re.Pattern[Any]):
    for text in TEXTS:
        given: Any = text.encode() if isinstance(pattern.pattern, bytes) else text
        for look in (pattern.search, pattern.fullmatch):
            began_s = time.thread_time()
            look(given)
            assert time.thread_time() - began_s < MOST_S, (text[:40], len(text))
