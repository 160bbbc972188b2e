"""Who asks, by the API key, and whether this caller may add this work now: lane and priority,
models, rate, and the room for its body.

Identity comes from the key alone, never from a body, a query or a header such as X-Forwarded-For.
The order is: rate limit (429) and room (503) before the body is read, then model allowed (403) and
the rate limit once more, which only now counts.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hearth.admission.http_checks import RequestHeaders
from hearth.admission.limits import RateLimiter, ReadingTime
from hearth.admission.peers import is_loopback
from hearth.config.settings import AuthSettings, GatewayConfig
from hearth.errors import (
    BadRequest,
    Forbidden,
    HearthError,
    NoRoomForBodies,
    RateLimited,
    Unauthenticated,
    WrongKey,
)
from hearth.types import LOCAL_CALLER, Counted, Lane, Priority, canonical_model, value

_CREDENTIALS = {b"authorization": "Authorization", b"x-api-key": "x-api-key", b"api-key": "api-key"}
_TASK_TYPE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
NO_ROOM_RETRY_S = 5.0
"""Bodies are held until their requests end, and nobody knows when that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A caller and its rights."""

    caller: str
    lane: Lane
    max_priority: Priority
    """The highest internal priority that it may claim."""
    models: tuple[str, ...]
    """Patterns with `*`; empty is all."""
    admin: bool
    authenticated: bool
    """A key was shown; False for `local`, who may claim the internal lane but not manage Ollama's
    models.
    """
    priority: Priority = Priority.NORMAL
    """That of internal requests that name no task type."""
    allow_cloud: bool = False

    @property
    def may_manage_models(self) -> bool:
        """Pull, push, create, copy, delete and blobs change the disk: they need an admin key even
        on loopback.
        """
        return self.admin and self.authenticated


_LOCAL = Identity(
    caller=LOCAL_CALLER,
    lane=Lane.EXTERNAL,
    max_priority=Priority.CRITICAL,
    models=(),
    admin=True,
    authenticated=False,
)
NOBODY = Identity(
    caller="",
    lane=Lane.EXTERNAL,
    max_priority=Priority.BACKGROUND,
    models=(),
    admin=False,
    authenticated=False,
)
"""Whoever is refused before anybody knows who it is."""


class Keyring:
    """The keys of one configuration, by the SHA-256 of each, so that no comparison runs over secret
    bytes.
    """

    def __init__(self, auth: AuthSettings) -> None:
        self._identities = {
            key.sha256.lower(): Identity(
                caller=key.name,
                lane=key.lane,
                max_priority=key.max_priority,
                priority=key.priority,
                models=key.models,
                admin=key.admin,
                authenticated=True,
                allow_cloud=key.allow_cloud and not key.local_only,
            )
            for key in auth.keys
        }

    def identify(self, headers: RequestHeaders, peer: str | None) -> Identity:
        """The caller behind a request from an address; without keys, `local` on this machine.

        Raises BadRequest, Unauthenticated.
        """
        if not self._identities:
            if peer is None or not is_loopback(peer):
                raise Unauthenticated(
                    "no API keys are configured, so only this machine may call; the owner can add"
                    " auth.keys"
                )
            return _LOCAL
        sent = _credentials(headers)
        found = dict[str, Identity]()
        for name, key in sent.items():
            identity = self._identities.get(digest_of(key))
            if identity is not None:
                found[name] = identity
        identities = list(found.values())
        # What stands beside a right key is not counted as a wrong one: clients send their
        # placeholder with every request.
        if not identities:
            raise WrongKey if any(sent.values()) else Unauthenticated
        if any(identity is not identities[0] for identity in identities):
            named = " and ".join(found)
            raise BadRequest(f"{named} carry API keys of different callers; send one of them")
        return identities[0]


def digest_of(key: str) -> str:
    """The SHA-256 of a key in hex, as `auth.keys[].sha256` holds it."""
    return hashlib.sha256(key.encode("latin-1", "replace")).hexdigest()


def _credentials(headers: RequestHeaders) -> dict[str, str]:
    """What came as a key, by the name of its header; empty where that cannot be one.

    A blank header is as none: clients send it for a key that was set to nothing, as Ollama's guides
    have it. Several headers are no error: some clients cannot help sending two, of which one holds
    a placeholder, and proxies add their own `Basic`. Raises BadRequest for one that comes twice.
    """
    sent = {}
    for name, shown in _CREDENTIALS.items():
        if name in headers.repeated:
            raise BadRequest(f"the header {shown} came more than once; send one API key")
        text = headers.text(name)
        if text.lower() not in ("", "bearer"):
            sent[shown] = _key_in(text) if name == b"authorization" else text
    return sent


def _key_in(authorization: str) -> str:
    """The token of `Bearer`, the password of `Basic`, empty for anything else."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        pair = base64.b64decode(token.strip(), validate=True)
    except ValueError:
        return ""
    return pair.partition(b":")[2].decode("latin-1")


@value
class Admission:
    """Where a request goes in line."""

    lane: Lane
    priority: Priority
    task_type: str | None


