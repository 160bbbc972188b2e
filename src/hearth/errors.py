"""Every error that Hearth raises on purpose, in one tree that says who is at fault.

    HearthError
    ├── ConfigError              the owner's file: carries every problem at once
    ├── CallerError              the caller must change something
    │   ├── BadRequest 400
    │   ├── Unauthenticated 401
    │   ├── Forbidden 403
    │   ├── NotFound 404
    │   │   └── ModelNotFound 404
    │   ├── MethodNotAllowed 405
    │   ├── BodyTooLarge 413
    │   ├── UnsupportedMedia 415
    │   ├── HostNotAllowed 421
    │   ├── RateLimited 429
    │   └── CallerGone 499       the caller left or cancelled; nobody reads the answer
    ├── StorageError             the disk
    │   ├── StorageRefused       at start: Hearth does not run on this file
    │   └── StorageUnavailable 503
    ├── CapacityError            nobody's fault: come back later
    │   ├── QueueFull 503
    │   ├── ShuttingDown 503
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
        ├── SwapFailed 503
        │   └── SwapTimedOut 503
        └── NeverFits 503

The docstring of a class is its default message. Library errors are wrapped at the adapter with `raise ... from`. Error texts that
imitate Ollama's own are built where the wire is spoken (`dialects/`), not here.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from enum import StrEnum


class HearthError(Exception):
    """Something went wrong in Hearth."""

    status: int = 500
    retryable: bool = False
    reason: str = "internal_error"

    def __init__(self, message: str | None = None, *, retry_after_s: float | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0]
        self.retry_after_s = retry_after_s
        super().__init__(self.message)


class ConfigError(HearthError):
    """The configuration is not usable."""

    reason = "config"

    def __init__(self, problems: Seq[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class CallerError(HearthError):
    """The request cannot be served as it is."""

    status = 400
    reason = "bad_request"


class BadRequest(CallerError):
    """The request is malformed."""


class Unauthenticated(CallerError):
    """No valid API key was given. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    status = 401
    reason = "unauthenticated"


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


class RateLimited(CallerError):
    """This caller has used up its rate limit."""

    status = 429
    retryable = True
    reason = "rate_limited"


class CallerGone(CallerError):
    """The request was cancelled."""

    status = 499
    reason = "cancelled"


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

    def again(self) -> StorageUnavailable:
        """The same trouble for somebody else: an exception that is raised twice would mix their tracebacks."""
        return StorageUnavailable(self.fault, self.detail, needs_space=self.needs_space)


class CapacityError(HearthError):
    """Hearth cannot take this now."""

    status = 503
    retryable = True
    reason = "capacity"


class QueueFull(CapacityError):
    """The queue is full."""

    reason = "queue_full"


class ShuttingDown(CapacityError):
    """Hearth is shutting down."""

    reason = "shutting_down"


class WaitExpired(CapacityError):
    """The request waited longer than `queue.max_wait_s`."""

    reason = "wait_expired"


class Interrupted(CapacityError):
    """The answer was interrupted for more urgent work. Ask again."""

    reason = "interrupted"


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
