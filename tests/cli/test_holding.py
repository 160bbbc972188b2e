"""`hearth yield -- COMMAND` as a process of its own, before a gateway that a test plays: how the
command starts and ends, and what becomes of the lease.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from hearth.cli.client import GatewayClient
from hearth.cli.holding import Holder
from tests.support.fields import Fields
from tests.support.patience import WITHIN_S
from tests.support.places import ROOT

HEARTH = (sys.executable, "-c", "from hearth.cli import main; main(prog_name='hearth')")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"


class Gateway:
    """Each lease that is asked for is a connection in `holds`, and nothing is answered by itself;
    `order` has what happened. GET /mark is a note of the command's.
    """

    def __init__(self) -> None:
        self.holds: SimpleQueue[Hold] = SimpleQueue()
        self.order: list[str] = []
        self.url = ""

    @contextmanager
    def listening(self) -> Iterator[Gateway]:
        gateway = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                gateway._take(self)

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def _take(self, handler: socketserver.StreamRequestHandler) -> None:
        method, path, _ = handler.rfile.readline().decode().split()
        length = 0
        while line := handler.rfile.readline().strip():
            name, _, value = line.decode().partition(": ")
            length = int(value) if name.lower() == "content-length" else length
        body = json.loads(handler.rfile.read(length) or b"null")
        self.order.append(f"{method} {path}")
        if path == "/mark":
            handler.wfile.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            return
        hold = Hold(body, handler)
        self.holds.put(hold)
        hold.over.wait()

    def next_hold(self) -> Hold:
        return self.holds.get(timeout=WITHIN_S)


class Hold:
    """One connection that holds a lease."""

    def __init__(self, body: Fields, handler: socketserver.StreamRequestHandler) -> None:
        self.body = body
        self.over = threading.Event()
        self._handler = handler

    def say(self, *states: str, head: bytes = HEAD, **more: str) -> None:
        """Lines, behind the head of the answer."""
        lines = [json.dumps({"state": state, **more}).encode() + b"\n" for state in states]
        self._handler.wfile.write(head + b"".join(lines))

    def refuse(self, status: int, error: str) -> None:
        body = json.dumps({"error": error}).encode()
        head = f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self._handler.wfile.write(head.encode() + body)
        self.close()

    def close(self) -> None:
        self.over.set()

    def is_open(self) -> bool:
        """Whether the other end has not closed the connection so far."""
        return select.select([self._handler.connection], [], [], 0.0)[0] == []

    def is_left(self) -> bool:
        """Whether the other end closes the connection, which is waited for."""
        try:
            return self._handler.rfile.read(1) == b""
        except ConnectionResetError:
            return True
        finally:
            self.close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway().listening() as listening:
        yield listening


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path) -> Iterator[Start]:
    started = []
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", str(ROOT / "src"))

    def begin(url: str, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*HEARTH, "yield", "--url", url, *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environ,
            **more,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=WITHIN_S)
    return process.returncode, out, err


def script(text: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", text)


def test_the_command_starts_when_its_memory_is_free_and_ends_the_lease(gateway, start):
    text = f"import urllib.request; urllib.request.urlopen('{gateway.url}/mark'); print(input())"
    process = start(gateway.url, "8gb", "--reason", "Doom", *script(text))
    hold = gateway.next_hold()
    assert (hold.body["mib"], hold.body["reason"]) == (8192.0, "Doom")
    hold.say("taken")
    gateway.order.append("granted")
    hold.say("granted", head=b"")
    assert process.stdin is not None
    process.stdin.write("its own stdin\n")
    process.stdin.flush()
    assert hold.is_left()
    assert process.stdout is not None
    assert process.stdout.read() == "its own stdin\n"
    assert process.wait(WITHIN_S) == 0
    assert gateway.order == ["POST /llm/gpu/leases/hold", "granted", "GET /mark"]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -9 $$"), 137),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("no-such-command",), 127),
        (("/etc/passwd",), 126),
        (("sh", "-c", "exit $#", "sh", "--end", "--", "-h"), 3),
    ],
)
def test_the_exit_code_is_the_commands_own_or_that_of_shells(start, command, code):
    found, _, err = ended(start("http://127.0.0.1:1", "--", *command))
    assert found == code
    assert "no gateway at http://127.0.0.1:1" in err


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (
            403,
            "this key must not take leases",
            "does not allow that: this key must not take leases",
        ),
        (400, "mib: too much", "the gateway refuses, and the command goes on: mib: too much"),
        (503, "draining", "draining The command starts without it"),
        (500, "?", "?"),
    ],
)
def test_the_command_starts_when_the_gateway_refuses(gateway, start, status, error, says):
    process = start(gateway.url, "--", "echo", "started")
    gateway.next_hold().refuse(status, error)
    code, out, err = ended(process)
    assert (code, out, says in err) == (0, "started\n", True)


def test_the_command_starts_when_the_memory_is_not_free_in_time(gateway, start):
    process = start(gateway.url, "--wait", "0.1", "--", "echo", "started")
    hold = gateway.next_hold()
    hold.say("taken")
    assert hold.is_left()
    code, out, err = ended(process)
    assert (code, out) == (0, "started\n")
    assert "not free after 0.1 s; the command starts anyway" in err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_a_signal_is_passed_on(gateway, start, name):
    text = f"import signal; print('ready', flush=True); print(signal.sigwait([signal.{name}]))"
    text = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{name}]); {text}"
    process = start(gateway.url, *script(text))
    hold = gateway.next_hold()
    hold.say("granted")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.Signals[name])
    assert hold.is_left()
    assert ended(process)[:2] == (0, f"{int(signal.Signals[name])}\n")


def test_the_command_has_the_signals_as_they_are_by_default(start):
    text = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    assert ended(start("http://127.0.0.1:1", *script(text)))[:2] == (0, "set()\n")
    grep = "grep ^SigIgn: /proc/self/status"
    ignored = int(ended(start("http://127.0.0.1:1", "--", *grep.split()))[1].split()[1], 16)
    assert ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)) == 0


def test_an_ignored_sigchld_of_the_parent_hides_no_end(start):
    process = start(
        "http://127.0.0.1:1",
        *("--", "sh", "-c", "exit 5"),
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert ended(process)[0] == 5


def test_a_killed_hearth_ends_the_lease(gateway, start):
    process = start(gateway.url, *script("print('ready', flush=True); input()"))
    hold = gateway.next_hold()
    hold.say("granted")
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    assert hold.is_left()


@pytest.mark.parametrize("why", ["", "stopped", "expired"])
def test_a_lease_is_taken_again_after_the_gateway_was_away(gateway, start, why):
    process = start(gateway.url, *script("input()"))
    first = gateway.next_hold()
    first.say("granted")
    if why:
        first.say("ended", head=b"", why=why)
    first.close()
    second = gateway.next_hold()
    assert second.body == first.body, "also its id, so that there are never two"
    second.say("granted")
    assert ended_by_input(process) == 0
    assert second.is_left()
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_a_lease_is_renewed_without_a_moment_in_which_nothing_holds_it(gateway):
    lease = {"id": "run-1"}
    Holder(GatewayClient(gateway.url), lease, renew_s=0.0).take(0.0)
    first = gateway.next_hold()
    first.say("granted")
    second = gateway.next_hold()
    assert second.body == first.body
    assert first.is_open()
    second.say("ended", why="owner")
    assert first.is_left()
    assert second.is_left()


@pytest.mark.parametrize("why", ["owner", "released"])
def test_a_lease_that_somebody_has_ended_is_not_taken_again(gateway, start, why):
    process = start(gateway.url, *script("input()"))
    hold = gateway.next_hold()
    hold.say("granted", "ended", why=why)
    assert process.stderr is not None
    assert "the lease was ended" in process.stderr.readline()
    assert ended_by_input(process) == 0
    hold.close()
    assert gateway.holds.empty()


def ended_by_input(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.wait(WITHIN_S)


COUNTS = """
import signal, sys
counted = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, counted)
print("ready", flush=True)
for seen in (1, 2):
    print(f"{signal.Signals(signal.sigwait(counted)).name} {seen}", flush=True)
print(f"read {input()}", flush=True)
sys.exit(seen)
"""
"""It waits for signals, since a handler may not run while a line is read that has just begun."""


def test_on_a_terminal_ctrl_c_reaches_the_command_once_and_what_is_typed_too(tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        command = [*HEARTH, "yield", "--url", "http://127.0.0.1:1", *script(COUNTS)]
        os.execve(command[0], command, {**os.environ, "HOME": str(tmp_path)})
    shown = b""

    def until(what: bytes) -> None:
        nonlocal shown
        while what not in shown:
            assert select.select([terminal], [], [], WITHIN_S)[0]
            shown += os.read(terminal, 4096)

    try:
        until(b"ready")
        os.write(terminal, b"\x03")
        until(b"SIGINT 1")
        os.kill(pid, signal.SIGTERM)
        until(b"SIGTERM 2")
        os.write(terminal, b"typed\n")
        until(b"read typed")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    finally:
        os.close(terminal)
