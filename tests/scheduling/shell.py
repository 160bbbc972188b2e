"""A shell for the scheduler in which the test says what happens, and when: no loop, no threads, no
time of its own.

    house = Shell(settings_of("policy=fifo"), resident=("a",))
    first = house.arrive("a")                 # house.said == ["start 1 on a"]
    house.at(2.0).finish(first)

What the scheduler orders stays open until the test reports an outcome (`finish`, `loaded`, ...); an
outcome that nobody asked for is a mistake of the test. Timers fire by themselves when `at` passes
them. Every decision is judged by `DecisionChecker`, unless `judged` is False. `said` is the last
decision in words, `log` all of them with their instants; the words are those of `words`.
"""

from __future__ import annotations

from math import inf

from hearth.config.settings import SchedulerSettings
from hearth.scheduling import inputs
from hearth.scheduling.actions import (
    Action,
    Cut,
    Dispatch,
    Fail,
    Hold,
    Load,
    NoteHold,
    NoteTurn,
    Promote,
    Requeue,
    Stop,
    Unload,
    WakeAt,
)
from hearth.scheduling.core import Scheduler
from hearth.scheduling.forecast import ForecastView
from hearth.scheduling.inputs import Fault, Input
from hearth.scheduling.state import DeviceState, GatewayState
from hearth.types import Lane, Priority, QueueItem, RequestId, Sequence, SleepLevel, Usage, WorkKind
from tests.support.invariants import DecisionChecker

TIMERS = 200
"""Firings on the way to one instant after which something must be wrong."""


WORDS: dict[type[Action], str] = {
    Dispatch: "start {0.sequence} on {0.model}",
    Load: "load {0.model}",
    Unload: "unload {0.model}",
    Cut: "cut {0.model}",
    NoteTurn: "turn {0.model} {0.turn_s:.0f}",
    NoteHold: "hold {0.model} for {0.caller}",
    Stop: "{0.how} {0.sequence}",
    Requeue: "requeue {0.sequence} after {0.interrupts} interruptions",
    Promote: "promote {0.sequence} to {0.band.name}",
    Hold: "hold {0.sequence}",
    Fail: "fail {0.sequence} {0.why}",
    WakeAt: "wake {0.at}",
}


def words(action: Action) -> str:
    """An action in a few words."""
    if isinstance(action, NoteTurn) and action.turn_s is None:
        return f"turn {action.model} is over"
    if isinstance(action, Unload) and action.level is not None:
        return f"{action.level} {action.model}"
    return WORDS[type(action)].format(action).lower()


