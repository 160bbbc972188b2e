"""`admit`: may this caller add this work now? Here a caller's 429 is decided.

The order of refusals: key (401); by `check_ahead`, which refuses whatever a body says, so that no
body is read for nothing, rate (429) and depth (503); size and shape of the body (400, 413, 415); by
`admit`, which knows what it asks for and counts, model (403), rate (429), budget (429, for Claude
only), depth (503). Both are of the one `Admission` of a request. Money and a place in the queue are
taken together with acceptance, so that nothing can come between: by `cloud.service` and
`queue.worker`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hearth.admission.auth import Identity, allowed_of, user_of
from hearth.admission.http_checks import RequestHeaders
from hearth.admission.limits import RateLimiter, ReadingTime
from hearth.clock import Clock
from hearth.config.settings import GatewayConfig
from hearth.errors import BadRequest, Forbidden, RateLimited
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


class Admission:
    """One request of a caller who is known, on its way in. `lane`, `user`: what its headers say."""

    __slots__ = ("_adds", "_headers", "_rules", "identity", "lane", "user")

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
        counted: Counted = "embeddings" if self._adds == "embedding" else "requests"
        if count and limiter.check(caller, now, counted, self.user):
            return
        wait_s = limiter.retry_after_s(caller, now, counted, self.user)
        if wait_s > 0:
            text = limiter.refusal(caller, now, counted, self.user)
            raise RateLimited(text, retry_after_s=wait_s)

    def _check_reading(self) -> None:
        """Raises RateLimited where the bodies of this caller's requests have taken too long to read
        of late.
        """
        caller = self.identity.caller
        limit_s, setting = self._rules.limiter.reading_limit(caller)
        wait_s = self._rules.reading.retry_after_s(caller, limit_s, self._now())
        if wait_s > 0:
            text = (
                f"reading the requests of {caller} may take {limit_s:g} s of CPU in any minute"
                f" ({setting}), and has taken that long"
            )
            raise RateLimited(text, retry_after_s=wait_s)

    def _is_limited(self, lane: Lane) -> bool:
        """In the external lane only, and without a key only where the owner has set some limit."""
        identity = self.identity
        return lane is Lane.EXTERNAL and (
            identity.authenticated or self._rules.limiter.limits(identity.caller)
        )

    def _now(self) -> float:
        return self._rules.clock.monotonic()


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
