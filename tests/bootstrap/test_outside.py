"""What programs of others rely on, beside the answers of the dialects: `/openapi.json`, the shape
of the status, the names of metrics and events; and a store of the first round is taken over.

A difference that is meant is written down with `HEARTH_RECORD=1` set for these tests.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp
import pytest

from hearth import events
from hearth.config.settings import StorageSettings
from hearth.events import Event
from tests.support.home import ADMIN_KEY, KEYS, LLAMA, Home, house_settings, open_home
from tests.support.keys import key_of

OUTSIDE = Path(__file__).parent / "outside"
VISITOR_KEY = "hearth_visitor"  # the owner of the jobs and files in the first store
FAMILY = re.compile(r"# TYPE (\S+) (\S+)")


def agree(name: str, text: str) -> None:
    """Is it what is written down?"""
    if os.environ.get("HEARTH_RECORD"):
        (OUTSIDE / name).write_text(text)
    assert text.splitlines() == (OUTSIDE / name).read_text().splitlines()


async def fetched(home: Home, path: str, key: str = ADMIN_KEY) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(home.url + path, headers={"authorization": f"Bearer {key}"}) as answer,
    ):
        return await answer.text()


def shape(value: object) -> object:
    """The names and types of a JSON document."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else type(value).__name__


def kinds(of: type[Event]) -> Iterator[type[Event]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


@asynccontextmanager
async def taken_over(tmp_path: Path) -> AsyncIterator[Home]:
    """A gateway on a store of the first round."""
    database = tmp_path / "hearth.db"
    with closing(sqlite3.connect(database)) as store:
        store.executescript((OUTSIDE / "first_store.sql").read_text())
    keys = (*KEYS, key_of("visitor", VISITOR_KEY))
    settings = house_settings(keys=keys).replace(
        storage=StorageSettings(path=str(database), reserve_mib=0)
    )
    async with open_home(settings, store=True) as home:
        yield home


async def test_the_openapi_description_is_what_it_was():
    async with open_home(house_settings(keys=KEYS)) as home:
        described = json.loads(await fetched(home, "/openapi.json"))
    agree("openapi.json", json.dumps(described, indent=1, sort_keys=True) + "\n")


async def test_the_status_has_the_shape_it_had(tmp_path: Path):
    async with taken_over(tmp_path) as home:
        async with home.native(ADMIN_KEY) as client:
            await client.generate(LLAMA, "hi", options={"num_predict": 2})
        await home.idle()
        status = json.loads(await fetched(home, "/llm/queue/status"))
    agree("status.json", json.dumps(shape(status), indent=1) + "\n")


async def test_metrics_have_the_names_and_types_they_had():
    async with open_home(house_settings(keys=KEYS)) as home:
        page = await fetched(home, "/metrics")
    agree("metrics.txt", "".join(sorted(f"{name} {kind}\n" for name, kind in FAMILY.findall(page))))


def test_events_have_the_names_and_fields_they_had():
    public = [kind for kind in kinds(Event) if getattr(events, kind.__name__, None) is kind]
    lines = [f"{kind.__name__}: {', '.join(kind.__dataclass_fields__)}\n" for kind in public]
    agree("events.txt", "".join(sorted(lines)))


@pytest.mark.parametrize(
    ("path", "key", "listed", "least"),
    [
        ("/llm/jobs", VISITOR_KEY, "jobs", 3),
        ("/llm/log?limit=1000", ADMIN_KEY, "items", 51),
        ("/llm/swaps", ADMIN_KEY, "swaps", 11),
        ("/v1/files", VISITOR_KEY, "data", 1),
    ],
)
async def test_a_store_of_the_first_round_is_taken_over(
    tmp_path: Path, path: str, key: str, listed: str, least: int
):
    async with taken_over(tmp_path) as home:
        assert len(json.loads(await fetched(home, path, key))[listed]) >= least


async def test_a_job_of_the_first_round_has_its_result(tmp_path: Path):
    async with taken_over(tmp_path) as home:
        jobs = json.loads(await fetched(home, "/llm/jobs", VISITOR_KEY))["jobs"]
        done = next(job["id"] for job in jobs if job["state"] == "completed")
        kept = json.loads(await fetched(home, f"/llm/jobs/{done}", VISITOR_KEY))
        assert kept["result"]["done"] is True
