"""The Nth write, sync or cut of the database's files fails, for N = 1, 2, 3 ... until nothing is
left to fail.

Each time: what was acknowledged is there, what was not was refused with 503 and can be asked for
again, and the file is sound.
"""

from __future__ import annotations

import errno
from contextlib import closing

import aiohttp
import pytest

from tests.reliability.client import Caller, History, Wish
from tests.reliability.judge import Judge, asked
from tests.reliability.nursery import Nursery
from tests.reliability.served import served
from tests.reliability.shim import Fault, built
from tests.storage.house import open_database
from tests.support.examples import EXAMPLES

POSITIONS = 1000
"""More than any scenario here has; to find one without a fault before that is a part of the
test.
"""
JOBS_PER_POSITION = 3
PARTS = 4
STEP = 3 if EXAMPLES == 1 else 1
"""Of the positions at a start, every third is tried with each change."""


@pytest.mark.parametrize(
    ("error", "keyed"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.EIO, False)]
)
async def test_wherever_the_disk_fails_a_job_is_there_or_refused_and_welcome_again(
    tmp_path, error, keyed
):
    """Without a key, one that was refused while the disk failed is not there when it is well
    again.
    """
    path = tmp_path / "hearth.db"
    history = History()
    with Fault(built(tmp_path), tmp_path) as fault:
        async with served(tmp_path, environ=fault.environ) as url:
            with closing(Caller(url, history)) as caller:
                for nth in range(1, POSITIONS):
                    fault.arm(nth, error, lasting=not keyed)
                    wishes = [Wish(key=f"hold-{nth}-{n}") for n in range(JOBS_PER_POSITION)]
                    answered = [await caller.submit(wish, keyed=keyed) for wish in wishes]
                    fired = fault.disarm()
                    assert all(answered) or fired
                    again = history.open() if keyed else [Wish(key=f"hold-{nth}-well")]
                    for wish in again:
                        assert await caller.submit(wish), (
                            "the disk is well again, and the job was refused"
                        )
                    if not fired:
                        break
                else:
                    pytest.fail("there was always something left to fail")
        assert nth > JOBS_PER_POSITION
    assert error == errno.ENOSPC or history.refused > 0
    if keyed:
        kept = Judge(path=path, history=history).look()
        assert len(kept) == len(history.wanted) == nth * JOBS_PER_POSITION
    assert {row["id"] for row in asked(path, "SELECT id FROM jobs")} == set(
        history.accepted.values()
    )


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_start_on_a_full_disk_answers_and_takes_jobs_once_there_is_room(tmp_path, is_first):
    path = tmp_path / "hearth.db"
    history = History()
    chat = {"model": "one", "prompt": "hi", "stream": False}
    if not is_first:
        open_database(path).close()
    with Fault(built(tmp_path), tmp_path) as fault:
        fault.arm(1, errno.ENOSPC, lasting=True)
        async with (
            served(tmp_path, environ=fault.environ) as url,
            aiohttp.ClientSession() as session,
        ):
            async with session.post(f"{url}/api/generate", json=chat) as answer:
                assert (answer.status, (await answer.json())["done"]) == (200, True)
            with closing(Caller(url, history)) as caller:
                assert not await caller.submit(Wish(key="full"))
                assert fault.disarm()
                assert await caller.submit(Wish(key="full"))
    assert history.refused == 1
    assert {row["id"] for row in asked(path, "SELECT id FROM jobs")} == set(
        history.accepted.values()
    )
    assert (
        [row["epoch"] for row in asked(path, "SELECT epoch FROM process")] == [1]
        if is_first
        else [1, 2]
    )
    assert len(asked(path, "SELECT 1 FROM invocation_log WHERE outcome = 'completed'")) > 0, (
        "what was answered meanwhile is logged"
    )


@pytest.mark.parametrize("first", range(1, PARTS * STEP, STEP))
async def test_wherever_the_disk_fails_from_the_first_start_on_the_file_stays_sound(
    tmp_path, first
):
    """The positions of one of the parts, which run beside each other."""
    with (
        Fault(built(tmp_path), tmp_path) as fault,
        closing(Nursery(tmp_path, environ=fault.environ)) as nursery,
    ):
        for nth in range(first, POSITIONS, PARTS * STEP):
            path = tmp_path / f"hearth.db-{nth}"
            fault.arm(nth)
            life = await nursery.birth("keep_books", path=str(path), first=0, rounds=1)
            await life.gone()
            fired = fault.disarm()
            open_database(path).close()
            assert set(life.named("accepted")) <= {
                row["id"] for row in asked(path, "SELECT id FROM jobs")
            }
            assert set(life.named("reserved")) <= {
                row["id"] for row in asked(path, "SELECT id FROM ledger")
            }
            path.unlink()
            if not fired:
                break
        else:
            pytest.fail("there was always something left to fail")
    assert life.orderly
    assert nth > 50
