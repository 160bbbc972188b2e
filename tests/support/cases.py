"""A table of cases for one test: what is checked of every row in one go, where a test of its own
per row would only cost time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

Test = Callable[..., Any]


def for_each(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for each row; names and rows as `pytest.mark.parametrize` has them.

    A failure says in a note which row it was.
    """
    keys = (names,) if isinstance(names, str) else names
    cases = [dict(zip(keys, _values(row, len(keys)), strict=True)) for row in rows]
    assert cases, "a table without rows checks nothing"

    def of(test: Test) -> Test:
        @functools.wraps(test)
        def run(*args: Any, **others: Any) -> None:
            for case in cases:
                with _noted(case):
                    test(*args, **others, **case)

        @functools.wraps(test)
        async def run_async(*args: Any, **others: Any) -> None:
            for case in cases:
                with _noted(case):
                    await test(*args, **others, **case)

        found: Any = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        found.__signature__ = signature.replace(parameters=left)  # what pytest reads
        return cast("Test", found)

    return of


def _values(row: Any, count: int) -> Iterable[Any]:
    values = getattr(row, "values", None)
    if type(row).__name__ == "ParameterSet" and values is not None:
        return tuple(values)
    return row if count > 1 else (row,)


@contextmanager
def _noted(case: object) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the row {case!r:.500}")
        raise
