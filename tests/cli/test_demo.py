"""The whole demo, in this process, much faster than for people."""

from __future__ import annotations

import asyncio
import io
import re
import socket

from hearth.cli.demo import DemoPlan, Tally, demo_config, run_demo
from hearth.cli.demo_callers import CALLERS
from hearth.cli.views import console_for
from hearth.config.loading import exposure_problem
from tests.support.patience import WITHIN_S


class Stage(io.StringIO):
    """Remembers what is printed, and lets a test wait until it matches a pattern."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited
        self._seen = asyncio.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if re.search(self._awaited, self.getvalue(), re.DOTALL):
            self._seen.set()
        return written

    async def seen(self) -> None:
        await asyncio.wait_for(self._seen.wait(), WITHIN_S)


async def played(until: str, *, port: int | None = 0, speed: float = 400.0) -> tuple[str, Tally]:
    stage = Stage(until)
    console = console_for(stage, environ={"COLUMNS": "160"})
    tally = await run_demo(DemoPlan(speed=speed, port=port), console, stopped=stage.seen)
    return stage.getvalue(), tally


async def test_a_round_shows_swaps_and_the_way_home_and_ends_with_a_table():
    text, tally = await played("makes room for.*comes home")  # where the first caller is late, it also comes home at the start
    assert text.rindex("comes home") < text.index("mean wait")
    assert set(tally.callers) == set(CALLERS)
    assert all(count.failed == 0 for count in tally.callers.values())
    assert tally.swaps >= 4


async def test_the_house_interrupts_others_and_they_finish_later():
    text, tally = await played(r"runs again \(try 2\)", speed=40.0)
    assert re.search(r"is interrupted after .*: assistant goes first", text)
    assert sum(count.interruptions for count in tally.callers.values()) >= 1


async def test_a_stream_that_the_house_interrupts_goes_on_where_it_stopped():
    text, tally = await played("goes on where it stopped", speed=40.0)
    assert re.search(r"writer +is interrupted after .*writer +runs again.*writer +goes on where it stopped", text, re.DOTALL)
    assert tally.callers["writer"].failed == 0


async def test_nothing_that_ends_because_the_demo_ends_is_told_or_counted_as_a_failure():
    text, tally = await played("asks")
    assert "cancelled" not in text
    assert all(count.failed == 0 for count in tally.callers.values())


async def test_a_taken_usual_port_makes_the_demo_take_a_free_one():
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8411))
            taken.listen()
        except OSError:
            """Somebody else has it: the same situation."""
        text, _ = await played("asks", port=None)
    assert ":8411" not in text


def test_a_taken_port_that_was_asked_for_ends_with_1(hearth):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = hearth("demo", "--seconds", "1", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert "cannot listen on" in result.stderr


def test_the_command_ends_by_itself_after_the_seconds_given(hearth):
    result = hearth("demo", "--seconds", "0.1", "--speed", "100", "--port", "0")
    assert result.exit_code == 0, result.output
    assert "A home with one GPU" in result.stdout
    assert "of the GPU's working time" in result.stdout


def test_slower_models_get_more_time():
    assert DemoPlan(speed=1.0, port=0).pace == 10 * DemoPlan(speed=10.0, port=0).pace
    slow, usual = demo_config(10.0).settings.gpu, demo_config(1.0).settings.gpu
    assert slow.restore_home_delay_s == 10 * usual.restore_home_delay_s


def test_the_demos_configuration_has_active_hours_all_day_and_stays_on_loopback():
    config = demo_config(1.0)
    assert all(config.is_active_hours(hour * 3600.0) for hour in range(24))
    assert exposure_problem(config.settings.server.host, has_keys=False) is None
