"""May this caller add this work now: its place, its models, its rate.

The order is: model allowed (403), rate limit (429). The depth of the queue (503) is the worker's own to judge, and the budget (429) that of
`cloud.purse`. Must never queue anything and never read a clock. Called by `api` between reading a body and submitting it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from hearth.admission.auth import Identity
from hearth.admission.headers import RequestHeaders
from hearth.config.gateway_config import GatewayConfig
from hearth.errors import BadRequest, Forbidden, RateLimited
from hearth.rate_limiter import RateLimiter
from hearth.types import Lane, Priority, canonical_model, value

_TASK_TYPE_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-")
_TASK_TYPE_LENGTH = 64


@value
class Standing:
    """Where a request goes in line."""

    lane: Lane
    priority: Priority
    task_type: str | None


def standing_of(identity: Identity, headers: RequestHeaders, config: GatewayConfig, *, task_type: str | None = None) -> Standing:
    """The place of a request: the key decides the lane, the task type the priority, and hints can only lower it.

    Args:
        task_type: what the body says, for routes whose body has the field; else `X-Task-Type` is read.

    Raises:
        BadRequest: the task type is not 1 to 64 letters, digits, `_`, `.`, `:` or `-`.
    """
    task_type = _checked(task_type or headers.text(b"x-task-type"))
    internal = identity.lane is Lane.INTERNAL or (not identity.authenticated and task_type is not None)
    if not internal:
        return Standing(lane=Lane.EXTERNAL, priority=Priority.NORMAL, task_type=task_type)
    wanted = Priority.NORMAL if task_type is None else config.priority_for_task_type(task_type)
    priority = max(wanted, identity.max_priority, _hint(headers))
    return Standing(lane=Lane.INTERNAL, priority=priority, task_type=task_type)


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


def admit(identity: Identity, model: str | None, standing: Standing, limiter: RateLimiter, now: float) -> None:
    """Let a request through or refuse it; only an admitted request counts against the limit.

    Args:
        now: the monotonic instant in seconds.

    Raises:
        Forbidden: the key may not use the model.
        RateLimited: an external caller is over its limit, with `retry_after_s`.
    """
    check_model(identity, model)
    count(identity, standing, limiter, now)


def count(identity: Identity, standing: Standing, limiter: RateLimiter, now: float) -> None:
    """The part of `admit` for what names no model of its own. Raises RateLimited."""
    limited = standing.lane is Lane.EXTERNAL and (identity.authenticated or limiter.limits(identity.caller))
    if limited and not limiter.check(identity.caller, now):
        raise RateLimited(limiter.refusal(identity.caller, now), retry_after_s=limiter.retry_after_s(identity.caller, now))
