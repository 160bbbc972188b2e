"""Every error that Hearth raises on purpose, in one tree that says who is at fault.

    HearthError
    ├── ConfigError              the owner's file: carries every problem at once
    ├── AddressUnavailable       at start: taken, or not there yet
    ├── CallerError              the caller must change something
    │   ├── BadRequest 400
    │   ├── Untranslatable 400   Claude cannot be asked for this; a local model can
    │   ├── Unauthenticated 401
    │   │   └── WrongKey 401     a key that nobody has; its answer is the same
    │   ├── Forbidden 403
    │   ├── NotFound 404
    │   │   └── ModelNotFound 404
    │   ├── MethodNotAllowed 405
    │   ├── NotServed 501        Ollama has it, Hearth does not
    │   ├── UpgradeRefused 426
    │   ├── KeyInUse 409
    │   ├── OrderRefused 409     what the owner orders would contradict what is so
    │   ├── KeyReused 422
    │   ├── BodyTooLarge 413
    │   ├── UnsupportedMedia 415
    │   ├── HostNotAllowed 421
    │   ├── RateLimited 429
    │   ├── TooManyWrongKeys 429
    │   ├── BudgetExceeded 429
    │   ├── TooExpensive 400     one call may not cost as much
    │   └── CallerGone 499       the caller left or cancelled; nobody reads the answer
    ├── GpuUnavailable           the card says nothing of itself; never reaches a caller
    ├── StorageError             the disk
    │   ├── StorageRefused       at start: Hearth does not run on this file
    │   │   └── StorageBusy      not now
    │   └── StorageUnavailable 503
    ├── CapacityError            nobody's fault: come back later
    │   ├── QueueFull 503
    │   ├── NoRoomForBodies 503
    │   ├── TooManyConnections 503
    │   ├── ShuttingDown 503
    │   ├── Draining 503
    │   ├── WaitExpired 503
    │   └── Interrupted 503      made room for more urgent work, and could not be resumed
    └── BackendError             the machine behind us
        ├── BackendUnreachable 503
        ├── BackendGone 502      the connection ended before the answer did
        ├── BackendBusy 503
        ├── BackendTimeout 504
        │   └── FirstByteTimeout 504
        ├── BackendProtocolError 502
        ├── StreamDiverged 502
        ├── CloudUnavailable 503  Claude takes nothing from this house at the moment
        ├── SwapFailed 503
        │   └── SwapTimedOut 503
        └── NeverFits 503

The docstring of a class is its default message. Library errors are wrapped at the adapter with `raise ... from`. Error texts that
imitate Ollama's own are built where the wire is spoken (`dialects/`), not here.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from enum import StrEnum
from typing import Self


class HearthError(Exception):
    """Something went wrong in Hearth."""

    status: int = 500
    retryable: bool = False
    reason: str = "internal_error"

    def __init__(self, message: str | None = None, *, retry_after_s: float | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0]
        self.retry_after_s = retry_after_s
        super().__init__(self.message)

    def again(self) -> Self:
        """The same error, not raised yet: for somebody else, or to be kept.

        One that is raised twice would mix its tracebacks, and one that was raised knows the frames that it came through: kept by what
        those know, it would be a circle, which only the garbage collector frees.
        """
        same = type(self).__new__(type(self), *self.args)
        vars(same).update(vars(self))
        return same


# The caller must change something.


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


# The machine behind us.


class BackendError(HearthError):
    """The model server failed."""

    status = 502
    retryable = True
    reason = "backend_error"


class BackendUnreachable(BackendError):
    """The model server cannot be reached."""

    status = 503
    reason = "backend_unreachable"


class BackendGone(BackendError):
    """The model server closed the connection before the answer was complete."""

    reason = "backend_gone"


class BackendBusy(BackendError):
    """The model server is busy."""

    status = 503
    reason = "backend_busy"


class BackendTimeout(BackendError):
    """The model server did not answer in time."""

    status = 504
    reason = "backend_timeout"


class FirstByteTimeout(BackendTimeout):
    """The model server took the request and sent nothing."""

    reason = "first_byte_timeout"


class BackendProtocolError(BackendError):
    """The model server sent something that is not an answer."""

    reason = "backend_protocol"


class StreamDiverged(BackendError):
    """The interrupted answer could not be continued as it began."""

    reason = "stream_diverged"


class CloudUnavailable(BackendError):
    """Claude cannot be used from here at the moment; the owner's log says why."""

    status = 503
    retryable = False
    reason = "cloud_unavailable"


