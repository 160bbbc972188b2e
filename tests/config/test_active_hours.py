"""Active hours, minute by minute around the clock changes, against tables of the changes themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
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
    "06:00-22:00",
    "22:00-06:00",
    "02:10-02:20",
    "02:30-06:00",
    "00:00-02:30",
    "01:45-23:00",
    "22:00-24:00",
    "23:59-00:00",
    "06:00-06:00",
    "00:00-24:00",
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
def test_every_minute_around_a_clock_change_is_classified_by_the_wall_clock(
    zone_name: str, change_text: str, before: int, after: int, text: str
) -> None:
    window, change, zone = parse_window(text), instant(change_text), zone_of(zone_name)
    expected = oracle(change, before, after, window)
    wrong = [at for at in range(change - 36 * 3600, change + 36 * 3600, 60) if is_active(window, zone, at) is not expected(at)]
    assert wrong == []


@for_each("text", WINDOWS)
@for_each(("zone_name", "change_text", "before", "after"), CHANGES)
def test_the_next_change_is_the_first_minute_with_another_answer(
    zone_name: str, change_text: str, before: int, after: int, text: str
) -> None:
    window, change, zone = parse_window(text), instant(change_text), zone_of(zone_name)
    expected = oracle(change, before, after, window)
    if is_whole_day(window):
        assert next_change(window, zone, change) is None
        return
    for start in range(change - 26 * 3600, change + 3 * 3600, 37 * 60):
        brute = next(at for at in range(start - start % 60 + 60, start + 4 * 86400, 60) if expected(at) is not expected(start))
        assert next_change(window, zone, start) == brute


def test_the_second_before_a_boundary_belongs_to_the_old_mode_and_the_boundary_to_the_new() -> None:
    window, zone = parse_window("06:00-22:00"), zone_of("Europe/Berlin")
    begin, end = instant("2026-01-10T06:00:00+01:00"), instant("2026-01-10T22:00:00+01:00")
    assert [is_active(window, zone, at) for at in (begin - 0.001, begin, end - 0.001, end)] == [False, True, True, False]


def test_the_next_change_is_strictly_later_even_at_a_boundary_and_between_seconds() -> None:
    window, zone = parse_window("06:00-22:00"), zone_of("Europe/Berlin")
    begin, end = instant("2026-01-10T06:00:00+01:00"), instant("2026-01-10T22:00:00+01:00")
    assert next_change(window, zone, begin) == end
    assert next_change(window, zone, begin - 0.25) == begin


def test_hours_that_begin_inside_the_skipped_hour_begin_at_the_jump() -> None:
    window, zone = parse_window("02:30-06:00"), zone_of("Europe/Berlin")
    assert next_change(window, zone, instant("2026-03-29T00:00:00+01:00")) == instant("2026-03-29T03:00:00+02:00")


def test_hours_that_lie_wholly_inside_the_skipped_hour_do_not_come_that_night() -> None:
    window, zone = parse_window("02:10-02:50"), zone_of("Europe/Berlin")
    assert next_change(window, zone, instant("2026-03-29T00:00:00+01:00")) == instant("2026-03-30T02:10:00+02:00")


def test_a_boundary_inside_the_repeated_hour_is_crossed_twice() -> None:
    window, zone = parse_window("02:30-06:00"), zone_of("Europe/Berlin")
    crossings, at = [], float(instant("2026-10-25T00:00:00+02:00"))
    for _ in range(4):
        following = next_change(window, zone, at)
        assert following is not None
        crossings.append(datetime.fromtimestamp(following, UTC).strftime("%H:%M"))
        at = following
    assert crossings == ["00:30", "01:00", "01:30", "05:00"]


@for_each(("text", "whole"), [("00:00-24:00", True), ("00:00-00:00", True), ("06:00-06:00", True), ("22:00-24:00", False)])
def test_a_window_whose_end_is_its_start_is_the_whole_day(text: str, whole: bool) -> None:
    assert is_whole_day(parse_window(text)) is whole


@for_each("text", WINDOWS)
def test_a_window_is_written_as_it_was_read(text: str) -> None:
    assert window_text(parse_window(text)) == text


@for_each("text", ["", "6-22", "6:00-22:00", "06:00", "24:00-06:00", "06:60-07:00", "06:00-24:01", "٠٦:00-22:00", "06:00-22:00\n"])
def test_text_that_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be a window|names a time that no clock shows"):
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


@pytest.mark.parametrize(("zone_name", "change_text", "before", "after"), CHANGES)
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


def test_the_announcement_that_comes_first_is_named_with_its_instant() -> None:
    zone = zone_of("Europe/Berlin")
    late, early = Announcement(task_type="late", cron="0 9 * * *"), Announcement(task_type="early", cron="30 6 * * *")
    now = instant("2026-01-10T05:00:00+01:00")
    assert next_occurrences([late, early], zone, now) == ((early,), instant("2026-01-10T06:30:00+01:00"))


def test_announcements_of_the_same_instant_come_together() -> None:
    first, second = Announcement(task_type="a", cron="0 9 * * *"), Announcement(task_type="b", cron="0 9 * * *")
    found = next_occurrences([first, second], zone_of("UTC"), 0.0)
    assert found is not None
    assert found[0] == (first, second)


def test_without_announcements_nothing_comes() -> None:
    assert next_occurrences([], zone_of("UTC"), 0.0) is None


@pytest.mark.parametrize("cron", ["15 2 * * *", "*/20 * * * *", "0 3 * * *", "45 1,2 * * *"])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(("zone_name", "change_text", "before", "after"), CHANGES)
def test_the_next_announcement_is_strictly_later_through_a_clock_change(
    machine_in: Callable[[str], None], zone_name: str, change_text: str, before: int, after: int, local: bool, cron: str
) -> None:
    machine_in(zone_name)
    zone, change = zone_of("local" if local else zone_name), instant(change_text)
    for at in range(change - 3 * 3600, change + 3 * 3600, 613):
        following = next_cron(cron, zone, at + 0.5)
        assert following is not None
        assert at + 0.5 < following <= at + 26 * 3600


def test_a_task_at_a_skipped_time_comes_right_after_the_jump() -> None:
    found = next_cron("15 2 * * *", zone_of("Europe/Berlin"), instant("2026-03-29T00:30:00+01:00"))
    assert found == instant("2026-03-29T03:00:00+02:00")


def test_a_task_in_the_repeated_hour_comes_once() -> None:
    zone = zone_of("Europe/Berlin")
    first = next_cron("15 2 * * *", zone, instant("2026-10-25T00:30:00+02:00"))
    assert first == instant("2026-10-25T02:15:00+02:00")
    assert next_cron("15 2 * * *", zone, first) == instant("2026-10-26T02:15:00+01:00")
