"""Calendar arithmetic: when active hours begin and end, and when an announced task comes. Instants
are seconds since 1970-01-01 UTC.

An instant is classified by what a clock on the wall would show: start inclusive, end exclusive, in
whole minutes. Where the clock jumps over a boundary, the mode changes at the jump; where it shows
an hour twice, a boundary inside that hour is crossed twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim

from hearth.config.choices import Window
from hearth.types import HOUR_S

if TYPE_CHECKING:
    from hearth.config.settings import Announcement

LOCAL = "local"
DAY_MINUTES = 24 * 60
_DAY_S = DAY_MINUTES * 60
DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
ALL_DAYS = tuple(range(7))
_DAY = f"(?:{'|'.join(f'[{name[0]}{name[0].lower()}]{name[1:]}' for name in DAY_NAMES)})"
DAYS_PATTERN = f"{_DAY}(?:-{_DAY})?(?:, ?{_DAY}(?:-{_DAY})?)*"
_TIMES = "([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})"
_WINDOW = re.compile(f"(?:({DAYS_PATTERN}) )?{_TIMES}", re.ASCII)


class MachineZone(tzinfo):
    """The machine's own zone with its changes, as `datetime.astimezone()` resolves it for each
    instant.
    """

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None if dt is None else dt.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, dt: datetime | None) -> timedelta | None:
        del dt
        return None

    def tzname(self, dt: datetime | None) -> str:
        del dt
        return LOCAL

    def fromutc(self, dt: datetime) -> datetime:
        """The wall clock of an instant given as UTC fields; `fold` says which pass of a repeated
        hour it is.
        """
        local = dt.replace(tzinfo=UTC).astimezone()
        naive = local.replace(tzinfo=None)
        second_pass = naive.astimezone().utcoffset() != local.utcoffset()
        return naive.replace(tzinfo=self, fold=int(second_pass))


def zone_of(name: str) -> tzinfo:
    """The zone that `scheduling.time_zone` names.

    Raises ValueError with what to do where nothing on this machine knows it.
    """
    if name == LOCAL:
        return MachineZone()
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            "unknown time zone: check the spelling (`Europe/Berlin`, or `local`), or install the"
            " zone data (package tzdata)"
        ) from None


def parse_window(value: object) -> Window:
    """`HH:MM-HH:MM`, after days such as `Mon-Fri,Sun` where it is not for all, as a window.

    A window is taken as it is; `24:00` is allowed as its end. Raises ValueError.
    """
    if isinstance(value, Window):
        return value
    match = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            'must be a window such as "06:00-22:00" or "Mon-Fri 07:00-09:00", in quotes'
        )
    start_hour, start_minute, end_hour, end_minute = map(int, match.groups()[1:])
    start = start_hour * 60 + start_minute
    end = end_hour * 60 + end_minute
    if start_minute > 59 or end_minute > 59 or start >= DAY_MINUTES or end > DAY_MINUTES:
        raise ValueError("is not a time of day; use 00:00 to 23:59, or 24:00 as the end")
    days = ALL_DAYS if match[1] is None else _days_of(match[1])
    return Window(start_minute=start, end_minute=end, days=days)


def _days_of(text: str) -> tuple[int, ...]:
    """The days that `Mon-Wed,Fri` names; a range may go over the end of the week."""
    days = set[int]()
    for part in text.split(","):
        first, _, last = part.strip().title().partition("-")
        begin = DAY_NAMES.index(first)
        end = DAY_NAMES.index(last or first)
        days.update((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return tuple(sorted(days))


def window_text(window: Window) -> str:
    """The inverse of `parse_window`."""
    minutes = (window.start_minute, window.end_minute)
    times = "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in minutes)
    return times if window.days == ALL_DAYS else f"{_days_text(window.days)} {times}"


def _days_text(days: tuple[int, ...]) -> str:
    runs = list[list[int]]()
    for day in days:
        if runs and day == runs[-1][-1] + 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    ends = [dict.fromkeys((run[0], run[-1])) for run in runs]
    return ",".join("-".join(DAY_NAMES[day] for day in both) for both in ends)


Hours: TypeAlias = "tuple[Window, ...]"
"""Several windows, which may overlap; none is never."""


def parse_hours(value: object) -> object:
    """The windows of one text or of a list, whose items are still to be parsed.

    Raises ValueError.
    """
    return value if isinstance(value, list | tuple) else (parse_window(value),)


def hours_value(hours: Hours) -> str | list[str]:
    """The inverse: one text for one window."""
    texts = [window_text(window) for window in hours]
    return texts[0] if len(texts) == 1 else texts


def is_active(hours: Hours, zone: tzinfo, wall_s: float) -> bool:
    """Whether a clock on a wall in `zone` shows a time inside a window at the instant `wall_s`."""
    now = _wall_clock(zone, wall_s)
    return _covers(hours, now.weekday(), now.hour * 60 + now.minute)


def _covers(hours: Hours, day: int, minute: int) -> bool:
    return any(_is_inside(window, day, minute) for window in hours)


def _is_inside(window: Window, day: int, minute: int) -> bool:
    begins_today = day in window.days
    if window.start_minute < window.end_minute:
        return begins_today and window.start_minute <= minute < window.end_minute
    if minute >= window.start_minute:
        return begins_today
    return minute < window.end_minute and (day - 1) % 7 in window.days


def next_change(hours: Hours, zone: tzinfo, wall_s: float) -> float | None:
    """The first instant after `wall_s` at which `is_active` gives another answer; None for none."""
    if not _changes(hours):
        return None
    at = math.floor(wall_s)
    active = is_active(hours, zone, at)
    boundaries = {minute for each in hours for minute in (each.start_minute, each.end_minute)}
    while is_active(hours, zone, at) is active:
        at = _next_candidate(boundaries, zone, at)
    return float(at)


@lru_cache(maxsize=8)
def _changes(hours: Hours) -> bool:
    """Whether a week has a minute inside and one outside."""
    found = {_covers(hours, day, minute) for day in range(7) for minute in range(DAY_MINUTES)}
    return len(found) == 2


def next_occurrences(
    announcements: Iterable[Announcement], zone: tzinfo, wall_s: float
) -> tuple[tuple[Announcement, ...], float] | None:
    """All announcements of the first instant after `wall_s` that has any, with that instant; None
    when nothing is announced.
    """
    coming = [
        (found, each)
        for each in announcements
        if (found := next_cron(each.cron, zone, wall_s)) is not None
    ]
    if not coming:
        return None
    first_at = min(at for at, _ in coming)
    return tuple(each for at, each in coming if at == first_at), first_at


def day_of(zone: tzinfo, wall_s: float) -> tuple[float, float]:
    """The calendar day in `zone` that an instant belongs to, as [start, end): from the first
    midnight, or the jump over it, on the wall.
    """
    date = _wall_clock(zone, wall_s).date()
    start_s = _midnight(zone, date)
    end_s = _midnight(zone, date + timedelta(days=1))
    if wall_s >= end_s:  # the clock went back over midnight: the next day has begun already
        return end_s, _midnight(zone, date + timedelta(days=2))
    return start_s, end_s


def _midnight(zone: tzinfo, date: date) -> float:
    return datetime(date.year, date.month, date.day, tzinfo=zone).timestamp()


def next_cron(cron: str, zone: tzinfo, wall_s: float) -> float | None:
    """The first instant after `wall_s` that a five-field expression names by Debian cron's rules,
    None for none within 50 years: a time that the clock jumps over comes right after the jump, one
    in a repeated hour in its first pass. Raises CronSimError.
    """
    for occurrence in CronSim(cron, _wall_clock(zone, wall_s)):
        # In the second pass of a repeated hour cronsim still offers times of the first.
        if (at := occurrence.timestamp()) > wall_s:
            return at
    return None


def last_cron(cron: str, zone: tzinfo, wall_s: float) -> float | None:
    """The last instant, up to `wall_s`, that a five-field expression names, as `next_cron` has it;
    None for none within 50 years. Raises CronSimError.
    """
    # what it is asked for lies before the instant that it is given
    start = _wall_clock(zone, wall_s + 60.0)
    if start.fold:  # what came in the first pass of a repeated hour may be later on the wall
        start = _wall_clock(zone, wall_s + 60.0 + HOUR_S)
    for occurrence in CronSim(cron, start, reverse=True):
        if (at := occurrence.timestamp()) <= wall_s:
            return at
    return None


def _wall_clock(zone: tzinfo, wall_s: float) -> datetime:
    return datetime.fromtimestamp(math.floor(wall_s), tz=zone)


def _next_candidate(boundaries: Iterable[int], zone: tzinfo, at: int) -> int:
    """The next boundary on the wall clock, or the clock change before it, whichever comes first."""
    now = _wall_clock(zone, at)
    second_of_day = (now.hour * 60 + now.minute) * 60 + now.second
    waits = [(minute * 60 - second_of_day) % _DAY_S or _DAY_S for minute in boundaries]
    return _offset_change(zone, at, at + min(waits))


def _offset_change(zone: tzinfo, before: int, after: int) -> int:
    """The first second in (before, after] whose offset is not that of `before`; `after` for none.

    A zone in use changes its offset at most once in a day.
    """
    offset = _wall_clock(zone, before).utcoffset()
    if _wall_clock(zone, after).utcoffset() == offset:
        return after
    while after - before > 1:
        middle = (before + after) // 2
        if _wall_clock(zone, middle).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after
