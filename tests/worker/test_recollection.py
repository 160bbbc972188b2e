"""What was learned is written down when there is something new, now and then and at the end, and read by the next process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hearth.errors import StorageFault, StorageUnavailable
from hearth.queue.forecaster import SAVE_INTERVAL_S, Recollection
from hearth.scheduling.estimates import Estimates
from tests.support.virtual_time import in_virtual_time, sleep_until


class Shelf:
    """Documents in memory."""

    def __init__(self) -> None:
        self.saved: dict[str, Mapping[str, object]] = {}
        self.writes = 0

    def save(self, name: str, document: Mapping[str, object]) -> None:
        self.saved[name] = dict(document)
        self.writes += 1

    async def load(self, name: str) -> dict[str, object] | None:
        found = self.saved.get(name)
        return None if found is None else dict(found)


class BurntShelf(Shelf):
    async def load(self, name: str) -> dict[str, object] | None:
        raise StorageUnavailable(StorageFault.CORRUPT)


async def recollection_of(estimates: Estimates, shelf: Shelf, name: str = "scheduler") -> Recollection:
    recollection = Recollection(shelf, name, estimates)
    await recollection.recall()
    return recollection


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_virtual_time
async def test_only_news_are_written_and_the_last_of_them_at_the_end():
    estimates, shelf = Estimates(swap_prior_s=10.0), Shelf()
    running = asyncio.create_task((await recollection_of(estimates, shelf)).run())
    await sleep_until(SAVE_INTERVAL_S + 1)
    estimates.learn_swap("a", "b", 4.0)
    assert shelf.writes == 0
    await sleep_until(5 * SAVE_INTERVAL_S + 1)
    assert shelf.writes == 1
    estimates.learn_swap("a", "b", 5.0)
    await ended(running)
    assert shelf.writes == 2
    assert shelf.saved["scheduler"] == estimates.export()


@in_virtual_time
async def test_the_next_process_knows_it_unless_it_has_another_model_server_or_cannot_read_it_and_has_nothing_new_to_write():
    old, shelf = Estimates(swap_prior_s=10.0), Shelf()
    recollection = await recollection_of(old, shelf)
    old.learn_swap("a", "b", 4.0)
    recollection.save()
    known, emulated, forgotten = (Estimates(swap_prior_s=10.0) for _ in range(3))
    (await recollection_of(known, shelf)).save()
    await recollection_of(emulated, shelf, "scheduler.emulator")
    await recollection_of(forgotten, BurntShelf())
    assert [each.swap_s("a", "b") for each in (known, emulated, forgotten)] == [4.0, 10.0, 10.0]
    assert shelf.writes == 1
