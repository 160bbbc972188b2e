"""SIGTERM in every phase of a request's life, with twenty open streams and five status streams: the
process is gone within the grace and a moment, each stream has a protocol-correct end, and every
accepted job is still in the file.

Real processes: `hearth serve --emulator` with a store.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from tests.reliability.served import Phase, Process, of, some
from tests.support.examples import EXAMPLES
from tests.support.fields import Fields
from tests.support.patience import within_limit
from tests.support.reading import read_to_its_end
from tests.support.sql import run_sql

GRACE_S = 1.0
SPARE_STARTS = 4
"""What may be taken beyond it, in times what the same process took to start: a bound that a slow
machine does not break. The streams would go on for most of a minute.
"""
STREAMS = 20
LISTENERS = 5
JOBS = 20
HOME = "llama3.1:8b"
OTHER = "qwen2.5-coder:14b"
CONFIG = """
gpu: {home_model: "%s", vram_gb: 24}
models: {"%s": {parallel: 4, vram_gb: 8}, "%s": {vram_gb: 20}}
queue: {max_external_depth: 100}
rate_limits: {default: {requests_per_minute: 100000, requests_per_hour: 100000}}
jobs: {max_in_queue: 2}
server: {log_format: json, log_level: debug, shutdown_grace_s: %s}
"""
DIALECTS = ("/api/chat", "/v1/chat/completions", "/v1/messages")
LOOKS = ("/llm/queue/stream", "/llm/dashboard/stream")
PHASES: dict[str, tuple[str, int, int, Phase]] = {
    "queued": (HOME, 8, 4000, some("item_queued", STREAMS)),
    "loading": (
        OTHER,
        8,
        4000,
        lambda said: (
            len(of(said, "item_queued")) >= STREAMS
            and OTHER in [e["to_model"] for e in of(said, "swap_started")]
        ),
    ),
    "prompt": (HOME, 20_000, 4000, some("item_dispatched", 4)),
    "streaming": (HOME, 8, 4000, some("item_streaming", 4)),
    "ending": (HOME, 8, 15, some("item_ended", 6)),
}
"""By name: the model, the words of the prompt, the tokens of the answer, and when the signal is
sent.
"""


def request(dialect: str, model: str, words: int, tokens: int) -> Fields:
    body: Fields = {
        "model": model,
        "messages": [{"role": "user", "content": "word " * words}],
        "stream": True,
    }
    return body | (
        {"options": {"num_predict": tokens}} if dialect == "/api/chat" else {"max_tokens": tokens}
    )


async def stream(
    session: aiohttp.ClientSession, url: str, dialect: str, body: Fields
) -> tuple[int, bytes]:
    """Status and body, read to their proper end: a connection that breaks off elsewhere raises."""
    async with session.post(url + dialect, json=body) as got:
        return got.status, await read_to_its_end(got)


async def listen(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url) as got:
        assert got.status == 200
        return await got.read()


def is_whole(dialect: str, status: int, body: bytes) -> bool:
    """A complete answer; raises AssertionError for what is neither that nor an error that a client
    understands.
    """
    if status != 200:
        assert status == 503, (status, body)
        assert "error" in json.loads(body)
        return False
    last = body.rstrip().splitlines()[-1]
    if dialect == "/api/chat":
        line = json.loads(last)
        assert ("error" in line) != (line.get("done") is True), line
        return "error" not in line
    if dialect == "/v1/chat/completions" and last == b"data: [DONE]":
        return True
    said = json.loads(last.removeprefix(b"data: "))
    assert "error" in said or said.get("type") == "message_stop", said
    return "error" not in said


@pytest.mark.parametrize("phase", PHASES)
async def test_every_stream_ends_properly_and_the_process_in_time(tmp_path: Path, phase: str):
    model, words, tokens, reached = PHASES[phase]
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        Process.start(tmp_path, CONFIG % (HOME, HOME, OTHER, GRACE_S)) as house,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        url = await house.url()
        looking = [
            asyncio.ensure_future(listen(session, url + LOOKS[n % 2])) for n in range(LISTENERS)
        ]
        dialects = [DIALECTS[n % len(DIALECTS)] for n in range(STREAMS)]
        asked = [
            asyncio.ensure_future(
                stream(session, url, dialect, request(dialect, model, words, tokens))
            )
            for dialect in dialects
        ]
        await house.until(reached)
        took_s = await house.stopped_s()
        answers = await within_limit(asyncio.gather(*asked))
        shown = await within_limit(asyncio.gather(*looking))
    whole = [is_whole(dialect, *answer) for dialect, answer in zip(dialects, answers, strict=True)]
    assert EXAMPLES == 1 or took_s < GRACE_S + SPARE_STARTS * house.start_s  # on a quiet machine
    assert all(page.startswith((b"event: ", b"data: ")) for page in shown)
    assert len(of(house.said, "item_ended")) == len(of(house.said, "item_queued"))
    assert sum(whole) == sum(
        line["outcome"] == "completed" for line in of(house.said, "item_ended")
    )
    assert any(whole) or phase != "ending"


async def test_every_accepted_job_is_still_in_the_file(tmp_path: Path):
    async with (
        Process.start(tmp_path, CONFIG % (HOME, HOME, OTHER, GRACE_S)) as house,
        aiohttp.ClientSession() as session,
    ):
        url = await house.url()
        looking = [
            asyncio.ensure_future(listen(session, url + LOOKS[n % 2])) for n in range(LISTENERS)
        ]
        accepted: set[str] = set()
        # two at a time, half a second each: ten times the grace
        for tokens in (5, *(4000 for _ in range(JOBS - 1))):
            body = {
                "request": {
                    "model": HOME,
                    "prompt": "hi",
                    "stream": False,
                    "options": {"num_predict": tokens},
                }
            }
            async with session.post(f"{url}/llm/jobs", json=body) as got:
                assert got.status == 202
                accepted.add((await got.json())["id"])
        await house.until(
            lambda said: (
                bool(of(said, "job_ended"))
                and len(of(said, "job_started")) > len(of(said, "job_ended"))
            )
        )
        took_s = await house.stopped_s()
        # on a quiet machine
        assert EXAMPLES == 1 or took_s < GRACE_S + SPARE_STARTS * house.start_s
        assert all(await asyncio.gather(*looking))
    states = dict(run_sql(tmp_path / "hearth.db", "SELECT id, state FROM jobs"))
    assert states.keys() == accepted
    assert set(states.values()) == {"queued", "completed"}
    assert {line["job_id"] for line in of(house.said, "job_ended")} == {
        name for name, state in states.items() if state == "completed"
    }
