"""What the scheduler has learned, kept over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from hearth.errors import StorageUnavailable
from hearth.ports import Documents
from hearth.scheduling.estimates import Estimates
from hearth.types import JsonMapping

SAVE_INTERVAL_S = 300.0


class LearnedEstimates:
    """Carries the estimates of one scheduler from process to process, in a document of a name: one
    model server says nothing of another.
    """

    def __init__(self, documents: Documents, name: str, estimates: Estimates) -> None:
        self._documents = documents
        self._name = name
        self._estimates = estimates
        self._saved = estimates.export()
        self._is_recalled = False

    async def recall(self) -> None:
        """Give the scheduler what an earlier process has written, if that can be read; it learns on
        from it.
        """
        with suppress(StorageUnavailable):
            document = await self._documents.load(self._name)
            has_learned = self._estimates.export() != self._saved
            if document is not None:
                self._estimates.restore(document)
            if not has_learned:
                self._saved = self._estimates.export()
            self._is_recalled = True

    async def turn_to(self, name: str, replaced: Callable[[JsonMapping | None], None]) -> None:
        """Another server comes, of which a document of this name may tell: `replaced` is called
        with it, and forgets the one before.
        """
        self.save()
        self._name = name
        self._is_recalled = False
        document = None
        with suppress(StorageUnavailable):
            document = await self._documents.load(name)
            self._is_recalled = True
        replaced(document)
        self._saved = self._estimates.export()

    async def run(self) -> None:
        """Write down what is new every few minutes until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(SAVE_INTERVAL_S)
                if not self._is_recalled:
                    await self.recall()
                self.save()
        finally:
            self.save()

    def save(self) -> None:
        """Keep what is new; nothing until it is known what would be written over."""
        if not self._is_recalled:
            return
        learned = self._estimates.export()
        if learned != self._saved:
            self._documents.save(self._name, learned)
            self._saved = learned
