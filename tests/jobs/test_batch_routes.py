"""`/v1/files` and `/v1/batches` over HTTP: OpenAI's own client, keys, forms, limits, and a restart
in the middle.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import openai
import pytest

from hearth.api.forms import boundary_of
from hearth.api.jobs import window_s_of
from hearth.config.settings import BatchSettings, CallerLimits, JobSettings, RateLimitSettings
from hearth.errors import BadRequest
from hearth.types import MIB
from tests.jobs.batch_house import requests_of
from tests.jobs.served import Life
from tests.support.fields import Fields
from tests.support.home import (
    ADMIN_KEY,
    EMBEDDER,
    FRIEND_KEY,
    GUEST_KEY,
    HOUSE_KEY,
    LLAMA,
    LONG_TOKENS,
    SLOW,
)
from tests.support.http import Got

ENDS = ("completed", "failed", "expired", "cancelled")
EMBED = {"model": EMBEDDER, "input": "the canary text"}


async def form(
    house: Life,
    parts: dict[str, bytes],
    *,
    filename: str = "in.jsonl",
    key: str | None = None,
    **headers: str,
) -> Got:
    lines = []
    for name, value in parts.items():
        named = f'; filename="{filename}"' if name == "file" else ""
        lines += [
            b"--cut",
            f'Content-Disposition: form-data; name="{name}"{named}'.encode(),
            b"",
            value,
        ]
    body = b"\r\n".join([*lines, b"--cut--", b""])
    return await house.ask("POST", "/v1/files", body, key, **{"content_type": MEDIA_TYPE} | headers)


async def until_ended(house: Life, client: openai.AsyncOpenAI, batch_id: str) -> Any:
    return await house.shown(
        lambda: client.batches.retrieve(batch_id), lambda batch: batch.status in ENDS
    )


async def wanted_of(
    client: openai.AsyncOpenAI, *bodies: Fields, endpoint: str = "/v1/embeddings"
) -> Fields:
    """What a batch of these requests is asked for with, its file uploaded."""
    file = await client.files.create(
        file=("x.jsonl", requests_of(endpoint, *bodies)), purpose="batch"
    )
    return {"input_file_id": file.id, "endpoint": endpoint, "completion_window": "24h"}


@pytest.mark.parametrize(
    ("endpoint", "body", "answer"),
    [
        (
            "/v1/chat/completions",
            {"model": LLAMA, "messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
            "choices",
        ),
        ("/v1/completions", {"model": LLAMA, "prompt": "x", "max_tokens": 3}, "choices"),
        ("/v1/responses", {"model": LLAMA, "input": "x", "max_output_tokens": 3}, "output"),
        ("/v1/embeddings", EMBED, "data"),
    ],
)
async def test_the_official_client_drives_a_batch_from_upload_to_answers(
    live, endpoint, body, answer
):
    async with live() as house, house.gpt() as client:
        content = requests_of(endpoint, *[body] * 3)
        file = await client.files.create(file=("night.jsonl", content), purpose="batch")
        assert (file.filename, file.purpose, file.status, file.bytes) == (
            "night.jsonl",
            "batch",
            "processed",
            len(content),
        )
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint=endpoint,
            completion_window="24h",
            metadata={"night": "7"},
        )
        assert (batch.status, batch.metadata, batch.expires_at - batch.created_at) == (
            "validating",
            {"night": "7"},
            86_400,
        )
        batch = await until_ended(house, client, batch.id)
        assert (batch.status, batch.errors, batch.error_file_id) == ("completed", None, None)
        assert (
            batch.request_counts.total,
            batch.request_counts.completed,
            batch.request_counts.failed,
        ) == (3, 3, 0)
        assert batch.usage.total_tokens > 0
        assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
        answers = await client.files.content(batch.output_file_id)
        rows = [json.loads(each) for each in answers.text.splitlines()]
        assert [each["custom_id"] for each in rows] == ["r0", "r1", "r2"]
        assert all(each["response"]["body"][answer] and each["error"] is None for each in rows)
        output = await client.files.retrieve(batch.output_file_id)
        assert (output.purpose, output.bytes) == ("batch_output", len(answers.content))


async def test_files_are_listed_by_page_deleted_and_come_back_as_uploaded(live):
    async with live() as house, house.gpt() as client:
        names = [
            (await client.files.create(file=(f"{n}.jsonl", b"x" * n), purpose="batch")).id
            for n in range(5)
        ]
        assert [each.id async for each in client.files.list(limit=2)] == names[::-1]
        assert [each.id async for each in client.files.list(limit=2, order="asc")] == names
        assert [each.id async for each in client.files.list(purpose="batch_output")] == []
        page = await client.files.list(limit=2)
        assert (page.first_id, page.last_id, page.has_more) == (names[4], names[3], True)
        assert (await client.files.content(names[4])).content == b"xxxx"
        deleted = await client.files.delete(names[4])
        assert (deleted.id, deleted.deleted) == (names[4], True)
        for gone in (
            client.files.retrieve(names[4]),
            client.files.content(names[4]),
            client.files.delete(names[4]),
        ):
            with pytest.raises(openai.NotFoundError):
                await gone
        with pytest.raises(openai.NotFoundError):
            await client.files.list(after=names[4] + "0")
        content = bytes(range(256)) * 9000 + b"\r\n--cut"
        life: Any = {"anchor": "created_at", "seconds": 7200}
        file = await client.files.create(
            file=("x.jsonl", content), purpose="batch", expires_after=life
        )
        assert (file.bytes, file.expires_at - file.created_at) == (len(content), 7200)
        got = await client.files.content(file.id)
        assert got.content == content
        assert got.response.headers["content-disposition"] == 'attachment; filename="x.jsonl"'


async def test_files_and_batches_of_a_key_do_not_exist_for_others(live):
    async with live(keys=True) as house, house.gpt(FRIEND_KEY) as friend:
        file = await friend.files.create(
            file=("x.jsonl", requests_of("/v1/embeddings", EMBED)), purpose="batch"
        )
        batch = await friend.batches.create(
            input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
        )
        ended = await until_ended(house, friend, batch.id)
        paths = [
            ("GET", f"/v1/files/{file.id}"),
            ("GET", f"/v1/files/{file.id}/content"),
            ("DELETE", f"/v1/files/{file.id}"),
            ("GET", f"/v1/files/{ended.output_file_id}/content"),
            ("GET", f"/v1/batches/{batch.id}"),
            ("POST", f"/v1/batches/{batch.id}/cancel"),
            ("GET", f"/v1/files?after={file.id}"),
            ("GET", f"/v1/batches?after={batch.id}"),
        ]
        for key in (HOUSE_KEY, ADMIN_KEY):
            for method, path in paths:
                got = await house.ask(method, path, key=key)
                assert got.status == 404, (method, path)
                missing = await house.ask(
                    method, path.replace(file.id, "file-0").replace(batch.id, "batch_0"), key=key
                )
                assert got.body == missing.body
            for path in ("/v1/files", "/v1/batches"):
                assert (await house.ask("GET", path, key=key)).json["data"] == []
            wanted = {
                "input_file_id": file.id,
                "endpoint": "/v1/embeddings",
                "completion_window": "24h",
            }
            assert (await house.ask("POST", "/v1/batches", wanted, key=key)).status == 404
        assert [each.id async for each in friend.batches.list()] == [batch.id]


async def test_a_running_batch_can_be_cancelled_and_its_file_is_not_deleted(live):
    body = {"model": SLOW, "prompt": "x", "max_tokens": LONG_TOKENS}
    async with live() as house, house.gpt() as client:
        file = await client.files.create(
            file=("x.jsonl", requests_of("/v1/completions", *[body] * 5)), purpose="batch"
        )
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="90m"
        )
        with pytest.raises(openai.BadRequestError, match=batch.id):
            await client.files.delete(file.id)
        await house.at_work()
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        ended = await until_ended(house, client, batch.id)
        assert (ended.status, ended.output_file_id, ended.request_counts.failed) == (
            "cancelled",
            None,
            5,
        )
        assert ended.cancelling_at <= ended.cancelled_at
        assert (await client.batches.cancel(batch.id)) == ended
        rows = (await client.files.content(ended.error_file_id)).text.splitlines()
        assert {json.loads(each)["error"]["code"] for each in rows} == {"batch_cancelled"}
        assert (await client.files.delete(file.id)).deleted


async def test_a_file_that_is_not_in_order_is_told_of_line_by_line(live):
    async with live(keys=True) as house, house.gpt(GUEST_KEY) as client:
        bodies = [EMBED, {"model": "nowhere", "input": "x"}, {"model": SLOW, "input": "x"}]
        batch = await client.batches.create(**await wanted_of(client, *bodies))
        batch = await until_ended(house, client, batch.id)
        assert (batch.status, batch.failed_at is not None) == ("failed", True)
        assert [(each.line, each.code) for each in batch.errors.data] == [
            (2, "model_not_allowed"),
            (3, "model_not_allowed"),
        ]


UNUSABLE: list[tuple[Fields, str]] = [
    ({"endpoint": "/v1/moderations"}, "endpoint"),
    ({"endpoint": "/api/chat"}, "endpoint"),
    ({"completion_window": "1d"}, "completion_window"),
    ({"completion_window": "0h"}, "completion_window"),
    ({"completion_window": "721h"}, "completion_window"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"metadata": {"a": 7}}, "metadata"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, "output_expires_after"),
    ({"priority": "high"}, "priority"),
    ({"input_file_id": "\ud800"}, "input_file_id"),
]


@pytest.mark.parametrize(("changed", "says"), UNUSABLE)
async def test_a_batch_that_cannot_be_taken_is_refused_with_what_is_wrong(
    live, changed: Fields, says: str
):
    wanted = {
        "input_file_id": "file-1",
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    } | changed
    async with live() as house:
        got = await house.ask("POST", "/v1/batches", wanted)
        assert (got.status, says in got.json["error"]["message"]) == (400, True), got.json


def test_a_window_is_written_in_hours_or_minutes_up_to_thirty_days():
    assert (window_s_of("720h"), window_s_of("43200m"), window_s_of("1m")) == (
        2_592_000.0,
        2_592_000.0,
        60.0,
    )


BAD_FORMS: list[tuple[dict[str, bytes], int, str]] = [
    ({"file": b"x"}, 400, "purpose"),
    ({"purpose": b"fine-tune", "file": b"x"}, 400, "purpose"),
    ({"purpose": b"batch"}, 400, "file"),
    (
        {
            "purpose": b"batch",
            "file": b"x",
            "expires_after[anchor]": b"created_at",
            "expires_after[seconds]": b"60",
        },
        400,
        "expires",
    ),
    (
        {
            "purpose": b"batch",
            "file": b"x",
            "expires_after[anchor]": b"created_at",
            "expires_after[seconds]": b"000036000000",
        },
        400,
        "expires",
    ),
    ({"purpose": b"batch" * 1000, "file": b"x"}, 400, "too long"),
    ({f"f{n}": b"x" for n in range(20)}, 400, "too many"),
    ({"purpose": b"batch", "file": b"x" * 2_000_000}, 413, "max_file_mib"),
    ({"purpose": b"batch", "file": b"x" * (MIB + 1)}, 413, "max_file_mib"),
]


MEDIA = [
    ("application/json", 415),
    ("text/plain", 415),
    ("application/octet-stream", 415),
    ("multipart/mixed; boundary=cut", 415),
    ("multipart/form-data", 400),
    ("multipart/form-data; boundary=other", 400),
]
MEDIA_TYPE = "multipart/form-data; boundary=cut"
FIELDS = b'--cut\r\nContent-Disposition: form-data; name="a"\r\n\r\n%b\r\n' % (b"x" * 4000)
FILE_ONLY = (
    b'--cut\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nx\r\n--cut--\r\n'
)


@pytest.mark.parametrize(("boundary", "taken"), [("b" * 70, True), ("b" * 71, False), ("", False)])
def test_a_boundary_has_one_to_70_characters(boundary: str, taken: bool):
    refused = nullcontext() if taken else pytest.raises(BadRequest, match="1 to 70")
    with refused:
        assert boundary_of(f'multipart/form-data; boundary="{boundary}"') == boundary.encode()


@pytest.mark.parametrize(("parts", "status", "says"), BAD_FORMS)
async def test_a_form_that_cannot_be_taken_is_refused_and_leaves_nothing(
    live, parts: dict[str, bytes], status: int, says: str
):
    async with live(batches=BatchSettings(max_file_mib=1.0)) as house:
        got = await form(house, parts)
        assert (got.status, says in got.json["error"]["message"]) == (status, True), got.json
        assert (await house.ask("GET", "/v1/files")).json["data"] == []


@pytest.mark.parametrize(("media", "status"), MEDIA)
async def test_an_upload_of_another_media_type_is_refused(live, media: str, status: int):
    async with live() as house:
        got = await form(house, {"purpose": b"batch", "file": b"x"}, content_type=media)
        assert got.status == status


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (FIELDS * 17 + FILE_ONLY, 400, "too many fields"),
        (FILE_ONLY + b"\r\n" * MIB, 413, "max_file_mib"),
        (FILE_ONLY[:-20], 400, "incomplete"),
    ],
    ids=["fields of one name", "long end", "cut off"],
)
async def test_a_body_that_is_more_or_less_than_a_form_is_refused(
    live, body: bytes, status: int, says: str
):
    async with live(batches=BatchSettings(max_file_mib=1.0)) as house:
        got = await house.ask("POST", "/v1/files", body, content_type=MEDIA_TYPE)
        assert (got.status, says in got.json["error"]["message"]) == (status, True), got.json


async def test_forms_are_for_files_only_and_not_for_pages_of_a_browser(live):
    async with live() as house:
        assert (
            await form(house, {"purpose": b"batch", "file": b"x"}, sec_fetch_site="same-origin")
        ).status == 415
        for path in ("/v1/batches", "/llm/jobs"):
            assert (await house.ask("POST", path, FILE_ONLY, content_type=MEDIA_TYPE)).status == 415
        assert (await house.ask("GET", "/v1/files")).json["data"] == []


async def test_an_upload_may_be_as_long_as_is_allowed_with_its_fields_in_any_order(live):
    async with live(batches=BatchSettings(max_file_mib=1.0)) as house:
        assert (await form(house, {"purpose": b"batch", "file": b"x" * MIB})).status == 200
        # the fields may come in any order
        got = await form(house, {"file": b"x", "purpose": b"batch"}, filename="../../etc/pass\twd")
        assert (got.status, got.json["filename"], got.json["bytes"]) == (200, "passwd", 1)


async def test_a_batch_is_taken_once_for_a_key_and_listed_latest_first(live):
    key = {"Idempotency-Key": "k" * 255}
    async with live() as house, house.gpt() as client:
        wanted = await wanted_of(client, EMBED)
        first = await client.batches.with_raw_response.create(**wanted, extra_headers=key)
        assert "idempotency-replayed" not in first.headers
        ended = await until_ended(house, client, first.parse().id)
        others = [(await client.batches.create(**wanted)).id for _ in range(2)]
        for other in others:
            await until_ended(house, client, other)
        await client.files.delete(wanted["input_file_id"])
        again = await client.batches.with_raw_response.create(**wanted, extra_headers=key)
        assert (again.parse(), again.headers["idempotency-replayed"]) == (ended, "true")
        with pytest.raises(openai.UnprocessableEntityError, match="Idempotency-Key"):
            await client.batches.create(**wanted, metadata={"night": "8"}, extra_headers=key)
        for odd in ("", "x" * 256, "a\tb", "\u00e9"):
            got = await house.ask("POST", "/v1/batches", wanted, idempotency_key=odd)
            assert (got.status, "Idempotency-Key" in got.json["error"]["message"]) == (400, True)
        assert [each.id async for each in client.batches.list(limit=1)] == [*others[::-1], ended.id]
        page = await client.batches.list(limit=2)
        assert ([each.id for each in page.data], page.has_more) == (others[::-1], True)
        job = await house.ask(
            "POST", "/llm/jobs", {"request": EMBED}, idempotency_key=key["Idempotency-Key"]
        )
        assert (job.status, job.json["new"]) == (202, True)


def counted(house: Life) -> tuple[int, int]:
    """What one caller's requests and embedding calls of the last hour are counted as."""
    limiter = house.gateway.rate_limiter
    now = house.gateway.clock.monotonic()
    return limiter.get_usage("friend", now).hour, limiter.get_usage(
        "friend", now, "embeddings"
    ).hour


