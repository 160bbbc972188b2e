"""What is reported of the disk."""

from __future__ import annotations

from hearth.errors import StorageFault
from hearth.events import InternalFault, StorageFailed, StorageRecovered
from hearth.storage.store import StorageReporter
from hearth.storage.writer import StorageHealth
from tests.storage.house import StoppedClock
from tests.support.cases import for_each
from tests.support.recorder import Recorder

FULL = StorageHealth(fault=StorageFault.FULL, detail="no space")
BAD_BLOCK = StorageHealth(fault=StorageFault.IO, detail="bad block")
OVERLOADED = StorageHealth(fault=StorageFault.OVERLOADED, detail="too much", dropped=1)
IS_FULL = StorageFailed(at=7.0, reason="disk_full", detail="no space")


def well(dropped: int) -> StorageHealth:
    return StorageHealth(dropped=dropped)


@for_each(
    ("healths", "expected"),
    [
        ([FULL, FULL, well(3), well(3)], [IS_FULL, StorageRecovered(at=7.0, dropped=3)]),
        ([FULL, well(3), FULL, well(5)], [IS_FULL, StorageRecovered(at=7.0, dropped=3), IS_FULL, StorageRecovered(at=7.0, dropped=2)]),
        ([FULL, BAD_BLOCK], [IS_FULL, StorageFailed(at=7.0, reason="io_error", detail="bad block")]),
        (
            [FULL, OVERLOADED, well(1), OVERLOADED],
            [IS_FULL, StorageRecovered(at=7.0, dropped=1), StorageFailed(at=7.0, reason="overloaded", detail="too much")],
        ),
        ([StorageHealth(reserve_held=False)], []),
        (
            [StorageHealth(failed=1), StorageHealth(failed=2)],
            [InternalFault(at=7.0, where="storage", detail="a row could not be written")],
        ),
    ],
)
def test_each_trouble_is_reported_once_and_its_end_with_what_it_cost(healths, expected):
    sink = Recorder()
    reporter = StorageReporter(clock=StoppedClock(monotonic_s=7.0), events=sink)
    for health in healths:
        reporter.hear(health)
    assert sink.all == expected


def test_an_end_before_everything_was_written_is_reported():
    sink = Recorder()
    StorageReporter(clock=StoppedClock(), events=sink).lost()
    assert [event.reason for event in sink.of(StorageFailed)] == ["closed"]
