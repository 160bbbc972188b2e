"""Facts that the shells report to the scheduler, in the past tense.

For every dispatched attempt the shell reports exactly one of `Finished`, `Failed` or `Stopped`:
whichever way the attempt really ended. That single report is what decides between completion and
preemption when both happen in the same tick. Reports for an attempt that is not the item's current
one are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hearth.types import ONLY_DEVICE, DeviceId, QueueItem, Sequence, SleepLevel, Usage, value

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings


Fault: TypeAlias = Literal[
    "backend_gone", "runner_died", "model_gone", "first_byte_timeout", "refused", "fatal"
]
"""Why an attempt ended without an answer: the connection failed or ended early, which is resent
once if nothing was forwarded; the process of the model has ended, after which it is loaded again
where the stream goes on; the model is not in memory, and is loaded again in any case; no first byte
came, after which it is loaded again, too; an engine that scales by itself takes no more at the
moment, and is asked again a little later; or resending cannot help.
"""


MAX_CUT_FAILURES = 2
"""After so many loads in a row that were cut and not gone in time, none is cut any more."""


class Input:
    """What all facts are."""

    __slots__ = ()


@value
class OfAttempt(Input):
    """A fact about one attempt of an item."""

    sequence: Sequence
    attempt: int


@value
class OfDevice(Input):
    """A fact about one device: its models, its card, its model server."""

    device: DeviceId = ONLY_DEVICE


@value
class Arrived(Input):
    """An item was accepted."""

    item: QueueItem


@value
class Started(OfAttempt):
    """The attempt's request has been sent to the backend."""


@value
class FirstByte(OfAttempt):
    """The backend's first byte has arrived."""

    forwarded: bool  # the caller is seeing it, so the attempt can no longer be silently redone


@value
class Unresumable(OfAttempt):
    """The item's stream cannot be resumed any more: more has been sent than is kept, or it is in a
    state from which nothing goes on.
    """


@value
class Finished(OfAttempt):
    """The attempt produced its whole answer."""

    usage: Usage
    # False where it was slow for a reason that does not last, so that nothing is to be learned
    teaches: bool = True


@value
class Failed(OfAttempt):
    """The attempt ended by itself without a whole answer."""

    fault: Fault
    # of a stream whose caller has seen bytes and that can go on: the tokens that its next attempt
    # only reads
    kept_tokens: int | None = None
    # where it was refused: seconds until the engine is to be asked again, None for not told
    retry_after_s: float | None = None


@value
class Stopped(OfAttempt):
    """The attempt was stopped because a `Stop` asked for it; its connection is closed."""

    # of its answer, which its next attempt does not write again but only reads; 0 where it starts
    # over
    kept_tokens: int = 0


@value
class Cancelled(Input):
    """Callers left or cancelled these items, in whatever state each was: one decision for all, so
    that none is made room for in between.
    """

    sequences: tuple[Sequence, ...]


@value
class Loaded(OfDevice):
    """The model is verified resident: by our load, or found so."""

    model: str
    vram_mib: float | None = None  # what it occupies, None where unknown
    size_mib: float | None = None  # the same with what is not on the card
    embeds: bool = False  # it seems to be made for embeddings alone
    # it did not wake from this level, and was started anew
    failed_level: SleepLevel | None = None


@value
class ModelDoubted(OfDevice):
    """Its answers say that the model is not where its server says: it is to be loaded again."""

    model: str


@value
class LoadFailed(OfDevice):
    """Our load ended without the model being resident."""

    model: str
    permanent: bool = False  # trying once more cannot help (not installed, timed out)
    unlisted: bool = False  # the model server reported it as loaded, and does not list it
    left_alone_s: float = 0.0  # for so long it is not loaded again, and not waited for
    short: bool = False  # it was not begun: less unified memory was free than it needs


@value
class Unloaded(OfDevice):
    """The model is verified gone: by our unload, or found so. With a `level` it sleeps."""

    model: str
    level: SleepLevel | None = None
    residual_mib: float = 0.0  # what it still takes of the card
    host_mib: float = 0.0  # what it takes of main memory
    # to sleep at this level had freed too little: it was stopped, if that can be
    failed_level: SleepLevel | None = None


@value
class UnloadFailed(OfDevice):
    """The model we asked to go is still listed after the time that takes."""

    model: str
    works: bool = False  # it never was on its way out, so it takes work as before


