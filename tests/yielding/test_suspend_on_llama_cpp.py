"""A sleep beside a real llama.cpp server that Hearth starts and that keeps its conversations: it
ends before the machine sleeps, and goes on with what it had read.
"""

from __future__ import annotations

from pathlib import Path

from hearth.backends.logind import ADDRESS_VARIABLE
from hearth.events import ConversationRestored, ConversationsSaved, SuspendPrepared
from tests.engines.llamacpp.gguf import LETTERS, write_model
from tests.engines.processes.house import left
from tests.engines.processes.test_conversations import ONE, TURNS, long, open_door, run_with
from tests.support.fake_logind import FakeLogind, needs_bus, private_bus
from tests.support.patience import in_time

pytestmark = needs_bus


async def test_a_conversation_outlives_a_sleep(tmp_path: Path, monkeypatch):
    file = tmp_path / "letters.gguf"
    write_model(file, tuple(LETTERS))
    async with in_time(), private_bus(tmp_path) as address:
        monkeypatch.setenv(ADDRESS_VARIABLE, address)
        logind = FakeLogind(address, delay_s=60.0)
        await logind.start()
        async with open_door(tmp_path, run_with(file)) as door:
            await logind.until_held()
            await door.ask(ONE, long(1))
            logind.announce(sleep=True)
            await logind.until_let_go()
            assert left() == set()
            assert len(door.events.of(ConversationsSaved)) == 1
            assert [event.freed for event in door.events.of(SuspendPrepared)] == [True]
            logind.announce(sleep=False)
            _, cached_tokens = await door.ask(ONE, [*long(1), *TURNS])
            assert cached_tokens > 700
            assert len(door.events.of(ConversationRestored)) == 1
        await logind.stop()
