"""The only place that reads a clock or draws randomness.

Everything else takes instants as arguments or a `Clock` as collaborator.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Protocol

MIN_STEP_S = 0.5
TURN_S = 1.0
STOOD_STILL_S = 5.0
"""A turn of the loop that comes so late says that the process was stopped, or that the machine
slept or was frozen, and nothing about whoever is waited for.
"""


class Clock(Protocol):
    """Readings of time: durations use `monotonic`, calendars use `wall`."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC; may jump."""

    def thread_cpu(self) -> float:
        """Seconds that the calling thread has computed."""

    def asleep(self) -> float:
        """Seconds that the machine has slept so far, which `monotonic` leaves out."""


class SystemClock:
    """The machine's own clocks. `monotonic` is the same base as asyncio's `loop.time()`."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    thread_cpu = staticmethod(time.thread_time)

    def asleep(self) -> float:
        """Suspended or hibernated; always 0 where the system does not count it."""
        boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
        return 0.0 if boot_clock is None else time.clock_gettime(boot_clock) - time.monotonic()


class ClockSteps:
    """Notices when the wall clock was set, or went on alone while the machine slept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s: float | None = None

    def take_s(self) -> float:
        """By how many seconds the wall clock went ahead since the last step (negative: was set
        back); 0.0 for less than `MIN_STEP_S`. The first call is what the others are measured by.
        """
        ahead_s = self._clock.wall() - self._clock.monotonic()
        step_s = ahead_s - (ahead_s if self._ahead_s is None else self._ahead_s)
        if self._ahead_s is None or abs(step_s) >= MIN_STEP_S:
            self._ahead_s = ahead_s
            return step_s
        return 0.0


async def wait_running(awaited: Collection[asyncio.Future[Any]], seconds: float) -> float:
    """Wait until one of these has ended, or for so many seconds in which the loop ran; returns how
    many it did. While it stood still it did not run.
    """
    loop = asyncio.get_running_loop()
    ran_s = 0.0
    while ran_s < seconds:
        turn_s = min(TURN_S, seconds - ran_s)
        began_at = loop.time()
        done, _ = await asyncio.wait(awaited, timeout=turn_s, return_when=asyncio.FIRST_COMPLETED)
        took_s = loop.time() - began_at
        if done:
            return ran_s + min(took_s, turn_s)
        if took_s < turn_s + STOOD_STILL_S:
            ran_s += max(took_s, turn_s)
    return ran_s


def rfc3339_ms(wall_s: float) -> str:
    """An instant (seconds since 1970) for programs to read: in UTC, to the millisecond."""
    return (
        datetime.fromtimestamp(wall_s, tz=UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def new_api_key() -> str:
    """`hearth_` and 256 random bits, URL-safe."""
    return f"hearth_{secrets.token_urlsafe(32)}"


def new_seed() -> int:
    """A seed for a generation: 31 random bits."""
    return secrets.randbelow(2**31)


_drawn_ids: list[str] = []


def new_id(prefix: str) -> str:
    """128 random bits in hex, behind `prefix`. Not for threads."""
    # many at once: a system call for each would take a tenth of the time of accepting a job
    if not _drawn_ids:
        drawn = secrets.token_hex(64 * 16)
        _drawn_ids.extend(drawn[at : at + 32] for at in range(0, len(drawn), 32))
    return prefix + _drawn_ids.pop()
