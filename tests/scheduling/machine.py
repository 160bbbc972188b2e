"""A house in which anything may happen in any order: the state machine that `test_machine` runs.

Every step is one fact, chosen among those that could be true now; `DecisionChecker` judges each decision, and at the end everything heals
and must come to rest within a bound that is computed from what was open.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hearth.config.settings import (
    AgingSettings,
    GpuSettings,
    ModelSettings,
    PackingMode,
    PackingSettings,
    PolicyName,
    QueueSettings,
    SchedulerSettings,
    SchedulingSettings,
)
from hearth.scheduling import inputs
from hearth.scheduling.inputs import Fault, Input
from hearth.types import Lane, Priority, Sequence, Usage
from tests.support.shell import Shell

MODELS = ("a", "b", "c")
PICK = st.integers(0, 7)
GAP_S = st.sampled_from((0.0, 0.0, 0.5, 3.0, 40.0))
MODEL = st.sampled_from((*MODELS, "a", None))


def rules_of_the_house(*, policy: PolicyName, shared: bool, parallel: int, home: str) -> SchedulerSettings:
    """Either one model at a time, or three sizes of which some fit beside each other."""
    sizes = {"a": 10.0, "b": 10.0, "c": 18.0}
    return SchedulerSettings(
        scheduling=SchedulingSettings(
            policy=policy,
            max_swap_wait_s=20.0,
            schedule_drain_minutes=0.5,
            aging=AgingSettings(promote_after_s=25.0, ceiling=Priority.CRITICAL),
            packing=PackingSettings(mode=PackingMode.PACK if shared else PackingMode.FIFO, prefill_max_tokens=300, force_fifo_every=3),
        ),
        queue=QueueSettings(max_interrupt_count=2),
        gpu=GpuSettings(vram_gb=24.0 if shared else None, home_model=home),
        models={name: ModelSettings(vram_gb=size if shared else None, parallel=parallel) for name, size in sizes.items()},
    )


SETTINGS = st.builds(
    rules_of_the_house,
    policy=st.sampled_from(PolicyName),
    shared=st.booleans(),
    parallel=st.integers(1, 3),
    home=st.sampled_from(("a", "b", "")),
)
DRIFT = st.sampled_from(
    (
        *(inputs.Unloaded(model=model) for model in MODELS),
        *(inputs.Loaded(model=model, vram_mib=2048.0) for model in (*MODELS, "x")),
        inputs.ModelsListed(names=frozenset(MODELS[:1])),
        inputs.ModelsListed(names=frozenset(MODELS)),
        inputs.ModelsListed(names=frozenset(MODELS)),
        inputs.GpuSampled(capacity_mib=None),
        inputs.GpuSampled(capacity_mib=24 * 1024.0),
        inputs.GpuSampled(capacity_mib=24 * 1024.0, foreign_mib=14 * 1024.0),
    )
)
BACKEND = st.sampled_from((inputs.BackendDown(), inputs.BackendUp(), inputs.BackendUp(), inputs.BackendUp()))
OWNER = st.sampled_from(
    (
        inputs.ModeChanged(active=False),
        inputs.ModeChanged(active=True),
        inputs.ModeChanged(active=True),
        inputs.PreemptRequested(),
        inputs.ExternalPaused(paused=True),
        inputs.ExternalPaused(paused=False),
        inputs.ExternalPaused(paused=False),
        *(inputs.ModelPinned(model=model) for model in (*MODELS, None, None)),
        *(inputs.LoadOrdered(model=model) for model in MODELS),
        *(inputs.UnloadOrdered(model=model) for model in MODELS),
        *(inputs.Scheduled(task_type="digest", due_at=in_s) for in_s in (5.0, 20.0, 60.0)),
        *(inputs.ClockStepped(ahead_s=ahead_s) for ahead_s in (-30.0, 8.0)),
    )
)
"""Announcements are drawn with the seconds until they are due."""


class House(RuleBasedStateMachine):
    """See the module docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.house = Shell()
        self.accepted = 0
        self.draining = False

    @initialize(settings=SETTINGS, resident=st.sampled_from((("a",), ("a", "b"), ())))
    def open_house(self, settings: SchedulerSettings, resident: tuple[str, ...]) -> None:
        self.house = Shell(settings, resident=resident)

    def _open(self) -> list[int]:
        return sorted(self.house.running)

    @rule(model=MODEL, lane=st.sampled_from(Lane), priority=st.sampled_from(Priority), wait=st.sampled_from((None, None, None, 15.0)))
    def arrive(self, model: str | None, lane: Lane, priority: Priority, wait: float | None) -> None:
        self.accepted += 1
        limit, resumable, tokens = (60 if self.accepted % 3 else None), self.accepted % 2 == 0, 100 * (self.accepted % 5)
        self.house.arrive(model, lane=lane, priority=priority, max_wait_s=wait, max_tokens=limit, resumable=resumable, prompt_tokens=tokens)

    @rule(models=st.lists(MODEL, min_size=2, max_size=5), internal=st.booleans())
    def several_arrive(self, models: list[str | None], internal: bool) -> None:
        for model in models:
            self.accepted += 1
            self.house.arrive(model, lane=Lane.INTERNAL if internal else Lane.EXTERNAL)

    @rule(gap_s=GAP_S)
    def time_passes(self, gap_s: float) -> None:
        self.house.at(self.house.now + gap_s)

    @precondition(lambda self: self.house.timer is not None)
    @rule(early_s=st.sampled_from((0.0, 1e-9)))
    def the_timer_fires(self, early_s: float) -> None:
        self.house.fire(early_s)

    @rule()
    def a_timer_fires_that_nobody_needs(self) -> None:
        self.house.tell(inputs.TimerFired())

    @precondition(lambda self: self.house.running)
    @rule(pick=PICK)
    def an_attempt_starts(self, pick: int) -> None:
        self.house.started(self._open()[pick % len(self.house.running)])

    @precondition(lambda self: self.house.running)
    @rule(pick=PICK, forwarded=st.booleans())
    def a_first_byte_comes(self, pick: int, forwarded: bool) -> None:
        self.house.first_byte(self._open()[pick % len(self.house.running)], forwarded=forwarded)

    @precondition(lambda self: self.house.running)
    @rule(pick=PICK)
    def a_stream_outgrows_what_is_kept(self, pick: int) -> None:
        sequence = self._open()[pick % len(self.house.running)]
        self.house.tell(inputs.Unresumable(sequence=Sequence(sequence), attempt=self.house.running[sequence]))

    @precondition(lambda self: self.house.running)
    @rule(pick=PICK)
    def an_attempt_finishes(self, pick: int) -> None:
        usage = Usage(prompt_tokens=100, output_tokens=10 + pick, prompt_s=0.1, decode_s=0.5)
        self.house.finish(self._open()[pick % len(self.house.running)], usage)

    @precondition(lambda self: self.house.running)
    @rule(pick=PICK, fault=st.sampled_from(Fault))
    def an_attempt_fails(self, pick: int, fault: Fault) -> None:
        self.house.fail(self._open()[pick % len(self.house.running)], fault)

    @precondition(lambda self: self.house.stopping)
    @rule(pick=PICK)
    def an_attempt_stops(self, pick: int) -> None:
        self.house.stop(sorted(self.house.stopping)[pick % len(self.house.stopping)])

    @precondition(lambda self: self.accepted)
    @rule(pick=st.integers(0, 100))
    def a_caller_leaves(self, pick: int) -> None:
        sequence = pick % self.accepted + 1
        if sequence not in self.house.ended or sequence in self.house.running:
            self.house.cancel(sequence)

    @precondition(lambda self: self.house.loading)
    @rule(gap_s=GAP_S)
    def a_load_succeeds(self, gap_s: float) -> None:
        self.house.now += gap_s
        self.house.loaded()

    @precondition(lambda self: self.house.loading)
    @rule(permanent=st.booleans())
    def a_load_fails(self, permanent: bool) -> None:
        self.house.load_failed(permanent=permanent)

    @precondition(lambda self: self.house.unloading)
    @rule(gap_s=GAP_S)
    def an_unload_succeeds(self, gap_s: float) -> None:
        self.house.now += gap_s
        self.house.unloaded()

    @precondition(lambda self: self.house.unloading)
    @rule()
    def an_unload_fails(self) -> None:
        self.house.unload_failed()

    @rule(count=st.integers(1, 6))
    def work_goes_on(self, count: int) -> None:
        for _ in range(count):
            self.house.go_on()

    @rule(fact=st.one_of(DRIFT, BACKEND, OWNER))
    def something_happens_elsewhere(self, fact: Input) -> None:
        match fact:
            case inputs.Unloaded(model=model) if model in self.house.unloading:
                return
            case inputs.Loaded(model=model) if any(load.model == model for load in self.house.loading):
                return
            case inputs.UnloadOrdered(model=model) if model == self.house.state.orders.pinned or self.house.state.is_asked_for(model):
                return
            case inputs.Scheduled(task_type=task_type, due_at=in_s):
                fact = inputs.Scheduled(task_type=task_type, due_at=self.house.now + in_s)
            case _:
                pass
        self.house.tell(fact)

    @rule(settings=SETTINGS)
    def the_settings_change(self, settings: SchedulerSettings) -> None:
        self.house.tell(inputs.PolicyChanged(settings=settings))

    @precondition(lambda self: self.accepted > 12 and not self.draining)
    @rule()
    def shutdown_begins(self) -> None:
        self.draining = True
        self.house.drain()

    def teardown(self) -> None:
        """Heal and quiesce."""
        house = self.house
        house.tell(inputs.BackendUp())
        house.tell(inputs.ExternalPaused(paused=False))
        house.tell(inputs.ModelPinned(model=None))
        entries = len(house.state.entries)
        house.quiesce(bound=20 + 8 * entries + 4 * len(MODELS))
        if self.draining:
            self._nothing_new_runs()
        else:
            assert not house.state.entries, f"left behind: {house.state.entries}"
        self._nothing_is_held()

    def _nothing_new_runs(self) -> None:
        assert all(entry.model is None for entry in self.house.state.entries.values())

    def _nothing_is_held(self) -> None:
        state, house = self.house.state, self.house
        assert not house.running
        assert not house.loading
        assert not house.unloading
        assert house.timer is None, f"a timer is left for {house.timer}"
        assert state.residency.swap is None
        assert all(not resident.running for resident in state.residency.residents.values())
        left = {Sequence(sequence) for sequence in range(1, self.accepted + 1)} - state.entries.keys()
        assert left == house.ended.keys(), f"without an ending: {left - house.ended.keys()}"
