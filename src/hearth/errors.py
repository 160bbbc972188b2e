"""Every error that Hearth raises on purpose, in one tree that says who is at fault. The first
paragraph of an error's docstring is its default message; its reason is its name in other letters,
where it gives no other.

Texts that imitate a model server's own are built where the wire is spoken (`dialects/`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Literal, Self, TypeAlias


class HearthError(Exception):
    """Something went wrong in Hearth.

    `remedy`: the setting by which the owner can change it, of which other callers learn nothing.
    """

    status: int = 500
    retryable: bool = False
    reason: str = "internal_error"
    model: str = ""
    """For which the refused request asked, where its body was read; as its caller wrote it."""

    def __init_subclass__(cls) -> None:
        if "reason" not in vars(cls):
            cls.reason = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(
        self,
        message: str | None = None,
        *,
        retry_after_s: float | None = None,
        remedy: str = "",
    ) -> None:
        self.message = message or " ".join((self.__doc__ or "").split("\n\n")[0].split())
        self.retry_after_s = retry_after_s
        self.remedy = remedy
        super().__init__(self.message)

    def for_owner(self) -> Self:
        """The same with its remedy in the message."""
        if not self.remedy:
            return self
        same = self.again()
        same.message = f"{self.message} ({self.remedy})"
        return same

    def again(self) -> Self:
        """The same error, not raised yet: raised twice, it would mix tracebacks, and kept by what
        its frames know, it would be a circle.
        """
        same = type(self).__new__(type(self), *self.args)
        vars(same).update(vars(self))
        return same


@contextmanager
def naming_model(model: str) -> Iterator[None]:
    """What is raised in here says for which model the request asked."""
    try:
        yield
    except HearthError as error:
        error.model = model
        raise


# The caller must change something.


class CallerError(HearthError):
    """The request cannot be served as it is."""

    status = 400
    reason = "bad_request"


class BadRequest(CallerError):
    """The request is malformed."""


class NotCapable(CallerError):
    """The model cannot do what the request asks of it."""

    reason = "model_not_capable"

    def __init__(self, message: str | None = None, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Untranslatable(CallerError):
    """The request asks for something that Claude cannot do."""


class Unauthenticated(CallerError):
    """No valid API key was given. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    status = 401


class NotFound(CallerError):
    """There is nothing at this address."""

    status = 404


class TooManyWrongKeys(CallerError):
    """Too many requests with a wrong key came from this address. A right key is accepted at
    once.
    """

    status = 429
    retryable = True


class BudgetExceeded(CallerError):
    """There is no money left for cloud models today."""

    status = 429
    retryable = True


class WrongKey(Unauthenticated):
    __doc__ = Unauthenticated.__doc__

    reason = "unauthenticated"


class ModelNotFound(NotFound):
    """The model is not installed."""


class BodyTooLarge(CallerError):
    """The request body is too large."""

    status = 413


class CallerGone(CallerError):
    """The request was cancelled."""

    status = 499
    reason = "cancelled"


class Forbidden(CallerError):
    """This key may not do that."""

    status = 403


class MethodNotAllowed(CallerError):
    """405 method not allowed"""

    status = 405


class KeyReused(CallerError):
    """This Idempotency-Key was used for another request."""

    status = 422
    reason = "idempotency_key_reused"


class OrderRefused(CallerError):
    """This command is not possible now."""

    status = 409


class TooExpensive(CallerError):
    """This request could cost more than one request may."""


class NotServed(CallerError):
    """Hearth does not serve this path."""

    status = 501


class RateLimited(CallerError):
    """This caller has used up its rate limit."""

    status = 429
    retryable = True


class KeyInUse(CallerError):
    """A request with this Idempotency-Key is still being accepted. Try again in a moment."""

    status = 409
    reason = "idempotency_key_in_use"
    retryable = True


class UnsupportedMedia(CallerError):
    """Send plain JSON: `Content-Type: application/json` without a Content-Encoding."""

    status = 415


class HostNotAllowed(CallerError):
    """The Host header names a host that `server.allowed_hosts` does not list."""

    status = 421


class UpgradeRefused(CallerError):
    """WebSockets are not supported. Send the request as an HTTP POST."""

    status = 426


# The machine behind us.


class BackendError(HearthError):
    """The model server failed."""

    status = 502
    retryable = True


class BackendProtocolError(BackendError):
    """The model server sent an invalid answer."""

    reason = "backend_protocol"