class Shell:
    """One scheduler and what it has ordered so far.

    Attributes:
        running: open attempts by sequence; `stopping` are those of them that were told to stop.
        loading, unloading: models with an open order.
        levels: at which each of the latter is to sleep, None for not at all.
        ended: how each item that is over ended.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        resident: tuple[str, ...] = (),
        judged: bool = True,
        swaps: bool = True,
    ) -> None:
        self.settings = settings
        self.scheduler = Scheduler(self.settings, swaps=swaps)
        self.brain = DecisionChecker(self.scheduler) if judged else self.scheduler
        self.forecasts = ForecastView(self.scheduler)
        self.now = 0.0
        self.timer: float | None = None
        self.running: dict[int, int] = {}
        self.stopping: set[int] = set()
        self.loading: list[Load] = []
        self.unloading: list[str] = []
        self.levels: dict[str, SleepLevel | None] = {}
        self.cutting: list[str] = []
        self.ended: dict[int, str] = {}
        self.said: list[str] = []
        self.log: list[tuple[float, str]] = []
        self._arrivals = 0
        for model in resident:
            self.tell(inputs.Loaded(model=model))
        self.log.clear()

    @property
    def device(self) -> DeviceState:
        return self.scheduler.device

    @property
    def gateway(self) -> GatewayState:
        return self.scheduler.gateway

    def tell(self, fact: Input) -> list[str]:
        """Report a fact now; what is ordered goes into the books.

        Returns the decision in words, without `WakeAt` and `Requeue`.
        """
        actions = self.brain.handle(fact, self.now)
        for action in actions:
            self._note(action)
        self.said = [
            words(action) for action in actions if not isinstance(action, WakeAt | Requeue)
        ]
        self.log += [(self.now, said) for said in self.said]
        return self.said

    def _note(self, action: Action) -> None:
        match action:
            case Dispatch(sequence=sequence, attempt=attempt):
                assert sequence not in self.running, f"{sequence} is started twice"
                self.running[sequence] = attempt
            case Stop(sequence=sequence):
                self.stopping.add(sequence)
            case Load():
                assert not self.loading, "two loads at once"
                assert not self.unloading, "a load beside an unload"
                assert not self.cutting, "a load beside one that is being cut"
                self.loading.append(action)
            case Unload(model=model, level=level):
                self.unloading.append(model)
                self.levels[model] = level
            case Cut(model=model):
                assert self.loading.pop().model == model, "what is cut is not being loaded"
                self.cutting.append(model)
            case Fail(sequence=sequence):
                self._end(sequence, words(action))
            case WakeAt(at=at):
                self.timer = at

    def _end(self, sequence: int, how: str) -> None:
        assert sequence not in self.ended, f"{sequence} ends twice: {self.ended[sequence]}, {how}"
        self.ended[sequence] = how

    def at(self, instant: float) -> Shell:
        fired = 0
        while self.timer is not None and self.timer <= instant:
            self.fire()
            fired += 1
            assert fired < TIMERS, f"the timer rings for ever at {self.now}"
        self.now = max(self.now, instant)
        return self

    def fire(self, early_s: float = 0.0) -> list[str]:
        """The armed timer fires at its instant, or before it: a careless shell that does not report
        `max(clock, due)`.
        """
        assert self.timer is not None, "no timer is armed"
        due = self.timer
        self.timer = None
        self.now = max(self.now, due - early_s)
        return self.tell(inputs.TimerFired())

    def arrive(
        self,
        model: str | None,
        *,
        lane: Lane = Lane.EXTERNAL,
        priority: Priority = Priority.NORMAL,
        max_wait_s: float | None = None,
        prompt_tokens: int = 0,
        max_tokens: int | None = None,
        resumable: bool = False,
        kind: WorkKind = "generate",
        task_type: str | None = None,
        caller: str = "test",
        background: str = "",
        conversation: str = "",
        user: str = "",
    ) -> Sequence:
        """An item comes; for any of several models where `model` names them as `a/b`."""
        self._arrivals += 1
        choices = () if model is None or "/" not in model else tuple(model.split("/"))
        item = QueueItem(
            sequence=Sequence(self._arrivals),
            request_id=RequestId(f"req_{self._arrivals}"),
            lane=lane,
            priority=priority,
            caller=caller,
            model=choices[0] if choices else model,
            alias="alias" if choices else "",
            choices=choices,
            conversation=conversation,
            streaming=bool(conversation),
            arrived_at=self.now,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            ways=("continued",) if resumable else (),
            kind=kind,
            task_type=task_type,
            background=background,
            user=user,
            expires_at=None if max_wait_s is None else self.now + max_wait_s,
        )
        self.tell(inputs.Arrived(item=item))
        return item.sequence

    def internal(self, model: str | None, priority: Priority = Priority.NORMAL) -> Sequence:
        return self.arrive(model, lane=Lane.INTERNAL, priority=priority)

    def first_byte(self, sequence: int, *, forwarded: bool = False) -> list[str]:
        return self.tell(
            inputs.FirstByte(
                sequence=Sequence(sequence), attempt=self.running[sequence], forwarded=forwarded
            )
        )

    def started(self, sequence: int) -> list[str]:
        return self.tell(
            inputs.Started(sequence=Sequence(sequence), attempt=self.running[sequence])
        )

    def finish(self, sequence: int, usage: Usage | None = None) -> list[str]:
        attempt = self._over(sequence)
        if sequence not in self.ended:
            self._end(sequence, "finished")
        return self.tell(
            inputs.Finished(sequence=Sequence(sequence), attempt=attempt, usage=usage or Usage())
        )

    def fail(self, sequence: int, fault: Fault, kept_tokens: int | None = None) -> list[str]:
        attempt = self._over(sequence)
        return self.tell(
            inputs.Failed(
                sequence=Sequence(sequence), attempt=attempt, fault=fault, kept_tokens=kept_tokens
            )
        )

    def refuse(self, sequence: int, retry_after_s: float | None = None) -> list[str]:
        attempt = self._over(sequence)
        return self.tell(
            inputs.Failed(
                sequence=Sequence(sequence),
                attempt=attempt,
                fault="refused",
                retry_after_s=retry_after_s,
            )
        )

    def stop(self, sequence: int) -> list[str]:
        assert sequence in self.stopping, f"nobody told {sequence} to stop"
        return self.tell(inputs.Stopped(sequence=Sequence(sequence), attempt=self._over(sequence)))

    def _over(self, sequence: int) -> int:
        self.stopping.discard(sequence)
        return self.running.pop(sequence)

    def cancel(self, sequence: int, *others: int) -> list[str]:
        """The caller leaves, or all that it has is cancelled together."""
        for each in (sequence, *others):
            if each not in self.ended:
                self._end(each, "cancelled")
        return self.tell(inputs.Cancelled(sequences=tuple(map(Sequence, (sequence, *others)))))

    def loaded(self, vram_mib: float | None = None) -> list[str]:
        return self.tell(inputs.Loaded(model=self.loading.pop().model, vram_mib=vram_mib))

    def load_failed(
        self,
        *,
        permanent: bool = False,
        unlisted: bool = False,
        left_alone_s: float = 0.0,
        short: bool = False,
    ) -> list[str]:
        return self.tell(
            inputs.LoadFailed(
                model=self.loading.pop().model,
                permanent=permanent,
                unlisted=unlisted,
                left_alone_s=left_alone_s,
                short=short,
            )
        )

    def unloaded(self) -> list[str]:
        return self.tell(inputs.Unloaded(model=self.unloading.pop(0)))

    def slept(
        self, residual_gb: float = 0.5, host_gb: float = 0.0, level: SleepLevel | None = None
    ) -> list[str]:
        """What was to sleep does, at this level in place of that, and keeps so much."""
        model = self.unloading.pop(0)
        return self.tell(
            inputs.Unloaded(
                model=model,
                level=level or self.levels[model],
                residual_mib=residual_gb * 1024.0,
                host_mib=host_gb * 1024.0,
            )
        )

    def sleep_failed(self, residual_gb: float | None = None) -> list[str]:
        """What was to sleep frees too little, and is stopped, or cannot be and keeps so much."""
        model = self.unloading.pop(0)
        failed = self.levels[model]
        residual_mib = (residual_gb or 0.0) * 1024.0
        level = None if residual_gb is None else failed
        return self.tell(
            inputs.Unloaded(
                model=model, level=level, residual_mib=residual_mib, failed_level=failed
            )
        )

    def wake_failed(self, level: SleepLevel) -> list[str]:
        """What was to wake from a level does not, and is started."""
        return self.tell(inputs.Loaded(model=self.loading.pop().model, failed_level=level))

    def unload_failed(self, *, works: bool = False) -> list[str]:
        return self.tell(inputs.UnloadFailed(model=self.unloading.pop(0), works=works))

    def load_cut(self, *, clean: bool = True) -> list[str]:
        return self.tell(inputs.LoadAborted(model=self.cutting.pop(), clean=clean))

    def swap(self, seconds: float = 0.0) -> list[str]:
        """Everything that must go goes at once; the load takes `seconds`."""
        while self.unloading:
            self.unloaded()
        self.at(self.now + seconds)
        return self.loaded()

    def lease(
        self,
        gb: float | None = None,
        *,
        lease_id: str = "game",
        grace_s: float = 5.0,
        until: float | None = None,
    ) -> list[str]:
        """Another program is to have so much of the card, or all of it."""
        mib = None if gb is None else gb * 1024.0
        return self.tell(inputs.LeaseTaken(id=lease_id, mib=mib, grace_s=grace_s, until=until))

    def lease_ended(self, lease_id: str = "game") -> list[str]:
        return self.tell(inputs.LeaseEnded(id=lease_id))

    def drain(self) -> list[str]:
        return self.tell(inputs.Switched(what="draining", on=True))

    def quiesce(self, *, step_s: float = 1.0, bound: float = inf) -> int:
        """Everything that is open comes to a good end, one after another, until nothing is left to
        do or to wait for.

        Returns:
            The number of outcomes it took. Raises AssertionError where more than `bound` are
            needed.
        """
        steps = 0
        while self.go_on(step_s):
            steps += 1
            assert steps <= bound, f"not quiet after {steps} outcomes: {self.log[-10:]}"
        return steps

    def go_on(self, step_s: float = 1.0) -> bool:
        """One open order comes to a good end, what takes time `step_s` later; False where nothing
        is open.
        """
        if self.unloading:
            self.unloaded()
        elif self.cutting:
            self.load_cut()
        elif self.loading:
            self.at(self.now + step_s)
            if self.loading:  # it may have been cut meanwhile
                self.loaded()
        elif self.stopping:
            self.stop(min(self.stopping))
        elif self.running:
            self.at(self.now + step_s)
            if self.running and not self.stopping:
                self.finish(min(self.running))
        elif self.timer is not None:
            self.fire()
        else:
            return False
        return True
