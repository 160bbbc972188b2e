"""Active hours, minute by minute around the clock changes, against tables of the changes themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from hearth.config.active_hours import (
    MachineZone,
    is_active,
    is_whole_day,
    next_change,
    next_cron,
    next_occurrences,
    parse_window,
    window_text,
    zone_of,
)
from hearth.config.settings import Announcement, Window
from tests.support.cases import for_each

DAY_MINUTES = 1440


def instant(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


# zone, instant of the change, minutes east of UTC before it, and after it (IANA time zone database)
CHANGES = [
    ("Europe/Berlin", "2026-03-29T01:00:00+00:00", 60, 120),
    ("Europe/Berlin", "2026-10-25T01:00:00+00:00", 120, 60),
    ("America/New_York", "2026-03-08T07:00:00+00:00", -300, -240),
    ("America/New_York", "2026-11-01T06:00:00+00:00", -240, -300),
    ("Australia/Lord_Howe", "2026-04-04T15:00:00+00:00", 660, 630),
    ("Australia/Lord_Howe", "2026-10-03T15:30:00+00:00", 630, 660),
    ("Asia/Kolkata", "2026-03-29T01:00:00+00:00", 330, 330),
]
WINDOWS = [
    *("06:00-22:00", "22:00-06:00", "02:10-02:20", "02:30-06:00", "00:00-02:30", "01:45-23:00"),
    *("22:00-24:00", "23:59-00:00", "06:00-06:00", "00:00-24:00"),
]


def minutes_inside(window: Window) -> set[int]:
    """Every minute of the day that the window names, by walking from start to end."""
    minute, inside = window.start_minute, set()
    while True:
        inside.add(minute % DAY_MINUTES)
        minute += 1
        if minute % DAY_MINUTES == window.end_minute % DAY_MINUTES:
            return inside


def oracle(change: int, before: int, after: int, window: Window) -> Callable[[int], bool]:
    inside = minutes_inside(window)

    def answer(at: int) -> bool:
        return (at // 60 + (before if at < change else after)) % DAY_MINUTES in inside

    return answer


@for_each("text", WINDOWS)
@for_each(("zone_name", "change_text", "before", "after"), CHANGES)
def test_every_minute_around_a_clock_change_and_the_next_change_after_it_follow_the_wall_clock(
    zone_name: str, change_text: str, before: int, after: int, text: str
) -> None:
    window, change, zone = parse_window(text), instant(change_text), zone_of(zone_name)
    expected = oracle(change, before, after, window)
    wrong = [at for at in range(change - 36 * 3600, change + 36 * 3600, 60) if is_active(window, zone, at) is not expected(at)]
    assert wrong == []
    if is_whole_day(window):
        assert next_change(window, zone, change) is None
        return
    for start in range(change - 26 * 3600, change + 3 * 3600, 37 * 60):
        brute = next(at for at in range(start - start % 60 + 60, start + 4 * 86400, 60) if expected(at) is not expected(start))
        assert next_change(window, zone, start) == brute


def test_a_boundary_belongs_to_the_new_mode_and_the_next_change_is_strictly_later() -> None:
    window, zone = parse_window("06:00-22:00"), zone_of("Europe/Berlin")
    begin, end = instant("2026-01-10T06:00:00+01:00"), instant("2026-01-10T22:00:00+01:00")
    assert [is_active(window, zone, at) for at in (begin - 0.001, begin, end - 0.001, end)] == [False, True, True, False]
    assert [next_change(window, zone, at) for at in (begin, begin - 0.25)] == [end, begin]


SKIPPED, REPEATED = "2026-03-29T00:00:00+01:00", "2026-10-25T00:00:00+02:00"


@for_each(
    ("text", "start", "crossings"),
    [
        ("02:30-06:00", SKIPPED, ["2026-03-29T03:00:00+02:00"]),  # begins at the jump
        ("02:10-02:50", SKIPPED, ["2026-03-30T02:10:00+02:00"]),  # lies wholly inside it and does not come that night
        ("02:30-06:00", REPEATED, [f"2026-10-25T0{time}:00+00:00" for time in ("0:30", "1:00", "1:30", "5:00")]),  # crossed twice
    ],
)
def test_a_boundary_inside_a_skipped_or_repeated_hour(text: str, start: str, crossings: list[str]) -> None:
    at: float | None = instant(start)
    for crossing in crossings:
        assert at is not None
        at = next_change(parse_window(text), zone_of("Europe/Berlin"), at)
        assert at == instant(crossing)


@for_each("text", WINDOWS)
def test_a_window_is_written_as_it_was_read_and_one_whose_end_is_its_start_is_the_whole_day(text: str) -> None:
    assert window_text(parse_window(text)) == text
    assert is_whole_day(parse_window(text)) is (text in {"00:00-24:00", "06:00-06:00"})


@for_each("text", ["", "6-22", "6:00-22:00", "06:00", "24:00-06:00", "06:60-07:00", "06:00-24:01", "٠٦:00-22:00", "06:00-22:00\n"])
def test_text_that_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be a window|is not a time of day"):
        parse_window(text)


@for_each("name", ["Mars/Olympus", "", "../../etc/passwd", "/etc/localtime", "Europe", "a" * 5000, "Europe/Berlin\0"])
def test_a_zone_that_the_machine_does_not_know_is_refused_with_advice(name: str) -> None:
    with pytest.raises(ValueError, match="tzdata"):
        zone_of(name)


@pytest.fixture
def machine_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Moves this process to another zone, and back."""

    def move(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


@for_each(("zone_name", "change_text", "before", "after"), CHANGES)
def test_the_machines_own_zone_agrees_with_the_named_one_through_a_clock_change(
    machine_in: Callable[[str], None], zone_name: str, change_text: str, before: int, after: int
) -> None:
    machine_in(zone_name)
    named, change = ZoneInfo(zone_name), instant(change_text)
    for at in range(change - 3 * 3600, change + 3 * 3600, 300):
        here, there = datetime.fromtimestamp(at, MachineZone()), datetime.fromtimestamp(at, named)
        assert (here.replace(tzinfo=None), here.fold, here.utcoffset()) == (there.replace(tzinfo=None), there.fold, there.utcoffset())
        assert here.timestamp() == at


def test_local_means_the_machines_zone_in_force_at_each_instant(machine_in: Callable[[str], None]) -> None:
    machine_in("Europe/Berlin")
    window, zone = parse_window("06:00-22:00"), zone_of("local")
    instants = ("2026-01-10T04:59:00+00:00", "2026-01-10T05:00:00+00:00", "2026-07-10T03:59:00+00:00", "2026-07-10T04:00:00+00:00")
    assert [is_active(window, zone, instant(each)) for each in instants] == [False, True, False, True]
    assert next_change(window, zone, instant("2026-03-28T23:00:00+01:00")) == instant("2026-03-29T06:00:00+02:00")


def test_the_announcements_that_come_first_are_named_together_with_their_instant() -> None:
    first, second, late = (
        Announcement(task_type=name, cron=cron) for name, cron in (("a", "30 6 * * *"), ("b", "30 6 * * *"), ("c", "0 9 * * *"))
    )
    zone, now = zone_of("Europe/Berlin"), instant("2026-01-10T05:00:00+01:00")
    assert next_occurrences([late, first, second], zone, now) == ((first, second), instant("2026-01-10T06:30:00+01:00"))
    assert next_occurrences([], zone, now) is None


@for_each("cron", ["15 2 * * *", "*/20 * * * *", "0 3 * * *", "45 1,2 * * *"])
@for_each("local", [False, True])
@for_each(("zone_name", "change_text", "before", "after"), CHANGES)
def test_the_next_announcement_is_strictly_later_through_a_clock_change(
    machine_in: Callable[[str], None], zone_name: str, change_text: str, before: int, after: int, local: bool, cron: str
) -> None:
    machine_in(zone_name)
    zone, change = zone_of("local" if local else zone_name), instant(change_text)
    for at in range(change - 3 * 3600, change + 3 * 3600, 613):
        following = next_cron(cron, zone, at + 0.5)
        assert following is not None
        assert at + 0.5 < following <= at + 26 * 3600


def test_a_task_at_a_skipped_time_comes_right_after_the_jump_and_one_in_the_repeated_hour_once() -> None:
    zone, cron = zone_of("Europe/Berlin"), "15 2 * * *"
    assert next_cron(cron, zone, instant("2026-03-29T00:30:00+01:00")) == instant("2026-03-29T03:00:00+02:00")
    first = next_cron(cron, zone, instant("2026-10-25T00:30:00+02:00"))
    assert first == instant("2026-10-25T02:15:00+02:00")
    assert next_cron(cron, zone, first) == instant("2026-10-26T02:15:00+01:00")
