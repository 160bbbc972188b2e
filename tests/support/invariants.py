"""What must hold after every decision, checked in tests and in the simulator.

`check` looks at one state; `DecisionChecker` also watches the sequence of actions. Both raise
`InvariantBroken` and name what broke.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from math import inf

from hearth.scheduling.actions import Action, Dispatch, Fail, Load, Stop, Unload
from hearth.scheduling.clearing import to_go
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Input
from hearth.scheduling.preemption import has_way_on, resumable
from hearth.scheduling.state import DeviceState, GatewayState
from hearth.scheduling.waiting import BANDS, Entry
from hearth.types import Band, Sequence


class InvariantBroken(AssertionError):
    """The scheduler contradicts itself."""


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantBroken(what)


def check(device: DeviceState) -> None:
    """Conservation and exclusion in one state. Raises InvariantBroken."""
    gateway = device.gateway
    waiting = {entry.item.sequence for entry in gateway.all_waiting()}
    residents = list(device.residency.residents.values())
    running = [sequence for resident in residents for sequence in resident.running]
    _require(len(running) == len(set(running)), "an item runs on two models")
    _require(not waiting & set(running), "an item waits and runs")
    _require(waiting <= gateway.entries.keys(), "a line holds an item that has left")
    for sequence, entry in gateway.entries.items():
        _require(
            entry.item.sequence == sequence, f"item {sequence} is filed under a foreign number"
        )
        _require(
            (entry.place == "waiting") == (sequence in waiting),
            f"item {sequence} is {entry.place} but the lines disagree",
        )
        is_set_aside = entry.place == "waiting" and gateway.is_paused(entry)
        _require(entry.is_set_aside == is_set_aside, f"item {sequence} waits in the wrong place")
    for lines in (*gateway.waiting.lines, *gateway.set_aside.lines):
        for model, line in lines.items():
            keys = [entry.key for entry in line]
            _require(
                bool(line) and keys == sorted(set(keys)),
                f"the line for {model} is empty or out of order",
            )
    for resident in residents:
        _require(
            resident.phase == "ready" or not resident.running,
            f"{resident.model} runs work while {resident.phase}",
        )
        _require(
            resident.reserved_mib is None or resident.reserved_mib >= 0, "a reservation is negative"
        )
        for entry in resident.running.values():
            _require(
                entry.model == resident.model,
                f"item {entry.item.sequence} runs on {entry.model}, not {resident.model}",
            )
            choices = entry.item.choices or (entry.item.model,)
            _require(
                bool({None, resident.model}.intersection(choices)),
                f"item {entry.item.sequence} runs on a model it did not ask for",
            )
    loading = sum(resident.phase in {"loading", "cutting"} for resident in residents)
    unloading = device.residency.unloading
    _require(
        bool(loading or unloading) == (device.residency.swap is not None),
        "the swap and the phases of the residents disagree",
    )
    both = device.residency.sleepers.asleep.keys() & device.residency.residents.keys()
    _require(not both, f"{both} sleep and are in memory")
    _require(loading <= 1 and not (loading and unloading), "two swaps are under way")


class DecisionChecker:
    """Runs a scheduler and judges every decision it takes.

    A drop-in for it in tests and in the simulator.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._attempts: dict[Sequence, int] = {}
        self._over: set[Sequence] = set()

    @property
    def device(self) -> DeviceState:
        return self.scheduler.device

    @property
    def gateway(self) -> GatewayState:
        return self.scheduler.gateway

    def handle(self, fact: Input, now: float) -> list[Action]:
        """As `Scheduler.handle`, then judge. Raises InvariantBroken."""
        actions = self.scheduler.handle(fact, now)
        self.judge(actions, now)
        return actions

    def judge(self, actions: Iterable[Action], now: float) -> None:
        check(self.device)
        for action in actions:
            self._judge(action, now)
        self._judge_starts(
            [
                self.gateway.entries[action.sequence]
                for action in actions
                if isinstance(action, Dispatch)
            ]
        )
        self._judge_leases()
        self._never_idle_beside_ready_work(now)

    def _judge_leases(self) -> None:
        """Whatever is over the room of the models is to go, and nothing else."""
        residency = self.device.residency
        marked = [each for each in residency.residents.values() if each.yields_at is not None]
        room = residency.room_mib
        if not self.device.leases.taken or room == inf or not self.device.swaps:
            _require(not marked, "a model has to go for no lease")
            return
        staying = [
            each
            for each in residency.residents.values()
            if each.may_go and each not in to_go(self.device)
        ]
        _require(room is not None, "leases do not know what is left")
        used = sum(inf if each.reserved_mib is None else each.reserved_mib for each in staying)
        _require(used <= (room or 0.0), f"{used:.0f} MiB stay in {room:.0f}")

    def _judge(self, action: Action, now: float) -> None:
        device = self.device
        gateway = self.gateway
        match action:
            case Dispatch(sequence=sequence, attempt=attempt, model=model):
                _require(sequence not in self._over, f"item {sequence} runs after its end")
                _require(
                    attempt == self._attempts.get(sequence, 0) + 1,
                    f"item {sequence}: attempt {attempt} is out of order",
                )
                self._attempts[sequence] = attempt
                _require(not device.listing.is_away(model), f"{model} is away and is sent work")
                resident = device.residency.residents[model]
                _require(resident.yields_at is None, f"{model} has to go and is sent work")
                _require(
                    len(resident.running) <= gateway.settings.parallel(model),
                    f"{model} runs more than it has slots",
                )
            case Stop(sequence=sequence):
                self._judge_stop(action, gateway.entries[sequence], now)
            case Load(model=model):
                _require(device.loads(model), f"{model} stays, or is away, and is loaded")
                self._judge_load(model)
            case Unload(model=model, why=why):
                _require(device.loads(model), f"{model} stays, or is away, and is unloaded")
                evicted = device.residency.residents.get(model)
                _require(
                    evicted is not None or model in device.residency.sleepers.moving,
                    f"{model} is unloaded, but neither in memory nor asleep",
                )
                _require(
                    evicted is None or not evicted.running,
                    f"{model} is unloaded under running work",
                )
                if model == device.pinned and why not in {"reload", "lease"}:
                    needs_room = any(
                        entry.band <= Band.BACKGROUND and entry.wanted_model != model
                        for entry in gateway.waiting.all_entries()
                    )
                    _require(needs_room, f"{model} is unloaded though pinned and in nobody's way")
            case Fail(sequence=sequence):
                _require(sequence not in self._over, f"item {sequence} ends twice")
                self._over.add(sequence)
            case _:
                pass

    def _judge_stop(self, action: Stop, entry: Entry, now: float) -> None:
        _require(
            entry.place == "stopping", f"item {action.sequence} is told to stop but not marked so"
        )
        if action.how == "abort":
            return
        if entry.for_lease:
            self._judge_yielding(action, entry, now)
            return
        _require(entry.external, f"internal item {action.sequence} has to yield")
        priced = self.gateway.settings.scheduling.preemption == "priced"
        goes_on = "continued" in entry.item.ways and resumable(self.gateway, entry)
        undone = entry.interrupts + (0 if priced else entry.lost_loads)
        may_yield = undone < self.gateway.settings.queue.max_interrupt_count or (priced and goes_on)
        _require(may_yield, f"protected item {action.sequence} is preempted")
        if action.how == "cut":
            _require(entry.forwarded, f"item {action.sequence} is cut though it could be put back")
        else:
            unnoticed = not entry.forwarded or resumable(self.gateway, entry)
            _require(
                unnoticed, f"item {action.sequence} is preempted though its caller has seen bytes"
            )

    def _judge_yielding(self, action: Stop, entry: Entry, now: float) -> None:
        resident = self.device.residency.residents[entry.model or ""]
        is_due = resident.yields_at is not None and resident.yields_at <= now
        _require(is_due, f"{resident.model} stays, or has its grace, and is stopped")
        _require(
            (action.how == "cut") == (entry.forwarded and not has_way_on(entry)),
            f"item {action.sequence} could go on and is cut, or cannot and is not",
        )

    def _judge_load(self, model: str) -> None:
        residency = self.device.residency
        if self.device.listing.is_off_card(model):
            return
        if self.device.leases.taken:
            _require(not to_go(self.device), f"{model} is loaded before leases have their memory")
        _require(
            not residency.has_no_room(model, residency.residents[model].reserved_mib),
            f"{model} is loaded into leased room, or into swap",
        )
        others = [
            resident
            for name, resident in residency.residents.items()
            if name != model and resident.may_go
        ]
        capacity = residency.room_mib
        need = residency.residents[model].reserved_mib
        if capacity == inf:
            return
        if (
            capacity is None
            or need is None
            or any(resident.reserved_mib is None for resident in others)
        ):
            _require(not others, f"{model} is loaded beside others though sizes are unknown")
        elif need <= capacity:
            total = need + sum(resident.reserved_mib or 0.0 for resident in others)
            stuck = self.device.not_before
            total += sum(
                sleeper.rest.residual_mib
                for sleeper in residency.sleepers.asleep.values()
                if sleeper.model not in stuck and not sleeper.stays
            )
            _require(
                total <= capacity, f"loading {model} reserves {total:.0f} MiB of {capacity:.0f}"
            )

    def _judge_starts(self, started: list[Entry]) -> None:
        waiting = self.gateway.waiting
        residents = self.device.residency.residents
        for entry in started:
            if entry.external:
                ahead = waiting.up_to(Band.BACKGROUND, entry.model)
                # Who names no model may want a text, and is not sent to one that only embeds, or
                # that runs elsewhere.
                model = entry.model or ""
                if not residents[model].embeds and self.device.is_near(model):
                    ahead += waiting.up_to(Band.BACKGROUND, None)
                _require(
                    not ahead,
                    f"external item {entry.item.sequence} starts past internal work for its model",
                )
                _require(
                    not entry.background
                    or bool(self.gateway.announced)
                    or not waiting.up_to(Band.EXTERNAL, entry.model),
                    f"background item {entry.item.sequence} starts past a turn for its model",
                )
                _require(
                    not self.gateway.paused,
                    "an external item starts though the owner has paused them",
                )

    def _never_idle_beside_ready_work(self, now: float) -> None:
        """If nothing runs, nothing moves and something waits, then there must be a named reason."""
        device = self.device
        gateway = self.gateway
        lines = [line for lines in gateway.waiting.lines for line in lines.values()]
        able = {
            entry.item.model
            for line in lines
            # whoever stands behind one that is barred waits with it
            for entry in takewhile(lambda each: not device.is_barred_to(each), line)
            if not (gateway.paused and entry.external) and device.can_serve(entry.wanted_model)
        }
        if (
            not able
            or gateway.draining
            or device.down_since is not None
            or device.residency.swap is not None
        ):
            return
        busy = any(resident.running for resident in device.residency.residents.values())
        held = (
            bool(device.not_before)
            or device.held_until is not None
            or device.turn is not None
            or any(due > now for due, _ in gateway.announced)
        )
        homeless = device.home is None and able == {None}
        what = f"the GPU idles at {now} while {len(gateway.waiting)} items wait"
        _require(busy or held or homeless or self._only_the_pin_holds(), what)

    def _only_the_pin_holds(self) -> bool:
        """Everything that waits is external, and the first of each line could only have its model
        in place of the pinned one.
        """
        device = self.device
        gateway = self.gateway
        pinned = device.pinned
        heads = [
            entry
            for band in BANDS
            for entry in gateway.waiting.heads(band)
            if device.can_serve(entry.wanted_model) and not device.is_barred_to(entry)
        ]
        internal = any(not entry.external for entry in heads)
        if pinned not in device.residency.residents or internal:
            return False
        needed = {(entry.item.model or device.home or "", entry.item.task_type) for entry in heads}
        return all(
            device.residency.eviction_for(model, (pinned,), task) is None for model, task in needed
        )
