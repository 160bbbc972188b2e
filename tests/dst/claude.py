"""A Claude in loop time: it streams, it bills, and it fails as scripted. What it charges is on record call by call."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from hearth.config.settings import CloudPriceSettings
from hearth.errors import BackendBusy, BackendGone, BackendUnreachable
from hearth.types import BilledTokens, CloudCall, Price, Rates

HAIKU = "claude-fake-1"
PRICES = {HAIKU: CloudPriceSettings(input_usd=1.0, output_usd=5.0)}
RATES = Rates.in_usd(input_usd=1.0, output_usd=5.0, cache_read_usd=0.1, cache_write_usd=1.25, cache_write_hour_usd=2.0)
PROMPT_TOKENS = 40
CONNECT_S = 0.25


class CloudFault(StrEnum):
    """What goes wrong with one call."""

    REFUSE = "refuse"
    BUSY = "busy"
    CUT = "cut"  # the connection ends after two words
    STALL = "stall"  # nothing more comes after two words


@dataclass(slots=True, eq=False)
class Bill:
    """What one call is charged; `whole` once its answer was complete."""

    owner: int
    output: int = 0
    whole: bool = False

    @property
    def nano_usd(self) -> int:
        return RATES.cost_nano_usd(BilledTokens(input=PROMPT_TOKENS, output=self.output))


async def no_price(model: str) -> Price | None:
    """The settings have the prices."""
    return None


class FakeClaude:
    """The `CloudBackend` port.

    Args:
        told: who asks and what to say, by the body of the call.
    """

    def __init__(self, told: Callable[[bytes], tuple[int, tuple[str, ...]]]) -> None:
        self.bills: list[Bill] = []
        self.open_calls = 0
        self.faults: deque[CloudFault | None] = deque()
        self._told = told

    async def open(self, call: CloudCall, sending: Callable[[], None]) -> CloudAnswer:
        owner, words = self._told(call.body)
        assert json.loads(call.body)["stream"] is True
        fault = self.faults.popleft() if self.faults else None
        await asyncio.sleep(CONNECT_S)
        if fault is CloudFault.REFUSE:
            raise BackendUnreachable
        sending()
        if fault is CloudFault.BUSY:
            raise BackendBusy("overloaded")
        bill = Bill(owner)
        self.bills.append(bill)
        self.open_calls += 1
        return CloudAnswer(self, bill, words, fault)

    async def aclose(self) -> None:
        return


class CloudAnswer:
    """The `CloudExchange` of one call."""

    def __init__(self, claude: FakeClaude, bill: Bill, words: tuple[str, ...], fault: CloudFault | None) -> None:
        self._claude = claude
        self._bill = bill
        self._words = words
        self._fault = fault
        self._closed = False

    async def events(self) -> AsyncIterator[Mapping[str, object]]:
        usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": 0}
        message = {"id": "msg_fake", "type": "message", "role": "assistant", "model": HAIKU, "content": [], "usage": usage}
        yield {"type": "message_start", "message": message}
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for count, word in enumerate(self._words):
            if count == 2 and self._fault is CloudFault.CUT:
                raise BackendGone
            await asyncio.sleep(1e6 if count == 2 and self._fault is CloudFault.STALL else 0.25)
            self._bill.output = count + 1
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
        yield {"type": "content_block_stop", "index": 0}
        yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": self._bill.output}}
        self._bill.whole = True
        yield {"type": "message_stop"}

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._claude.open_calls -= 1
