"""What holds of every error in the tree."""

from __future__ import annotations

from hearth.errors import ConfigError, GpuFault, GpuUnavailable, HearthError, RateLimited, StorageFault, StorageUnavailable
from tests.support.cases import for_each


@for_each(
    "error",
    [
        HearthError(),
        RateLimited("slowly", retry_after_s=2.5),
        ConfigError(["one", "two"]),
        GpuUnavailable(GpuFault.LOST, "gone"),
        StorageUnavailable(StorageFault.IO, "the disk", needs_space=True),
    ],
)
def test_an_error_is_had_again_with_all_that_it_says_and_without_where_it_was(error):
    try:
        raise error from ZeroDivisionError()
    except HearthError as raised:
        again = raised.again()
    assert (type(again), str(again), again.args, vars(again)) == (type(error), str(error), error.args, vars(error))
    assert (again.__traceback__, again.__cause__, again.__context__) == (None, None, None)
    assert again is not error