@value
class LoadAborted(OfDevice):
    """The load that was to be cut is over; not `clean`: it was not gone in time, or came into
    memory; not `gone`: it may be in memory now, and could not be unloaded.
    """

    model: str
    clean: bool = True
    gone: bool = True


@value
class Drifted(OfDevice):
    """Somebody else has changed what is in memory: one fact, since a decision between its parts
    would see memory that never was.
    """

    appeared: tuple[Loaded, ...]
    vanished: tuple[Unloaded, ...]
    # what sleeps, by its engine's word, and is in no book: with its level
    asleep: tuple[tuple[str, SleepLevel], ...] = ()


@value
class GpuSampled(OfDevice):
    """What the GPU reports of its memory: all that there is for models, None where unknown, and
    what other programs hold of it. `unified`: it is main memory, so that what does not fit would go
    into swap.
    """

    capacity_mib: float | None
    foreign_mib: float = 0.0
    unified: bool = False
    host_free_mib: float | None = None  # main memory that is free for more, None where unknown


@value
class LeaseTaken(OfDevice):
    """Another program is to have memory of the card, before everything that waits and runs here; or
    a lease that there is has another end.
    """

    id: str
    mib: float | None  # None: all that there is
    grace_s: float  # for so long what runs in the way may go on
    until: float | None  # when it ends, as far as is known; None where its holder ends it
    held_mib: float = 0.0  # so much of it the holder has already, by the last reading of the card


@value
class LeaseEnded(OfDevice):
    """The memory of a lease is there for models again."""

    id: str


@value
class BackendState(OfDevice):
    """The backend answers (`up`), or does not."""

    up: bool


@value
class Scheduled(Input):
    """An internal task was announced for the instant `due_at`; without `comes`, it was, and does
    not come after all.
    """

    task_type: str
    due_at: float
    comes: bool = True


@value
class ClockStepped(Input):
    """The calendar has gone `ahead_s` seconds ahead of the clock that instants are counted by
    (negative: it was set back).
    """

    ahead_s: float


@value
class Switched(Input):
    """A switch of the scheduler is on or off from now: active hours, the owner's pause of external
    work; the drain of a stop, or of a change of the model server (`handing_over`), in which nothing
    starts and what runs may end.
    """

    what: Literal["active", "paused", "draining", "handing_over"]
    on: bool


@value
class ServerReplaced(OfDevice):
    """Another model server answers from now on, while nothing runs and no swap is under way."""

    learned: Mapping[str, Any] | None  # what is known of it, as `Estimates.export` writes it


@value
class PreemptRequested(Input):
    """The owner asked for the running external items to yield now.

    Protected and started streams go on.
    """


@value
class ModelPinned(Input):
    """The owner named the model to come back to, which no external item's swap may evict; None:
    there is none any more.
    """

    model: str | None


@value
class ModelOrdered(Input):
    """The owner wants a model in memory (`comes`), or out of it."""

    model: str
    comes: bool


@value
class ModelsListed(OfDevice):
    """What the engines of a device have, in lower case: nothing is unloaded for any other model.
    Models of an engine that does not answer are listed as they were before.
    """

    names: frozenset[str]
    # never loaded or unloaded: in memory for as long as they are listed
    staying: frozenset[str] = frozenset()
    off_card: frozenset[str] = frozenset()  # they take no memory of the card
    whole_loads: frozenset[str] = frozenset()  # their load cannot be cut
    saving: frozenset[str] = frozenset()  # their conversations outlive an unload
    # what the weights of those take whose files are known: the least that they need
    file_mib: Mapping[str, float] = field(default_factory=dict)
    # models of elastic engines: seconds that a request of an alias waits for others before one of
    # these
    spills: Mapping[str, float] = field(default_factory=dict)
    # the levels at which each model can sleep, quickest to wake first
    sleeps: Mapping[str, tuple[SleepLevel, ...]] = field(default_factory=dict)


@value
class ModelsAway(OfDevice):
    """All models, in lower case, whose engine does not answer while another does; none: all
    answer, or none does.
    """

    models: frozenset[str]


@value
class PolicyChanged(Input):
    """New settings are in force."""

    settings: SchedulerSettings


@value
class TimerFired(Input):
    """The instant of the last `WakeAt` has come."""
