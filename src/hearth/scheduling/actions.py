"""What the scheduler orders its shell to do, in the imperative.

The outcome of each comes back as the next input.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from hearth.types import Band, DeviceId, Sequence, SleepLevel, value

SwapReason: TypeAlias = Literal[
    "waiting", "overdue", "turn", "expected", "owner", "home", "reload", "lease", "sleep"
]
"""Why a model is being loaded: the next item of a band needs it; an item has waited past
`scheduling.max_swap_wait_s`; the last caller is likely to ask for it next; the owner has ordered
it, or ordered out what is unloaded; back to the home model; it stopped answering. For `lease`, one
is only unloaded: another program gets its memory. For `sleep`, one that sleeps gives up more for
no other.
"""

Refusal: TypeAlias = Literal[
    "load_failed",
    "never_fits",
    "backend_down",
    "attempts_exhausted",
    "interrupted",
    "not_installed",
    "server_changed",
    "no_model",
    "expired",
    "card_taken",
]
"""Why an accepted item is given up; `server_changed`: its model was installed on the model server
before this one; `no_model`: it would run on any, and none is left; `expired`: it has waited longer
than it may; `card_taken`: another program has the memory that it needs.
"""


@value
class Dispatch:
    """Run the item on `model` of the device now, as its attempt of that number, from 1."""

    device: DeviceId
    sequence: Sequence
    attempt: int
    model: str


@value
class Load:
    """Make `model` resident; everything in `replaces` has been unloaded for it."""

    device: DeviceId
    model: str
    replaces: tuple[str, ...]
    why: SwapReason


@value
class Unload:
    """Make `model` go, to sleep at `level` or for good; nothing runs on it. Of a model that sleeps:
    have it give up more.
    """

    device: DeviceId
    model: str
    why: SwapReason
    level: SleepLevel | None = None  # None: stop it


@value
class Cut:
    """End the load of `model` that is under way; answer with `LoadAborted` once nothing of it is
    left.
    """

    device: DeviceId
    model: str


@value
class NoteTurn:
    """Write down that external work for `model` has the memory for at most `turn_s`; None: that
    this is over.
    """

    model: str
    turn_s: float | None


@value
class NoteHold:
    """Write down that external work waits because `caller` is likely to come back to `model` within
    `hold_s`.
    """

    model: str
    caller: str
    hold_s: float


@value
class Stop:
    """Stop the attempt; answer with `Stopped`, or with its real ending, if that came first.

    `preempt`: the item goes on later; `cut`: its caller has seen bytes and cannot be resumed, so it
    ends; `abort`: its caller is gone.
    """

    sequence: Sequence
    attempt: int
    how: Literal["preempt", "cut", "abort"]


@value
class Requeue:
    """Write down that the attempt is over and the item waits again: interrupted for the n-th time,
    unseen by its caller (0), or stopped for another program (`for_lease`), which does not count.
    """

    sequence: Sequence
    interrupts: int = 0
    for_lease: bool = False
    broke_off: bool = False  # the model server died within its stream, which goes on
    protected: bool = False  # it will not be interrupted any more


@value
class Promote:
    """Write down that the waiting item has risen to `band` by its age."""

    sequence: Sequence
    band: Band


@value
class Hold:
    """Write down that more urgent work waits for the item, whose stream could not go on after an
    interruption.
    """

    sequence: Sequence


@value
class Fail:
    """Give the item up and report that to its caller."""

    sequence: Sequence
    why: Refusal


@value
class WakeAt:
    """Send `TimerFired` at this instant; replaces any earlier one. None: no timer."""

    at: float | None


Action = (
    Dispatch
    | Load
    | Unload
    | Cut
    | NoteTurn
    | NoteHold
    | Stop
    | Requeue
    | Promote
    | Hold
    | Fail
    | WakeAt
)
