"""Every 202 follows a sync that returned after the bytes of its job were written: seen from outside
the process, not believed.

Once through a library between Hearth and the C library, which needs nothing but a compiler; and
once with strace, where it is allowed.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence

import pytest

from tests.reliability.client import Caller, History, Wish
from tests.reliability.served import served
from tests.reliability.shim import built

ACKNOWLEDGED = 200
CALLERS = 8
_ID = re.compile(r"job_[0-9a-f]{32}")


def require_synced_first(events: Iterable[tuple[str, Sequence[str]]], accepted: set[str]) -> None:
    """Events in order: `write` of some ids, `sync`, `ack` of one."""
    written = set[str]()
    durable = set[str]()
    acknowledged = set[str]()
    for kind, ids in events:
        if kind == "write":
            written |= set(ids)
        elif kind == "sync":
            durable |= written
        else:
            acknowledged |= set(ids)
            assert set(ids) <= durable, "acknowledged before it was synced"
    assert acknowledged == accepted


async def accepted_by(url: str) -> set[str]:
    """The ids of so many jobs."""
    history = History()

    async def ask(number: int) -> None:
        caller = Caller(url, history)
        for n in range(ACKNOWLEDGED // CALLERS):
            assert await caller.submit(Wish(key=f"{number}-{n}"))
        caller.close()

    await asyncio.gather(*map(ask, range(CALLERS)))
    return set(history.accepted.values())


def test_the_check_itself_sees_an_answer_that_came_too_early():
    with pytest.raises(AssertionError, match="before it was synced"):
        require_synced_first([("sync", []), ("write", ["a"]), ("ack", ["a"])], {"a"})
    require_synced_first([("write", ["a"]), ("sync", []), ("ack", ["a"])], {"a"})


async def test_every_acknowledgement_follows_a_sync_of_its_job(tmp_path):
    log = tmp_path / "order"
    environ = {"LD_PRELOAD": str(built(tmp_path)), "SHIM_LOG": str(log)}
    async with served(tmp_path, environ=environ) as url:
        accepted = await accepted_by(url)
    lines = [line.split() for line in log.read_text().splitlines()]
    require_synced_first([(words[0], words[1:]) for words in lines], accepted)


@pytest.fixture
def strace() -> str:
    found = shutil.which("strace")
    if (
        found is None
        or subprocess.run([found, "-qq", "true"], capture_output=True, check=False).returncode != 0
    ):
        pytest.skip(
            "no strace, or tracing is not permitted here; the library of the test above "
            "has proved the same"
        )
    return found


async def test_strace_sees_the_same(tmp_path, strace):
    trace = tmp_path / "trace"
    calls = "trace=pwrite64,fdatasync,fsync,write"
    async with served(
        tmp_path,
        environ={},
        before=[strace, "-f", "-qq", "-s", "65536", "-e", calls, "-o", str(trace)],
    ) as url:
        accepted = await accepted_by(url)
    require_synced_first(_events(trace.read_text().splitlines()), accepted)


def _events(lines: Iterable[str]) -> Iterable[tuple[str, Sequence[str]]]:
    """A write counts when it begins, since its thread syncs only after it; a sync when it has
    returned.
    """
    for line in lines:
        if "pwrite64(" in line:
            yield "write", _ID.findall(line)
        elif re.search(r"(fdatasync|fsync)(\(| resumed).*= 0$", line):
            yield "sync", []
        elif "write(" in line and '"HTTP/1.1 202' in line:
            yield "ack", sorted(set(_ID.findall(line)))
