"""`hearth --install-completion` and `--show-completion`, and what a real bash makes of them."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hearth.cli.completion import what_is_missing
from tests.support.patience import WITHIN_S

BASH = shutil.which("bash")
PROMPT = b"READY> "
IN_DATA = ".local/share"


@pytest.mark.parametrize(
    ("shell", "environ", "file"),
    [
        ("bash", {}, f"{IN_DATA}/bash-completion/completions/hearth"),
        ("bash", {"XDG_DATA_HOME": "{home}/d"}, "d/bash-completion/completions/hearth"),
        ("bash", {"XDG_DATA_HOME": "d"}, f"{IN_DATA}/bash-completion/completions/hearth"),
        ("zsh", {}, f"{IN_DATA}/zsh/site-functions/_hearth"),
        ("fish", {}, ".config/fish/completions/hearth.fish"),
        ("fish", {"XDG_CONFIG_HOME": "{home}/c"}, "c/fish/completions/hearth.fish"),
    ],
)
@pytest.mark.parametrize("is_named", [True, False])
def test_completion_is_written_where_the_shell_reads_it_again_and_again(
    hearth, tmp_path, shell, environ, file, is_named
):
    given = {name: value.format(home=tmp_path) for name, value in environ.items()}
    given["SHELL"] = "/bin/tcsh" if is_named else f"/usr/local/bin/{shell}"
    named = (shell,) if is_named else ()
    shown = hearth("--show-completion", *named, **given)
    for _ in range(2):
        result = hearth("--install-completion", *named, **given)
        assert (result.exit_code, f"wrote {tmp_path / file}. " in result.stdout) == (0, True)
        assert (tmp_path / file).read_text() == shown.stdout
        assert [each.name for each in (tmp_path / file).parent.iterdir()] == [
            (tmp_path / file).name
        ]


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
@pytest.mark.parametrize(
    ("named", "shell", "says"),
    [
        (("nu",), "/bin/bash", "nu cannot be completed: name one of bash, zsh, fish"),
        ((), "/bin/tcsh", "tcsh cannot be completed: name one of"),
        ((), "", "SHELL does not name your shell: name one of"),
    ],
)
def test_a_shell_that_is_not_known_is_refused(hearth, tmp_path, option, named, shell, says):
    result = hearth(option, *named, SHELL=shell)
    assert (result.exit_code, says in result.stderr, [*tmp_path.iterdir()]) == (2, True, [])


def test_a_folder_that_cannot_be_made_is_named(hearth, tmp_path):
    (tmp_path / ".config").write_text("a file")
    result = hearth("--install-completion", "fish")
    assert (result.exit_code, f"{tmp_path}/.config/fish" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("shell", "zshrc", "has_package", "says"),
    [
        ("bash", "", False, "source {path}"),
        ("bash", "", True, ""),
        ("fish", "", False, ""),
        ("zsh", "", False, "fpath=({folder} $fpath)\n    autoload -Uz compinit && compinit"),
        ("zsh", "fpath=({folder} $fpath)\n", False, ""),
        ("zsh", "fpath=(~/site $fpath)\n", False, ""),
        ("zsh", "fpath+=$HOME/site\n", False, ""),
    ],
)
def test_what_the_shell_lacks_to_read_the_file_is_said(tmp_path, shell, zshrc, has_package, says):
    path = tmp_path / "site" / "_hearth"
    names = {"path": path, "folder": path.parent}
    (tmp_path / ".zshrc").write_text(zshrc.format(**names))
    package = tmp_path / "bash_completion"
    if has_package:
        package.touch()
    said = what_is_missing(shell, path, {"HOME": str(tmp_path)}, [package])
    assert said.endswith(says.format(**names)) if says else said == ""


@pytest.mark.parametrize(
    ("shell", "has", "has_not"),
    [
        ("zsh", "if [[ $funcstack[1] == _hearth ]]; then", "loadautofunc"),
        ("fish", 'string split --max 1 "," $completion', 'string split ","'),
    ],
)
def test_what_is_mended_in_the_scripts_of_click_is_mended(hearth, shell, has, has_not):
    shown = hearth("--show-completion", shell).stdout
    assert (has in shown, has_not in shown) == (True, False)


END = b"#END"
Screen = Callable[[bytes], bytes]


@pytest.fixture
def screen_after(hearth, tmp_path: Path, url: str) -> Iterator[Screen]:
    """Types keys in a real bash on a terminal; gives what the screen shows once it read them."""
    program = tmp_path / "bin" / "hearth"
    program.parent.mkdir()
    code = "import sys; sys.argv[0] = 'hearth'; from hearth.cli import main; main()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "completion.bash"
    script.write_text(hearth("--show-completion", "bash").stdout)
    rc = tmp_path / "rc"
    rc.write_text(f"PS1='{PROMPT.decode()}'\nbind 'set bell-style none'\nsource {script}\n")
    environ = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    environ |= {"PATH": f"{program.parent}:/usr/bin:/bin", "HEARTH_URL": url, "TERM": "dumb"}
    ours, its = pty.openpty()
    command = [str(BASH), "--noprofile", "--rcfile", str(rc), "-i"]
    with subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, env=environ, start_new_session=True
    ) as bash:

        def shown_until(text: bytes) -> bytes:
            screen = b""
            while text not in screen:
                assert select.select([ours], [], [], WITHIN_S)[0], screen
                screen += os.read(ours, 4096)
            return screen

        def type_keys(keys: bytes) -> bytes:
            os.write(ours, keys + END)
            return shown_until(END)

        shown_until(PROMPT)
        try:
            yield type_keys
        finally:
            bash.kill()
            os.close(its)
            os.close(ours)


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize(
    ("keys", "shows"),
    [
        (b"hearth st\t", b"hearth status "),
        (b"hearth log --out\t", b"hearth log --outcome "),
        (b"hearth chat lla\t", b"hearth chat llama3.1:8b "),
        (b"hearth chat llama3.1:\t", b"hearth chat llama3.1:8b "),
        (b"hearth chat qwen2.5:3\t", b"hearth chat qwen2.5:32b-instruct-q6_K "),
        (
            b'hearth submit --system "Review: this" --url http://127.0.0.1:1 --pri\t',
            b"--url http://127.0.0.1:1 --priority ",
        ),
    ],
)
def test_tab_completes_in_a_real_bash_names_with_colons_too(screen_after, keys, shows):
    assert shows in screen_after(keys)
