"""What the scheduler has learned outlives the process: read once before the start, written every few minutes and at the end.

Nothing here can keep the house from starting or hold up a request: what cannot be read was never learned, and writing is the store's
own business. `bootstrap` makes one where there is a store.
"""

from __future__ import annotations

import asyncio
from typing import Self

from hearth.errors import StorageUnavailable
from hearth.ports import Documents
from hearth.scheduling.estimates import Estimates

SAVE_INTERVAL_S = 300.0


class Recollection:
    """Carries the estimates of one scheduler from process to process. They stay the scheduler's: this fills them once, then reads them.

    Args:
        name: of the document; what was learned from one model server says nothing of another.
        document: what an earlier process has written, None where there is nothing.
    """

    def __init__(self, documents: Documents, name: str, document: dict[str, object] | None) -> None:
        self._documents = documents
        self._name = name
        self._saved = document
        self._estimates: Estimates | None = None

    @classmethod
    async def read(cls, documents: Documents, name: str) -> Self:
        """With what an earlier process has written, if that can be read."""
        try:
            document = await documents.load(name)
        except StorageUnavailable:
            document = None
        return cls(documents, name, document)

    def fill(self, estimates: Estimates) -> None:
        """Give a new scheduler what was learned before, and learn on from it."""
        if self._saved is not None:
            estimates.restore(self._saved)
        self._estimates, self._saved = estimates, estimates.export()

    async def run(self) -> None:
        """Write down what is new every few minutes until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(SAVE_INTERVAL_S)
                self.save()
        finally:
            self.save()

    def save(self) -> None:
        """Write down what has been learned, if there is anything new."""
        learned = None if self._estimates is None else self._estimates.export()
        if learned is not None and learned != self._saved:
            self._documents.save(self._name, learned)
            self._saved = learned
