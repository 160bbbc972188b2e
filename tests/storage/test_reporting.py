"""What the house hears of the disk."""

from __future__ import annotations

import pytest

from hearth.errors import StorageFault
from hearth.events import InternalFault, StorageFailed, StorageRecovered
from hearth.storage.store import StorageReporter
from hearth.storage.writer import StorageHealth
from tests.storage.house import StoppedClock
from tests.worker.house import Recorder

FULL = StorageHealth(fault=StorageFault.FULL, detail="no space")
OVERLOADED = StorageHealth(fault=StorageFault.OVERLOADED, detail="too much", dropped=1)


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


@pytest.fixture
def reporter(sink: Recorder) -> StorageReporter:
    return StorageReporter(clock=StoppedClock(monotonic_s=7.0), events=sink)


def test_a_trouble_is_told_once_and_its_end_with_what_it_cost(reporter, sink):
    for health in (FULL, FULL, StorageHealth(dropped=3), StorageHealth(dropped=3)):
        reporter.hear(health)
    assert sink.all == [StorageFailed(at=7.0, reason="disk_full", detail="no space"), StorageRecovered(at=7.0, dropped=3)]


def test_each_recovery_counts_only_what_was_lost_since_the_one_before(reporter, sink):
    for health in (FULL, StorageHealth(dropped=3), FULL, StorageHealth(dropped=5)):
        reporter.hear(health)
    assert [event.dropped for event in sink.of(StorageRecovered)] == [3, 2]


def test_another_kind_of_trouble_is_told_too(reporter, sink):
    reporter.hear(FULL)
    reporter.hear(StorageHealth(fault=StorageFault.IO, detail="bad block"))
    assert [event.reason for event in sink.of(StorageFailed)] == ["disk_full", "io_error"]


def test_losing_rows_is_a_trouble_of_its_own_only_while_there_is_no_other(reporter, sink):
    reporter.hear(FULL)
    reporter.hear(OVERLOADED)
    assert len(sink.all) == 1
    reporter.hear(StorageHealth(dropped=1))
    reporter.hear(OVERLOADED)
    assert [event.reason for event in sink.of(StorageFailed)] == ["disk_full", "overloaded"]


def test_a_reserve_that_is_spent_is_no_news(reporter, sink):
    reporter.hear(StorageHealth(reserve_held=False))
    assert sink.all == []


def test_a_row_that_fails_by_its_own_doing_is_reported_as_a_defect_once(reporter, sink):
    reporter.hear(StorageHealth(failed=1))
    reporter.hear(StorageHealth(failed=2))
    assert [type(event) for event in sink.all] == [InternalFault]


def test_an_end_before_everything_was_written_is_told(reporter, sink):
    reporter.lost()
    assert [event.reason for event in sink.of(StorageFailed)] == ["closed"]
