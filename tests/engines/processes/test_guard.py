"""The guard as a program of its own: what it reports, and that nothing it started is left."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import pytest

from hearth.engines.processes import guard
from hearth.engines.processes.guard import NOT_FOUND, descendants

FAMILY = "setsid sleep 3600 & (trap '' TERM; setsid sh -c 'sleep 3600' &) ; echo here >&2; wait"
"""A shell with children, one of which has left its session and its parent."""


class Guarded:
    """A guard with its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.orders = cast("IO[bytes]", process.stdin)
        self.reports = cast("IO[bytes]", process.stdout)
        self.log = cast("IO[bytes]", process.stderr)

    def report(self) -> str:
        return self.reports.readline().decode().strip()

    @property
    def tree(self) -> set[int]:
        return descendants(self.process.pid)


WITHOUT_PROC = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc; exec "$@"', "sh")


@contextmanager
def guarded(
    *command: str,
    grace_s: float = 600.0,
    stop: tuple[str, ...] = (),
    under: tuple[str, ...] = (),
) -> Iterator[Guarded]:
    words = (str(grace_s), str(len(stop)), *stop, *command)
    with subprocess.Popen(
        (*under, sys.executable, "-I", "-S", guard.__file__, *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    ) as process:
        try:
            yield Guarded(process)
        finally:
            process.kill()


def is_there(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def test_it_reports_how_its_command_ends_and_ends_alike():
    with guarded("sh", "-c", "exit 3") as one:
        assert one.report().startswith("started ")
        assert [one.report(), one.report()] == ["exited 3", "gone"]
        assert one.process.wait() == 3
    with guarded("sh", "-c", "kill -9 $$") as one:
        assert [one.report(), one.report(), one.report()][1:] == ["exited -9", "gone"]
        assert one.process.wait() == 128 + 9


def test_a_command_that_cannot_be_started_is_reported(tmp_path):
    text = tmp_path / "text"
    text.write_text("no program")
    for command, says in (
        ("/nowhere/x", "failed No such file or directory: /nowhere/x"),
        (str(text), f"failed Permission denied: {text}"),
    ):
        with guarded(command) as one:
            assert [one.report(), one.report()] == [says, "gone"]
            assert one.process.wait() == NOT_FOUND


@pytest.mark.parametrize("order", [b"s", b"k", b""], ids=["stop", "kill", "the pipe ends"])
def test_an_order_ends_all_of_a_tree_also_what_has_left_its_session(order: bytes):
    with guarded("sh", "-c", FAMILY, grace_s=0.3) as one:
        one.report()
        assert one.log.readline() == b"here\n"
        tree = one.tree
        assert len(tree) >= 3
        if order:
            one.orders.write(order)
        else:
            one.orders.close()
        assert {one.report(), one.report()} >= {"gone"}
        one.process.wait()
        assert not [each for each in tree if is_there(each)]


def test_what_a_command_leaves_behind_when_it_ends_is_ended():
    with guarded("sh", "-c", "setsid sleep 3600 & exit 0") as one:
        assert one.report().startswith("started ")
        assert [one.report(), one.report()] == ["exited 0", "gone"]


def test_a_stop_command_comes_in_place_of_a_signal_and_before_one_where_it_fails(tmp_path):
    flag = tmp_path / "flag"
    waits = f"trap 'echo signal >&2; exit 1' TERM; until test -e {flag}; do sleep 0.01; done"
    with guarded("sh", "-c", waits, stop=("touch", str(flag))) as one:
        one.report()
        one.orders.write(b"s")
        assert [one.report(), one.report(), one.log.read()] == ["exited 0", "gone", b""]
    flag.unlink()
    with guarded("sh", "-c", f"echo up >&2; {waits}", stop=("false",)) as one:
        one.report()
        assert one.log.readline() == b"up\n"
        one.orders.write(b"s")
        assert [one.report(), one.report()] == ["exited 1", "gone"]
        said = one.log.read()
        assert b"hearth: the stop command ended with 1\n" in said
        assert b"signal\n" in said


@pytest.mark.parametrize(
    "stop", [("false",), ("/nowhere/x",), ("sh", "-c", "echo stops")], ids=["fails", "none", "says"]
)
def test_a_stop_command_does_not_keep_it_from_ending_all_after_its_gateway(stop: tuple[str, ...]):
    with guarded("sh", "-c", FAMILY, grace_s=0.3, stop=stop) as one:
        one.report()
        assert one.log.readline() == b"here\n"
        tree = one.tree
        for pipe in (one.log, one.reports, one.orders):
            pipe.close()
        one.process.wait()
        assert not [each for each in tree if is_there(each)]


@pytest.mark.skipif(
    subprocess.run((*WITHOUT_PROC, "true"), capture_output=True, check=False).returncode != 0,
    reason="the system does not allow a mount",
)
@pytest.mark.parametrize("order", [b"s", b"k", b""], ids=["stop", "kill", "the pipe ends"])
def test_without_proc_the_group_of_a_command_is_ended(order: bytes):
    family = "sleep 3600 & (trap '' TERM; sleep 3600 & wait) & echo here >&2; wait"
    with guarded("sh", "-c", family, grace_s=0.3, under=WITHOUT_PROC) as one:
        one.report()
        assert one.log.readline() == b"here\n"
        tree = one.tree
        assert len(tree) >= 3
        if order:
            one.orders.write(order)
        else:
            one.orders.close()
        assert {one.report(), one.report()} >= {"gone"}
        one.process.wait()
        while [each for each in tree if is_there(each) and _state(each) != b"Z"]:
            time.sleep(0.001)


def test_a_servers_environment_does_not_make_it_the_child_of_a_router(monkeypatch):
    monkeypatch.setenv("LLAMA_SERVER_ROUTER_PORT", "1")
    with guarded("sh", "-c", "echo port=$LLAMA_SERVER_ROUTER_PORT >&2") as one:
        assert one.log.readline() == b"port=\n"
        one.process.wait()


def test_a_command_does_not_outlive_a_guard_that_is_killed():
    with guarded("sleep", "3600") as one:
        command = int(one.report().partition(" ")[2])
        one.process.kill()
        one.process.wait()
        while is_there(command) and b"Z" not in _state(command):
            time.sleep(0.001)  # the system ends it, and tells nobody


def _state(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return b"Z"
