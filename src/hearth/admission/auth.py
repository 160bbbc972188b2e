"""Who asks, and with which rights, by the API key.

Identity comes from the key alone, never from a body, a query or a header such as X-Forwarded-For.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from hearth.admission.http_checks import RequestHeaders
from hearth.config.addresses import is_loopback
from hearth.config.choices import KeepaliveShow
from hearth.config.settings import AuthSettings
from hearth.errors import (
    BadRequest,
    Unauthenticated,
    WrongKey,
)
from hearth.types import LOCAL_CALLER, Lane, Priority, frozen

_USER = re.compile(r"[A-Za-z0-9_.:@+-]{1,64}")
_WITHOUT_KEY = (LOCAL_CALLER, Lane.INTERNAL.value)
"""The callers whose requests come without one: of this machine, and of the program around Hearth.
"""
_CREDENTIALS = {b"authorization": "Authorization", b"x-api-key": "x-api-key", b"api-key": "api-key"}


@frozen
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
    """A key was shown; False for `local`, who may claim the internal lane."""
    priority: Priority = Priority.NORMAL
    """That of internal requests that name no task type."""
    may_lease: bool = False
    """It may have the GPU freed for another program; every admin may."""
    may_set_mode: bool = False
    """It may switch the mode; every admin may."""
    allow_cloud: bool = False
    local_only: bool = False
    """Its requests may not leave this machine, whatever else it may do."""
    users_from: bytes = b""
    """The header in which it names its users, in lower case; empty where it has none."""
    keepalive_show: KeepaliveShow | None = None
    """None: as for everybody."""


_LOCAL = Identity(
    caller=LOCAL_CALLER,
    lane=Lane.EXTERNAL,
    max_priority=Priority.CRITICAL,
    models=(),
    admin=True,
    authenticated=False,
    may_lease=True,
    may_set_mode=True,
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
                may_lease=key.may_lease or key.admin,
                may_set_mode=key.may_set_mode or key.admin,
                allow_cloud=key.allow_cloud and not key.local_only,
                local_only=key.local_only,
                users_from=key.users_from.encode("ascii"),
                keepalive_show=key.keepalive_show,
            )
            for key in auth.keys
        }
        self.user_headers = frozenset(
            identity.users_from for identity in self._identities.values() if identity.users_from
        )
        """Those in which some key names its users."""

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


def is_local_only(auth: AuthSettings, caller: str) -> bool:
    """Whether what a caller has left to be done later may not leave this machine: its key says so,
    or has been removed meanwhile.
    """
    if not auth.keys or caller in _WITHOUT_KEY:
        return False
    return next((key.local_only for key in auth.keys if key.name == caller), True)


def user_of(identity: Identity, headers: RequestHeaders) -> str:
    """Whom of its users the caller names; empty for none, and for what is no plain name."""
    name = identity.users_from
    if not name or name in headers.repeated:
        return ""
    user = headers.text(name)
    return user if _USER.fullmatch(user) else ""


def digest_of(key: str) -> str:
    """The SHA-256 of a key in hex, as `auth.keys[].sha256` holds it."""
    return hashlib.sha256(key.encode("latin-1", "replace")).hexdigest()


def _credentials(headers: RequestHeaders) -> dict[str, str]:
    """What came as a key, by the name of its header; empty where that cannot be one.

    A blank header is as none: clients send it for a key that was set to nothing, as their guides
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


def may_use(patterns: Sequence[str], model: str, canonical: Callable[[str], str]) -> bool:
    """Whether a model is among those that a key may use; no patterns at all are all models.

    `canonical`: the engine's one spelling of a name.
    """
    if not patterns:
        return True
    name = canonical(model)
    return any(
        fnmatchcase(model, each) or fnmatchcase(name, each) or canonical(each) == name
        for each in patterns
    )


def allowed_of(
    patterns: Sequence[str], model: str, models: Sequence[str], canonical: Callable[[str], str]
) -> tuple[str, ...]:
    """What may serve a caller with these patterns who names `model`, an alias of `models` where it
    has any.

    A key that names the alias, in any case, may use all of its models, another those that it names.
    """
    if not models:
        return (model,) if may_use(patterns, model, canonical) else ()
    if names_alias(patterns, model, canonical):
        return tuple(models)
    return tuple(each for each in models if may_use(patterns, each, canonical))


def names_alias(patterns: Sequence[str], alias: str, canonical: Callable[[str], str]) -> bool:
    """`may_use`, of an alias, which callers name in any case."""
    return may_use([pattern.lower() for pattern in patterns], alias.lower(), canonical)
