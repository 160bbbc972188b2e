"""Who is asking: one extractor for API keys, and what a key says about its caller.

Keys are looked up by the SHA-256 of what was sent, so a comparison never runs over secret bytes. Identity comes from the key alone,
never from a body, a query string, X-Caller, X-Forwarded-For or the like. With no keys configured only loopback peers may come in, all
of them as `local`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hearth.admission.http_checks import RequestHeaders
from hearth.admission.peers import is_loopback
from hearth.config.settings import AuthSettings, KeySettings
from hearth.errors import BadRequest, Unauthenticated, WrongKey
from hearth.types import Lane, Priority

LOCAL_CALLER = "local"
"""The caller name of every loopback peer while no keys are configured."""

_CREDENTIALS = (b"authorization", b"x-api-key", b"api-key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A caller and its rights.

    Attributes:
        max_priority: the highest internal band it may claim.
        models: patterns with `*`; empty is all.
        allow_cloud: its requests may be answered by a cloud model; never true for a key that is `local_only`.
        authenticated: a key was shown; False for `local`, who may claim the internal lane but not manage Ollama's models.
    """

    caller: str
    lane: Lane
    max_priority: Priority
    models: tuple[str, ...]
    admin: bool
    authenticated: bool
    allow_cloud: bool = False

    @property
    def may_manage_models(self) -> bool:
        """Pull, push, create, copy, delete and blobs change the disk: they need an admin key even on loopback."""
        return self.admin and self.authenticated


_LOCAL = Identity(caller=LOCAL_CALLER, lane=Lane.EXTERNAL, max_priority=Priority.CRITICAL, models=(), admin=True, authenticated=False)
NOBODY = Identity(caller="", lane=Lane.EXTERNAL, max_priority=Priority.BACKGROUND, models=(), admin=False, authenticated=False)
"""Whoever is refused before anybody knows who it is."""


class Keyring:
    """The keys of one configuration."""

    def __init__(self, auth: AuthSettings) -> None:
        self._identities = {key.sha256.lower(): _identity_of(key) for key in auth.keys}

    def identify(self, headers: RequestHeaders, peer: str | None) -> Identity:
        """The caller behind a request.

        Args:
            peer: the address of the other end of the socket.

        Raises:
            BadRequest: keys are configured, and more than one credential was sent.
            Unauthenticated: no key (`WrongKey`: an unknown one), or no keys configured and the peer is not this machine.
        """
        if not self._identities:
            return _local_identity(peer)
        credential = _credential(headers)
        identity = None if credential is None else self._identities.get(digest_of(credential))
        if identity is None:
            raise WrongKey if credential else Unauthenticated
        return identity


def digest_of(key: str) -> str:
    """The SHA-256 of a key in hex, as `auth.keys[].sha256` holds it."""
    return hashlib.sha256(key.encode("latin-1", "replace")).hexdigest()


def _identity_of(key: KeySettings) -> Identity:
    return Identity(
        caller=key.name,
        lane=key.lane,
        max_priority=key.max_priority,
        models=key.models,
        admin=key.admin,
        authenticated=True,
        allow_cloud=key.allow_cloud and not key.local_only,
    )


def _credential(headers: RequestHeaders) -> str | None:
    sent = [name for name in _CREDENTIALS if name in headers.values and not _is_blank(headers.text(name))]
    if len(sent) > 1 or not headers.repeated.isdisjoint(_CREDENTIALS):
        raise BadRequest("send one API key, once: as Authorization: Bearer, x-api-key or api-key")
    if not sent:
        return None
    text = headers.text(sent[0])
    return _bearer_token(text) if sent[0] == b"authorization" else text


def _is_blank(text: str) -> bool:
    """What clients send for a key that was set to nothing, as Ollama's guides have `ANTHROPIC_API_KEY` beside a token."""
    return text.lower() in ("", "bearer")


def _bearer_token(text: str) -> str:
    scheme, _, token = text.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _local_identity(peer: str | None) -> Identity:
    if peer is None or not is_loopback(peer):
        raise Unauthenticated("no API keys are configured, so only this machine may call; the owner can add auth.keys")
    return _LOCAL