async def test_an_upload_a_batch_and_a_job_count_once_each_against_the_rate(live):
    limits = RateLimitSettings(default=CallerLimits(requests_per_minute=3, requests_per_hour=20))
    async with live(keys=True, rate_limits=limits) as house, house.gpt(FRIEND_KEY) as client:
        wanted = await wanted_of(client, *[EMBED] * 30)
        await until_ended(house, client, (await client.batches.create(**wanted)).id)
        job = (await house.ask("POST", "/llm/jobs", {"request": EMBED}, FRIEND_KEY)).json
        await house.shown(
            lambda: house.ask("GET", f"/llm/jobs/{job['id']}", key=FRIEND_KEY),
            lambda got: "result" in got.json,
        )
        await client.embeddings.create(**EMBED)
        for refused in (client.batches.create(**wanted), wanted_of(client, EMBED)):
            with pytest.raises(openai.RateLimitError):
                await refused
        assert counted(house) == (3, 1)
    async with live(keys=True, rate_limits=limits) as house:
        assert counted(house) == (3, 1)


async def test_one_key_fills_only_its_share_and_an_admin_sees_and_deletes_it(live):
    jobs = JobSettings(max_stored_mib=0.02)
    async with live(jobs=JobSettings(max_stored_mib=0.001)) as house:
        got = await form(house, {"purpose": b"batch", "file": b"x" * 2000})
        assert (got.status, "jobs.max_stored_mib" in got.json["error"]["message"]) == (503, True)
    async with live(keys=True, jobs=jobs) as house:
        parts = {"purpose": b"batch", "file": b"x" * 9000}
        kept = (await form(house, parts, key=GUEST_KEY)).json["id"]
        refused = await form(house, parts, key=GUEST_KEY)
        assert (refused.status, b"used its share" in refused.body) == (503, True)
        assert (await form(house, parts, key=HOUSE_KEY)).status == 200
        stored = (await house.ask("GET", "/llm/admin/stored", key=ADMIN_KEY)).json
        assert {each["caller"]: (each["files"], each["file_bytes"]) for each in stored["callers"]}[
            "guest"
        ][1] == 9000
        (shown,) = (await house.ask("GET", "/llm/admin/files?caller=guest", key=ADMIN_KEY)).json[
            "files"
        ]
        assert (shown["id"], shown["caller"]) == (kept, "guest")
        for path in ("/llm/admin/stored", "/llm/admin/files"):
            assert (await house.ask("GET", path, key=GUEST_KEY)).status == 403
        assert (await house.ask("DELETE", f"/llm/admin/files/{kept}", key=GUEST_KEY)).status == 403
        assert (await house.ask("DELETE", f"/llm/admin/files/{kept}", key=ADMIN_KEY)).json[
            "caller"
        ] == "guest"
        assert (await house.ask("DELETE", f"/llm/admin/files/{kept}", key=ADMIN_KEY)).status == 404


