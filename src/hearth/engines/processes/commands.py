"""The command of a model's server, with its macros replaced."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hearth.config.engines import RunSettings
from hearth.errors import LoadError
from hearth.types import frozen

_MACRO = re.compile(r"\$\{([^}]*)\}")


@frozen
class ServerCommand:
    """What is run: words of the command and of those that stop it, put it to sleep and wake it, and
    the variables of the environment that are set beside Hearth's own.
    """

    words: tuple[str, ...]
    stop: tuple[str, ...]
    env: Mapping[str, str]
    sleep: tuple[str, ...] = ()
    wake: tuple[str, ...] = ()


def command_of(
    model: str, run: RunSettings, port: int, environ: Mapping[str, str]
) -> ServerCommand:
    """Raises LoadError: a variable is not set; names the setting."""

    def filled(text: str, place: str) -> str:
        def value(macro: re.Match[str]) -> str:
            name = macro[1]
            if name == "PORT":
                return str(port)
            if name == "MODEL":
                return model
            variable = name.removeprefix("env.")
            if variable not in environ:
                raise LoadError(
                    f"models.{model}.run.{place}: the environment variable {variable} is not set"
                )
            return environ[variable]

        return _MACRO.sub(value, text)

    def words_of(name: str, command: Iterable[str]) -> tuple[str, ...]:
        return tuple(filled(word, f"{name}[{at}]") for at, word in enumerate(command))

    return ServerCommand(
        words=words_of("command", run.command),
        stop=words_of("stop", run.stop),
        sleep=words_of("sleep_command", run.sleep_command),
        wake=words_of("wake_command", run.wake_command),
        env={name: filled(given, f"env.{name}") for name, given in run.env.items()},
    )


def program_of(model: str, run: RunSettings, environ: Mapping[str, str]) -> str:
    """The file of the program that starts a server. Raises LoadError: as `command_of`, or there is
    none.
    """
    command = command_of(model, run, 0, environ)
    program = command.words[0]
    path = command.env.get("PATH", environ.get("PATH", ""))
    found = shutil.which(program, path=path)
    if found is None:
        where = "" if "/" in program else " in the directories of PATH"
        raise LoadError(f"models.{model}.run.command[0]: there is no program {program}{where}")
    return found


def digest_of(model: str, run: RunSettings, environ: Mapping[str, str]) -> str:
    """What decides the text that a server writes: its command, and the files that are named in it
    as they are now. Asks the disk.
    """
    parts = [model, *run.command]
    with suppress(LoadError):
        for word in command_of(model, run, 0, environ).words:
            with suppress(OSError, ValueError):
                found = Path(word.rpartition("=")[2]).stat()
                parts.append(f"{found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
