"""The owner's file, disk and card."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from enum import StrEnum

from hearth.errors.base import HearthError


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
