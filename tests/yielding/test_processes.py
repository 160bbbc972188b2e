"""What is seen of the processes of a machine, and what reading it costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.config.scheduler_settings import YieldSettings
from hearth.types import GpuProcess
from hearth.yielding.processes import (
    FULL_S,
    MAX_READS,
    YOUNG_S,
    ProcessScan,
    Program,
    what_is_hidden,
)
from tests.yielding.launch_lines import LAUNCHES, arguments_of
from tests.yielding.machine import Machine

REAPER = ("/steam/reaper", "SteamLaunch", "AppId=440", "--", "/steam/game")
OWN = re.compile(r"(?i:ollama)|(?:^|/)llama-server[^/]*$")
DEFAULT = YieldSettings().programs


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc")


def game(key: str, title: str = "") -> Program:
    return Program(source="games", key=key, title=title or f"Steam game {key[6:]}")


def named(key: str, title: str) -> Program:
    return Program(source="named", key=key, title=title)


class Scan:
    """Looks once a second, from the instant 0.0 on."""

    def __init__(self, machine: Machine) -> None:
        self.scan = ProcessScan(OWN, machine.proc)
        self.now_s = -1.0

    def __call__(self, *patterns: str, on_card: tuple[GpuProcess, ...] = ()) -> set[Program]:
        self.now_s += 1.0
        return set(self.scan.look(self.now_s, patterns, on_card))


def test_a_game_is_seen_in_the_look_after_its_start_until_its_end(machine):
    scan = Scan(machine)
    assert scan() == set()
    machine.start(50, *REAPER)
    assert scan() == {game("steam:440")}
    machine.end(50)
    assert scan() == set()


def test_a_game_that_runs_already_is_seen_in_the_first_look(machine):
    machine.start(50, *REAPER)
    assert Scan(machine)() == {game("steam:440")}


def test_a_launcher_that_becomes_a_game_is_seen(machine):
    scan = Scan(machine)
    scan()
    machine.start(50, "/bin/sh", "-c", "exec reaper")
    assert scan() == set()
    machine.start(50, *REAPER)
    assert scan() == {game("steam:440")}


def test_a_process_that_becomes_a_game_late_is_seen_in_a_full_look(machine):
    scan = Scan(machine)
    scan()
    machine.start(50, "/bin/bash")
    for _ in range(int(YOUNG_S) + 2):
        scan()
    machine.start(50, *REAPER)
    assert scan() == set()
    scan.now_s = FULL_S
    assert scan() == {game("steam:440")}


def test_a_game_that_has_become_a_zombie_is_over(machine):
    scan = Scan(machine)
    machine.start(50, *REAPER)
    assert scan() == {game("steam:440")}
    machine.die(50)
    assert scan() == set()


def test_a_number_that_another_program_has_got_is_no_game(machine):
    scan = Scan(machine)
    machine.start(50, *REAPER)
    scan()
    machine.end(50)
    machine.start(50, "/usr/bin/vim", "notes")
    assert scan() == set()


def test_a_number_that_a_game_has_got_within_a_second_is_seen(machine):
    scan = Scan(machine)
    machine.start(50, "/usr/bin/vim", "notes")
    scan()
    machine.end(50)
    machine.start(50, *REAPER)
    assert scan() == {game("steam:440")}


def test_what_a_game_has_started_is_that_game(machine):
    machine.start(50, *REAPER)
    machine.start(60, "srt-bwrap", "--args", "34", parent=50)
    machine.start(61, "python3", "/steam/proton", "waitforexitandrun", "/x/game.exe", parent=60)
    machine.start(62, "Z:\\x\\game.exe", parent=61)
    assert Scan(machine)(*DEFAULT) == {game("steam:440")}


def test_what_two_launchers_of_one_game_say_is_one_game(machine):
    line = "gamescope -f -- /steam/reaper SteamLaunch AppId=440 -- /steam/game"
    machine.start(50, *line.split())
    machine.start(51, *REAPER, parent=50)
    machine.start(70, "lutris-wrapper: Portal 2")
    machine.start(71, "python3", "/usr/bin/umu-run", "/x/portal2.exe", parent=70)
    machine.start(72, "python3", "/y/proton", "run", "/x/portal2.exe", parent=71)
    assert Scan(machine)() == {game("steam:440"), game("lutris:portal-2", "Portal 2")}


def test_a_session_of_steam_in_gamescope_is_no_program_either(machine):
    machine.start(50, "gamescope", "-e", "--", "steam", "-gamepadui", "-steamos3")
    machine.start(51, "/usr/bin/gamescopereaper", "--", "steam", "-gamepadui", parent=50)
    machine.start(52, "/home/u/.local/share/Steam/ubuntu12_32/steam", parent=51)
    assert Scan(machine)(*DEFAULT) == set()


def test_a_game_goes_on_when_what_started_it_has_ended(machine):
    epic = "9bc4423d873845739cc99ab69b6bfbe9"
    scan = Scan(machine)
    machine.start(50, "/heroic/legendary", "launch", epic)
    assert scan() == {game(f"epic:{epic}", f"Epic game {epic}")}
    machine.end(50)
    machine.start(51, "python3", "/y/proton", "run", "/x/a.exe", f"-epicapp={epic}")
    assert scan() == {game(f"epic:{epic}", f"Epic game {epic}")}


def test_a_circle_of_parents_ends(machine):
    machine.start(50, *REAPER, parent=51)
    machine.start(51, "gamescope", "--", "/x/other", parent=50)
    assert len(Scan(machine)()) <= 2


NAMED = {
    "a program of Wine's": (("Z:\\games\\Portal2.exe", "-game"), {"portal2-exe"}),
    "by its path": (("/home/u/games/Portal2.exe",), {"portal2-exe"}),
    "what Wine's loader runs": (("/usr/bin/wine64", "/home/u/a.exe", "b.exe"), {"a-exe"}),
    "in capitals": (("D:\\SETUP.EXE",), {"setup-exe"}),
    "Wine's own": (("C:\\windows\\system32\\services.exe",), set()),
    "Wine's desktop": (("explorer.exe", "/desktop"), set()),
    "Wine's device driver": (("C:\\windows\\system32\\winedevice.exe",), set()),
    "Proton's shim": (("c:\\windows\\system32\\steam.exe", "/x/d3ddriverquery64.exe"), set()),
    "what Mono runs": (("/usr/bin/mono", "--debug", "/opt/Sonarr/Sonarr.exe"), set()),
    "an argument": (("/usr/bin/vim", "/home/u/a.exe"), set()),
    "a model server": (("/usr/lib/ollama/ollama.exe",), set()),
    "no name": (("",), set()),
}


@pytest.mark.parametrize(("arguments", "keys"), NAMED.values(), ids=NAMED)
def test_a_program_counts_by_the_names_it_has(machine, arguments, keys):
    machine.start(50, *arguments)
    assert {each.key for each in Scan(machine)("*.exe")} == keys


def test_a_program_counts_by_what_the_kernel_or_an_interpreter_calls_it(machine):
    machine.start(50, "/opt/x/AppRun", comm="davinci")
    machine.start(51, "/usr/bin/python3", "-u", "/home/u/train.py")
    machine.start(52, "C:\\windows\\explorer.exe")
    found = Scan(machine)("davinci", "train.py", "explorer.exe")
    assert found == {
        named("davinci", "davinci"),
        named("train-py", "train.py"),
        named("explorer-exe", "explorer.exe"),
    }


def test_new_patterns_count_at_once_for_what_runs_already(machine):
    machine.start(50, "/usr/bin/blender")
    scan = Scan(machine)
    assert scan() == set()
    for _ in range(int(YOUNG_S) + 2):
        scan("*.exe")
    assert scan("blender") == {named("blender", "blender")}
    assert scan() == set()


def test_the_model_server_is_no_other_program(machine):
    machine.start(50, "/usr/lib/ollama/llama-server", "-m", "x")
    card = (GpuProcess(pid=50, name="/usr/lib/ollama/llama-server", used_mib=9000.0),)
    assert Scan(machine)("llama*", on_card=card) == set()


def test_this_process_and_what_it_has_started_are_no_other_programs(machine):
    me = os.getpid()
    machine.start(me, "/usr/bin/python3", "/opt/hearth/bin/hearth", "serve")
    machine.start(50, "/usr/bin/python3", "-I", "guard.py", parent=me)
    machine.start(51, "/usr/bin/python3", "server.py", parent=50)
    machine.start(60, "/usr/bin/python3", "train.py")
    assert Scan(machine)("python3", "*.py") == {named("python3", "python3")}
    machine.end(60)
    assert Scan(machine)("python3", "*.py") == set()


def test_a_program_that_only_the_driver_lists_counts_by_its_name(machine):
    card = (
        GpuProcess(pid=7001, name="Z:\\games\\Portal2.exe", used_mib=3000.0),
        GpuProcess(pid=7002, name="/usr/bin/gnome-shell", used_mib=300.0),
        GpuProcess(pid=7003, name="", used_mib=100.0),
    )
    assert Scan(machine)("*.exe", on_card=card) == {named("portal2-exe", "Portal2.exe")}
    assert Scan(machine)(on_card=card) == set()


def test_what_the_driver_lists_of_a_game_is_that_game(machine):
    machine.start(50, *REAPER)
    machine.start(62, "/opt/loader", parent=50)
    card = (GpuProcess(pid=62, name="Z:\\x\\game.exe", used_mib=3000.0),)
    assert Scan(machine)("*.exe", on_card=card) == {game("steam:440")}


def test_a_megabyte_of_arguments_is_read_to_its_beginning_only(machine):
    hostile = ["AppId=1", "--", "\x1b[2J" + "A" * 100_000, *["B" * 1000] * 1000]
    machine.start(50, "reaper", "SteamLaunch", *hostile)
    machine.start(51, "reaper", "SteamLaunch", f"AppId={'1' * 5000}", "--", "x")
    assert Scan(machine)() == {game("steam:1")}


def test_processes_that_vanish_while_they_are_read_are_passed_over(machine):
    machine.start(50, *REAPER)
    (machine.proc / "60").mkdir()  # nothing in it: it has just ended
    machine.start(61, *REAPER)
    (machine.proc / "61/cmdline").unlink()
    (machine.proc / "62").mkdir()
    (machine.proc / "62/stat").write_text("62 (broken")
    (machine.proc / "63").write_text("no folder")
    assert Scan(machine)(*DEFAULT) == {game("steam:440")}


def test_a_name_with_parentheses_and_bytes_that_are_no_text_is_read(machine):
    machine.start(50, *REAPER, comm=") R 1 (")
    machine.start(51, os.fsdecode(b"/x/\xff\xfe.exe"), parent=50)
    assert Scan(machine)(*DEFAULT) == {game("steam:440")}


def test_among_thousands_of_new_processes_a_game_is_found_soon(machine):
    scan = Scan(machine)
    scan()
    for pid in range(1000, 1000 + MAX_READS + 500):
        machine.start(pid, "/bin/true")
    machine.start(30_000, *REAPER)
    assert [scan(), scan()][-1] == {game("steam:440")}


def test_without_processes_to_read_nothing_is_found(tmp_path):
    scan = ProcessScan(OWN, tmp_path / "none")
    assert scan.look(0.0, DEFAULT) == frozenset()


@pytest.mark.parametrize(
    ("without", "why"),
    [((), ""), (("self",), "no_proc"), (("1",), "hidden"), (("2",), "container")],
)
def test_why_programs_cannot_be_seen_is_told(machine, without, why):
    for name in without:
        path = machine.proc / name
        machine.end(int(name)) if name.isdigit() else path.rmdir()
    assert what_is_hidden(machine.proc) == why


def test_a_process_of_a_container_with_the_number_of_the_kernels_is_told_apart(machine):
    machine.start(2, "/bin/sh")
    assert what_is_hidden(machine.proc) == "container"


def test_every_launch_line_is_seen_in_a_real_process_tree(machine):
    scan = Scan(machine)
    scan()
    for at, (_, _, line, key, title) in enumerate(LAUNCHES):
        machine.start(100 + at, *arguments_of(line))
        assert scan() == {Program(source="games", key=key, title=title)}
        machine.end(100 + at)
    assert scan() == set()


def test_a_process_of_this_machine_is_seen_and_its_end_too(tmp_path):
    """Python runs a file of the name that Steam's program takes as its first argument."""
    (tmp_path / "SteamLaunch").write_text("import sys\nprint(flush=True)\nsys.stdin.read()\n")
    scan = ProcessScan(OWN)
    mine = game("steam:4294967295")
    assert mine not in scan.look(0.0, DEFAULT)
    with subprocess.Popen(
        ["/steam/reaper", "SteamLaunch", "AppId=4294967295", "--", "/steam/game"],
        executable=sys.executable,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert mine in scan.look(1.0, DEFAULT)
        process.stdin.close()
        process.stdout.read()  # it has ended, and nobody has asked how: a zombie
        assert mine not in scan.look(2.0, DEFAULT)
    assert mine not in scan.look(3.0, DEFAULT)
