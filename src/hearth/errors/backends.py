"""The machine behind us."""

from __future__ import annotations

from hearth.errors.base import HearthError


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
