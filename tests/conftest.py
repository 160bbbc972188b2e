"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

from tests.support.examples import EXAMPLES

settings.register_profile("hearth", derandomize=EXAMPLES == 1, deadline=None, print_blob=True)
settings.load_profile("hearth")
"""With every change the same examples: a build fails for what was changed. New ones are looked for by `make reliability`."""
