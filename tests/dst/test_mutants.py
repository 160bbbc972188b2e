"""Would the worlds notice? Bugs that are put into the shell on purpose, one at a time; the scheduler's are in `tests.scheduling`.

More than forty in all have to be there, and each has to be caught by few enough worlds to take far less than a minute.
"""

from __future__ import annotations

import pytest

from tests.dst.more_mutants import MORE, SHOWS_LATE
from tests.dst.mutants import SHELL
from tests.dst.mutation import caught_by, changed
from tests.scheduling.mutation import Mutant
from tests.support.examples import EXAMPLES

WORLDS = 400


@pytest.mark.parametrize("mutant", SHELL, ids=lambda mutant: mutant.what)
def test_a_bug_that_is_put_in_is_caught(mutant: Mutant) -> None:
    assert caught_by(mutant, range(WORLDS)) is not None, f"no world noticed: {mutant.what}"


@pytest.mark.parametrize("mutant", MORE[:: 1 if EXAMPLES > 1 else 3], ids=lambda mutant: mutant.what)
def test_a_bug_in_what_only_some_houses_have_is_caught_where_a_house_has_everything(mutant: Mutant) -> None:
    first = SHOWS_LATE.get(mutant.what, 0)
    assert caught_by(mutant, range(first, first + WORLDS), everything=True) is not None, f"no world noticed: {mutant.what}"


@pytest.mark.parametrize("mutant", MORE, ids=lambda mutant: mutant.what)
def test_a_bug_that_is_not_tried_each_time_could_be_put_in(mutant: Mutant) -> None:
    with changed(mutant):
        """Its text is there, once."""


def test_there_are_more_than_forty_bugs_and_no_two_are_the_same() -> None:
    every = (*SHELL, *MORE)
    assert len(every) > 40
    assert len({(mutant.module, mutant.old, mutant.new) for mutant in every}) == len(every)
