"""The caller must change something."""

from __future__ import annotations

from hearth.errors.base import HearthError


class CallerError(HearthError):
    """The request cannot be served as it is."""

    status = 400
    reason = "bad_request"


class BadRequest(CallerError):
    """The request is malformed."""


class Untranslatable(CallerError):
    """The request asks for something that Claude cannot do."""

    reason = "untranslatable"


class Unauthenticated(CallerError):
    """No valid API key was given. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    status = 401
    reason = "unauthenticated"


class WrongKey(Unauthenticated):
    """No valid API key was given. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."""


class Forbidden(CallerError):
    """This key may not do that."""

    status = 403
    reason = "forbidden"


class NotFound(CallerError):
    """There is nothing at this address."""

    status = 404
    reason = "not_found"


class ModelNotFound(NotFound):
    """The model is not installed."""

    reason = "model_not_found"


class MethodNotAllowed(CallerError):
    """405 method not allowed"""

    status = 405
    reason = "method_not_allowed"


class NotServed(CallerError):
    """Hearth does not serve this address of Ollama. Ask Ollama itself."""

    status = 501
    reason = "not_served"


class KeyInUse(CallerError):
    """A request with this Idempotency-Key is still being taken in. Ask again in a moment."""

    status = 409
    retryable = True
    reason = "idempotency_key_in_use"


class KeyReused(CallerError):
    """This Idempotency-Key was used for another request."""

    status = 422
    reason = "idempotency_key_reused"


class OrderRefused(CallerError):
    """Things are not so that this order can be carried out."""

    status = 409
    reason = "order_refused"


class BodyTooLarge(CallerError):
    """The request body is larger than `server.max_body_mib` allows."""

    status = 413
    reason = "body_too_large"


class UnsupportedMedia(CallerError):
    """Send plain JSON: `Content-Type: application/json` without a Content-Encoding."""

    status = 415
    reason = "unsupported_media"


class HostNotAllowed(CallerError):
    """The Host header names a host that `server.allowed_hosts` does not list."""

    status = 421
    reason = "host_not_allowed"


class UpgradeRefused(CallerError):
    """There are no WebSockets here. Send the request as an HTTP POST."""

    status = 426
    reason = "upgrade_refused"


class RateLimited(CallerError):
    """This caller has used up its rate limit."""

    status = 429
    retryable = True
    reason = "rate_limited"


class TooManyWrongKeys(CallerError):
    """Too many requests with a wrong key came from this address. A right key is let in at once."""

    status = 429
    retryable = True
    reason = "too_many_wrong_keys"


class BudgetExceeded(CallerError):
    """There is no money left for cloud models today."""

    status = 429
    retryable = True
    reason = "budget_exceeded"


class TooExpensive(CallerError):
    """This request could cost more than one request may."""

    reason = "too_expensive"


class CallerGone(CallerError):
    """The request was cancelled."""

    status = 499
    reason = "cancelled"
