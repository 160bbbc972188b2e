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

from hearth.errors.backends import (
    BackendBusy,
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    CloudUnavailable,
    FirstByteTimeout,
    NeverFits,
    StreamDiverged,
    SwapFailed,
    SwapTimedOut,
)
from hearth.errors.base import HearthError
from hearth.errors.callers import (
    BadRequest,
    BodyTooLarge,
    BudgetExceeded,
    CallerError,
    CallerGone,
    Forbidden,
    HostNotAllowed,
    KeyInUse,
    KeyReused,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    NotServed,
    OrderRefused,
    RateLimited,
    TooExpensive,
    TooManyWrongKeys,
    Unauthenticated,
    UnsupportedMedia,
    Untranslatable,
    UpgradeRefused,
    WrongKey,
)
from hearth.errors.capacity import (
    CapacityError,
    Draining,
    Interrupted,
    NoRoomForBodies,
    QueueFull,
    ShuttingDown,
    TooManyConnections,
    WaitExpired,
)
from hearth.errors.house import (
    AddressUnavailable,
    ConfigError,
    GpuFault,
    GpuUnavailable,
    StorageBusy,
    StorageError,
    StorageFault,
    StorageRefused,
    StorageUnavailable,
)

__all__ = [
    "AddressUnavailable",
    "BackendBusy",
    "BackendError",
    "BackendGone",
    "BackendProtocolError",
    "BackendTimeout",
    "BackendUnreachable",
    "BadRequest",
    "BodyTooLarge",
    "BudgetExceeded",
    "CallerError",
    "CallerGone",
    "CapacityError",
    "CloudUnavailable",
    "ConfigError",
    "Draining",
    "FirstByteTimeout",
    "Forbidden",
    "GpuFault",
    "GpuUnavailable",
    "HearthError",
    "HostNotAllowed",
    "Interrupted",
    "KeyInUse",
    "KeyReused",
    "MethodNotAllowed",
    "ModelNotFound",
    "NeverFits",
    "NoRoomForBodies",
    "NotFound",
    "NotServed",
    "OrderRefused",
    "QueueFull",
    "RateLimited",
    "ShuttingDown",
    "StorageBusy",
    "StorageError",
    "StorageFault",
    "StorageRefused",
    "StorageUnavailable",
    "StreamDiverged",
    "SwapFailed",
    "SwapTimedOut",
    "TooExpensive",
    "TooManyConnections",
    "TooManyWrongKeys",
    "Unauthenticated",
    "UnsupportedMedia",
    "Untranslatable",
    "UpgradeRefused",
    "WaitExpired",
    "WrongKey",
]
