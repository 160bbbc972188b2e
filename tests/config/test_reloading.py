"""From the file to the configuration in force: when it is tried, what is refused, and what
overlaps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hearth.config.loading import digest_of
from hearth.config.reload import BLIND_POLL_S, ORDER_GAP_S, WRITING_S, FileWatch, ReloadPlan
from hearth.config.settings import GatewayConfig, ServerSettings, Settings
from hearth.errors import ShuttingDown
from hearth.events import ConfigRejected, ConfigReloaded, InternalFault
from tests.config.keeping import depth, keeping
from tests.support.virtual_time import LoopClock, in_virtual_time

OLD = b"old"
NEW = b"new"
HALF = b"ne"
Fact = Callable[["Simulation"], None]


def token(content: bytes | None) -> str:
    return "gone" if content is None else digest_of(content)


@dataclass
class Simulation:
    """A file, its watch and the plan, in a time that jumps from one thing to the next."""

    blind: bool = False
    polls: bool = True
    content: bytes | None = OLD
    now: float = 0.0
    tries: list[tuple[float, bytes | None]] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = ReloadPlan(digest_of(OLD), 0.0, polls=self.polls)

    def play(self, *facts: tuple[float, Fact], until: float = 60.0) -> None:
        """Let every fact happen at its instant and carry out what the plan says."""
        for at, happen in [*facts, (until, lambda it: None)]:
            while self.plan.wake_at() <= at:
                self.now = max(self.now, self.plan.wake_at())
                self._carry_out(self.plan.step(self.now))
            self.now = at
            happen(self)

    def _carry_out(self, step: str | None) -> None:
        found = token(self.content)
        gone = self.content is None
        if step == "look":
            self.looks.append(self.now)
        if step == "obey" or (
            step == "look" and self.plan.looked(found, self.now, gone=gone, blind=self.blind)
        ):
            self.plan.tried(found)
            self.tries.append((round(self.now, 3), self.content))


def save(content: bytes | None, *, writing: bool = False) -> Fact:
    """The file changes, and the plan hears of it."""

    def happen(it: Simulation) -> None:
        it.content = content
        it.plan.touched(it.now, writing=writing)

    return happen


def unreported(content: bytes) -> Fact:
    return lambda it: setattr(it, "content", content)


def noise(it: Simulation) -> None:
    """Something else happens in the directory."""
    it.plan.touched(it.now)


def in_steps(gap_s: float) -> list[tuple[float, Fact]]:
    return [(5.0, save(b"")), (5.0 + gap_s, save(HALF)), (5.0 + 2 * gap_s, save(NEW))]


def order(it: Simulation) -> None:
    it.plan.ordered()


WRITER = [
    (5.0, save(b"", writing=True)),
    (6.0, save(HALF, writing=True)),
    (7.0, save(NEW, writing=True)),
    (7.0, save(NEW)),
]
LATE_WRITER = [(9.0, save(HALF, writing=True)), (12.0, save(NEW, writing=True)), (12.0, save(NEW))]
RESTLESS: list[tuple[float, Fact]] = sorted(
    [*((at / 100, noise) for at in range(100, 1000)), (5.005, save(NEW))], key=lambda fact: fact[0]
)


@pytest.mark.parametrize(
    ("facts", "tries"),
    [
        ([(5.0, save(NEW))], [(5.4, NEW)]),
        ([(5.0, save(OLD)), (6.0, noise)], []),  # touched, or saved unchanged
        (in_steps(0.001), [(5.402, NEW)]),  # tried when it is complete
        (in_steps(0.1), [(5.6, NEW)]),
        (in_steps(0.29), [(5.7, NEW)]),
        (WRITER, [(7.4, NEW)]),  # who holds the file open is waited for
        (LATE_WRITER, [(12.4, NEW)]),  # a look without a reason does not cut a writer short
        # who never closes the file is not waited for for ever
        ([(5.0, save(NEW, writing=True))], [(5.0 + WRITING_S + 0.1, NEW)]),
        # what lasted for one look only is never tried
        ([(5.0, save(HALF)), (5.35, unreported(NEW))], [(5.5, NEW)]),
        # deleted and written anew is never seen as gone
        ([(5.0, save(None)), (5.9, save(NEW))], [(6.0, NEW)]),
        ([(5.0, save(None)), (50.0, save(OLD))], [(6.3, None), (50.4, OLD)]),
        # prometheus-operator #4708: after a bad file, the good one was never picked up.
        ([(5.0, save(HALF)), (50.0, save(OLD))], [(5.4, HALF), (50.4, OLD)]),
        (RESTLESS, [(5.81, NEW)]),  # a directory where something happens all the time
        ([(25.01, unreported(NEW))], [(30.3, NEW)]),
    ],
)
def test_when_what_is_tried(facts, tries):
    it = Simulation()
    it.play(*facts)
    assert it.tries == tries
    assert (10.0 in it.looks or facts[0][0] != 9.0, len(it.looks) < 40) == (True, True), (
        "looks without a reason, and not too many"
    )


def test_without_reports_a_change_is_soon_found_and_without_a_watch_never():
    blind = Simulation(blind=True)
    deaf = Simulation(polls=False)
    blind.play((25.01, unreported(NEW)))
    ((found_at, content),) = blind.tries
    assert (content, found_at - 25.01 <= BLIND_POLL_S + 0.31) == (NEW, True)
    deaf.play(*[(5 + n / 100, order) for n in range(100)], until=1000.0)
    assert (deaf.tries, deaf.looks) == ([(5.0, OLD), (5.0 + ORDER_GAP_S, OLD)], []), (
        "many within a second are two"
    )


def test_a_touch_during_a_look_leads_to_another_look():
    plan = ReloadPlan(digest_of(OLD), 0.0, polls=False)
    plan.touched(1.0)
    assert plan.step(1.3) == "look"
    plan.touched(1.31)
    assert plan.looked(token(OLD), 1.32, gone=False, blind=False) is False
    assert plan.wake_at() == pytest.approx(1.61)
    assert plan.step(1.61) == "look"


class DeafWatch(FileWatch):
    """A file system that reports nothing: the watch is told of changes by the test alone, or of
    none.
    """

    def refresh(self) -> bool:
        return False


@in_virtual_time
async def test_a_bad_content_changes_nothing_and_the_summary_says_so(file):
    clock = LoopClock()
    async with keeping(file, clock=clock) as kept:
        before = kept.in_force.config
        began = clock.wall()
        for content, says in (
            (None, "is not a regular file"),
            (b"queue:\n  max_external_depht: 2\n", "did you mean max_external_depth"),
        ):
            file.unlink()
            file.mkdir() if content is None else file.write_bytes(content)
            assert await kept.reloader.reload() is False
            problem, *others = kept.of(ConfigRejected)[-1].problems
            assert (says in problem, str(file) in problem, others) == (True, True, [])
            assert kept.in_force.config is before
            if content is None:
                file.rmdir()
                file.touch()
        expected = {
            "generation": 1,
            "source": str(file),
            "problems": [problem],
            "loaded_wall": began,
            "last_attempt": began + 1,
        }
        counts = {"reload_count": 0, "rejected_count": 2, "restart_pending": [], "watch": "off"}
        assert kept.in_force.summary() == expected | counts
        await asyncio.sleep(10.0)
        file.write_text(depth(2))
        assert [await kept.reloader.reload() for _ in range(2)] == [True, True], (
            "what is unchanged is accepted and no new generation"
        )
        expected |= {
            "generation": 2,
            "problems": [],
            "loaded_wall": began + 12,
            "last_attempt": began + 12,
        }
        assert (kept.depth, kept.in_force.summary()) == (2, expected | counts | {"reload_count": 2})


@in_virtual_time
async def test_orders_that_come_together_share_a_try_and_one_may_give_up(file):
    async with keeping(file, clock=LoopClock()) as kept:
        leaving, *staying = (asyncio.ensure_future(kept.reloader.reload()) for _ in range(100))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await asyncio.gather(*staying) == [True] * 99
        assert len(kept.of(ConfigReloaded)) == 1


@in_virtual_time
async def test_orders_without_a_file_put_the_defaults_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    async with keeping(None, clock=LoopClock()) as kept:
        assert await kept.reloader.reload() is True
        assert kept.in_force.config == GatewayConfig()


@in_virtual_time
async def test_on_the_way_out_nothing_is_put_in_force_and_nobody_is_left_waiting(file):
    async with keeping(file, clock=LoopClock()) as kept:
        assert await kept.reloader.reload()
        file.write_text(depth(2))
        waiting = asyncio.ensure_future(kept.reloader.reload())
        await asyncio.sleep(0.5)
        kept.reloader.end()
        for order in (waiting, kept.reloader.reload()):
            with pytest.raises(ShuttingDown):
                await order
        await asyncio.sleep(60.0)
        assert kept.depth == 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_order_that_is_being_obeyed_on_the_way_out_is_refused_as_well(
    file, cancelled: bool
):
    async with keeping(file) as kept:
        file.write_text(depth(2))
        order = asyncio.ensure_future(kept.reloader.reload())
        for _ in range(2):
            await asyncio.sleep(0)
        assert kept.reloader._order is None, "a thread is at work on it"
        kept.reloader.end()
        if not cancelled:
            await asyncio.wait({order})
    with pytest.raises(ShuttingDown):
        await order
    assert kept.depth == 1


@in_virtual_time
async def test_a_listener_that_breaks_keeps_no_other_from_hearing(file):
    async with keeping(file, clock=LoopClock(), watching=DeafWatch) as kept:
        heard: list[GatewayConfig] = []

        def breaks(fresh: GatewayConfig) -> None:
            if fresh.settings.queue.max_external_depth == 2:
                file.write_text(depth(3))
                kept.reloader.touched()
                raise ZeroDivisionError

        kept.in_force.on_reload(breaks)
        kept.in_force.on_reload(heard.append)
        file.write_text(depth(2))
        await kept.reloaded(3)
        assert [each.settings.queue.max_external_depth for each in heard] == [2, 3]
        assert [event.generation for event in kept.of(ConfigReloaded)] == [2, 3]
        (fault,) = kept.of(InternalFault)
        assert (fault.detail, "breaks" in fault.where) == ("ZeroDivisionError", True)


async def test_a_file_of_the_largest_size_does_not_hold_the_loop_up(file):
    """The loop runs on while a thread reads and parses; only what is applied takes its time."""
    callers = "".join(f"    caller-{n}: {{requests_per_minute: {n + 1}}}\n" for n in range(5500))
    async with keeping(file) as kept:
        file.write_text("rate_limits:\n  callers:\n" + callers)
        turns = 0
        order = asyncio.ensure_future(kept.reloader.reload())
        while not order.done():
            turns += 1
            await asyncio.sleep(0)
        assert order.result() is True
        assert (len(kept.in_force.config.settings.rate_limits.callers), turns > 20) == (5500, True)


@in_virtual_time
async def test_keys_that_wait_for_a_restart_are_named_until_they_are_back(file):
    async with keeping(file, clock=LoopClock()) as kept:
        for port, number, pending in (
            (9000, 1, ["server.port"]),
            (9000, 2, ["server.port"]),
            (8411, 2, []),
        ):
            settings = Settings().replace(server=ServerSettings(port=port))
            queue = settings.queue.replace(max_external_depth=number)
            kept.in_force.take(GatewayConfig(settings=settings.replace(queue=queue), source=file))
            assert kept.in_force.summary()["restart_pending"] == pending
            assert kept.of(ConfigReloaded)[-1].needs_restart == tuple(pending)
