"""`kill -9` while a batch runs: no request of it is lost, and each is answered once."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import anthropic
import openai

from tests.jobs.batch_house import requests_of
from tests.reliability.served import Process, some
from tests.support.patience import in_time

REQUESTS = 30
KEY = {"Idempotency-Key": "night-7"}
CONFIG = """
gpu: {home_model: ""}
jobs: {max_attempts: 100, max_in_queue: 3}
server: {log_format: json}
"""


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)


def claude_of(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0)


async def test_a_batch_survives_kill_9_with_its_key_and_answers_every_request_once(tmp_path: Path):
    async with Process.start(tmp_path, CONFIG) as process, client_of(await process.url()) as client:
        content = requests_of(
            "/v1/embeddings",
            *(
                {"model": "nomic-embed-text", "input": f"text {number}"}
                for number in range(REQUESTS)
            ),
        )
        file = await client.files.create(file=("x.jsonl", content), purpose="batch")
        wanted: Any = {
            "input_file_id": file.id,
            "endpoint": "/v1/embeddings",
            "completion_window": "24h",
            "extra_headers": KEY,
        }
        batch = await client.batches.create(**wanted)
        await process.until(some("job_ended", 3))
        await process.ended_s(signal.SIGKILL, -signal.SIGKILL)
    async with Process.start(tmp_path, CONFIG) as process, client_of(await process.url()) as client:
        assert (await client.batches.create(**wanted)).id == batch.id
        async with in_time():
            process.moved.clear()
            while (batch := await client.batches.retrieve(batch.id)).status != "completed":
                await process.moved.wait()
                process.moved.clear()
        assert batch.output_file_id is not None
        rows = [
            json.loads(each)
            for each in (await client.files.content(batch.output_file_id)).text.splitlines()
        ]
        assert [each["custom_id"] for each in rows] == [f"r{number}" for number in range(REQUESTS)]
        await client.close()
        await process.stopped_s()


async def test_a_batch_of_messages_survives_kill_9_and_has_each_result_once(tmp_path: Path):
    message = {
        "model": "llama3.1:8b",
        "max_tokens": 3,
        "messages": [{"role": "user", "content": "hi"}],
    }
    requests: Any = [
        {"custom_id": f"r{number}", "params": message | {"stream": number == REQUESTS}}
        for number in range(REQUESTS + 1)
    ]
    async with Process.start(tmp_path, CONFIG) as process:
        async with claude_of(await process.url()) as claude:
            batch = await claude.messages.batches.create(requests=requests, extra_headers=KEY)
        await process.until(some("job_ended", 3))
        await process.ended_s(signal.SIGKILL, -signal.SIGKILL)
    async with Process.start(tmp_path, CONFIG) as process:
        async with claude_of(await process.url()) as claude:
            again = await claude.messages.batches.create(requests=requests, extra_headers=KEY)
            assert again.id == batch.id
            async with in_time():
                process.moved.clear()
                while (
                    batch := await claude.messages.batches.retrieve(batch.id)
                ).processing_status != "ended":
                    await process.moved.wait()
                    process.moved.clear()
            assert (batch.request_counts.succeeded, batch.request_counts.errored) == (REQUESTS, 1)
            results = [each async for each in await claude.messages.batches.results(batch.id)]
            kinds = {each.custom_id: each.result.type for each in results}
            assert len(kinds) == len(results) == REQUESTS + 1
            assert kinds.pop(f"r{REQUESTS}") == "errored"
            assert set(kinds.values()) == {"succeeded"}
        await process.stopped_s()
