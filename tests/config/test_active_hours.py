"""Active hours, minute by minute around the clock changes, against tables of the changes
themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from hearth.config.active_hours import (
    DAY_NAMES,
    MachineZone,
    hours_value,
    is_active,
    next_change,
    next_cron,
    next_occurrences,
    parse_hours,
    parse_window,
    window_text,
    zone_of,
)
from hearth.config.settings import Announcement


def instant(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


# zone, instant of the change, minutes east of UTC before it, and after it (IANA time zone database)
CHANGES = [
    ("Europe/Berlin", instant("2026-03-29T01:00:00+00:00"), 60, 120),
    ("Europe/Berlin", instant("2026-10-25T01:00:00+00:00"), 120, 60),
    ("America/New_York", instant("2026-03-08T07:00:00+00:00"), -300, -240),
    ("America/New_York", instant("2026-11-01T06:00:00+00:00"), -240, -300),
    ("Australia/Lord_Howe", instant("2026-04-04T15:00:00+00:00"), 660, 630),
    ("Australia/Lord_Howe", instant("2026-10-03T15:30:00+00:00"), 630, 660),
    ("Asia/Kolkata", instant("2026-03-29T01:00:00+00:00"), 330, 330),
]
WHOLE_DAYS = ["06:00-06:00", "00:00-24:00"]
WINDOWS = [
    *(
        "06:00-22:00",
        "22:00-06:00",
        "02:10-02:20",
        "02:30-06:00",
        "00:00-02:30",
        "01:45-23:00",
        "22:00-24:00",
        "23:59-00:00",
    ),
    *WHOLE_DAYS,
]
BERLIN = zone_of("Europe/Berlin")


def minutes_inside(text: str) -> set[int]:
    """Every minute of the day that the window names, by walking from start to end."""
    start, end = (int(each[:2]) * 60 + int(each[3:]) for each in text.split("-"))
    return {minute % 1440 for minute in range(start, end if end > start else end + 1440)}


@pytest.mark.parametrize("text", WINDOWS)
@pytest.mark.parametrize(("zone_name", "change", "before", "after"), CHANGES)
def test_every_minute_around_a_clock_change_follows_the_wall_clock(
    zone_name, change, before, after, text
):
    hours = (parse_window(text),)
    zone = zone_of(zone_name)
    inside = minutes_inside(text)

    def expected(at: int) -> bool:
        return (at // 60 + (before if at < change else after)) % 1440 in inside

    assert [
        at
        for at in range(change - 36 * 3600, change + 36 * 3600, 60)
        if is_active(hours, zone, at) is not expected(at)
    ] == []
    if text in WHOLE_DAYS:
        assert next_change(hours, zone, change) is None
        return
    for start in range(change - 26 * 3600, change + 3 * 3600, 37 * 60):
        brute = next(
            at
            for at in range(start - start % 60 + 60, start + 4 * 86400, 60)
            if expected(at) is not expected(start)
        )
        assert next_change(hours, zone, start) == brute


def test_a_boundary_belongs_to_the_new_mode_and_the_next_is_strictly_later():
    window = (parse_window("06:00-22:00"),)
    begin = instant("2026-01-10T06:00:00+01:00")
    end = instant("2026-01-10T22:00:00+01:00")
    assert [is_active(window, BERLIN, at) for at in (begin - 0.001, begin, end - 0.001, end)] == [
        False,
        True,
        True,
        False,
    ]
    assert [next_change(window, BERLIN, at) for at in (begin, begin - 0.25)] == [end, begin]


WEEKS = [
    ["Mon-Fri 06:00-09:00", "Mon-Fri 17:00-23:30", "Sat-Sun 10:00-23:00"],
    ["Fri,Sun 22:00-02:30", "01:00-03:00"],
    ["Wed 06:00-06:00"],
    ["Sun 02:10-02:20"],
    ["Mon 00:00-24:00", "Tue 12:00-12:01"],
    ["Mon-Thu 00:00-24:00", "Fri-Sun 00:00-24:00"],
    ["Mon,Wed 00:00-00:00", "Tue,Thu-Sun 00:00-24:00"],
    [],
]
CONSTANT = WEEKS[-3:]


def minutes_of_the_week(texts: list[str]) -> set[int]:
    """The same for windows on days, as minutes since Monday."""
    found = set[int]()
    for text in texts:
        days, _, times = text.rpartition(" ")
        start, end = (int(each[:2]) * 60 + int(each[3:]) for each in times.split("-"))
        named = [part.split("-") for part in (days or "Mon-Sun").split(",")]
        begins = {
            day
            for part in named
            for day in range(DAY_NAMES.index(part[0]), DAY_NAMES.index(part[-1]) + 1)
        }
        lasts = (end if end > start else end + 1440) - start
        found |= {
            (day * 1440 + start + minute) % 10_080 for day in begins for minute in range(lasts)
        }
    return found


@pytest.mark.parametrize("texts", WEEKS)
@pytest.mark.parametrize(("zone_name", "change", "before", "after"), CHANGES[:4])
def test_several_windows_and_days_follow_the_wall_clock_too(
    zone_name, change, before, after, texts
):
    hours = tuple(map(parse_window, texts))
    zone = zone_of(zone_name)
    inside = minutes_of_the_week(texts)

    def expected(at: int) -> bool:
        minutes = at // 60 + (before if at < change else after)
        return (minutes + 3 * 1440) % 10_080 in inside  # 1970 began on a Thursday

    spans = range(change - 4 * 86400, change + 4 * 86400, 5 * 60)
    assert [at for at in spans if is_active(hours, zone, at) is not expected(at)] == []
    if texts in CONSTANT:
        assert next_change(hours, zone, change) is None
        return
    for start in range(change - 5 * 86400, change + 86400, 29 * 3600 + 37 * 60):
        brute = next(
            at
            for at in range(start - start % 60 + 60, start + 15 * 86400, 60)
            if expected(at) is not expected(start)
        )
        assert next_change(hours, zone, start) == brute


def test_windows_are_written_as_they_were_read():
    assert [window_text(parse_window(text)) for text in WINDOWS] == WINDOWS
    assert parse_hours("06:00-22:00") == (parse_window("06:00-22:00"),)


@pytest.mark.parametrize("texts", WEEKS)
def test_a_week_is_written_as_it_was_read(texts: list[str]):
    hours = tuple(map(parse_window, texts))
    assert hours_value(hours) == (texts[0] if len(texts) == 1 else texts)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("mon-fri 06:00-22:00", "Mon-Fri 06:00-22:00"),
        ("Sat, Sun 06:00-22:00", "Sat-Sun 06:00-22:00"),
        ("Fri-Mon 06:00-22:00", "Mon,Fri-Sun 06:00-22:00"),
        ("Wed-Wed,Wed 06:00-22:00", "Wed 06:00-22:00"),
        ("Thu-Wed 06:00-22:00", "06:00-22:00"),
    ],
)
def test_days_may_be_written_in_several_ways(text, written):
    assert window_text(parse_window(text)) == written


@pytest.mark.parametrize(
    ("read", "texts", "says"),
    [
        (
            parse_window,
            ["", "6-22", "6:00-22:00", "06:00", "٠٦:00-22:00", "06:00-22:00\n"],
            "must be a window",
        ),
        (
            parse_window,
            [
                "Mo 06:00-22:00",
                "Mon- 06:00-22:00",
                "MON 06:00-22:00",
                "Mon06:00-22:00",
                "Mon,,Tue 06:00-22:00",
            ],
            "must be a window",
        ),
        (parse_window, ["24:00-06:00", "06:60-07:00", "06:00-24:01"], "is not a time of day"),
        (
            zone_of,
            [
                "Mars/Olympus",
                "",
                "../../etc/passwd",
                "/etc/localtime",
                "Europe",
                "a" * 5000,
                "Europe/Berlin\0",
            ],
            "tzdata",
        ),
    ],
)
def test_text_that_is_no_window_or_zone_is_refused_with_advice(read, texts, says):
    for text in texts:
        with pytest.raises(ValueError, match=says):
            read(text)


@pytest.fixture
def machine_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Moves this process to another zone, and back."""

    def move(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("zone_name", "change"), [each[:2] for each in CHANGES])
