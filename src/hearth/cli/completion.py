"""`hearth --install-completion` and `--show-completion`: what a shell needs to complete commands,
and the folder from which it reads that by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from hearth.cli import CommandFailed

_BASH_PACKAGE = tuple(
    Path(prefix, "share/bash-completion/bash_completion")
    for prefix in ("/usr", "/usr/local", "/opt/homebrew")
)
"""Of the package that reads the folder of bash's completions."""


class _Bash(BashComplete):
    """As click's, but a name with a colon, as models have them, is one word. Bash splits words at
    colons, and replaces only what follows the last one.
    """

    source_template = """\
%(complete_func)s() {
    local words=() word rest line=$COMP_LINE type value i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        rest=${line#"${line%%%%[![:space:]]*}"}
        if ((i > 1)) && [[ $rest == "$line" && ($word == :* || ${COMP_WORDS[i - 1]} == *:) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        line=${rest#"$word"}
    done
    local before=
    [[ $COMP_WORDBREAKS == *:* ]] && before=${words[-1]%%"${words[-1]##*:}"}
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$before"}") ;;
        esac
    done < <(
        IFS=$'\\n'
        env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
            %(complete_var)s=bash_complete "$1"
    )
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Zsh(ZshComplete):
    """As click's, but every second Tab of a session would do nothing: it asks whether the file is
    being loaded, which is so for the first call only, and then registers instead of completing.
    """

    source_template = ZshComplete.source_template.replace(
        "$zsh_eval_context[-1] == loadautofunc", "$funcstack[1] == _%(prog_name)s"
    )


class _Fish(FishComplete):
    """As click's, but a description goes on behind its first comma."""

    source_template = FishComplete.source_template.replace(
        'string split ","', 'string split --max 1 ","'
    )


class _Place(NamedTuple):
    """Where a shell reads completions: a folder of the user's, from the variable that names one or
    from the home directory, and the file in it.
    """

    variable: str
    folder: str
    file: str

    def path(self, environ: Mapping[str, str]) -> Path:
        """XDG Base Directory Specification: a relative value is ignored."""
        named = Path(environ.get(self.variable, ""))
        home = Path(environ.get("HOME") or Path.home())
        return (named if named.is_absolute() else home / self.folder) / self.file


_SHELLS: Mapping[str, tuple[type[ShellComplete], _Place]] = {
    "bash": (
        _Bash,
        _Place("XDG_DATA_HOME", ".local/share", "bash-completion/completions/hearth"),
    ),
    "zsh": (_Zsh, _Place("XDG_DATA_HOME", ".local/share", "zsh/site-functions/_hearth")),
    "fish": (_Fish, _Place("XDG_CONFIG_HOME", ".config", "fish/completions/hearth.fish")),
}


def shell_named(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The shell of that name; empty for the user's own. Raises UsageError."""
    shell = name or Path(environ.get("SHELL", "")).name
    if shell in _SHELLS:
        return shell
    what = f"{shell} cannot be completed" if shell else "SHELL does not name your shell"
    raise click.UsageError(f"{what}: name one of {', '.join(_SHELLS)}")


def script(shell: str, command: click.Command) -> str:
    """What the shell has to read."""
    completer, _ = _SHELLS[shell]
    return completer(command, {}, "hearth", "_HEARTH_COMPLETE").source()


def install(shell: str, command: click.Command, environ: Mapping[str, str] = os.environ) -> Path:
    """Write the script where the shell finds it, and return where. Raises CommandFailed."""
    _, place = _SHELLS[shell]
    path = place.path(environ)
    draft = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(script(shell, command), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def what_is_missing(
    shell: str,
    path: Path,
    environ: Mapping[str, str] = os.environ,
    bash_package: Iterable[Path] = _BASH_PACKAGE,
) -> str:
    """What the user has to do so that the shell reads `path`; empty where it does so by itself."""
    if shell == "bash" and not any(each.is_file() for each in bash_package):
        return (
            "Bash reads it with the package bash-completion, which is not here: install"
            f" it, or add this line to ~/.bashrc:\n    source {path}"
        )
    if shell == "zsh" and str(path.parent) not in _zsh_settings(environ):
        return (
            "Zsh reads it if ~/.zshrc has these lines:\n"
            f"    fpath=({path.parent} $fpath)\n"
            "    autoload -Uz compinit && compinit"
        )
    return ""


def _zsh_settings(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME") or str(Path.home())
    path = Path(environ.get("ZDOTDIR") or home, ".zshrc")
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
    return text.replace("$HOME", home).replace("~", home)


def _install(command: click.Command, name: str) -> None:
    shell = shell_named(name)
    path = install(shell, command)
    missing = what_is_missing(shell, path)
    click.echo(f"wrote {path}. {missing or f'A new {shell} completes hearth.'}")


def _show(command: click.Command, name: str) -> None:
    click.echo(script(shell_named(name), command), nl=False)


OPTIONS = {"--install-completion": _install, "--show-completion": _show}
