"""A table that is too long for a test of its own per row: each row is a subtest of pytest's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

Test = Callable[..., Any]
FEWEST = 21
"""Rows of a table; a shorter one has a test for each row."""


def for_each(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for each row; names and rows as `pytest.mark.parametrize` has them.

    A row that fails is reported with its values, and the others run.
    """
    keys = (names,) if isinstance(names, str) else names
    cases = [dict(zip(keys, row if len(keys) > 1 else (row,), strict=True)) for row in rows]
    assert len(cases) >= FEWEST, f"{len(cases)} rows: use pytest.mark.parametrize"

    def of(test: Test) -> Test:
        @functools.wraps(test)
        def run(*args: Any, subtests: pytest.Subtests, **others: Any) -> None:
            for case in cases:
                with subtests.test(**case):
                    test(*args, **others, **case)

        @functools.wraps(test)
        async def run_async(*args: Any, subtests: pytest.Subtests, **others: Any) -> None:
            for case in cases:
                with subtests.test(**case):
                    await test(*args, **others, **case)

        found: Any = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        subtests = inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)
        found.__signature__ = signature.replace(parameters=[*left, subtests])  # what pytest reads
        return cast("Test", found)

    return of