def test_the_machines_own_zone_agrees_with_the_named_one_through_a_clock_change(
    machine_in, zone_name, change
):
    machine_in(zone_name)
    for at in range(change - 3 * 3600, change + 3 * 3600, 300):
        here = datetime.fromtimestamp(at, MachineZone())
        there = datetime.fromtimestamp(at, ZoneInfo(zone_name))
        assert (here.replace(tzinfo=None), here.fold, here.utcoffset()) == (
            there.replace(tzinfo=None),
            there.fold,
            there.utcoffset(),
        )
        assert here.timestamp() == at
    window = (parse_window("06:00-22:00"),)
    assert next_change(window, zone_of("local"), change) == next_change(
        window, ZoneInfo(zone_name), change
    )


def test_the_first_announcements_are_named_together_with_their_instant():
    announced = [
        Announcement(task_type=cron, cron=cron)
        for cron in ("0 9 * * *", "30 6 * * *", "30 6 * * 6")
    ]
    now = instant("2026-01-10T05:00:00+01:00")
    assert next_occurrences(announced, BERLIN, now) == (
        tuple(announced[1:]),
        instant("2026-01-10T06:30:00+01:00"),
    )
    assert next_occurrences([], BERLIN, now) is None


@pytest.mark.parametrize("cron", ["15 2 * * *", "*/20 * * * *", "0 3 * * *", "45 1,2 * * *"])
@pytest.mark.parametrize(("zone_name", "change"), [each[:2] for each in CHANGES])
def test_the_next_announcement_is_strictly_later_through_a_clock_change(
    machine_in, zone_name, change, cron
):
    machine_in(zone_name)
    for zone in (zone_of("local"), zone_of(zone_name)):
        for at in range(change - 3 * 3600, change + 3 * 3600, 613):
            following = next_cron(cron, zone, at + 0.5)
            assert following is not None
            assert at + 0.5 < following <= at + 26 * 3600


@pytest.mark.parametrize(
    ("start", "comes"),
    [
        ("2026-03-29T00:30:00+01:00", "2026-03-29T03:00:00+02:00"),
        ("2026-10-25T00:30:00+02:00", "2026-10-25T02:15:00+02:00"),
        ("2026-10-25T02:15:00+02:00", "2026-10-26T02:15:00+01:00"),
    ],
)
def test_a_task_at_a_skipped_time_comes_after_the_jump_a_repeated_one_once(start, comes):
    assert next_cron("15 2 * * *", BERLIN, instant(start)) == instant(comes)
