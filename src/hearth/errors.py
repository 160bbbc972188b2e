"""Every error that Hearth raises on purpose, in one tree that says who is at fault. An error's
docstring is its default message.

Texts that imitate a model server's own are built where the wire is spoken (`dialects/`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from typing import Literal, Self, TypeAlias, TypeVar, cast


class HearthError(Exception):
    """Something went wrong in Hearth."""

    status: int = 500
    retryable: bool = False
    reason: str = "internal_error"

    def __init_subclass__(
        cls, *, reason: str | None = None, status: int | None = None, retryable: bool | None = None
    ) -> None:
        given = {"reason": reason, "status": status, "retryable": retryable}
        for name in (name for name, each in given.items() if each is not None):
            setattr(cls, name, given[name])

    def __init__(self, message: str | None = None, *, retry_after_s: float | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0]
        self.retry_after_s = retry_after_s
        super().__init__(self.message)

    def again(self) -> Self:
        """The same error, not raised yet: raised twice, it would mix tracebacks, and kept by what
        its frames know, it would be a circle.
        """
        same = type(self).__new__(type(self), *self.args)
        vars(same).update(vars(self))
        return same


E = TypeVar("E", bound=HearthError)


def _kind(
    name: str,
    base: type[E],
    status: int,
    message: str,
    *,
    reason: str = "",
    retryable: bool | None = None,
) -> type[E]:
    """An error that has nothing to say beside its status, message and reason, which is its name in
    other letters where none is given.
    """
    # Forty such errors are a table rather than forty classes. Each is assigned to its own name, so
    # that a search finds it; a type checker sees its base.
    reason = reason or re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    values = {
        "__doc__": message,
        "reason": reason,
        "status": status,
        "retryable": base.retryable if retryable is None else retryable,
    }
    return cast("type[E]", type(name, (base,), values))


# The caller must change something.


class CallerError(HearthError, status=400, reason="bad_request"):
    """The request cannot be served as it is."""


class BadRequest(CallerError):
    """The request is malformed."""


class NotCapable(CallerError, status=400, reason="model_not_capable"):
    """The model cannot do what the request asks of it."""

    def __init__(self, message: str | None = None, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


Untranslatable = _kind(
    "Untranslatable", CallerError, 400, "The request asks for something that Claude cannot do."
)
Unauthenticated = _kind(
    "Unauthenticated",
    CallerError,
    401,
    "No valid API key was given. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
)
NotFound = _kind("NotFound", CallerError, 404, "There is nothing at this address.")
TooManyWrongKeys = _kind(
    "TooManyWrongKeys",
    CallerError,
    429,
    "Too many requests with a wrong key came from this address. A right key is accepted at once.",
    retryable=True,
)
BudgetExceeded = _kind(
    "BudgetExceeded",
    CallerError,
    429,
    "There is no money left for cloud models today.",
    retryable=True,
)
WrongKey = _kind(
    "WrongKey", Unauthenticated, 401, str(Unauthenticated.__doc__), reason="unauthenticated"
)
ModelNotFound = _kind("ModelNotFound", NotFound, 404, "The model is not installed.")
BodyTooLarge = _kind(
    "BodyTooLarge",
    CallerError,
    413,
    "The request body is larger than `server.max_body_mib` allows.",
)
CallerGone = _kind("CallerGone", CallerError, 499, "The request was cancelled.", reason="cancelled")
Forbidden = _kind("Forbidden", CallerError, 403, "This key may not do that.")
MethodNotAllowed = _kind("MethodNotAllowed", CallerError, 405, "405 method not allowed")
KeyReused = _kind(
    "KeyReused",
    CallerError,
    422,
    "This Idempotency-Key was used for another request.",
    reason="idempotency_key_reused",
)
OrderRefused = _kind("OrderRefused", CallerError, 409, "This command is not possible now.")
TooExpensive = _kind(
    "TooExpensive", CallerError, 400, "This request could cost more than one request may."
)
NotServed = _kind(
    "NotServed",
    CallerError,
    501,
    "Hearth does not serve this path.",
)
RateLimited = _kind(
    "RateLimited", CallerError, 429, "This caller has used up its rate limit.", retryable=True
)
KeyInUse = _kind(
    "KeyInUse",
    CallerError,
    409,
    "A request with this Idempotency-Key is still being accepted. Try again in a moment.",
    reason="idempotency_key_in_use",
    retryable=True,
)
UnsupportedMedia = _kind(
    "UnsupportedMedia",
    CallerError,
    415,
    "Send plain JSON: `Content-Type: application/json` without a Content-Encoding.",
)
HostNotAllowed = _kind(
    "HostNotAllowed",
    CallerError,
    421,
    "The Host header names a host that `server.allowed_hosts` does not list.",
)
UpgradeRefused = _kind(
    "UpgradeRefused",
    CallerError,
    426,
    "WebSockets are not supported. Send the request as an HTTP POST.",
)

# The machine behind us.


class BackendError(HearthError, status=502, reason="backend_error", retryable=True):
    """The model server failed."""


BackendProtocolError = _kind(
    "BackendProtocolError",
    BackendError,
    502,
    "The model server sent an invalid answer.",
    reason="backend_protocol",
)
BackendTimeout = _kind(
    "BackendTimeout", BackendError, 504, "The model server did not answer in time."
)
CloudUnavailable = _kind(
    "CloudUnavailable",
    BackendError,
    503,
    "Claude cannot be used from here at the moment; the owner's log says why.",
    retryable=False,
)
SwapFailed = _kind("SwapFailed", BackendError, 503, "The model could not be loaded.")
BackendUnreachable = _kind(
    "BackendUnreachable", BackendError, 503, "The model server cannot be reached."
)
BackendGone = _kind(
    "BackendGone",
    BackendError,
    502,
    "The model server closed the connection before the answer was complete.",
)
RunnerDied = _kind("RunnerDied", BackendGone, 502, str(BackendGone.__doc__))
"""The process of the model ended within an answer; the model server itself goes on."""
AnswerCut = _kind("AnswerCut", BackendGone, 502, str(BackendGone.__doc__), reason="backend_gone")
"""The model server ended an answer early, in an orderly way: it would do so again."""
ProxyFailed = _kind(
    "ProxyFailed", BackendGone, 502, "A proxy before the model server answered in its place."
)
BackendBusy = _kind("BackendBusy", BackendError, 503, "The model server is busy.")
FirstByteTimeout = _kind(
    "FirstByteTimeout",
    BackendTimeout,
    504,
    "The model server accepted the request but sent nothing.",
)
StreamDiverged = _kind(
    "StreamDiverged", BackendError, 502, "The interrupted answer could not be resumed."
)
SwapTimedOut = _kind(
    "SwapTimedOut",
    SwapFailed,
    503,
    "The model's load showed no progress for `gpu.swap_timeout_s`, or went on for ten times that.",
    reason="swap_timeout",
)
NeverFits = _kind(
    "NeverFits",
    BackendError,
    503,
    "The model needs more GPU memory than there is.",
    retryable=False,
)

# Nobody's fault: come back later.


class CapacityError(HearthError, status=503, reason="capacity", retryable=True):
    """Hearth cannot take this now."""


ShuttingDown = _kind("ShuttingDown", CapacityError, 503, "Hearth is shutting down.")
QueueFull = _kind("QueueFull", CapacityError, 503, "The queue is full.")
WaitExpired = _kind(
    "WaitExpired", CapacityError, 503, "The request waited longer than `queue.max_wait_s`."
)
ServerChanged = _kind(
    "ServerChanged",
    CapacityError,
    503,
    "The model server has changed while the request waited for it. Send it again.",
)
Interrupted = _kind(
    "Interrupted",
    CapacityError,
    503,
    "The answer was interrupted by a more urgent request. Try again.",
)
Draining = _kind(
    "Draining",
    CapacityError,
    503,
    "Hearth is draining and accepts no new requests. Try again later.",
)
TooManyConnections = _kind(
    "TooManyConnections",
    CapacityError,
    503,
    "Too many connections are open. Close some, or try again later.",
)
NoRoomForBodies = _kind(
    "NoRoomForBodies",
    CapacityError,
    503,
    "The bodies of open requests have reached `server.max_bodies_mib`. Try again when some have"
    " ended.",
)

# The owner's file, disk and card.


class ConfigError(HearthError, reason="config"):
    """The configuration is not usable; carries every problem at once."""

    def __init__(self, problems: Seq[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


AddressUnavailable = _kind(
    "AddressUnavailable",
    HearthError,
    500,
    "An address cannot be listened on. That may pass: another program ends, or the network"
    " comes up.",
)


StorageFault: TypeAlias = Literal[
    "disk_full",
    "io_error",
    "read_only",
    "locked",
    "corrupt",
    "cannot_open",
    "file_moved",
    "overloaded",
    "closed",
]
"""Why the store cannot be used."""


class StorageRefused(HearthError, reason="storage_refused"):
    """The store cannot be opened, and Hearth does not start without it."""


StorageBusy = _kind(
    "StorageBusy",
    StorageRefused,
    500,
    "It may be opened later: another process has it, or the disk is full.",
)


class StorageUnavailable(HearthError, status=503, reason="storage_unavailable", retryable=True):
    """The store cannot be written or read at the moment.

    `needs_space`: freeing space on the disk may help.
    """

    def __init__(self, fault: StorageFault, detail: str = "", *, needs_space: bool = False) -> None:
        self.fault = fault
        self.detail = detail
        self.needs_space = needs_space
        text = f"The store is not available ({fault.replace('_', ' ')})"
        super().__init__(f"{text}: {detail}" if detail else text)


GpuFault: TypeAlias = Literal[
    "no_driver", "no_such_device", "gpu_lost", "driver_mismatch", "timeout", "driver_error"
]
"""Why the card's own numbers cannot be read."""


class GpuUnavailable(HearthError):
    """The GPU cannot be read; the fault is the `reason`. Never reaches a caller."""

    def __init__(self, fault: GpuFault, message: str | None = None) -> None:
        super().__init__(message)
        self.reason = fault
