"""`admit`: may this caller add this work now? Here a caller's 429 is decided.

The order of refusals: key (401); by `check_ahead`, which refuses whatever a body says, so that no
body is read for nothing, rate (429) and depth (503); size and shape of the body (400, 413, 415); by
`admit`, which knows what it asks for and counts, model (403), rate (429), budget (429, for Claude
only), depth (503). Both are of the one `Admission` of a request. Money and a place in the queue are
taken together with acceptance, so that nothing can come between: by `cloud.service` and
`queue.worker`.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hearth.admission.auth import Identity, allowed_of, user_of
from hearth.admission.http_checks import RequestHeaders
from hearth.admission.limits import MINUTE_S, RateLimiter, ReadingTime
from hearth.admission.turns import CallerTurns
from hearth.clock import Clock
from hearth.config.settings import GatewayConfig
from hearth.errors import BadRequest, CallerGone, Forbidden, RateLimited
from hearth.queue.admission import QueueAdmission
from hearth.types import Counted, Lane, Priority, value

Adds: TypeAlias = Literal["call", "prompt", "embedding", "job", "other"]
"""What a request adds, by its address: a call of a model in any dialect, or a bare prompt; an
embedding, which may share the call of others and then needs no room; a durable job; anything else,
of which nothing is checked before its body is read.
"""
_QUEUED = frozenset[Adds]({"call", "prompt"})
_LANE_IN_BODY = frozenset[Adds]({"prompt", "job"})
"""Their bodies may name a task type, which makes a caller without a key internal."""
LONGEST_WAIT_S = 240.0
"""Nothing is sent meanwhile, and several programs give up after five minutes without a byte."""
_TASK_TYPE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@value
class Admitted:
    """A request that may come in: where it goes in line."""

    lane: Lane
    priority: Priority
    task_type: str | None


@dataclass(slots=True, kw_only=True)
class AdmissionRules:
    """What all requests are admitted by.

    `claude_serves`: whether Claude could answer a caller, whom a full queue then does not refuse.
    `canonical`: the engine's one spelling of a model's name. `models_of`: the models that a name
    stands for; none where it is no alias.
    """

    limiter: RateLimiter
    queue: QueueAdmission
    clock: Clock
    config: Callable[[], GatewayConfig]
    claude_serves: Callable[[Identity], bool]
    canonical: Callable[[str], str]
    models_of: Callable[[str], tuple[str, ...]]
    reading: ReadingTime = field(default_factory=ReadingTime)
    turns: CallerTurns = field(default_factory=CallerTurns)


class Admission:
    """One request of a caller who is known, on its way in. `lane`, `user`: what its headers say."""

    __slots__ = ("_adds", "_headers", "_rules", "_turn", "identity", "lane", "user")

    def __init__(
        self,
        rules: AdmissionRules,
        identity: Identity,
        headers: RequestHeaders,
        adds: Adds = "other",
    ) -> None:
        self._rules = rules
        self._headers = headers
        self._adds = adds
        self.identity = identity
        self.user = user_of(identity, headers)
        self.lane = _lane_of(identity, headers.text(b"x-task-type"))
        self._turn: asyncio.Future[None] | None = None

    async def wait_for_turn(self, disconnected: asyncio.Future[None]) -> None:
        """Where the owner has requests over a limit wait: return once this one is within the limits
        and no other of its caller is on its way in, or when it is clear that it cannot be within
        `LONGEST_WAIT_S`. `end_turn` has to follow. Raises CallerGone.
        """
        caller = self.identity.caller
        if not self._may_wait() or not self._rules.limiter.waits(caller):
            return
        ends_at = self._now() + LONGEST_WAIT_S
        self._turn = self._rules.turns.enter(caller)
        ends = {self._turn, disconnected}
        await asyncio.wait(ends, timeout=LONGEST_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        while (
            self._turn.done()
            and not disconnected.done()
            and 0 < (wait_s := self._free_in_s()) <= ends_at - self._now()
        ):
            await asyncio.wait({disconnected}, timeout=wait_s)
        if disconnected.done():
            raise CallerGone

    def end_turn(self) -> None:
        """The request is counted, or has ended: the next one of its caller may come in."""
        if self._turn is not None:
            self._rules.turns.leave(self.identity.caller, self._turn)
            self._turn = None

    def _may_wait(self) -> bool:
        if self._adds == "other" or not self._is_limited(self.lane):
            return False
        # without the lane nobody knows which limits hold
        return self.identity.authenticated or self._adds not in _LANE_IN_BODY

    def _free_in_s(self) -> float:
        """Seconds until no limit refuses this request any more."""
        caller, now = self.identity.caller, self._now()
        limiter = self._rules.limiter
        limit_s, _ = limiter.reading_limit(caller)
        return max(
            limiter.retry_after_s(caller, now, self._counted, self.user),
            self._rules.reading.retry_after_s(caller, limit_s, now),
        )

    @property
    def _counted(self) -> Counted:
        return "embeddings" if self._adds == "embedding" else "requests"

    def check_ahead(self) -> None:
        """What refuses the request whatever its body says; once more after a long wait for it, in
        which many others may have come.

        Raises RateLimited; ShuttingDown, Draining, QueueFull where the queue is to take it.
        """
        if self._adds == "other":
            return
        if self._adds in _LANE_IN_BODY and not self.identity.authenticated:
            return  # without the lane nobody knows which limits hold
        self._check_rate(self.lane, count=False)
        if self._is_limited(self.lane):
            self._check_reading()
        if self._adds in _QUEUED:
            self._rules.queue.check_open()
            if not self._rules.claude_serves(self.identity):
                self._rules.queue.check_depth(self.lane, self.identity.caller, self.user)

    def admit(self, *models: str | None, task_type: str | None = None) -> Admitted:
        """Let the request in and count it; an embedding is counted by `count`, once it is known
        whether it shares a call.

        Args:
            models: what it names, as the caller wrote that; None for whatever is resident.
            task_type: that of its body, which goes before the one of `X-Task-Type`.

        Raises BadRequest, Forbidden, RateLimited: nothing is counted; ShuttingDown, Draining.
        """
        admitted = self._in_line(task_type)
        for model in models:
            models = () if model is None else self._rules.models_of(model)
            check_model(self.identity, model, self._rules.canonical, models)
        self._check_rate(admitted.lane, count=self._adds != "embedding")
        if self._adds in _QUEUED or self._adds == "embedding":
            self._rules.queue.check_open()
        return admitted

    def count(self) -> None:
        """Count the embedding call that was let in. Raises RateLimited; then nothing is counted."""
        self._check_rate(self.lane, count=True)

    def count_refused(self) -> None:
        """Its long body was read in vain. That counts as a request: nothing else keeps its sender
        from sending the next one.
        """
        if self._is_limited(self.lane):
            self._rules.limiter.check(self.identity.caller, self._now(), user=self.user)

    def count_reading(self, cpu_s: float) -> None:
        """The reading of its body took so long."""
        if self._is_limited(self.lane):
            self._rules.reading.add(self.identity.caller, cpu_s, self._now())

    def _in_line(self, task_type: str | None) -> Admitted:
        """The key decides the lane, the task type the priority; hints only lower it."""
        task_type = task_type or self._headers.text(b"x-task-type") or None
        if task_type is not None and not _TASK_TYPE.fullmatch(task_type):
            raise BadRequest("a task type is 1 to 64 letters, digits, '_', '.', ':' or '-'")
        identity = self.identity
        lane = _lane_of(identity, task_type)
        if lane is Lane.EXTERNAL:
            return Admitted(lane=lane, priority=Priority.NORMAL, task_type=task_type)
        wanted = identity.priority
        if task_type is not None:
            wanted = self._rules.config().priority_for_task_type(task_type)
        # `X-Priority: background` and the like; other programs use the header in their own ways, so
        # unknown words are no error.
        hinted = self._headers.text(b"x-priority").upper()
        hint = Priority.__members__.get(hinted, Priority.CRITICAL)
        priority = max(wanted, identity.max_priority, hint)
        return Admitted(lane=lane, priority=priority, task_type=task_type)

    def _check_rate(self, lane: Lane, *, count: bool) -> None:
        """Raises RateLimited where the caller has reached a limit; else counts where asked to."""
        if not self._is_limited(lane):
            return
        limiter = self._rules.limiter
        caller = self.identity.caller
        now = self._now()
        counted = self._counted
        if count and limiter.check(caller, now, counted, self.user):
            self.end_turn()
            return
        wait_s = limiter.retry_after_s(caller, now, counted, self.user)
        if wait_s > 0:
            raise _limited(*limiter.refusal(caller, now, counted, self.user), wait_s)

    def _check_reading(self) -> None:
        """Raises RateLimited where the bodies of this caller's requests have taken too long to read
        of late.
        """
        caller = self.identity.caller
        limit_s, setting = self._rules.limiter.reading_limit(caller)
        wait_s = self._rules.reading.retry_after_s(caller, limit_s, self._now())
        if wait_s > 0:
            text = (
                f"reading the requests of {caller} may take {limit_s:g} s of CPU in any minute, and"
                " has taken that long"
            )
            raise _limited(text, setting, wait_s)

    def _is_limited(self, lane: Lane) -> bool:
        """In the external lane only, and without a key only where the owner has set some limit."""
        identity = self.identity
        return lane is Lane.EXTERNAL and (
            identity.authenticated or self._rules.limiter.limits(identity.caller)
        )

    def _now(self) -> float:
        return self._rules.clock.monotonic()


def _limited(text: str, setting: str, wait_s: float) -> RateLimited:
    wait = f"{math.ceil(wait_s)} s" if wait_s < 2 * MINUTE_S else f"{math.ceil(wait_s / 60)} min"
    return RateLimited(f"{text}; try again in {wait}", retry_after_s=wait_s, remedy=setting)


def _lane_of(identity: Identity, task_type: str | None) -> Lane:
    """The key decides; without keys, whoever names a task type is internal."""
    return Lane.INTERNAL if not identity.authenticated and task_type else identity.lane


def check_model(
    identity: Identity,
    model: str | None,
    canonical: Callable[[str], str],
    models: Sequence[str] = (),
) -> None:
    """Raises Forbidden, naming the model, where this key may use neither it nor any of the models
    that it stands for. Spellings with one `canonical` form are one name.
    """
    if identity.models and model is None:
        raise Forbidden("this key may only use certain models: name one")
    if model is not None and not allowed_of(identity.models, model, models, canonical):
        raise Forbidden(f'this key may not use the model "{model}"')
