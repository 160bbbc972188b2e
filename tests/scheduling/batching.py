"""A model server that serves many requests at once, step by step: each step reads the prompts that have come and makes one token for
everybody whose prompt is read. A step costs the same however many it serves, and reading adds to it by the token.

So whoever starts together gets its first byte together, a long prompt keeps everybody waiting, and every round of admission costs a step:
what roseinfer's prefill admission packing measured. Drives a `Scheduler` and keeps what callers saw.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import ceil, inf

from hearth.config.settings import ModelSettings, PackingSettings, SchedulerSettings, SchedulingSettings
from hearth.scheduling import inputs
from hearth.scheduling.actions import Dispatch, WakeAt
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Input
from hearth.types import Lane, Priority, QueueItem, RequestId, Sequence, Usage
from tests.support.invariants import DecisionChecker


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How fast it is, and how many it serves at once."""

    slots: int
    step_s: float
    prompt_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: when it comes, how long its prompt and its answer are."""

    at: float
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the callers saw, by the request's number: seconds to the first byte, and when everything was answered."""

    first_byte_s: dict[int, float] = field(default_factory=dict)
    answered_at: float = 0.0

    def percentile_s(self, share: float) -> float:
        """Time to first byte by nearest rank, over all requests."""
        waits = sorted(self.first_byte_s.values())
        return waits[ceil(share * len(waits)) - 1]


def served(asks: Mapping[int, Ask], packing: PackingSettings, server: Server) -> Seen:
    """Every request served to its end; the model is in memory from the start."""
    return _World(asks, packing, server).run()


class _World:
    def __init__(self, asks: Mapping[int, Ask], packing: PackingSettings, server: Server) -> None:
        scheduling = SchedulingSettings(packing=packing)
        settings = SchedulerSettings(scheduling=scheduling, models={"a": ModelSettings(parallel=server.slots)})
        self._brain = DecisionChecker(Scheduler(settings))
        self._asks, self._server = asks, server
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._timer = inf
        self._unread: list[int] = []
        self._left: dict[int, int] = {}
        self._stepping = False
        self._seen = Seen()

    def run(self) -> Seen:
        self._tell(inputs.Loaded(model="a"), 0.0)
        for number in self._asks:
            self._at(self._asks[number].at, partial(self._arrive, number))
        while self._due or self._timer < inf:
            at, _, happen = heapq.heappop(self._due) if self._due and self._due[0][0] <= self._timer else (self._timer, 0, self._fire)
            happen(at)
        assert len(self._seen.first_byte_s) == len(self._asks), "somebody was never served"
        return self._seen

    def _at(self, at: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), happen))

    def _fire(self, now: float) -> None:
        self._timer = inf
        self._tell(inputs.TimerFired(), now)

    def _arrive(self, number: int, now: float) -> None:
        ask = self._asks[number]
        item = QueueItem(
            sequence=Sequence(number),
            request_id=RequestId(str(number)),
            lane=Lane.EXTERNAL,
            priority=Priority.NORMAL,
            caller="test",
            model="a",
            arrived_at=now,
            streaming=True,
            prompt_tokens=ask.prompt_tokens,
            max_tokens=ask.output_tokens,
        )
        self._tell(inputs.Arrived(item=item), now)

    def _tell(self, fact: Input, now: float) -> None:
        for action in self._brain.handle(fact, now):
            if isinstance(action, WakeAt):
                self._timer = inf if action.at is None else action.at
            if isinstance(action, Dispatch):
                self._unread.append(action.sequence)
        if self._unread and not self._stepping:
            self._step(now)

    def _step(self, now: float) -> None:
        """What has come by now is read in this step; what comes during it has to wait for the next."""
        read, self._unread, self._stepping = self._unread, [], True
        tokens = sum(self._asks[number].prompt_tokens for number in read)
        self._at(now + self._server.step_s + tokens * self._server.prompt_token_s, lambda at: self._stepped(read, at))

    def _stepped(self, read: list[int], now: float) -> None:
        for number in read:
            self._seen.first_byte_s[number] = now - self._asks[number].at
            self._left[number] = self._asks[number].output_tokens
            self._tell(inputs.FirstByte(sequence=Sequence(number), attempt=1, forwarded=True), now)
        for number in list(self._left):
            self._left[number] -= 1
            if not self._left[number]:
                del self._left[number]
                self._seen.answered_at = now
                usage = Usage(prompt_tokens=self._asks[number].prompt_tokens, output_tokens=self._asks[number].output_tokens)
                self._tell(inputs.Finished(sequence=Sequence(number), attempt=1, usage=usage), now)
        self._stepping = False
        if self._left or self._unread:
            self._step(now)
