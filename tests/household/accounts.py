"""What must be true in the end: every promise was kept once, and whoever was turned away had a
reason.
"""

from __future__ import annotations

import json
from collections import Counter
from math import dist
from typing import Any

import aiohttp

from tests.household.members import TEXTS, Members, Promise
from tests.soak.callers import Ended

CUT_S = 30.0
"""So long before a request was sent may be what it was cut off by: a gateway that starts."""
DOWN_S = 60.0
"""And so long what it was refused for: a model that is loaded again on a busy machine."""


class Accounts:
    """Reads from a gateway that has done everything what came of each promise."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session
        self._vectors: dict[str, list[float]] = {}

    async def check(self, promises: dict[str, Promise]) -> Counter[str]:
        """Each promise by its kind: kept once, with the answers to its own requests."""
        for text in TEXTS:
            asked = {"model": "embedder", "input": text}
            answer = await self._json("POST", "/v1/embeddings", asked)
            self._vectors[text] = answer["data"][0]["embedding"]
        ids = [promise.promised_id for promise in promises.values()]
        assert len(set(ids)) == len(ids), "two keys, one promise"
        jobs = await self._json("GET", "/llm/jobs?limit=1000")
        assert len(jobs["jobs"]) == sum("job" in each.kind for each in promises.values())
        batches = await self._json("GET", "/v1/batches?limit=100")
        messages = await self._json("GET", "/v1/messages/batches?limit=1000")
        kept = {each["id"] for each in (*jobs["jobs"], *batches["data"], *messages["data"])}
        assert kept == set(ids) or batches["has_more"], "kept, and promised to nobody"
        for promise in promises.values():
            match promise.kind:
                case "batch":
                    await self._check_batch(promise)
                case "message batch":
                    await self._check_messages(promise)
                case _:
                    await self._check_job(promise)
        return Counter(promise.kind for promise in promises.values())

    async def _check_job(self, promise: Promise) -> None:
        job = await self._json("GET", f"/llm/jobs/{promise.promised_id}")
        assert job["state"] == "completed", job
        if promise.kind == "embedding job":
            self._require_own(job["result"], promise.texts[0])
        else:
            assert job["result"]["choices"][0]["message"]["content"], job

    async def _check_batch(self, promise: Promise) -> None:
        batch = await self._json("GET", f"/v1/batches/{promise.promised_id}")
        assert (batch["status"], batch["error_file_id"]) == ("completed", None), batch
        rows = await self._lines(f"/v1/files/{batch['output_file_id']}/content")
        assert [row["custom_id"] for row in rows] == [f"r{n}" for n in range(len(promise.texts))]
        for row, text in zip(rows, promise.texts, strict=True):
            self._require_own(row["response"]["body"], text)

    async def _check_messages(self, promise: Promise) -> None:
        path = f"/v1/messages/batches/{promise.promised_id}"
        batch = await self._json("GET", path)
        rows = await self._lines(f"{path}/results")
        assert batch["request_counts"]["succeeded"] == len(promise.texts), rows
        assert [row["custom_id"] for row in rows] == [f"r{n}" for n in range(len(promise.texts))]
        for row in rows:
            assert row["result"]["message"]["content"][0]["text"], row

    def _require_own(self, answer: Any, text: str) -> None:
        """It is next to the embedding of its text: the last digits depend on what else the server
        does at the time.
        """
        (entry,) = answer["data"]
        distances = {each: dist(entry["embedding"], self._vectors[each]) for each in TEXTS}
        assert min(distances, key=distances.__getitem__) == text, distances

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        async with self._session.request(method, f"{self._url}{path}", json=body) as answer:
            assert answer.status == 200, f"{path}: {await answer.text()}"
            return await answer.json()

    async def _lines(self, path: str) -> list[Any]:
        async with self._session.get(f"{self._url}{path}") as answer:
            return [json.loads(line) for line in (await answer.text()).splitlines()]


def unexplained(members: Members) -> list[Ended]:
    """Requests that failed though nothing had been killed that could explain it."""
    deaths = members.home.deaths
    return [
        ended
        for ended in members.ends
        if ended.end == "broken"
        or (
            ended.end in ("refused", "told")
            and not any(
                ended.asked_at - (CUT_S if who == "gateway" else DOWN_S) <= at <= ended.ended_at
                for at, who in deaths
            )
        )
    ]
