"""`python -m tests.golden record`: write what this version does into `today/`. `python -m
tests.golden compare PYTHON`: this version beside the one that PYTHON has installed, behind that
one's emulator; prints what differs, and ends with 1 where anything does.
"""

from __future__ import annotations

import asyncio
import difflib
import sys
import tempfile
from pathlib import Path

from tests.golden.recording import TRACES, recorded

TODAY = Path(__file__).parent / "today"


def _recorded(python: str, emulator_of: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(
            recorded(Path(directory), python=python, emulator_of=emulator_of, traces=TRACES)
        )


def record() -> int:
    TODAY.mkdir(exist_ok=True)
    for name, text in _recorded(sys.executable, sys.executable).items():
        # a store of the first round stays one
        if name != "store.sql" or not (TODAY / name).exists():
            (TODAY / name).write_text(text)
    return 0


def compare(other: str) -> int:
    old, new = _recorded(other, other), _recorded(sys.executable, other)
    unlike = [name for name in old if name != "store.sql" and old[name] != new[name]]
    for name in unlike:
        sys.stdout.writelines(
            difflib.unified_diff(
                old[name].splitlines(True),
                new[name].splitlines(True),
                f"old/{name}",
                f"new/{name}",
                n=1,
            )
        )
    sys.stdout.write(
        f"{len(old)} recordings, {len(unlike)} differ: {', '.join(unlike) or 'none'}\n"
    )
    return 1 if unlike else 0


sys.exit(compare(sys.argv[2]) if sys.argv[1:2] == ["compare"] else record())
