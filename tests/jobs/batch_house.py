"""A house with files and batches in virtual time: the real desk, runner and SQL, over a store
in memory.
"""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

from hearth.engines.ollama.traits import canonical_model
from hearth.events import BatchEnded, BatchStarted
from hearth.job_types import PART_BYTES, Batch
from hearth.jobs.batches import Batches
from hearth.types import Lane, Priority
from tests.jobs.house import JobHouse, in_house
from tests.storage.memory import Disk
from tests.support.fields import Fields

COMPLETIONS = "/v1/completions"
HOUR_S = 3600.0


def line(custom_id: str, model: str = "a", *, service_s: float = 1.0, prompt: str = "x") -> Fields:
    """A request that takes the fake model server `service_s`."""
    body = {"model": canonical_model(model), "prompt": prompt, "fake": {"service_s": service_s}}
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": body}


def lines(count: int, model: str = "a", *, service_s: float = 1.0) -> list[Fields]:
    return [line(f"r{number}", model, service_s=service_s) for number in range(1, count + 1)]


def requests_of(url: str, *bodies: Fields) -> bytes:
    """An input file with a request for each body: r0, r1, ..."""
    return jsonl(
        *(
            {"custom_id": f"r{number}", "method": "POST", "url": url, "body": body}
            for number, body in enumerate(bodies)
        )
    )


def jsonl(*requests: Fields) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in requests)


def new_batch(batch_id: str = "batch_1", **changed: Any) -> Batch:
    wanted: Fields = {
        "batch_id": batch_id,
        "caller": "test",
        "lane": Lane.INTERNAL,
        "priority": Priority.BACKGROUND,
        "models": (),
        "endpoint": COMPLETIONS,
        "input_file_id": f"file-{batch_id}",
        "window_text": "24h",
        "window_s": 24 * HOUR_S,
        "output_life_s": 720 * HOUR_S,
    }
    return Batch(**wanted | changed)


class BatchHouse(JobHouse):
    """A gateway with batches, for the time of the block: one process's life with the disk."""

    def __init__(self, *models: Any, disk: Disk | None = None, **more: Any) -> None:
        super().__init__(*models, disk=disk, **more)
        self.files = self.tables.files
        self.table_of_batches = self.tables.batches
        self.batches = Batches(
            files=self.files,
            store=self.table_of_batches,
            jobs=self.jobs,
            worker=self.gateway.worker,
        )
        self.gateway.batches = self.batches
        self.gateway.events.subscribe(self.batches)
        self.gateway.accompany("batches", self.batches.run)
        self.gateway.accompany("forgotten files", self.batches.forget)

    def judge(self) -> None:
        """As for every house, except that the jobs of batches are gone from the disk once they are
        written.
        """
        jobs = self.events.all
        self.events.all = [
            event
            for event in jobs
            if not str(getattr(event, "job_id", "")).startswith("batch_req_")
        ]
        super().judge()
        self.events.all = jobs

    async def uploaded(
        self,
        content: bytes,
        *,
        file_id: str = "file-1",
        caller: str = "test",
        life_s: float = 720 * HOUR_S,
    ) -> str:
        """A file that is complete."""
        number = await self.files.begin(caller)
        for start in range(0, len(content), 16 * PART_BYTES):
            await self.files.append(
                number, start // PART_BYTES, content[start : start + 16 * PART_BYTES], 1 << 40
            )
        await self.files.seal(number, file_id=file_id, filename="in.jsonl", life_s=life_s)
        return file_id

    async def started(self, content: bytes, batch_id: str = "batch_1", **changed: Any) -> Batch:
        """A batch of a file of its own."""
        file_id = await self.uploaded(content, file_id=f"file-{batch_id}")
        return await self.batches.create(
            new_batch(batch_id, **{"input_file_id": file_id} | changed)
        )

    async def batch(self, batch_id: str = "batch_1") -> Batch:
        found = await self.table_of_batches.find(batch_id)
        assert found is not None
        return found

    async def on_disk(self, question: str) -> None:
        """Returns within a tenth of a second once the disk has a row for this."""
        for _ in range(6000):
            if self.disk.rows(question):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(question)

    def told_of_batches(self) -> list[str]:
        """That batches began, and how they ended, as it was told."""
        told = [event for event in self.events.all if isinstance(event, BatchStarted | BatchEnded)]
        return ["began" if isinstance(event, BatchStarted) else event.state for event in told]

    async def ended_batch(self, batch_id: str = "batch_1") -> Batch:
        """The batch, once it has ended; told of once."""
        await self.events.until(
            lambda: any(event.batch_id == batch_id for event in self.events.of(BatchEnded))
        )
        assert [event.batch_id for event in self.events.of(BatchEnded)].count(batch_id) == 1
        return await self.batch(batch_id)

    async def content(self, file_id: str | None) -> list[Fields]:
        """The lines of a file that can be seen; none where there is no file."""
        if file_id is None:
            return []
        file = await self.files.find(file_id)
        assert file is not None
        whole = b""
        place = -1
        while parts := await self.files.parts(file.number, place):
            whole += b"".join(data for _, data in parts)
            place = parts[-1][0]
        assert len(whole) == file.size_bytes
        return [json.loads(each) for each in whole.splitlines()]

    async def outcome(self, batch_id: str = "batch_1") -> tuple[list[str], dict[str, str]]:
        """Of a batch that has ended: the ids with an answer in order, and the error codes of the
        others; each exactly once.
        """
        batch = await self.ended_batch(batch_id)
        output, errors = (
            await self.content(batch.output_file_id),
            await self.content(batch.error_file_id),
        )
        done = [each["custom_id"] for each in output]
        codes = {
            each["custom_id"]: each["error"]["code"]
            if each["error"]
            else str(each["response"]["status_code"])
            for each in errors
        }
        assert len({*done, *codes}) == len(output) + len(errors) == batch.completed + batch.failed
        return done, codes


in_batch_house = functools.partial(in_house, kind=BatchHouse)
"""`in_house` with files and batches."""
