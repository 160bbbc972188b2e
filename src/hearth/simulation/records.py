"""What a simulation leaves behind: one record per job, the swaps, and what was decided. Written by `engine`, read by everything else."""

from __future__ import annotations

from dataclasses import dataclass, field

from hearth.scheduling.actions import Action
from hearth.simulation.workloads import Job
from hearth.types import Sequence


@dataclass(slots=True, eq=False)
class Attempt:
    """One dispatch under way. `answering`: its first byte has come. `over`: it was stopped, and nothing else of it counts."""

    record: Record
    number: int
    ends_at: float
    answering: bool = False
    over: bool = False


@dataclass(slots=True, eq=False)
class Record:
    """What became of one job. `started` is the start of its last attempt, None where there was none; `ended` None: never.

    `failed`: it ended without an answer (given up, expired, cut, or its caller left). `attempt`: what runs of it; `model`: where.
    """

    job: Job
    sequence: Sequence
    arrived: float
    started: float | None = None
    ended: float | None = None
    interrupts: int = 0
    failed: bool = False
    attempt: Attempt | None = None
    model: str | None = None

    @property
    def wait_s(self) -> float | None:
        """Arrival to the start of the attempt that answered; None where nothing did."""
        return None if self.failed or self.ended is None or self.started is None else self.started - self.arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapRecord:
    """One load; `origin` names what was unloaded for it, joined by `+`, "" for nothing."""

    origin: str
    target: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRecord:
    """An attempt on `model` that was stopped: time of the GPU that answered nobody."""

    model: str
    start: float
    end: float


@dataclass(slots=True, kw_only=True)
class Run:
    """What a simulation produced.

    Attributes:
        records: one per job that arrived, in order of arrival.
        decisions: every action but the timer's, where they were to be kept.
        busy_s: the time in which anything ran.
    """

    records: list[Record] = field(default_factory=list)
    swaps: list[SwapRecord] = field(default_factory=list)
    decisions: list[tuple[float, Action]] = field(default_factory=list)
    stops: list[StopRecord] = field(default_factory=list)
    busy_s: float = 0.0
