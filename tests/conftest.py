"""What holds for every test."""

from __future__ import annotations

import gc

from hypothesis import settings

from tests.support.examples import EXAMPLES

settings.register_profile("hearth", derandomize=EXAMPLES == 1, deadline=None, print_blob=True)
settings.load_profile("hearth")
"""With every change the same examples: a build fails for what was changed. New ones are looked for by `make reliability`."""


def pytest_collection_finish() -> None:
    """Eleven thousand collected tests are a million objects: no collection in a test looks at them again, which took half of all time."""
    gc.collect()
    gc.freeze()
