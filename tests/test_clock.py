"""Randomness: names that nobody can guess and that never come twice."""

from __future__ import annotations

import re

from hearth.clock import RequestIds, new_request_id


def test_request_ids_look_alike_however_they_are_drawn_and_never_repeat():
    ids = RequestIds()
    drawn = [ids.take() for _ in range(300)] + [new_request_id()]
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", each) for each in drawn)
    assert len(set(drawn)) == len(drawn)
    assert re.fullmatch(r"job_[0-9a-f]{32}", RequestIds("job").take())
