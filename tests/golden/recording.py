"""One version, recorded: its traffic, its store, its log, its command line, its decisions.

Everything through what `pip` installs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.golden.masking import masked
from tests.golden.traffic import log_of, rows_of, transcripts_of
from tests.golden.versions import running
from tests.support.fake_claude import FakeClaude

TRACES = range(200)


async def recorded(
    directory: Path,
    *,
    python: str = sys.executable,
    emulator_of: str = sys.executable,
    traces: Sequence[int],
) -> dict[str, str]:
    """Text by file name.

    `directory` is scratch; `traces`: the seeds of which decisions are recorded.
    """
    claude = FakeClaude()
    claude_url = await claude.start()
    try:
        async with running(
            directory, claude=claude_url, python=python, emulator_of=emulator_of
        ) as gateway:
            texts = await transcripts_of(gateway)
    finally:
        await claude.stop()
    texts["log.txt"] = log_of(gateway.log)
    texts["rows.txt"] = rows_of(gateway.database)
    texts["store.sql"] = _dump_of(gateway.database)
    texts["cli.txt"] = await _command_line(python)
    texts["decisions.txt"] = await _decisions(directory, python, traces)
    return texts


def _dump_of(database: Path) -> str:
    """A store of this version as SQL, from which an upgrade starts."""
    with closing(sqlite3.connect(database)) as store:
        version = store.execute("PRAGMA user_version").fetchone()[0]
        application = store.execute("PRAGMA application_id").fetchone()[0]
        return (
            "\n".join(
                (
                    *store.iterdump(),
                    f"PRAGMA user_version={version};",
                    f"PRAGMA application_id={application};",
                )
            )
            + "\n"
        )


_SAY = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from hearth.cli import main
for command in json.loads(sys.argv[1]):
    sys.argv, said, code = ["hearth", *command], StringIO(), 0
    with redirect_stdout(said), redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([said.getvalue(), code]))
"""


async def _said_by(python: str, commands: Sequence[Sequence[str]]) -> list[str]:
    """What commands say and end with, all in one process: to start one takes longer than to ask."""
    process = await asyncio.create_subprocess_exec(
        python,
        "-c",
        _SAY,
        json.dumps(commands),
        stdout=asyncio.subprocess.PIPE,
        env={"COLUMNS": "100", "HOME": "/nowhere", "NO_COLOR": "1"},
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    answers = map(json.loads, said.splitlines())
    return [
        masked(f"$ hearth {' '.join(command)}\n{text}exit {code}\n\n")
        for command, (text, code) in zip(commands, answers, strict=True)
    ]


WRONG_COMMANDS = (
    *(
        "nothing",
        "serve --port x",
        "status --url http://127.0.0.1:9",
        "config check /nowhere.yaml",
        "submit",
        "simulate",
    ),
    *("log --limit 0", "cancel --url http://127.0.0.1:9 x", "version"),
)


async def _command_line(python: str) -> str:
    """The help of every command, and what wrong ones say and end with."""
    texts: list[str] = []
    paths: list[tuple[str, ...]] = [()]
    while paths:
        below: list[tuple[str, ...]] = []
        for path, said in zip(
            paths, await _said_by(python, [(*path, "--help") for path in paths]), strict=True
        ):
            listed = (
                said.split("\nCommands:\n")[1].split("\n\n")[0] if "\nCommands:\n" in said else ""
            )
            below += [
                (*path, name)
                for name in re.findall(r"^  ([a-z][\w-]*)", listed, flags=re.MULTILINE)
            ]
            texts.append(said)
        paths = below
    texts += await _said_by(python, [command.split() for command in WRONG_COMMANDS])
    return "".join(texts)


def trace_of(seed: int) -> str:
    """A made-up day on two to five models: bursts, loops, lanes, callers who leave, memory for one
    model or two.
    """
    draw = random.Random(seed)
    models = [f"m{number}" for number in range(draw.randint(2, 5))]
    head: dict[str, Any] = {
        "models": {
            model: {"vram_gb": draw.choice((6, 10, 13)), "parallel": draw.choice((1, 1, 2))}
            for model in models
        },
        "swap_s": {
            old: {new: round(draw.uniform(1, 20), 2) for new in models if new != old}
            for old in ("", *models)
        },
        "gpu": {"vram_gb": 24},
    }
    if draw.random() < 0.5:
        head["home"] = models[0]
    lines, at = [json.dumps(head)], 0.0
    for number in range(120):
        at += draw.expovariate(draw.choice((0.1, 0.3, 2.0)))
        request: dict[str, Any] = {
            "id": number,
            "t": round(at, 3),
            "model": draw.choice(models),
            "service_s": round(draw.lognormvariate(0.5, 1), 3),
        }
        request["caller"] = f"c{draw.randint(0, 4)}"
        request["stream"] = draw.random() < 0.4
        if draw.random() < 0.3:
            request["lane"], request["priority"] = (
                "internal",
                draw.choice(("critical", "normal", "background")),
            )
        if draw.random() < 0.1:
            request["cancel_after_s"] = round(draw.uniform(1, 60), 2)
        if number and draw.random() < 0.2:
            request["after"], request["think_s"] = (
                draw.randrange(number),
                round(draw.uniform(0, 5), 2),
            )
        lines.append(json.dumps(request))
    return "\n".join(lines) + "\n"


_SIMULATE = """
import contextlib, io, pathlib, sys
from importlib.metadata import entry_points
[hearth] = entry_points(group="console_scripts", name="hearth")
main = hearth.load()
for path in sys.argv[1:]:
    sys.argv = ["hearth", "simulate", "--trace", path, "--json", path + ".out"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
"""


async def _decisions(directory: Path, python: str, seeds: Sequence[int]) -> str:
    """SHA-256 of when each request began and ended and of every swap, by policy and seed."""
    paths = {seed: directory / f"{seed}.jsonl" for seed in seeds}
    for seed, path in paths.items():
        path.write_text(trace_of(seed))
    process = await asyncio.create_subprocess_exec(
        python, "-c", _SIMULATE, *map(str, paths.values())
    )
    assert await process.wait() == 0
    lines: list[str] = []
    for seed, path in paths.items():
        for run in json.loads(Path(f"{path}.out").read_text()):  # noqa: ASYNC240 - scratch
            told = json.dumps([run["requests"], run["swaps"]], sort_keys=True)
            lines.append(
                f"{seed} {run['policy']} {hashlib.sha256(told.encode()).hexdigest()[:12]}\n"
            )
    return "".join(lines)
