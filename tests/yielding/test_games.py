"""Which command lines are games."""

from __future__ import annotations

import shlex
from itertools import product
from pathlib import Path

import pytest

from hearth.yielding.games import Game, game_of
from tests.support.cases import for_each
from tests.yielding.launch_lines import LAUNCHES, arguments_of

REAL = Path(__file__).with_name("other_command_lines.txt")
MENTIONS = (
    "reaper SteamLaunch AppId=1091500 -- game",
    "SteamLaunch AppId=1091500",
    "/home/user/.local/share/Steam/ubuntu12_32/reaper",
    "/home/user/SteamLaunch",
    "gamescope -- game",
    "gamescope",
    "lutris-wrapper: Portal 2",
    "/usr/share/lutris/bin/lutris-wrapper",
    "legendary launch Dory",
    "/opt/Heroic/heroic",
    "proton waitforexitandrun game.exe",
    "/home/user/Games/game.exe",
    "umu-run game.exe",
    "-epicapp=9bc4423d873845739cc99ab69b6bfbe9",
)
MENTIONING = (
    "grep -r",
    "rg",
    "ag",
    "pgrep -f",
    "pgrep -af",
    "pkill -f",
    "pidof",
    "killall",
    "vim",
    "nvim",
    "vi",
    "nano",
    "emacs",
    "emacsclient -n",
    "code --wait",
    "gedit",
    "kate",
    "less",
    "cat",
    "head -n 5",
    "tail -f",
    "ls -la",
    "find / -name",
    "locate",
    "man",
    "echo",
    "bash -c",
    "sh -c",
    "zsh -c",
    "fish -c",
    "watch -n 1 ps aux | grep",
    "ssh host",
    "tmux new-session -d",
    "screen -dmS",
    "sudo strace -f -e trace=execve",
    "gdb --args",
    "python3 -c",
    "python3 /home/user/detect_games.py",
    "python3 -m http.server",
    "node /home/user/watch.js",
    "perl -ne",
    "awk",
    "sed -n",
    "git grep",
    "git commit -m",
    "rsync -a",
    "tar -cf backup.tar",
    "cp -r",
    "chmod +x",
    "file",
    "sha256sum",
    "xdg-open",
    "notify-send",
    "curl -d",
    "journalctl -g",
    "systemd-run --user",
    "cgexec -g cpu:games",
    "perf record -p",
)


def real_lines() -> list[str]:
    return [line for line in REAL.read_text().splitlines() if line and not line.startswith("#")]


@for_each(("what", "source", "line", "key", "title"), LAUNCHES)
def test_a_launch_line_is_the_game_it_starts(what, source, line, key, title):
    assert game_of(arguments_of(line)) == Game(key=key, title=title)


def test_no_command_line_of_another_program_is_a_game():
    mentioned = [(*shlex.split(by), text) for by, text in product(MENTIONING, MENTIONS)]
    # split as a careless script passes them
    split = [(*shlex.split(by), *text.split()) for by, text in product(MENTIONING, MENTIONS)]
    other = {*map(arguments_of, real_lines()), *mentioned, *split}
    assert len(other) >= 1000
    assert [line for line in other if game_of(line) is not None] == []


@pytest.mark.parametrize(
    ("arguments", "key", "title"),
    [
        (("reaper", "SteamLaunch", f"AppId={'9' * 5000}", "--", "x"), None, ""),
        (
            ("reaper", "SteamLaunch", "AppId=1", "--", "/steamapps/common/\x1b[31m\nRed\x07/a"),
            "steam:1",
            "[31m Red",
        ),
        (("lutris-wrapper: " + "a" * 100_000,), f"lutris:{'a' * 48}", "a" * 60),
        (("lutris-wrapper: 原神",), "lutris:game", "原神"),
        (("lutris-wrapper: \x00\x1b",), "lutris:game", "a game"),
        (("gamescope", "--", "--", "--"), None, ""),
        (("gamescope", *["-W"] * 1000), None, ""),
        (("gamescope",) * 500, None, ""),
        (("python3",), None, ""),
        (("",), None, ""),
        ((), None, ""),
        (("reaper",), None, ""),
        (("legendary", "launch"), "epic:game", "Epic game"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_hostile_command_line_is_bounded_and_readable(arguments, key, title):
    found = game_of(arguments)
    assert found == (None if key is None else Game(key=key, title=title))
