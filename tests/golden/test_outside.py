"""What is recorded in `today/` is what this version does.

A difference that is meant is recorded anew: `python -m tests.golden record`.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import aiohttp

from tests.golden.recording import TRACES, recorded
from tests.golden.traffic import Transcript
from tests.golden.versions import ADMIN, running

TODAY = Path(__file__).parent / "today"
SEEDS = TRACES[::20]
"""In CI; all of them are compared by `python -m tests.golden compare`."""


async def test_the_outside_is_what_it_was(tmp_path: Path):
    """One test for all: each recording takes a gateway, an emulator and 300 requests."""
    now = await recorded(tmp_path, traces=SEEDS)
    for name in sorted(path.name for path in TODAY.iterdir() if path.name != "store.sql"):
        was = (TODAY / name).read_text().splitlines()
        if name == "decisions.txt":
            was = [line for line in was if int(line.split()[0]) in SEEDS]
        assert now[name].splitlines() == was, name


async def test_a_store_of_the_first_round_is_taken_over(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "hearth.db")) as store:
        store.executescript((TODAY / "store.sql").read_text())
    async with (
        running(tmp_path, claude="http://127.0.0.1:9") as gateway,
        aiohttp.ClientSession() as session,
    ):
        seen = Transcript(session, gateway)
        jobs = {
            job["state"]: job
            for job in json.loads((await seen.answer("GET", "/llm/jobs")).body)["jobs"]
        }
        assert sorted(jobs) == ["cancelled", "completed", "queued"]
        kept = json.loads((await seen.answer("GET", f"/llm/jobs/{jobs['completed']['id']}")).body)
        assert kept["result"]["done"] is True
        assert (
            len(
                json.loads((await seen.answer("GET", "/llm/log?limit=1000", key=ADMIN)).body)[
                    "items"
                ]
            )
            > 50
        )
        assert (
            len(json.loads((await seen.answer("GET", "/llm/swaps", key=ADMIN)).body)["swaps"]) > 10
        )
        assert len(json.loads((await seen.answer("GET", "/v1/files")).body)["data"]) == 1