class SwapFailed(BackendError):
    """The model could not be loaded."""

    status = 503
    reason = "swap_failed"


class SwapTimedOut(SwapFailed):
    """The model did not load within `gpu.swap_timeout_s`."""

    reason = "swap_timeout"


class NeverFits(BackendError):
    """The model needs more GPU memory than there is."""

    status = 503
    retryable = False
    reason = "never_fits"


# Nobody's fault: come back later.


class CapacityError(HearthError):
    """Hearth cannot take this now."""

    status = 503
    retryable = True
    reason = "capacity"


class QueueFull(CapacityError):
    """The queue is full."""

    reason = "queue_full"


class NoRoomForBodies(CapacityError):
    """The bodies of other requests take all the room that `server.max_bodies_mib` gives. Try again when some have ended."""

    reason = "no_room_for_bodies"


class TooManyConnections(CapacityError):
    """Too many connections are open. Close some, or try again later."""

    reason = "too_many_connections"


class ShuttingDown(CapacityError):
    """Hearth is shutting down."""

    reason = "shutting_down"


class Draining(CapacityError):
    """Hearth takes no new work at the moment: its owner is draining it. Try again later."""

    reason = "draining"


class WaitExpired(CapacityError):
    """The request waited longer than `queue.max_wait_s`."""

    reason = "wait_expired"


class Interrupted(CapacityError):
    """The answer was interrupted for more urgent work. Ask again."""

    reason = "interrupted"


# The owner's file, disk and card.


class ConfigError(HearthError):
    """The configuration is not usable."""

    reason = "config"

    def __init__(self, problems: Seq[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class AddressUnavailable(HearthError):
    """An address cannot be listened on. That may pass: another program ends, or the network comes up."""

    reason = "address_unavailable"


class StorageFault(StrEnum):
    """Why the store cannot be used."""

    FULL = "disk_full"
    IO = "io_error"
    READ_ONLY = "read_only"
    LOCKED = "locked"
    CORRUPT = "corrupt"
    CANNOT_OPEN = "cannot_open"
    MOVED = "file_moved"
    OVERLOADED = "overloaded"
    CLOSED = "closed"


class StorageError(HearthError):
    """The store failed."""

    reason = "storage"


class StorageRefused(StorageError):
    """The store cannot be opened, and Hearth does not start without it."""

    reason = "storage_refused"


class StorageBusy(StorageRefused):
    """It may be opened later: another process has it, or the disk is full."""

    reason = "storage_busy"


class StorageUnavailable(StorageError):
    """The store cannot be written or read at the moment.

    Attributes:
        needs_space: True where freeing space on the disk may help.
    """

    status = 503
    retryable = True
    reason = "storage_unavailable"

    def __init__(self, fault: StorageFault, detail: str = "", *, needs_space: bool = False) -> None:
        self.fault = fault
        self.detail = detail
        self.needs_space = needs_space
        text = f"The store is not available ({fault.value.replace('_', ' ')})"
        super().__init__(f"{text}: {detail}" if detail else text)


class GpuFault(StrEnum):
    """Why the card's own numbers cannot be read."""

    NO_DRIVER = "no_driver"
    NO_DEVICE = "no_such_device"
    LOST = "gpu_lost"
    MISMATCH = "driver_mismatch"
    TIMEOUT = "timeout"
    OTHER = "driver_error"


class GpuUnavailable(HearthError):
    """The GPU cannot be read.

    Attributes:
        fault: what kind of trouble it is; also the `reason` that events carry.
    """

    def __init__(self, fault: GpuFault, message: str | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.reason = fault.value
