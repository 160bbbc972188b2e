"""Randomness: names that nobody can guess and that never come twice."""

from __future__ import annotations

import re

from hearth.clock import new_id


def test_ids_never_repeat():
    drawn = [new_id("req_") for _ in range(300)]
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", each) for each in drawn)
    assert len(set(drawn)) == len(drawn)
