"""The request log over HTTP: searched page by page, and exported as a file."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hearth.admission.auth import Keyring
from hearth.admission.http_checks import RequestHeaders
from hearth.api.request_log import EXPORT_ROWS, MAX_EXPORTS, ExportQuery, RequestLogPages
from hearth.config.settings import StorageSettings
from hearth.errors import CapacityError
from hearth.types import Outcome, RequestId
from tests.storage.house import ended
from tests.support.fields import Fields
from tests.support.home import ADMIN_KEY, FRIEND_KEY, KEYS, Home, house_settings, open_home
from tests.support.http import Got

HOSTILE = '=HYPERLINK("http://x","y")'


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    settings = house_settings(keys=KEYS).replace(
        storage=StorageSettings(path=str(tmp_path / "hearth.db"), reserve_mib=0)
    )
    async with open_home(settings, store=True) as home:
        yield home


def log(home: Home, number: int, **about: Any) -> None:
    history: Any = home.gateway.history
    now = home.gateway.clock.monotonic()
    history.emit(ended(number, **{"at": now - 1000.0 + number, **about}))


async def found(home: Home, query: str = "", key: str = ADMIN_KEY) -> Fields:
    got = await home.ask("GET", f"/llm/log?{query}", key=key)
    assert got.status == 200, got.body
    return dict(got.json)


async def exported(home: Home, query: str = "", key: str = ADMIN_KEY) -> Got:
    got = await home.ask("GET", f"/llm/log/export?{query}", key=key)
    assert got.status == 200, got.body
    return got


async def test_a_search_goes_on_where_its_last_page_ended(home: Home):
    for number in range(5):
        log(home, number, caller="friend", engine="box", task_type="digest")
    log(home, 9, caller="guest")
    query = "engine=box&task_type=digest&lane=external&limit=2"
    first = await found(home, query)
    second = await found(home, f"{query}&before={first['next']}")
    last = await found(home, f"{query}&before={second['next']}")
    pages = [[row["sequence"] for row in page["items"]] for page in (first, second, last)]
    assert pages == [[4, 3], [2, 1], [0]]
    assert last["next"] is None


async def test_one_request_is_found_by_its_id(home: Home):
    log(home, 1, request_id=RequestId("req_a"), waited_for={"slot": 1.5})
    log(home, 2, request_id=RequestId("req_b"))
    (row,) = (await found(home, "request_id=req_a"))["items"]
    assert (row["sequence"], row["waited_for"]) == (1, {"slot": 1.5})


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("before=yesterday", "before: must be the `next` of an answer of this address"),
        ("since=yesterday", "since: must be an age such as 90s"),
        ("lane=other", "lane"),
        ("limit=1001", "limit"),
    ],
)
async def test_what_cannot_be_searched_is_refused_with_its_name(home: Home, query: str, says: str):
    got = await home.ask("GET", f"/llm/log?{query}", key=ADMIN_KEY)
    assert got.status == 400
    assert says in got.json["error"]


async def test_a_caller_finds_and_exports_its_own_requests_only(home: Home):
    log(home, 1, caller="friend")
    log(home, 2, caller="guest")
    log(home, 3, caller="guest", request_id=RequestId("req_x"))
    for query, mine in (
        ("", [1]),
        ("caller=friend", [1]),
        ("caller=guest", []),
        ("request_id=req_x", []),
    ):
        rows = (await found(home, query, FRIEND_KEY))["items"]
        assert [row["sequence"] for row in rows] == mine
        lines = (await exported(home, f"format=jsonl&{query}", FRIEND_KEY)).body.splitlines()
        assert [json.loads(line)["sequence"] for line in lines] == mine


async def test_an_export_has_every_row_of_the_search_as_the_log_shows_it(home: Home):
    rows = 2 * EXPORT_ROWS + 7
    for number in range(rows):
        log(home, number, caller="friend", outcome=Outcome.FAILED)
    log(home, rows, caller="friend")
    got = await exported(home, "format=jsonl&outcome=failed")
    lines = [json.loads(line) for line in got.body.splitlines()]
    assert [line["sequence"] for line in lines] == list(reversed(range(rows)))
    assert lines[:3] == (await found(home, "outcome=failed&limit=3"))["items"]
    assert got.headers["content-type"] == "application/jsonl"
    disposition = got.headers["content-disposition"]
    assert disposition.startswith('attachment; filename="hearth-requests-20')
    assert disposition.endswith('.jsonl"')


async def test_csv_has_a_column_for_each_field_and_no_formula(home: Home):
    waited = {"load": 2.0, "slot": 1.0}
    log(home, 1, caller="friend", task_type=HOSTILE, reason="-1+1", waited_for=waited)
    got = await exported(home, f"task_type={quote(HOSTILE)}")
    (row,) = csv.DictReader(io.StringIO(got.body.decode()))
    (shown,) = (await found(home))["items"]
    assert set(row) == {"ended", *shown}
    assert (row["task_type"], row["reason"], row["chain_id"]) == (f"'{HOSTILE}", "'-1+1", "")
    assert json.loads(row["waited_for"]) == waited
    assert (row["outcome"], row["ended"][-1]) == ("completed", "Z")
    assert float(row["ended_wall_s"]) == shown["ended_wall_s"]


async def test_more_exports_at_once_than_the_store_can_serve_are_refused(home: Home):
    log(home, 1)
    pages = RequestLogPages(home.gateway)
    sent = RequestHeaders.of([(b"x-api-key", ADMIN_KEY.encode())])
    owner = Keyring(home.gateway.settings.auth).identify(sent, None)
    under_way = [
        (await pages.export(ExportQuery(), owner)).body_iterator for _ in range(MAX_EXPORTS)
    ]
    for pieces in under_way:
        await anext(aiter(pieces))
    with pytest.raises(CapacityError, match="exports are under way"):
        await pages.export(ExportQuery(), owner)
    assert len([piece async for piece in under_way[0]]) == 1
    await pages.export(ExportQuery(), owner)


async def test_a_caller_has_one_export_at_a_time_and_admins_have_a_place(home: Home):
    pages = RequestLogPages(home.gateway)
    keyring = Keyring(home.gateway.settings.auth)
    owner, friend = (
        keyring.identify(RequestHeaders.of([(b"x-api-key", key.encode())]), None)
        for key in (ADMIN_KEY, FRIEND_KEY)
    )
    held = [await pages.export(ExportQuery(), friend)]
    with pytest.raises(CapacityError, match="of this caller"):
        await pages.export(ExportQuery(), friend)
    held = [await pages.export(ExportQuery(), owner) for _ in range(MAX_EXPORTS - 1)]
    with pytest.raises(CapacityError, match="3 exports are under way"):
        await pages.export(ExportQuery(), friend)
    held.append(await pages.export(ExportQuery(), owner))


async def test_exports_that_are_asked_for_together_are_counted_before_they_begin(home: Home):
    log(home, 1)
    pages = RequestLogPages(home.gateway)
    sent = RequestHeaders.of([(b"x-api-key", ADMIN_KEY.encode())])
    owner = Keyring(home.gateway.settings.auth).identify(sent, None)
    for _ in range(2):  # the answers of the first round are never begun
        asked = [pages.export(ExportQuery(), owner) for _ in range(MAX_EXPORTS + 3)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, CapacityError)]
        assert len(refused) == 3
        del answers, asked
