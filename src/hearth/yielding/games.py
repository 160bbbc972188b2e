"""Which processes are games, by what their command lines say: what Steam, Heroic, Lutris, gamescope
and Proton start them with. No list of games.

The launchers themselves are no games, nor is what they run beside games: installers, shader caches,
questions to the driver. A command line is anybody's text: it is looked at from its first argument
on, so that programs that only mention a launcher (an editor, a search) are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from hearth.types import frozen
from hearth.yielding.programs import WINE_TOOLS, key_of, name_of, shown

Arguments: TypeAlias = tuple[str, ...]


@frozen
class Game:
    """One that runs.

    Attributes:
        key: the same for all processes of one game; letters, digits, `:` and `-`.
        title: what the owner calls it, as far as its command line tells.
    """

    key: str
    title: str


def game_of(arguments: Arguments) -> Game | None:
    """The game that a process with these arguments is, or starts; None for every other program."""
    if not arguments:
        return None
    if arguments[0].startswith(_LUTRIS_TITLE):
        return _lutris_game(arguments[0].removeprefix(_LUTRIS_TITLE))
    command = script_of(arguments)
    name = _unwrapped_name(command[0]) if command else ""
    return _GAME_OF.get(name, _epic)(command)


def script_of(arguments: Arguments) -> Arguments:
    """The same without the interpreter before a Python script; empty where it runs no file."""
    if not arguments or not _PYTHON.fullmatch(name_of(arguments[0])):
        return arguments
    for at, argument in enumerate(arguments[1:], 1):
        if not argument.startswith("-"):
            return arguments[at:]
        if argument[1:2] in {"c", "m"}:
            break
    return ()


_PYTHON = re.compile(r"python[0-9.]*")
_NIX_WRAPPED = re.compile(r"\.(.+)-wrapped")


def _unwrapped_name(path: str) -> str:
    """Without what Nix puts around the names of programs."""
    name = name_of(path)
    wrapped = _NIX_WRAPPED.fullmatch(name)
    return wrapped[1] if wrapped else name


def _game(kind: str, name: str, title: str) -> Game:
    return Game(key=f"{kind}:{key_of(name) or 'game'}", title=shown(title) or "a game")


# Steam: `reaper SteamLaunch AppId=440 -- ...`, which lives as long as the last process of the game.

# no zero: nothing that is started has it; the identifiers of other programs have ten digits
_APP_ID = re.compile(r"AppId=([1-9][0-9]{0,19})")
_INSTALLED = re.compile(r"/steamapps/common/((?!Proton|SteamLinuxRuntime)[^/]+)/")
_INSTALLER = "iscriptevaluator.exe"


def _steam(command: Arguments) -> Game | None:
    if len(command) < 4 or command[1] != "SteamLaunch" or "--" not in command:
        return None
    app = _APP_ID.fullmatch(command[2])
    end = command.index("--")
    is_install = any(each.startswith("Install=") for each in command[3:end])
    if app is None or is_install or any(name_of(each) == _INSTALLER for each in command[end:]):
        return None
    # of the paths in it that of the game is the last; the others are those of Proton and runtimes
    titles = [found[1] for each in command[end:] for found in _INSTALLED.finditer(each)]
    return _game("steam", app[1], titles[-1] if titles else f"Steam game {app[1]}")


# gamescope: a compositor around one game, or around a whole session of Steam.

_WRAPPERS = frozenset({"env", "gamemoderun", "mangohud", "steam-launch-wrapper"})
_LAUNCHERS = re.compile(r"(?:steam|heroic|lutris|kodi|startplasma|gnome-session).*", re.IGNORECASE)
# of the options of gamescope those with a value, as far as they have one letter
_VALUED = frozenset(f"-{letter}" for letter in "WHwhrmSFsoORTC")


def _gamescope(command: Arguments) -> Game | None:
    inner = _inner(command)
    while inner and (
        name_of(inner[0]) in _WRAPPERS or inner[0].startswith("-") or "=" in name_of(inner[0])
    ):
        inner = inner[1:]
    name = _unwrapped_name(inner[0]) if inner else ""
    if name == "reaper":
        return _steam(inner)
    # a session starts its games under Steam's own reaper, and Lutris under its own wrapper
    if name in {"", "gamescope"} or _LAUNCHERS.fullmatch(name):
        return None
    return game_of(inner) or _game("gamescope", name, f"{name} (gamescope)")


def _inner(command: Arguments) -> Arguments:
    """What gamescope runs: what follows its `--`, or else its options, as far as they are clear."""
    for at, argument in enumerate(command):
        if argument == "--":
            return command[at + 1 :]
        if name_of(argument) == "reaper":  # whose own `--` is another
            return command[at:]
    at = 1
    while at < len(command) and command[at].startswith("-"):
        if command[at].startswith("--"):  # nobody knows whether a value follows
            return ()
        at += 2 if command[at] in _VALUED else 1
    return command[at:]


# Heroic: one program for each shop. That for Epic's starts the game and ends; the game has the same
# identifier among its arguments, so the two are one.

_SHOPS = {"legendary": "epic", "gogdl": "gog", "nile": "amazon"}
_BEFORE_COMMAND = frozenset({"--auth-config-path", "-c", "--config-file", "-A", "--api-timeout"})
_NO_LAUNCH = frozenset({"--dry-run", "--json", "--help", "-h"})


def _heroic(command: Arguments) -> Game | None:
    at = 1
    while at < len(command) and command[at].startswith("-"):
        at += 2 if command[at] in _BEFORE_COMMAND else 1
    if command[at : at + 1] != ("launch",) or _NO_LAUNCH.intersection(command):
        return None
    app = name_of(next(iter(command[at + 1 : at + 2]), ""))
    shop = _SHOPS[_unwrapped_name(command[0])]
    # GOG's is started by its folder, the others by an identifier
    return _game(shop, app, app if shop == "gog" else f"{shop.title()} game {app}")


_EPIC_ID = "-epicapp="


def _epic(command: Arguments) -> Game | None:
    """A game of Epic's in Wine, whatever started it."""
    if not any(name_of(each).lower().endswith(".exe") for each in command[:3]):
        return None
    for argument in command:
        if argument.startswith(_EPIC_ID):
            app = argument.removeprefix(_EPIC_ID)
            return _game("epic", app, f"Epic game {app}")
    return None


