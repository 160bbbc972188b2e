"""How hard the randomised tests try: `HEARTH_EXAMPLES=20` makes them look at twenty times as many
cases (`make reliability`).
"""

from __future__ import annotations

import os

import pytest

EXAMPLES = int(os.environ.get("HEARTH_EXAMPLES", "1"))

needs_quiet = pytest.mark.skipif(
    EXAMPLES == 1, reason="measures time, so it needs a quiet machine: make reliability"
)
