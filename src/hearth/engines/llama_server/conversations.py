"""Saves the conversations of the llama-servers that Hearth starts and stops itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from hearth.clock import Clock
from hearth.dialects.gojson import JsonObject
from hearth.dialects.stream import count_in
from hearth.engines.continuations import Opens
from hearth.engines.llama_server.control import MOST_SLOTS
from hearth.engines.llama_server.saved import SavedConversation, SavedConversations
from hearth.engines.llama_server.signature import signature_of
from hearth.engines.llama_server.slots import Slots
from hearth.engines.llama_server.trust import Trust
from hearth.events import ConversationUnsaved
from hearth.ports import EventSink
from hearth.types import JsonDict

SAVE_PATH = "LLAMA_ARG_SLOT_SAVE_PATH"
SAVE_PATH_ARGUMENT = "--slot-save-path"
CACHE_IDLE_SLOTS = "LLAMA_ARG_CACHE_IDLE_SLOTS"
"""On by default: a server with several slots in one pool of memory then moves all others out of
their slots with each request. Arguments of the command go before these variables, in llama.cpp
itself. When it gets a cache on the disk of its own, that one's variable belongs here.
"""


class Conversations:
    """All servers of a gateway share one directory.

    Args:
        quota_bytes, keep_s: as of `SavedConversations`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        quota_bytes: float,
        keep_s: float,
        clock: Clock,
        events: EventSink,
    ) -> None:
        self._saved = SavedConversations(directory, quota_bytes, keep_s)
        self._quota_bytes = quota_bytes
        self._clock = clock
        self._events = events
        self._trusts: dict[str, Trust] = {}
        """By signature of a server."""
        self._latest: dict[str, Trust] = {}
        """Of the latest server of each model."""
        self._problem = ""
        """Why nothing can be written to the directory."""

    def open(self) -> None:
        """Read what earlier gateways have saved; once, before any server is started. Blocks for
        some milliseconds.
        """
        if self._is_ready():
            self._saved.read(self._clock.wall())

    def _is_ready(self) -> bool:
        try:
            self._saved.prepare()
            self._problem = ""
        except OSError as error:
            self._problem = f"{self._saved.directory}: {error.strerror}"
        return not self._problem

    def environment(
        self, model: str, command: Sequence[str], given: Mapping[str, str]
    ) -> dict[str, str]:
        """The variables with which a server is started so that it can save; `given`: what it gets
        anyway. None of them where its owner has it save elsewhere.
        """
        if SAVE_PATH in given or SAVE_PATH_ARGUMENT in command:
            return {}
        if not self._is_ready():
            now = self._clock.monotonic()
            self._events.emit(
                ConversationUnsaved(at=now, model=model, step="save", reason=self._problem)
            )
            return {}
        own = {SAVE_PATH: str(self._saved.directory), CACHE_IDLE_SLOTS: "0"}
        return {name: text for name, text in own.items() if name not in given}

    async def slots_of(
        self,
        model: str,
        props: JsonObject,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> Callable[[Opens], Slots] | None:
        """Makes the slots of a server that was just started; None where it does not save here. The
        arguments are those of `signature_of`.
        """
        count = count_in(props, "total_slots", MOST_SLOTS)
        if not count or environment.get(SAVE_PATH) != str(self._saved.directory):
            return None
        signature = await asyncio.to_thread(signature_of, command, environment, props)
        trust = self._trusts.setdefault(signature, Trust())
        self._latest[model] = trust
        return partial(
            Slots,
            saved=self._saved,
            trust=trust,
            model=model,
            signature=signature,
            count=count,
            clock=self._clock,
            report=self._events.emit,
        )

    def saves(self, model: str) -> bool:
        """Something of this model was saved, and saving has not failed since."""
        latest = (trust for name, trust in self._latest.items() if name.lower() == model.lower())
        trust = next(latest, None)
        return trust is not None and trust.has_saved and not trust.is_off

    def expire(self) -> None:
        """To be called now and then."""
        self._saved.expire(self._clock.wall())

    def shown(self) -> JsonDict:
        """For the status."""
        entries = self._saved.all()
        models = {entry.model for entry in entries} | self._latest.keys()
        return {
            "directory": str(self._saved.directory),
            "problem": self._problem or None,
            "size_bytes": sum(entry.size_bytes for entry in entries),
            "quota_bytes": round(self._quota_bytes),
            "models": [self._shown_model(model, entries) for model in sorted(models)],
        }

    def _shown_model(self, model: str, entries: Sequence[SavedConversation]) -> JsonDict:
        own = [entry for entry in entries if entry.model == model]
        trust = self._latest.get(model)
        return {
            "model": model,
            "conversations": len(own),
            "tokens": sum(entry.tokens for entry in own),
            "size_bytes": sum(entry.size_bytes for entry in own),
            "switched_off": trust is not None and trust.is_off,
        }
