"""May this caller add this work now: its place, its models, its rate, the room for its body.

The order is: rate limit (429) and room (503) before the body is read, then model allowed (403) and the rate limit once more, which only now
counts. The depth of the queue (503) is the worker's own to judge, and the budget (429) that of `cloud.budget`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from hearth.admission.auth import Identity
from hearth.admission.http_checks import RequestHeaders
from hearth.admission.limits import RateLimiter
from hearth.config.gateway_config import GatewayConfig
from hearth.errors import BadRequest, Forbidden, NoRoomForBodies, RateLimited
from hearth.types import Lane, Priority, canonical_model, value

_TASK_TYPE_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-")
_TASK_TYPE_LENGTH = 64
NO_ROOM_RETRY_S = 5.0
"""Bodies are held until their requests end, and nobody knows when that is."""


@value
class Admission:
    """Where a request goes in line."""

    lane: Lane
    priority: Priority
    task_type: str | None


def admission_of(identity: Identity, headers: RequestHeaders, config: GatewayConfig, *, task_type: str | None = None) -> Admission:
    """The place of a request: the key decides the lane, the task type the priority, and hints can only lower it.

    Args:
        task_type: what the body says, for routes whose body has the field; else `X-Task-Type` is read.

    Raises:
        BadRequest: the task type is not 1 to 64 letters, digits, `_`, `.`, `:` or `-`.
    """
    task_type = _checked(task_type or headers.text(b"x-task-type"))
    if lane_of(identity, task_type) is Lane.EXTERNAL:
        return Admission(lane=Lane.EXTERNAL, priority=Priority.NORMAL, task_type=task_type)
    wanted = Priority.NORMAL if task_type is None else config.priority_for_task_type(task_type)
    priority = max(wanted, identity.max_priority, _hint(headers))
    return Admission(lane=Lane.INTERNAL, priority=priority, task_type=task_type)


def lane_of(identity: Identity, task_type: str | None) -> Lane:
    """The key decides; without keys, whoever names a task type belongs to the house."""
    return Lane.INTERNAL if not identity.authenticated and task_type else identity.lane


def _checked(task_type: str) -> str | None:
    if not task_type:
        return None
    if len(task_type) > _TASK_TYPE_LENGTH or not _TASK_TYPE_CHARACTERS.issuperset(task_type):
        raise BadRequest("a task type is 1 to 64 letters, digits, '_', '.', ':' or '-'")
    return task_type


def _hint(headers: RequestHeaders) -> Priority:
    """`X-Priority: background` and the like; other programs use the header in their own ways, so unknown words are no error."""
    return Priority.__members__.get(headers.text(b"x-priority").upper(), Priority.CRITICAL)


def check_model(identity: Identity, model: str | None) -> None:
    """Raises Forbidden, naming the model, where this key may not use it. Ollama's short and long spellings of a name are one."""
    if not identity.models:
        return
    if model is None:
        raise Forbidden("this key may use certain models only: name one")
    if not may_use(identity.models, model):
        raise Forbidden(f'this key may not use the model "{model}"')


def may_use(patterns: Sequence[str], model: str) -> bool:
    """Whether a model is among those that a key may use; no patterns at all are all models."""
    names = (model, canonical_model(model))
    return not patterns or any(fnmatchcase(name, pattern) or canonical_model(pattern) == names[1] for pattern in patterns for name in names)


def admit(identity: Identity, model: str | None, admission: Admission, limiter: RateLimiter, now: float) -> None:
    """Let a request through or refuse it; only an admitted request counts against the limit.

    Args:
        now: the monotonic instant in seconds.

    Raises:
        Forbidden: the key may not use the model.
        RateLimited: an external caller is over its limit, with `retry_after_s`.
    """
    check_model(identity, model)
    count(identity, admission, limiter, now)


def count(identity: Identity, admission: Admission, limiter: RateLimiter, now: float) -> None:
    """The part of `admit` for what names no model of its own. Raises RateLimited."""
    if _is_limited(identity, admission.lane, limiter) and not limiter.check(identity.caller, now):
        raise RateLimited(limiter.refusal(identity.caller, now), retry_after_s=limiter.retry_after_s(identity.caller, now))


def _is_limited(identity: Identity, lane: Lane, limiter: RateLimiter) -> bool:
    return lane is Lane.EXTERNAL and (identity.authenticated or limiter.limits(identity.caller))


def check_rate(identity: Identity, lane: Lane, limiter: RateLimiter, now: float) -> None:
    """Raises RateLimited where `count` would; counts nothing. For what has not been read yet."""
    if _is_limited(identity, lane, limiter) and (wait_s := limiter.retry_after_s(identity.caller, now)) > 0:
        raise RateLimited(limiter.refusal(identity.caller, now), retry_after_s=wait_s)


def count_refused(identity: Identity, lane: Lane, limiter: RateLimiter, now: float) -> None:
    """A request that is refused after it cost as much as others counts like them."""
    if _is_limited(identity, lane, limiter):
        limiter.check(identity.caller, now)


class BodyRoom:
    """The bytes of request bodies that are held, from the first one of each until its request has ended.

    All external callers together may hold three quarters, so that the house always has the last one. One external caller may hold as much
    as it leaves free for the others: with 256 MiB, a single caller has 96, and whoever comes next half of what is left.
    """

    def __init__(self) -> None:
        self._held_bytes = {Lane.INTERNAL: 0, Lane.EXTERNAL: 0}
        self._by_caller: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        """Of all callers."""
        return sum(self._held_bytes.values())

    def take(self, lane: Lane, caller: str, more_bytes: int, limit_bytes: int) -> None:
        """Count bytes that are to be held. Raises NoRoomForBodies; then nothing is counted."""
        free_bytes = limit_bytes - self.held_bytes - more_bytes
        if lane is Lane.EXTERNAL:
            held_bytes = self._by_caller.get(caller, 0) + more_bytes
            free_bytes = min(free_bytes, limit_bytes * 3 // 4 - self._held_bytes[lane] - more_bytes - held_bytes)
        if free_bytes < 0:
            raise NoRoomForBodies(retry_after_s=NO_ROOM_RETRY_S)
        self._add(lane, caller, more_bytes)

    def give_back(self, lane: Lane, caller: str, held_bytes: int) -> None:
        """Bytes that were taken are held no more."""
        self._add(lane, caller, -held_bytes)

    def _add(self, lane: Lane, caller: str, more_bytes: int) -> None:
        self._held_bytes[lane] += more_bytes
        if lane is Lane.EXTERNAL:
            self._by_caller[caller] = self._by_caller.get(caller, 0) + more_bytes
            if not self._by_caller[caller]:
                del self._by_caller[caller]
