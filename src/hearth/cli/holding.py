"""A command that has memory of the GPU for as long as it runs: `hearth yield -- COMMAND`.

It stands before games and services, so the command is started in any case: without a gateway, when
it refuses, and when the memory is not free in time.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import click

from hearth.cli import GatewayUnreachable
from hearth.cli.client import GatewayClient, Json, NotNow, printable, text
from hearth.clock import SystemClock
from hearth.types import DAY_S

PATH = "/llm/gpu/leases/hold"
SILENCE_S = 30.0
"""Longer than that without a line, and the gateway is taken for gone: it sends one every 10 s."""
RETRY_S = 2.0
RENEW_S = DAY_S / 2
"""A lease ends after a day, also one whose holder lives."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
"""As shells end where they cannot start a command."""
SIGNAL_CODE = 128
"""What shells add to the number of the signal that has ended a command."""
_PASSED_ON = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and that a command expects as they are by default."""


class Holder:
    """Holds a lease on a thread of its own until the process ends: the gateway ends the lease with
    the connection. Takes it again after the gateway was away.
    """

    def __init__(self, client: GatewayClient, lease: Json, *, renew_s: float = RENEW_S) -> None:
        self._client = client
        self._lease = lease
        self._renew_s = renew_s
        self._clock = SystemClock()
        self._first = threading.Event()
        """The memory is free, or will not be."""
        self._has_warned = False

    def take(self, wait_s: float) -> None:
        """Ask for the memory, and return when it is free, at the latest after `wait_s`."""
        threading.Thread(target=self._run, name="hearth-lease", daemon=True).start()
        if not self._first.wait(wait_s) and wait_s:
            self._warn(f"the memory is not free after {wait_s:g} s; the command starts anyway")

    def _run(self) -> None:
        # they are for the main thread, which waits for them
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pause = threading.Event()
        while not self._is_over():
            self._first.set()
            pause.wait(RETRY_S)

    def _is_over(self) -> bool:
        """Hold the lease while the gateway lets it; False where it is to be taken again."""
        try:
            return self._hold()
        except (GatewayUnreachable, NotNow) as error:
            if not self._first.is_set():
                self._warn(f"{error.message.splitlines()[0]} The command starts without it.")
            return False
        except click.ClickException as refused:
            self._warn(f"the gateway refuses, and the command goes on: {refused.message}")
            self._first.set()
            return True

    def _hold(self) -> bool:
        """Until the lease or the connection ends; True where somebody has ended the lease."""
        is_over: bool | None = None
        with ExitStack() as held:
            while is_over is None:
                fresh = ExitStack()
                opened = self._client.send(PATH, self._lease, {}, timeout_s=SILENCE_S)
                _, states = fresh.enter_context(opened)
                held.close()  # only now, so that the lease has a connection all the time
                held.callback(fresh.close)
                is_over = self._follow(states)
        return is_over

    def _follow(self, states: Iterator[Json]) -> bool | None:
        """The same for one connection; None where it is time to renew the lease by another."""
        renew_at = self._clock.monotonic() + self._renew_s
        for state in states:
            match text(state, "state"):
                case "granted":
                    self._first.set()
                case "ended" if text(state, "why") in {"owner", "released"}:
                    self._warn("the lease was ended: models may use its memory again")
                    return True
            if self._clock.monotonic() >= renew_at:
                return None
        return False

    def _warn(self, what: str) -> None:
        """Once: what the command writes stands on the same terminal."""
        if not self._has_warned:
            self._has_warned = True
            click.echo(f"hearth yield: {what}", err=True)


def run(command: list[str]) -> int:
    """Start the command in this process's place on the terminal, pass signals on to it, and return
    the code to end with: its own, or as shells do.
    """
    # the parent may have it ignored, and then nobody is told of the end
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    waited_for = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        pid = os.posix_spawnp(
            command[0], command, os.environ, setsigmask=before, setsigdef=_PYTHONS_OWN
        )
    except OSError as error:
        click.echo(f"hearth yield: {printable(command[0])}: {error.strerror}", err=True)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    while True:
        number, was_sent = _next_signal(waited_for)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return SIGNAL_CODE - code if code < 0 else code
        if was_sent and number != signal.SIGCHLD:
            os.kill(pid, number)


def _next_signal(waited_for: set[signal.Signals]) -> tuple[int, bool]:
    """The next signal, and whether a process has sent it. What the terminal sends, as for Ctrl-C,
    the command receives by itself.
    """
    if not hasattr(signal, "sigwaitinfo"):  # macOS
        return signal.sigwait(waited_for), not os.isatty(0)
    found = signal.sigwaitinfo(waited_for)
    return found.si_signo, found.si_code <= 0