# Lutris: its wrapper lives as long as the last process, and takes the game's title for its own. The
# steps of an installation run under it too, by their paths.

_LUTRIS_TITLE = "lutris-wrapper: "


def _lutris(command: Arguments) -> Game | None:
    return _lutris_game(command[1]) if len(command) > 1 else None


def _lutris_game(title: str) -> Game | None:
    title = title.strip()
    return None if not title or title.startswith("/") else _game("lutris", title, title)


# Proton, by whoever: Heroic, Lutris, or a script of the owner's.

_VERBS = frozenset({"run", "runinprefix", "waitforexitandrun"})


def _proton(command: Arguments) -> Game | None:
    started = command[1:]
    if name_of(command[0]) == "proton":
        if not _VERBS.intersection(started[:1]):
            return None
        started = started[1:]
    program = next((each for each in started if not each.startswith("-")), "")
    name = name_of(program)
    if not name.lower().endswith((".exe", ".bat", ".lnk")) or name.lower() in WINE_TOOLS:
        return None
    return _epic((program, *started)) or _game("proton", name, name)


_GAME_OF: Mapping[str, Callable[[Arguments], Game | None]] = MappingProxyType(
    {
        "reaper": _steam,
        "gamescope": _gamescope,
        **dict.fromkeys(_SHOPS, _heroic),
        "lutris-wrapper": _lutris,
        **dict.fromkeys(("proton", "umu-run", "umu_run.py"), _proton),
    }
)
