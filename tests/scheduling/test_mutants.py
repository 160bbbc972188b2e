"""Would the tests notice? Bugs that are put into copies of the scheduler on purpose, each of which some test must catch."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest

from tests.scheduling.mutation import Mutant, copies, first_failure

MUTANTS = (
    Mutant(
        what="the last to arrive goes first",
        module="waiting",
        old="(self.rank, self.item.sequence)",
        new="(self.rank, -self.item.sequence)",
    ),
    Mutant(what="a seen stream is stopped", module="preemption", old="and (not entry.forwarded or resumable(state, entry))", new=""),
    Mutant(
        what="every stream counts as resumable", module="preemption", old="return replaying and entry.item.replayable and", new="return"
    ),
    Mutant(what="an outgrown stream is stopped", module="preemption", old=" and not entry.outgrown", new=""),
    Mutant(what="a stream is cut without waiting", module="preemption", old="return now >= until", new="return True"),
    Mutant(what="a cut item is put back", module="facts", old="entry.cancelled or entry.cut:", new="entry.cancelled:"),
    Mutant(what="protection comes one late", module="preemption", old="entry.interrupts >=", new="entry.interrupts >"),
    Mutant(what="a wrong estimate protects for ever", module="preemption", old="0 < remaining_s <=", new="remaining_s <="),
    Mutant(what="the oldest victim is chosen", module="preemption", old="reverse=True", new="reverse=False"),
    Mutant(what="a loaded model may go before it served", module="residency", old="settled=swap is None", new="settled=True"),
    Mutant(what="settling does not hold its own band", module="placement", old="best <= band", new="best < band"),
    Mutant(what="settling holds off urgent bands", module="placement", old="and best <= band", new=""),
    Mutant(
        what="a bare age limit",
        module="placement",
        old="return all(\n            self._now - resident.loaded_at",
        new="return True or all(\n            self._now - resident.loaded_at",
    ),
    Mutant(what="fifo ages", module="policies", old="choose=fifo, ages=False", new="choose=fifo, ages=True"),
    Mutant(
        what="affinity is fifo", module="policies.affinity", old="(not candidate.resident, candidate.entry.key)", new="candidate.entry.key"
    ),
    Mutant(what="the first interrupted goes first", module="facts", old="-state.interruptions", new="state.interruptions"),
    Mutant(what="a seen answer is sent twice", module="facts", old="or entry.forwarded or", new="or"),
    Mutant(
        what="a cancelled item is put back",
        module="facts",
        old="if entry.cancelled or entry.cut:\n",
        new="if entry.cut:\n",
    ),
    Mutant(what="late reports count", module="facts", old=" or entry.attempts != attempt", new=""),
    Mutant(
        what="a failed load counts as success",
        module="facts",
        old="swap = state.residency.load_failed(model)",
        new="swap = state.residency.loaded(model, now, None)",
    ),
    Mutant(what="a load is tried for ever", module="facts", old="not permanent and state.failures[model] < 2", new="not permanent"),
    Mutant(what="a resend is free", module="facts", old="entry.resends += not is_down", new="entry.resends += 0"),
    Mutant(
        what="a fired timer is never armed again",
        module="core",
        old="self._armed_at = None\n        if is_idle",
        new="pass\n        if is_idle",
    ),
    Mutant(what="an early timer loses the expiry", module="core", old="if at > now:", new="if at >= now:"),
    Mutant(what="draining is ignored", module="core", old=" and not self.state.draining", new=""),
    Mutant(what="home at once", module="home", old="if now < due_at:", new="if False:"),
    Mutant(what="home is tried for ever", module="home", old="if state.home_failures >= MAX_RESTORES:", new="if False:"),
    Mutant(what="two swaps at once", module="placement", old="elif residency.swap is None:", new="else:"),
    Mutant(what="memory is counted once", module="residency", old="free = capacity - sum(", new="free = capacity - 0 * sum("),
    Mutant(what="a slot leaks", module="state", old="resident.running.pop(entry.item.sequence, None)", new="pass"),
    Mutant(what="a count drifts", module="waiting", old="self._by_lane[entry.item.lane] -= 1", new="pass"),
    Mutant(what="announcements are ignored", module="placement", old="if band in EXTERNAL_BANDS and", new="if False and"),
    Mutant(what="a suspect model goes on", module="facts", old="resident.suspect = True", new="resident.suspect = False"),
    Mutant(what="urgent arrivals are overlooked", module="facts", old="item.band is Band.EXTERNAL and ", new=""),
    Mutant(what="an expiry in the queue is overlooked", module="facts", old="item.expires_at is None and ", new=""),
    Mutant(
        what="full slots end the search for internal work",
        module="placement",
        old="return band in EXTERNAL_BANDS and self",
        new="return self",
    ),
    Mutant(
        what="a busy gpu is taken for a full one",
        module="residency",
        old="return all(need is None or used_mib",
        new="return True or all(need is None or used_mib",
    ),
    Mutant(
        what="a machine without gpu is taken for full",
        module="residency",
        old="if not residents or capacity == inf:",
        new="if not residents:",
    ),
)


@pytest.fixture(scope="module")
def compiled() -> dict[Path, CodeType]:
    """What the mutants share is compiled once."""
    return {}


def test_the_copies_pass_where_nothing_was_changed(compiled: dict[Path, CodeType]) -> None:
    with copies(None, compiled):
        assert first_failure() is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_bug_that_is_put_in_is_caught(mutant: Mutant, compiled: dict[Path, CodeType]) -> None:
    with copies(mutant, compiled):
        assert first_failure() is not None, f"nobody noticed: {mutant.what}"