def admission_of(
    identity: Identity,
    headers: RequestHeaders,
    config: GatewayConfig,
    *,
    task_type: str | None = None,
) -> Admission:
    """The key decides the lane, the task type (of the body, else of `X-Task-Type`) the priority;
    hints only lower it. Raises BadRequest.
    """
    task_type = task_type or headers.text(b"x-task-type") or None
    if task_type is not None and not _TASK_TYPE.fullmatch(task_type):
        raise BadRequest("a task type is 1 to 64 letters, digits, '_', '.', ':' or '-'")
    if lane_of(identity, task_type) is Lane.EXTERNAL:
        return Admission(lane=Lane.EXTERNAL, priority=Priority.NORMAL, task_type=task_type)
    wanted = identity.priority if task_type is None else config.priority_for_task_type(task_type)
    # `X-Priority: background` and the like; other programs use the header in their own ways, so
    # unknown words are no error.
    hint = Priority.__members__.get(headers.text(b"x-priority").upper(), Priority.CRITICAL)
    return Admission(
        lane=Lane.INTERNAL, priority=max(wanted, identity.max_priority, hint), task_type=task_type
    )


def lane_of(identity: Identity, task_type: str | None) -> Lane:
    """The key decides; without keys, whoever names a task type is internal."""
    return Lane.INTERNAL if not identity.authenticated and task_type else identity.lane


def check_model(identity: Identity, model: str | None) -> None:
    """Raises Forbidden, naming the model, where this key may not use it.

    Ollama's short and long spellings of a name are one.
    """
    if identity.models and model is None:
        raise Forbidden("this key may only use certain models: name one")
    if model is not None and not may_use(identity.models, model):
        raise Forbidden(f'this key may not use the model "{model}"')


def may_use(patterns: Sequence[str], model: str) -> bool:
    """Whether a model is among those that a key may use; no patterns at all are all models."""
    if not patterns:
        return True
    name = canonical_model(model)
    return any(
        fnmatchcase(model, each) or fnmatchcase(name, each) or canonical_model(each) == name
        for each in patterns
    )


def admit(
    identity: Identity, model: str | None, admission: Admission, limiter: RateLimiter, now: float
) -> None:
    """Count a request at `now` (monotonic).

    Raises Forbidden for a model that the key may not use, RateLimited; then nothing is counted.
    """
    check_model(identity, model)
    count(identity, admission.lane, limiter, now)


def count(
    identity: Identity, lane: Lane, limiter: RateLimiter, now: float, counted: Counted = "requests"
) -> None:
    """The part of `admit` for what names no model of its own. Raises RateLimited."""
    if is_limited(identity, lane, limiter) and not limiter.check(identity.caller, now, counted):
        raise _rate_limited(identity.caller, limiter, now, counted)


def check_rate(
    identity: Identity, lane: Lane, limiter: RateLimiter, now: float, counted: Counted = "requests"
) -> None:
    """Raises RateLimited where `count` would; counts nothing."""
    if (
        is_limited(identity, lane, limiter)
        and limiter.retry_after_s(identity.caller, now, counted) > 0
    ):
        raise _rate_limited(identity.caller, limiter, now, counted)


def _rate_limited(caller: str, limiter: RateLimiter, now: float, counted: Counted) -> HearthError:
    return RateLimited(
        limiter.refusal(caller, now, counted),
        retry_after_s=limiter.retry_after_s(caller, now, counted),
    )


def check_reading(
    identity: Identity, lane: Lane, limiter: RateLimiter, reading: ReadingTime, now: float
) -> None:
    """Raises RateLimited where the bodies of this caller's requests have taken too long to read of
    late.
    """
    if not is_limited(identity, lane, limiter):
        return
    limit_s, setting = limiter.reading_limit(identity.caller)
    wait_s = reading.retry_after_s(identity.caller, limit_s, now)
    if wait_s > 0:
        text = (
            f"reading the requests of {identity.caller} may take {limit_s:g} s of CPU in any minute"
            f" ({setting}), and has taken that long"
        )
        raise RateLimited(text, retry_after_s=wait_s)


def is_limited(identity: Identity, lane: Lane, limiter: RateLimiter) -> bool:
    """Whether rate limits hold for this caller: in the external lane, and without a key only where
    the owner has set some.
    """
    return lane is Lane.EXTERNAL and (identity.authenticated or limiter.limits(identity.caller))


class BodyRoom:
    """The bytes of request bodies that are held until their requests have ended. External callers
    together may hold three quarters, each as much as it leaves free for the others: of 256 MiB, a
    single caller has 96, and the next one half of what is left.
    """

    def __init__(self) -> None:
        self._by_lane = dict.fromkeys(Lane, 0)
        self._by_caller: dict[str, int] = {}

    def take(self, lane: Lane, caller: str, more_bytes: int, limit_bytes: int) -> None:
        """Hold more bytes, or less where `more_bytes` is negative.

        Raises NoRoomForBodies; then nothing is counted.
        """
        own_bytes = self._by_caller.get(caller, 0) + more_bytes
        free_bytes = limit_bytes - sum(self._by_lane.values()) - more_bytes
        if lane is Lane.EXTERNAL:
            external_free_bytes = limit_bytes * 3 // 4 - self._by_lane[lane] - more_bytes
            free_bytes = min(free_bytes, external_free_bytes - own_bytes)
        if free_bytes < 0 < more_bytes:
            raise NoRoomForBodies(retry_after_s=NO_ROOM_RETRY_S)
        self._by_lane[lane] += more_bytes
        if lane is Lane.EXTERNAL:
            self._by_caller[caller] = own_bytes
            if not own_bytes:
                del self._by_caller[caller]
