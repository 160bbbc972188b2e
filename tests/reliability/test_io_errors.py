"""The Nth write, sync or cut of the database's files fails, for N = 1, 2, 3 ... until nothing is left to fail.

Each time: what was acknowledged is there, what was not was refused with 503 and can be asked for again, and the file is sound.
"""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path

import pytest

from tests.reliability.client import Caller, History, Wish
from tests.reliability.judge import Judge, asked
from tests.reliability.nursery import Nursery
from tests.reliability.served import served
from tests.reliability.shim import Fault, built
from tests.storage.house import open_database

ERRORS = [errno.EIO, errno.ENOSPC]
POSITIONS = 500
"""More than any scenario here has; to find one without a fault before that is a part of the test."""
JOBS_PER_POSITION = 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
async def test_wherever_the_disk_fails_a_job_is_accepted_and_there_or_refused_and_welcome_again(tmp_path, error):
    with Fault(built(tmp_path), tmp_path) as fault:
        history = History()
        async with served(tmp_path, environ=fault.environ) as url:
            with closing(Caller(url, history)) as caller:
                for nth in range(1, POSITIONS):
                    fault.arm(nth, error)
                    wishes = [Wish(key=f"hold-{nth}-{n}") for n in range(JOBS_PER_POSITION)]
                    answered = [await caller.submit(wish) for wish in wishes]
                    fired = fault.disarm()
                    assert all(answered) or fired
                    assert len(history.accepted) + len(history.open()) == len(history.wanted)
                    for wish in history.open():
                        assert await caller.submit(wish), "the disk is well again, and the job was refused"
                    if not fired:
                        break
                else:
                    pytest.fail("there was always something left to fail")
        assert nth > JOBS_PER_POSITION
        kept = Judge(path=tmp_path / "hearth.db", history=history).look()
        assert len(kept) == len(history.wanted) == nth * JOBS_PER_POSITION
        assert error == errno.ENOSPC or history.refused > 0


@pytest.mark.timeout(300)
async def test_a_job_without_a_key_that_was_refused_while_the_disk_failed_is_not_there_when_it_is_well_again(tmp_path):
    with Fault(built(tmp_path), tmp_path) as fault:
        history = History()
        async with served(tmp_path, environ=fault.environ) as url:
            with closing(Caller(url, history)) as caller:
                for nth in range(1, POSITIONS):
                    fault.arm(nth, lasting=True)
                    taken = await caller.submit(Wish(key=f"hold-{nth}-once"), keyed=False)
                    fired = fault.disarm()
                    assert taken or fired
                    assert await caller.submit(Wish(key=f"hold-{nth}-well")), "the disk is well again, and the job was refused"
                    if not fired:
                        break
                else:
                    pytest.fail("there was always something left to fail")
        assert history.refused > 0
        assert {row["id"] for row in asked(tmp_path / "hearth.db", "SELECT id FROM jobs")} == set(history.accepted.values())


@pytest.mark.timeout(300)
async def test_wherever_the_disk_fails_from_the_first_start_on_the_file_stays_sound(tmp_path):
    with Fault(built(tmp_path), tmp_path) as fault, closing(Nursery(tmp_path, environ=fault.environ)) as nursery:
        for nth in range(1, POSITIONS):
            path = tmp_path / f"hearth.db-{nth}"
            fault.arm(nth)
            life = await nursery.birth("keep_books", path=str(path), first=0, rounds=1)
            await life.gone()
            fired = fault.disarm()
            open_database(path).close()
            _require_kept(path, life.named("accepted"), life.named("reserved"))
            path.unlink()
            if not fired:
                break
        else:
            pytest.fail("there was always something left to fail")
    assert life.orderly
    assert nth > 50


def _require_kept(path: Path, accepted: list[str], reserved: list[str]) -> None:
    jobs = {row["id"] for row in asked(path, "SELECT id FROM jobs")}
    assert set(accepted) <= jobs
    assert set(reserved) <= {row["id"] for row in asked(path, "SELECT id FROM ledger")}
