"""One slot, as most homes have it: how long the GPU idles between two queued items, and how fast it
is freed for internal work.

Both are seen from the model server: the stub writes down when a chat arrived, when its answer
ended, and when its connection was closed.
"""

from __future__ import annotations

import json
import socket
import urllib.request
from collections import deque
from pathlib import Path
from statistics import median
from time import monotonic, sleep

from benchmarks import house
from benchmarks.driver import Plan, chat_request, run
from benchmarks.findings import Finding, quantile
from benchmarks.keys import INTERNAL
from benchmarks.process import Child

CALLERS = 64
ITEMS = 1_000
CANCELS = 25
GAP_TARGET_MS = 0.5
CANCEL_TARGET_MS = 50.0
POLL_S = 0.002
TIMEOUT_S = 20.0

Log = list[tuple[str, float]]


def measure(rounds: int, place: Path) -> list[Finding]:
    """Both measurements against one Hearth; `rounds` times the same number of items."""
    with house.stub() as stub, house.hearth(stub, place, parallel=1) as hearth:
        gaps_ms = _gaps_ms(stub, hearth, rounds)
        cancels_ms = [_cancel_ms(stub, hearth) for _ in range(CANCELS)]
    name = f"idle GPU between items, {CALLERS} callers"
    return [
        Finding(
            subject="one slot",
            name=f"{name}, p50",
            unit="ms",
            measured=median(gaps_ms),
            target=GAP_TARGET_MS,
        ),
        Finding(
            subject="one slot", name=f"{name}, p99", unit="ms", measured=quantile(gaps_ms, 0.99)
        ),
        Finding(
            subject="one slot",
            name="internal arrival to cancel, slowest",
            unit="ms",
            measured=max(cancels_ms),
            target=CANCEL_TARGET_MS,
            note=f"p50 {median(cancels_ms):.1f}, {CANCELS} times",
        ),
    ]


def _gaps_ms(stub: Child, hearth: Child, rounds: int) -> list[float]:
    _take_log(stub)
    plan = Plan(
        port=hearth.port,
        pid=hearth.pid,
        connections=CALLERS,
        requests=ITEMS * rounds // 5,
        word="pause",
        warm_up=0,
    )
    run(plan)
    return gaps_ms(_take_log(stub))[:-CALLERS]


def gaps_ms(log: Log) -> list[float]:
    """Milliseconds from each end of an answer to the next arrival."""
    gaps = []
    ended_at = None
    for kind, at in log:
        if kind == "arrived" and ended_at is not None:
            gaps.append((at - ended_at) * 1e3)
        ended_at = at if kind == "ended" else None
    return gaps


def _cancel_ms(stub: Child, hearth: Child) -> float:
    """An external chat that would run for ever is under way; then an internal one comes, and the
    external one begins again after it.
    """
    watch = Watch(stub)
    with socket.create_connection(("127.0.0.1", hearth.port)) as internal:
        with socket.create_connection(("127.0.0.1", hearth.port)) as external:
            external.sendall(chat_request(hearth.port, "hold", streaming=True))
            watch.until("arrived")
            asked_at = monotonic()
            internal.sendall(
                chat_request(
                    hearth.port,
                    "hello",
                    streaming=False,
                    key=INTERNAL,
                    extra="X-Task-Type: bench\r\n",
                )
            )
            closed_at = watch.until("closed")
            watch.until("ended")
            watch.until("arrived")
        watch.until("closed")
    return (closed_at - asked_at) * 1e3


class Watch:
    """Follows the stub's log, one entry after the other."""

    def __init__(self, stub: Child) -> None:
        self._stub = stub
        self._unread: deque[tuple[str, float]] = deque()
        _take_log(stub)

    def until(self, kind: str) -> float:
        """Skip to the next entry of this kind, waiting for it. Returns its instant.

        Raises TimeoutError.
        """
        give_up_at = monotonic() + TIMEOUT_S
        while monotonic() < give_up_at:
            while self._unread:
                seen, at = self._unread.popleft()
                if seen == kind:
                    return at
            sleep(POLL_S)
            self._unread.extend(_take_log(self._stub))
        raise TimeoutError(f"no chat has {kind}")


def _take_log(stub: Child) -> Log:
    with urllib.request.urlopen(f"{stub.url}/bench/log", timeout=TIMEOUT_S) as answer:  # noqa: S310 - a URL of our own
        log: Log = [(str(kind), float(at)) for kind, at in json.load(answer)]
    return log
