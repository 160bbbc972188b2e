"""Instants as Ollama writes them, worked out by hand: a calendar library would bring a clock along.

Called by the writers of native answers. The calendar is the proleptic Gregorian one; the rule is Howard Hinnant's `civil_from_days`.
"""

from __future__ import annotations

_DAY_S = 86_400
_NS = 1_000_000_000
_ERA_DAYS = 146_097
"""Days in 400 years, after which the calendar repeats."""

_EPOCH_DAYS = 719_468
"""From the first of March of the year 0 to the first of January 1970."""


def rfc3339(wall_s: float) -> str:
    """Seconds since 1970 as `2026-11-21T02:09:14.423976812Z`; up to nine decimals, without zeros at their end."""
    days, second = divmod(int(wall_s), _DAY_S)
    fraction = int(wall_s % 1 * _NS)
    year, month, day = _date(days)
    decimals = f".{fraction:09d}".rstrip("0").rstrip(".")
    return f"{year:04d}-{month:02d}-{day:02d}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}{decimals}Z"


def _date(days: int) -> tuple[int, int, int]:
    """The date so many days after 1 January 1970; years begin in March inside, so that leap days come last."""
    era, day_of_era = divmod(days + _EPOCH_DAYS, _ERA_DAYS)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    march_month = (5 * day_of_year + 2) // 153
    month = march_month + 3 if march_month < 10 else march_month - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * march_month + 2) // 5 + 1


def nanoseconds(duration_s: float) -> int:
    """At least one: Ollama leaves zeros out, and a phase that has ended was never zero long."""
    return max(1, int(duration_s * _NS))