async def test_without_a_store_there_are_no_files_and_batches(live):
    async with live(store=False) as house:
        for method, path in (
            ("GET", "/v1/files"),
            ("POST", "/v1/files"),
            ("GET", "/v1/batches"),
            ("GET", "/v1/files/x/content"),
        ):
            got = await house.ask(method, path)
            assert (got.status, "storage.enabled" in got.json["error"]["message"]) == (404, True)


async def test_cancelling_all_of_a_caller_s_work_ends_its_batches(live):
    body = {"model": SLOW, "prompt": "x", "max_tokens": LONG_TOKENS}
    async with live(keys=True) as house, house.gpt(FRIEND_KEY) as client:
        batch = await client.batches.create(
            **await wanted_of(client, *[body] * 200, endpoint="/v1/completions")
        )
        await house.at_work()
        got = await house.ask("POST", "/llm/requests/cancel", b"{}", key=FRIEND_KEY)
        assert (got.status, got.json["batches"], got.json["cancelled"]) == (
            200,
            1,
            len(got.json["requests"]) + got.json["jobs"] + 1,
        )
        ended = await until_ended(house, client, batch.id)
        assert (ended.status, ended.request_counts.completed) == ("cancelled", 0)


async def test_a_batch_may_name_an_alias(live):
    async with live(aliases={"any": (LLAMA,)}) as house, house.gpt() as client:
        asked = {"model": "any", "prompt": "x", "max_tokens": 3}
        wanted = await wanted_of(client, asked, endpoint="/v1/completions")
        batch = await client.batches.create(**wanted)
        ended = await until_ended(house, client, batch.id)
        assert (ended.status, ended.request_counts.completed) == ("completed", 1)
