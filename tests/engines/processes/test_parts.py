"""The parts that need no process: commands, logs, marks, sockets, crashes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.config.engines import RunSettings
from hearth.engines.processes.commands import command_of, digest_of, program_of
from hearth.engines.processes.crashes import Crashes
from hearth.engines.processes.log import LINE_BYTES, LINES, ProcessLog
from hearth.engines.processes.marks import is_left_behind, new_mark
from hearth.engines.processes.sockets import listening
from hearth.errors import LoadError


def run_of(**settings: object) -> RunSettings:
    return RunSettings.model_validate({"command": ["x"], **settings})


def test_macros_are_replaced_in_the_command_its_stop_and_its_environment():
    run = run_of(
        command=["x", "--port=${PORT}", "$HOME", "${MODEL}${env.A}"],
        stop=["stop", "${PORT}"],
        env={"B": "${env.A}!"},
    )
    found = command_of("m:1", run, 15800, {"A": "a"})
    assert found.words == ("x", "--port=15800", "$HOME", "m:1a")
    assert (found.stop, dict(found.env)) == (("stop", "15800"), {"B": "a!"})


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"command": ["x", "${env.NO}"]}, r"command\[1\]"),
        ({"stop": ["${env.NO}"]}, r"stop\[0\]"),
        ({"env": {"A": "${env.NO}"}}, r"env\.A"),
    ],
)
def test_a_variable_that_is_not_set_is_named_with_its_place(settings, place: str):
    with pytest.raises(LoadError, match=rf"models\.m\.run\.{place}: .* NO is not set"):
        command_of("m", run_of(**settings), 1, {})


def test_a_program_is_looked_for_where_the_server_will_look(tmp_path: Path):
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    run = run_of(command=["server"], env={"PATH": str(tmp_path)})
    assert program_of("m", run, {"PATH": "/nowhere"}) == str(program)
    with pytest.raises(LoadError, match=r"command\[0\]: there is no program server in"):
        program_of("m", run_of(command=["server"]), {"PATH": "/nowhere"})


def test_other_weights_under_the_same_name_are_another_digest(tmp_path: Path):
    weights = tmp_path / "weights"
    weights.write_bytes(b"1")
    run = run_of(command=["x", f"--model={weights}"])
    first = digest_of("m", run, {})
    assert digest_of("m", run, {}) == first
    assert digest_of("n", run, {}) != first
    weights.write_bytes(b"12")
    assert digest_of("m", run, {}) != first


@pytest.mark.parametrize(
    ("writes", "lines"),
    [
        ((b"a\nb\n",), ["a", "b"]),
        ((b"a", b"b\nc", b"\n"), ["ab", "c"]),
        ((b"a\r\nb\n",), ["a", "b"]),
        ((b" 10 %\r 20", b" %\r 30 %\n"), [" 30 %"]),
        ((b" 10 %\r", b" 20 %\r", b" 30 %\r", b"\n"), [" 30 %"]),
        ((b"a\r", b"\nb\r", b"\r", b"\n"), ["a", "b"]),
        ((b"x" * 5000 + b"\ny\n",), ["x" * LINE_BYTES, "y"]),
        ((b"\xff\n",), ["\ufffd"]),
        (tuple(b"%d\n" % number for number in range(500)), [str(n) for n in range(300, 500)]),
        ((b"".join(b"%d\n" % number for number in range(500)),), [str(n) for n in range(300, 500)]),
    ],
)
def test_the_last_lines_are_kept_however_they_were_cut(writes, lines):
    log = ProcessLog()
    for data in writes:
        log.feed(data)
    assert log.after(0)[0] == lines


def test_lines_have_numbers_by_which_a_reader_goes_on():
    log = ProcessLog()
    log.feed(b"a\nb\n")
    lines, following = log.after(0)
    assert (lines, following) == (["a", "b"], 2)
    assert log.after(following) == ([], 2)
    log.feed(b"c\n" * (2 * LINES))
    lines, following = log.after(following)
    assert (len(lines), following) == (LINES, 2 + 2 * LINES)
    assert log.after(following - 1)[0] == ["c"]


def test_a_mark_is_left_behind_once_its_gateway_is_another_process_or_none():
    mark = new_mark("ab")
    namespace, process, started, run = mark.split(".")
    assert (int(process), run) == (os.getpid(), "ab")
    assert not is_left_behind(mark)
    assert is_left_behind(f"{namespace}.{process}.{int(started) - 1}.{run}")
    assert is_left_behind(f"{namespace}.99999999.1.{run}")
    assert not is_left_behind(f"1{namespace}.{process}.1.{run}")  # in another container
    assert not is_left_behind("")


def test_a_port_is_of_the_tree_of_another_program_or_of_nobody():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as bound:
        port = server.getsockname()[1]
        bound.bind(("127.0.0.1", 0))
        ours = listening(port, lambda: [os.getpid()])
        assert ours is not None
        assert ours.is_ours is True
        strange = listening(port, list)
        assert strange is not None
        assert strange.is_ours is False
        nobodys = listening(bound.getsockname()[1], lambda: [os.getpid()])
        assert nobodys is not None
        assert nobodys.is_ours is None
        assert port in nobodys.others


def test_a_port_that_another_program_shares_is_not_ours():
    shares = (
        "import socket, sys; held = socket.create_server(('127.0.0.1', int(sys.argv[1])),"
        " reuse_port=True); print('up', flush=True); sys.stdin.read()"
    )
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as server:
        port = server.getsockname()[1]
        with subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", shares, str(port)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as stranger:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == b"up\n"
            shared = listening(port, lambda: [os.getpid()])
            both = listening(port, lambda: [os.getpid(), stranger.pid])
            stranger.kill()
    assert (shared and shared.is_ours, both and both.is_ours) == (False, True)


def test_where_sockets_cannot_be_seen_nothing_is_said(tmp_path: Path):
    assert listening(1, list, tmp_path) is None


def test_a_model_is_left_alone_for_longer_each_time_up_to_half_an_hour():
    crashes = Crashes()
    now = 1000.0
    pauses = []
    for _ in range(20):
        crashes.happened(now)
        pause_s = crashes.left_alone_s(now)
        if pause_s:
            pauses.append(pause_s)
            now += pause_s
            assert crashes.left_alone_s(now) == 0.0
    assert pauses[:6] == [60.0, 120.0, 240.0, 480.0, 960.0, 1800.0]
    assert max(pauses) == 1800.0


def test_failures_far_apart_or_before_a_long_service_do_not_count():
    crashes = Crashes()
    for number in range(10):
        crashes.happened(301.0 * number)
    assert crashes.left_alone_s(3000.0) == 0.0
    crashes.happened(2800.0)
    assert crashes.left_alone_s(2800.0) > 0.0
    crashes = Crashes()
    for _ in range(5):
        crashes.served_for(600.0)
        crashes.happened(1.0)
        crashes.happened(2.0)
    assert crashes.left_alone_s(2.0) == 0.0
