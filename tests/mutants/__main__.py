"""`python -m tests.mutants [--count 100] [--seed 0]`: draw mutants, run the tests against each in a
copy of the tree, print what lived.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.drawing import Mutant, drawn
from tests.support.places import ROOT

LONGEST_S = 1200.0
"""A mutant whose tests take longer hangs, which is as good as a failure."""
SLOW = ("soak", "clients", "reliability", "docs", "packaging", "mutants")


def folders_for(mutant: Mutant) -> list[list[str]]:
    """The test folders to run, those of the mutated package first: most mutants die there."""
    package = Path(mutant.path).parts[0].removesuffix(".py")
    every = sorted(
        path.name
        for path in (ROOT / "tests").iterdir()
        if (path / "__init__.py").exists() and path.name not in (*SLOW, "support")
    )
    near = [name for name in (package, "execution", "queue", "dialects") if name in every]
    return [
        near,
        [name for name in every if name not in near],
        [name for name in SLOW if name != "mutants"],
    ]


def caught(mutant: Mutant, copy: Path) -> bool:
    """Whether a test fails while the mutant stands in the source of `copy`."""
    target = copy / "src/hearth" / mutant.path
    original = target.read_text()
    target.write_text(mutant.text)
    try:
        return any(_fails(copy, folders) for folders in folders_for(mutant))
    finally:
        target.write_text(original)


def _fails(copy: Path, folders: list[str]) -> bool:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "auto",
        *(f"tests/{folder}" for folder in folders),
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return (
            subprocess.run(
                command,
                cwd=copy,
                env=environment,
                capture_output=True,
                timeout=LONGEST_S,
                check=False,
            ).returncode
            != 0
        )
    except subprocess.TimeoutExpired:
        return True


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.mutants")
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    mutants = drawn(ROOT / "src/hearth", asked.count, asked.seed)
    lived = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "hearth"
        shutil.copytree(
            ROOT,
            copy,
            ignore=shutil.ignore_patterns(
                ".git", ".venv", "build", "site", "__pycache__", ".*_cache"
            ),
        )
        for number, mutant in enumerate(mutants, 1):
            dead = caught(mutant, copy)
            lived += not dead
            sys.stdout.write(f"{number:4} {'caught' if dead else 'LIVED '} {mutant}\n")
            sys.stdout.flush()
    sys.stdout.write(
        f"{asked.count} mutants, seed {asked.seed}: {asked.count - lived} caught, {lived} lived\n"
    )


main()
