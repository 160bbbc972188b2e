"""A command of the owner's, run as a real process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from hearth.execution.owner_command import run_command
from tests.support.patience import WITHIN_S, until


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["true"], ""),
        (["sh", "-c", "exit 3"], "ended with 3"),
        (["sh", "-c", "kill -9 $$"], "was ended by signal 9"),
        (["/nonexistent/restart"], "could not be started (No such file or directory)"),
        (["/"], "could not be started (Permission denied)"),
        ([""], "could not be started"),
        (["sh", "-c", "echo $0 '; exit 3'", "a b;exit 4"], ""),
    ],
)
async def test_how_a_command_ended_is_said(command: list[str], says: str):
    found = await run_command(command, WITHIN_S)
    assert found.startswith(says) if says else not found


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.parametrize("how", ["too long", "cancelled"])
async def test_what_takes_too_long_or_is_left_is_ended_with_its_children(tmp_path: Path, how: str):
    pids = tmp_path / "pids"
    script = f"sleep 1000 & echo $! > {pids}.new; mv {pids}.new {pids}; wait"
    running = asyncio.ensure_future(
        run_command(["sh", "-c", script], 1.0 if how == "too long" else WITHIN_S)
    )
    await until(pids.exists)
    if how == "cancelled":
        running.cancel()
        await asyncio.wait((running,))
    else:
        assert await running == "took longer than 1 s"
    child = int(pids.read_text())
    assert child != os.getpid()
    await until(lambda: is_gone(child))


async def test_what_may_not_be_ended_has_taken_too_long_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
):
    """As a command under sudo, which runs as root."""
    end = os.killpg

    def refuse(group: int, sent: int) -> None:
        end(group, sent)  # here it is ours, and is not to be left over
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    assert await run_command(["sleep", "1000"], 0.1) == "took longer than 0.1 s"
