"""A call costs nothing as long as nothing of it has been sent: whoever leaves while there is no connection yet pays nothing."""

from __future__ import annotations

import pytest

from hearth.types import Lane
from tests.dst.asks import Ask
from tests.dst.claude import CONNECT_S, HAIKU
from tests.dst.drawing import Drawn, houses
from tests.dst.telling import lived
from tests.dst.world import World


@pytest.mark.parametrize(("patience_s", "state"), [(CONNECT_S / 2, "released"), (CONNECT_S * 1.5, "settled")])
def test_whoever_leaves_pays_once_the_call_was_sent_and_not_before(patience_s, state):
    world = World(1, Drawn(capacity_mib=None, settings=houses()[0].settings[:1]), more=frozenset())

    async def story() -> None:
        await world.begin()
        ask: Ask = world.new_ask(caller="ada", model=HAIKU, path="/v1/chat/completions", patience_s=patience_s)
        world.go(world.over_http(ask, Lane.EXTERNAL, allow_cloud=True))
        await world.come_to_rest()

    lived(world, story, 1)
    assert world.disk.rows("SELECT state FROM ledger") == [(state,)]
