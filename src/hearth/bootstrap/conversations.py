"""Where conversations of Hearth's own llama.cpp servers are saved."""

from __future__ import annotations

from pathlib import Path

from hearth.clock import Clock
from hearth.config.settings import Settings
from hearth.engines.llama_server.conversations import Conversations
from hearth.ports import EventSink
from hearth.types import MIB

BESIDE_THE_STORE = "conversations"
MIB_PER_GIB = 1024


def open_conversations(
    settings: Settings, store: Path | None, clock: Clock, events: EventSink
) -> Conversations | None:
    """None where no server can save any, or none is to. Blocks for some milliseconds.

    Args:
        store: its file, None where there is none.
    """
    given = settings.conversations
    directory = Path(given.directory).expanduser() if given.directory else None
    if directory is None and store is not None:
        directory = store.parent / BESIDE_THE_STORE
    has_servers = any(row.kind == "processes" for row in settings.engines.values())
    if directory is None or not given.quota_gb or not has_servers:
        return None
    conversations = Conversations(
        directory,
        quota_bytes=given.quota_gb * MIB_PER_GIB * MIB,
        keep_s=given.keep_s,
        clock=clock,
        events=events,
    )
    conversations.open()
    return conversations
