"""One row per swap."""

from __future__ import annotations

from hearth.types import LoggedSwap
from tests.storage.conftest import written
from tests.storage.house import WALL
from tests.storage.samples import ended, swap_failed, swapped


async def test_swaps_are_listed_latest_first_with_what_became_of_them(store):
    store.swaps.emit(swapped(at=990.0))
    store.swaps.emit(ended(1))
    store.swaps.emit(swap_failed())
    await written(store)
    failed = LoggedSwap(
        ended_wall_s=WALL, from_models=(), to_model="c:3", swap_s=120.0, vram_mib=None, offloaded=None, failed=True, reason="swap_timeout"
    )
    done = LoggedSwap(
        ended_wall_s=WALL - 10.0,
        from_models=("a:1", "b:2"),
        to_model="c:3",
        swap_s=4.0,
        vram_mib=9000.0,
        offloaded=True,
        failed=False,
        reason="",
    )
    assert await store.invocations.swaps(since_wall_s=0.0, until_wall_s=None, limit=10) == (failed, done)
    assert await store.invocations.swaps(since_wall_s=0.0, until_wall_s=None, limit=1) == (failed,)
    assert await store.invocations.swaps(since_wall_s=0.0, until_wall_s=None, limit=-1) == ()
    assert await store.invocations.swaps(since_wall_s=WALL, until_wall_s=None, limit=10) == (failed,)
    assert await store.invocations.swaps(since_wall_s=0.0, until_wall_s=WALL - 10.0, limit=10) == (done,)


async def test_equal_swaps_are_two_rows(store):
    store.swaps.emit(swapped())
    store.swaps.emit(swapped())
    await written(store)
    assert len(await store.invocations.swaps(since_wall_s=0.0, until_wall_s=None, limit=10)) == 2
