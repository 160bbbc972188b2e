"""What the GPU draws, added up."""

from __future__ import annotations

import pytest

from hearth.events import EnergyMeasured
from hearth.execution.energy import LONGEST_S, REPORT_S, EnergyMeter
from tests.support.recorder import Recorder
from tests.support.stopped_clock import WALL, StoppedClock

HOUR = int(WALL // 3600)


def measured(*readings: tuple[float, float | None]) -> list[tuple[int, float, float]]:
    """Hour (from the first), energy and seconds of each event; seconds since the reading before,
    and watts.
    """
    clock = StoppedClock()
    events = Recorder()
    meter = EnergyMeter(clock, events)
    for after_s, power_w in readings:
        clock.advance(after_s)
        meter.read(power_w)
    meter.report()
    meter.report()  # nothing twice
    found = events.of(EnergyMeasured)
    return [(each.hour - HOUR, round(each.energy_j, 3), each.measured_s) for each in found]


@pytest.mark.parametrize(
    ("readings", "events"),
    [
        ([(0, 100.0)], []),
        ([(0, 100.0), (5, 200.0), (5, 200.0)], [(0, 1750.0, 10.0)]),
        # nothing was read for a while: of that time nothing is known
        ([(0, 100.0), (LONGEST_S + 1, 100.0), (5, 100.0)], [(0, 500.0, 5.0)]),
        ([(0, 100.0), (5, None), (5, 100.0), (5, 100.0)], [(0, 500.0, 5.0)]),
        ([(0, None), (5, None)], []),
        # every few minutes, and each hour for itself
        ([(0, 10.0), *[(50, 10.0)] * 8], [(0, REPORT_S * 10 - 500, 250.0), (0, 1500.0, 150.0)]),
        ([(0, 10.0), (3590, 10.0), (5, 10.0), (10, 10.0)], [(0, 50.0, 5.0), (1, 100.0, 10.0)]),
    ],
)
def test_energy_is_the_mean_of_two_readings_times_the_time_between(readings, events):
    assert measured(*readings) == events
