"""Runs one command, and ends all that came of it when the gateway asks or is gone.

A program of its own with nothing but the standard library, run by its path:
`python -I -S guard.py GRACE_S N STOP... COMMAND...`, N words of a command that stops the server
before those of the command that is run.

On Linux it is the subreaper of its children: what leaves its parent, even into a session of its
own, becomes a child of the guard, so that the tree is found as long as one process of it lives.
Elsewhere, and without /proc, it ends the command's process group.

- stdin: a pipe from the gateway. `s`, or its end (also by `kill -9` of the gateway): end the tree
  by the stop command or SIGTERM, and by SIGKILL after GRACE_S; `k`: by SIGKILL at once.
- stdout: reports, a line each: `started PID` or `failed WHY`; `exited CODE` as of Python's
  `returncode`; `gone`, once nothing is left.
- stderr: the log, of all processes.

It ends with the code of the command, 128 and the signal's number after a signal.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_FOUND = 127
"""What a shell ends with that cannot start a command."""
LOOK_S = 0.1
"""How often the tree is looked for processes that were started after SIGTERM."""
KILL_LOOK_S = 0.01
NOT_FOR_ENGINES = ("LLAMA_SERVER_ROUTER_PORT",)
"""With it a llama-server takes itself for the child of a router, and ends with its stdin."""
IS_LINUX = sys.platform == "linux"
SEES_ALL = IS_LINUX and os.path.exists("/proc/self/stat")  # noqa: PTH110
"""In a chroot without /proc it sees as little as on another system."""


def control(option: int, value: int) -> None:
    """Linux's prctl; other systems have none."""
    if IS_LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def report(text: str) -> None:
    with suppress(OSError):  # nobody reads any more
        os.write(1, f"{text}\n".encode())


def log(text: str) -> None:
    """A line among those of the server; lost where nobody reads, or has read what is there."""
    with suppress(OSError):
        if select.select((), (2,), (), 0)[1]:
            os.write(2, f"hearth: {text}\n".encode())


def spawn(command: list[str]) -> int:
    """Start a command in a new session, with stderr as its output.

    Returns its process. Raises OSError where it cannot be started.
    """
    guard = os.getpid()
    reading, writing = os.pipe()  # closed by an `exec` that succeeds
    child = os.fork()
    if child == 0:
        try:
            control(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(NOT_FOUND)
            os.setsid()
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(2, 1)
            os.execvp(command[0], command)  # noqa: S606 - a command of the owner's file
        except OSError as error:
            os.write(writing, str(error.errno).encode())
        finally:
            os._exit(NOT_FOUND)
    os.close(writing)
    said = os.read(reading, 16)
    os.close(reading)
    if said:
        os.waitpid(child, 0)
        code = int(said)
        raise OSError(code, os.strerror(code), command[0])
    return child


def descendants(root: int) -> set[int]:
    """The processes below one, of Linux."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib takes 2 MiB
        if name.isdigit():
            with suppress(OSError, IndexError, ValueError):  # it has just ended
                parent = parent_of(name)
                children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    below = [root]
    while below:
        own = children.pop(below.pop(), [])
        found.update(own)
        below += own
    return found


def parent_of(process: str) -> int:
    """By /proc/PID/stat, where the name, which may contain anything, stands in parentheses."""
    with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123
        return int(file.read().rpartition(b")")[2].split()[1])


class Guard:
    """Keeps the tree of one command.

    Attributes:
        status: what the command has ended with, None while it runs.
    """

    def __init__(self, stop: list[str], grace_s: float) -> None:
        self.status: int | None = None
        self._stop = stop
        self._grace_s = grace_s
        self._main = 0
        self._stopper = 0
        self._listens = True
        self._ending = False
        self._kill_at = 0.0
        self._terminates = False
        self._asked: set[int] = set()
        self._wake, writing = os.pipe()
        for each in (self._wake, writing):
            os.set_blocking(each, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._end())
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def keep(self, command: list[str]) -> None:
        """Run a command, and return when nothing of it is left. Raises OSError."""
        self._main = spawn(command)
        report(f"started {self._main}")
        while self._reap():
            if self.status is not None and not SEES_ALL:
                self._send(signal.SIGKILL, set())  # what has left the group cannot be found
                return
            self._wait()
            if self._ending:
                self._press()

    def _reap(self) -> bool:
        """Take what has ended; False where nothing is left."""
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if process == 0:
                return True
            code = os.waitstatus_to_exitcode(status)
            if process == self._main:
                self.status = code
                report(f"exited {code}")
                self._end()
                self._terminates = True
            elif process == self._stopper and code != 0:
                log(f"the stop command ended with {code}")
                self._terminates = True

    def _wait(self) -> None:
        """Until something happens, or it is time to look again."""
        timeout_s = None
        if self._ending:
            left_s = self._kill_at - time.monotonic()
            timeout_s = min(LOOK_S, left_s) if left_s > 0 else KILL_LOOK_S
        awaited = [0, self._wake] if self._listens else [self._wake]
        ready, _, _ = select.select(awaited, [], [], timeout_s)
        if self._wake in ready:
            with suppress(BlockingIOError):
                os.read(self._wake, 512)
        if 0 in ready:
            self._listen()

    def _listen(self) -> None:
        said = os.read(0, 16)
        self._listens = bool(said)
        if b"k" in said:
            self._grace_s = 0.0
            self._kill_at = 0.0
        self._end()

    def _end(self) -> None:
        """Begin to end the tree."""
        if self._ending:
            return
        self._ending = True
        self._kill_at = time.monotonic() + self._grace_s
        self._terminates = not self._stop
        if self._stop and self._grace_s > 0 and self.status is None:
            try:
                self._stopper = spawn(self._stop)
            except OSError as error:
                log(f"the stop command: {error.strerror}: {self._stop[0]}")
                self._terminates = True

    def _press(self) -> None:
        """Send each process of the tree what it has not been sent yet."""
        is_late = time.monotonic() >= self._kill_at
        if is_late:
            self._send(signal.SIGKILL, set())
        elif self._terminates:
            self._send(signal.SIGTERM, self._asked)

    def _send(self, number: int, asked: set[int]) -> None:
        """To all but those that were asked already, and are then."""
        if not SEES_ALL:
            if self._main not in asked:
                with suppress(OSError):
                    os.killpg(self._main, number)
                asked.add(self._main)
            return
        for process in descendants(os.getpid()) - asked:
            with suppress(OSError):
                os.kill(process, number)
            asked.add(process)


def main(arguments: list[str]) -> int:
    """Returns what to end with."""
    stop_words = int(arguments[1])
    stop, command = arguments[2 : 2 + stop_words], arguments[2 + stop_words :]
    for name in NOT_FOR_ENGINES:
        os.environ.pop(name, None)
    control(PR_SET_CHILD_SUBREAPER, 1)
    guard = Guard(stop, float(arguments[0]))
    try:
        guard.keep(command)
    except OSError as error:
        report(f"failed {error.strerror}: {command[0]}")
    report("gone")
    status = NOT_FOUND if guard.status is None else guard.status
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
