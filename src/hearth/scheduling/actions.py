"""What the scheduler tells its shell to do, in the imperative. The outcome of each comes back as the next input."""

from __future__ import annotations

from enum import StrEnum

from hearth.types import Band, Sequence, value


class SwapReason(StrEnum):
    """Why a model is being loaded."""

    WAITING = "waiting"  # the next item of a band needs it
    OVERDUE = "overdue"  # an item has waited past `scheduling.max_swap_wait_s`
    EXPECTED = "expected"  # nothing else to do, and the last caller is likely to ask for it next
    OWNER = "owner"  # the owner has ordered it, or ordered out what is unloaded
    HOME = "home"  # nothing else to do: back to the home model
    RELOAD = "reload"  # it stopped answering; unload and load again


class Refusal(StrEnum):
    """Why an accepted item is given up."""

    LOAD_FAILED = "load_failed"
    NEVER_FITS = "never_fits"
    BACKEND_DOWN = "backend_down"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    INTERRUPTED = "interrupted"
    NOT_INSTALLED = "not_installed"
    NO_MODEL = "no_model"  # it would run on any model, and none is left


@value
class OfItem:
    """An action on one item."""

    sequence: Sequence


@value
class OfAttempt(OfItem):
    """An action on one attempt of an item, which counts from 1."""

    attempt: int


@value
class Dispatch(OfAttempt):
    """Run the item on `model` now."""

    model: str


@value
class Load:
    """Make `model` resident; everything in `replaces` has been unloaded for it."""

    model: str
    replaces: tuple[str, ...]
    why: SwapReason


@value
class Unload:
    """Make `model` go; nothing runs on it."""

    model: str
    why: SwapReason


@value
class Preempt(OfAttempt):
    """Stop the attempt; answer with `Stopped` (or with its real ending, if that came first)."""


@value
class Abort(OfAttempt):
    """The item has ended for us (its caller is gone): stop the attempt; answer with `Stopped` or its real ending."""


@value
class Cut(OfAttempt):
    """Stop the attempt for good: its caller has seen bytes and cannot be resumed; answer as to `Preempt`."""


@value
class Requeue(OfItem):
    """Write down that the attempt is over and the item waits again: interrupted for the n-th time, or unseen by its caller (0)."""

    interrupts: int = 0
    protected: bool = False  # it will not be interrupted any more


@value
class Promote(OfItem):
    """Write down that the waiting item has risen to `band` by its age."""

    band: Band


@value
class Hold(OfItem):
    """Write down that more urgent work waits for the item, whose stream could not go on after an interruption."""


@value
class Fail(OfItem):
    """Give the item up and tell its caller."""

    why: Refusal


@value
class Expire(OfItem):
    """The item has waited longer than it may: give it up and tell its caller."""


@value
class WakeAt:
    """Send `TimerFired` at this instant; replaces any earlier one. None: no timer."""

    at: float | None


Action = Dispatch | Load | Unload | Preempt | Cut | Abort | Requeue | Promote | Hold | Fail | Expire | WakeAt
