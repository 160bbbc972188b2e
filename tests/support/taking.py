"""`Exchange.take` over a generator, for fakes; and the way back, for tests that look at one chunk
after the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from hearth.engines.port import Exchange


class Taking(ABC):
    """What `chunks` yields is taken one by one."""

    _left: AsyncIterator[bytes] | None = None

    @abstractmethod
    def chunks(self) -> AsyncIterator[bytes]:
        """The body, each chunk when it comes."""

    async def take(self) -> tuple[bytes, ...]:
        if self._left is None:
            self._left = self.chunks()
        async for chunk in self._left:
            return (chunk,)
        return ()


async def chunks_of(exchange: Exchange) -> AsyncIterator[bytes]:
    """The body, chunk by chunk; may be asked again where it was left between two `take`s."""
    while chunks := await exchange.take():
        for chunk in chunks:
            yield chunk
