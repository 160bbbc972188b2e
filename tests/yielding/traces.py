"""What other programs want of a card of 24 GiB in an hour: seven houses, made from public numbers.

A compositor and its windows hold 300 to 900 MiB and breathe slowly. Decoding a video takes 200 to
600 MiB more while it plays. A browser with tabs holds 0.3 to 1.5 GiB. A game takes 6 to 10 GiB
within seconds, after ten or more in which it has none; an image generator 8 GiB for ten seconds,
every 30 to 60 s; a training run 14 GiB at once, and keeps them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from random import Random

from hearth.types import frozen

GIB = 1024.0
HOUR_S = 3600.0
Wish = Callable[[float], float]
"""MiB that a program wants at an instant, in seconds since the start."""


@frozen
class Trace:
    """`program`: what takes most, by the name under which the driver lists it. `launched_at`: when
    a launcher has started it, None where nobody has.
    """

    program: str
    wants_mib: Wish
    launched_at: float | None = None
    ended_at: float | None = None


def steps(points: Iterator[tuple[float, float]]) -> Wish:
    """Of (instant, MiB), each until the next."""
    known = list(points)
    instants = [at for at, _ in known]

    def at(now: float) -> float:
        return known[max(0, bisect_right(instants, now) - 1)][1]

    return at


def breathing(
    random: Random, low: float, high: float, step: float, every_s: float
) -> Iterator[tuple[float, float]]:
    """A walk between two levels."""
    level = (low + high) / 2
    for beat in range(int(HOUR_S / every_s)):
        level = min(high, max(low, level + random.uniform(-step, step)))
        yield beat * every_s, level


def spells(
    random: Random, on_s: float, off_s: tuple[float, float], mib: tuple[float, float]
) -> Iterator[tuple[float, float]]:
    """So much for so long, again and again, with pauses between."""
    now = 0.0
    yield now, 0.0
    while True:
        now += random.uniform(*off_s)
        if now + on_s > HOUR_S:
            return
        yield now, random.uniform(*mib)
        now += on_s
        yield now, 0.0


def ramp(begins_at: float, mib: float, within_s: float) -> Iterator[tuple[float, float]]:
    """Taken in equal parts, one each half second."""
    yield 0.0, 0.0
    parts = int(within_s * 2)
    for part in range(1, parts + 1):
        yield begins_at + part / 2, mib * part / parts


def both(*wishes: Wish) -> Wish:
    return lambda now: sum(wish(now) for wish in wishes)


def a_desktop(random: Random) -> Wish:
    return steps(breathing(random, 300.0, 900.0, 60.0, 10.0))


def a_quiet_desktop(random: Random) -> Wish:
    return steps(breathing(random, 400.0, 500.0, 20.0, 10.0))


def a_game(random: Random, begins_at: float, ends_at: float) -> Wish:
    def played() -> Iterator[tuple[float, float]]:
        yield from ramp(begins_at, 7.0 * GIB, 8.0)
        now = begins_at + 60.0
        while now < ends_at:  # a level after the other
            yield now, random.uniform(6.0, 10.0) * GIB
            now += random.uniform(120.0, 600.0)
        yield ends_at, 0.0

    return steps(played())


def desktop(random: Random) -> Trace:
    return Trace(program="/usr/bin/kwin_wayland", wants_mib=a_desktop(random))


def video(random: Random) -> Trace:
    """Nineteen short ones."""
    videos = steps(spells(random, 100.0, (80.0, 95.0), (560.0, 600.0)))
    return Trace(program="/usr/bin/mpv", wants_mib=both(a_quiet_desktop(random), videos))


def browser(random: Random) -> Trace:
    tabs = steps(breathing(random, 0.0, 1.2 * GIB, 300.0, 15.0))
    return Trace(program="/usr/lib/firefox/firefox", wants_mib=both(a_quiet_desktop(random), tabs))


def named_game(random: Random) -> Trace:
    game = a_game(random, 315.0, 3000.0)
    return Trace(
        program="Z:\\games\\game.exe",
        wants_mib=both(a_quiet_desktop(random), game),
        launched_at=300.0,
        ended_at=3000.0,
    )


def unnamed_game(random: Random) -> Trace:
    game = a_game(random, 315.0, 3000.0)
    return Trace(program="/home/me/game/bin", wants_mib=both(a_quiet_desktop(random), game))


def image_bursts(random: Random) -> Trace:
    bursts = steps(spells(random, 10.0, (20.0, 50.0), (8.0 * GIB, 8.0 * GIB)))
    return Trace(program="/usr/bin/python3", wants_mib=both(a_quiet_desktop(random), bursts))


def training(random: Random) -> Trace:
    run = steps(ramp(600.0, 14.0 * GIB, 20.0))
    return Trace(program="/usr/bin/python3", wants_mib=both(a_quiet_desktop(random), run))


TRACES: dict[str, Callable[[Random], Trace]] = {
    "desktop": desktop,
    "video": video,
    "browser": browser,
    "named game": named_game,
    "unnamed game": unnamed_game,
    "image bursts": image_bursts,
    "training": training,
}