class BackendTimeout(BackendError):
    """The model server did not answer in time."""

    status = 504


class CloudUnavailable(BackendError):
    """Claude cannot be used from here at the moment; the owner's log says why."""

    status = 503
    retryable = False


class LoadError(BackendError):
    """The model could not be loaded."""

    status = 503
    reason = "swap_failed"


class ModelLeftAlone(LoadError):
    """The model's server keeps failing, and is not started for a while."""

    reason = "swap_failed"


class StaysAwake(LoadError):
    """A server that can only sleep has not fallen asleep, and works on."""

    reason = "swap_failed"


class BackendUnreachable(BackendError):
    """The model server cannot be reached."""

    status = 503


class BackendGone(BackendError):
    """The model server closed the connection before the answer was complete."""


class RunnerDied(BackendGone):
    # The process of the model ended within an answer; the model server itself goes on.
    __doc__ = BackendGone.__doc__


class ModelGone(BackendGone):
    """The model is no longer in memory, and its server does not load it by itself."""


class AnswerCut(BackendGone):
    # The model server ended an answer early, in an orderly way: it would do so again.
    __doc__ = BackendGone.__doc__

    reason = "backend_gone"


class ProxyFailed(BackendGone):
    """A proxy before the model server answered in its place."""


class BackendBusy(BackendError):
    """The model server is busy."""

    status = 503


class EngineRefused(BackendBusy):
    """The engine takes no more requests at the moment."""


class FirstByteTimeout(BackendTimeout):
    """The model server accepted the request but sent nothing."""


class StreamDiverged(BackendError):
    """The interrupted answer could not be resumed."""


class SwapTimedOut(LoadError):
    """The model did not load in time."""

    reason = "swap_timeout"


class NeverFits(BackendError):
    """The model needs more GPU memory than there is."""

    status = 503
    retryable = False


# Nobody's fault: come back later.


class CapacityError(HearthError):
    """Hearth cannot take this now."""

    status = 503
    reason = "capacity"
    retryable = True


class ShuttingDown(CapacityError):
    """Hearth is shutting down."""


class QueueFull(CapacityError):
    """The queue is full."""


class WaitExpired(CapacityError):
    """The request waited longer than any may wait here. Try again later."""


class ServerChanged(CapacityError):
    """The model server has changed while the request waited for it. Send it again."""


class CardTaken(CapacityError):
    """Another program has the GPU. Try again later."""


class Interrupted(CapacityError):
    """The answer was interrupted by a more urgent request. Try again."""


class Draining(CapacityError):
    """Hearth is draining and accepts no new requests. Try again later."""


class TooManyConnections(CapacityError):
    """Too many connections are open. Close some, or try again later."""


class NoRoomForBodies(CapacityError):
    """The bodies of open requests take all the memory there is for them. Try again when some have
    ended.
    """


# The owner's file, disk and card.


class ConfigError(HearthError):
    """The configuration is not usable; carries every problem at once."""

    reason = "config"

    def __init__(self, problems: Seq[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class EditRefused(CallerError):
    """The configuration file stays as it is."""

    status = 409


class KeyUnknown(EditRefused):
    """There is no key of that name."""

    status = 404


class EditByHand(EditRefused):
    """The configuration file has to be edited by hand."""


class EditFailed(EditRefused):
    """The configuration file cannot be written."""


class AddressUnavailable(HearthError):
    """An address cannot be listened on. That may pass: another program ends, or the network comes
    up.
    """


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


class StorageRefused(HearthError):
    """The store cannot be opened, and Hearth does not start without it."""


class StorageBusy(StorageRefused):
    """It may be opened later: another process has it, or the disk is full."""


class StorageUnavailable(HearthError):
    """The store cannot be written or read at the moment.

    `needs_space`: freeing space on the disk may help.
    """

    status = 503
    retryable = True

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


class LoginManagerUnavailable(HearthError):
    """logind cannot be asked when the machine sleeps; the fault is the `reason`: `no_bus`,
    `timeout`, `lost`, or the name of a D-Bus error. Never reaches a caller.
    """

    reason = HearthError.reason

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.reason = fault


class GpuUnavailable(HearthError):
    """The GPU cannot be read; the fault is the `reason`. Never reaches a caller."""

    reason = HearthError.reason

    def __init__(self, fault: GpuFault, message: str | None = None) -> None:
        super().__init__(message)
        self.reason = fault
