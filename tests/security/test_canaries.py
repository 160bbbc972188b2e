"""A unique word in every secret, every prompt and every answer of a real `hearth serve` that logs
all it can; then a search for each of them, plain and encoded, in everything that comes out of it.
The only places are those that a key, a prompt or an answer is meant for.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sqlite3
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from hearth.admission.auth import digest_of
from hearth.clock import SystemClock
from hearth.emulator import Emulator
from hearth.emulator.models import EmulatedModel, default_profiles
from tests.api.test_app import STREAMS, words
from tests.security.house import Seen, request, tell
from tests.support.fake_claude import KEY as CLAUDE_KEY
from tests.support.fake_claude import FakeClaude, Script, refusal
from tests.support.fake_webhooks import Reply, Webhooks, serving
from tests.support.fields import Fields
from tests.support.http import Caller
from tests.support.patience import in_time
from tests.support.processes import started

SPEED = 500.0
MODEL = "llama3.1:8b"
SLOW = "slow:latest"
EMBEDDER = "nomic-embed-text"
OWNER = "hearth_canaryowner5Zq"
FRIEND = "hearth_canaryfriend8Kd"
HOUSE = "hearth_canaryhouse1Xe"
MISTYPED = "hearth_canarymistyped3Vx"
SECRETS = {
    "the key of the owner": OWNER,
    "the key of a friend": FRIEND,
    "the key of the house": HOUSE,
    "a key that was mistyped": MISTYPED,
    "a key in a query": "canaryquery7Wm",
    "a cookie": "canarycookie2Rt",
    "the key at Claude": CLAUDE_KEY,
    "the address at Discord": "canarydiscord6Hp",
    "the address of the webhook": "canarywebhook9Lb",
    "the topic at ntfy": "canaryntfy4Yc",
    "the secret that signs": "canarysignseverything1Gs",
    "the webhook of a job": "canaryhook5Nf",
}
PROMPTS = {
    name: f"canary{number}prompt{name.title().replace(' ', '')}7Qx"
    for number, name in enumerate(
        (
            "chat",
            "generate",
            "openai",
            "responses",
            "anthropic",
            "completion",
            "embedding",
            "system",
            "refused",
            "cloud",
        )
    )
}
KEPT_PROMPTS = {"a job": "canaryjobprompt3Jw", "a batch": "canarybatchprompt6Bz"}
"""What is on the disk until the work is done, by design."""
ANSWERS = {f"word {number} of a model": f"canary{number}answer{number}5Tp" for number in range(4)}
"""All that the models of the house ever say."""
CLAUDES_ANSWER = "canaryclaudesanswer2Mf"
TABLES_WITH_ANSWERS = frozenset({"jobs", "files", "file_parts", "batch_results"})
TABLES_WITH_PROMPTS = frozenset(
    {"jobs", "files", "file_parts", "batches", "batch_lines", "batch_results"}
)


def forms_of(canary: str) -> Iterator[bytes]:
    """The word as it may hide: in other letters, in hex, in base64 wherever in a text it stood."""
    raw = canary.encode()
    yield from {
        raw,
        raw.lower(),
        raw.upper(),
        raw.hex().encode(),
        raw[::-1],
        "".join(f"%{byte:02x}" for byte in raw).encode(),
    }
    for lead in range(3):
        coded = base64.b64encode(b"x" * lead + raw)
        inner = coded[4 if lead else 0 : len(coded) // 4 * 4 - 4]
        yield inner
        yield inner.replace(b"+", b"-").replace(b"/", b"_")


class Sinks(defaultdict[str, bytes]):
    """Everything that came out, by where."""

    def __init__(self) -> None:
        super().__init__(bytes)

    def found(self, canaries: Mapping[str, str]) -> list[tuple[str, str]]:
        looked_for = [(name, [*forms_of(canary)]) for name, canary in canaries.items()]
        return [
            (name, where)
            for name, forms in looked_for
            for where, what in self.items()
            if any(form in what for form in forms)
        ]


@asynccontextmanager
async def places(sinks: Sinks) -> AsyncIterator[str]:
    """Discord, ntfy, webhooks and a collector of traces in one; what they are sent goes into the
    sinks.
    """
    webhooks = Webhooks(default=Reply(200, {}, b"{}"))
    webhooks.at_path[f"/ntfy/{SECRETS['the topic at ntfy']}"] = Reply(500)
    async with serving(webhooks) as url:
        yield url
    for each in webhooks.seen:
        sinks[f"sent to {each.path.split('/')[1]}"] += (
            repr((each.query, each.headers)).encode() + each.body
        )


def settings(places_url: str, claude_url: str, folder: Path) -> Fields:
    keys = [
        {"name": "owner", "sha256": digest_of(OWNER), "admin": True, "allow_cloud": True},
        {"name": "friend", "sha256": digest_of(FRIEND), "models": [f"{MODEL}*", "nomic*"]},
        {"name": "house", "sha256": digest_of(HOUSE), "lane": "internal"},
    ]
    return {
        "server": {"log_level": "debug", "log_format": "json", "shutdown_grace_s": 1},
        "auth": {"keys": keys},
        "storage": {"path": str(folder / "hearth.db")},
        "alerts": {
            "discord_webhook_url": f"{places_url}/discord/{SECRETS['the address at Discord']}",
            "webhook_url": f"{places_url}/webhook/{SECRETS['the address of the webhook']}",
            "ntfy_url": f"{places_url}/ntfy/{SECRETS['the topic at ntfy']}",
            "rate_limit_alert_threshold": 1,
        },
        "rate_limits": {"default": {"requests_per_minute": 30}},
        "scheduling": {
            "active_hours": "00:00-00:00",
            "preempt_min_remaining_s": 0,
            "preempt_restart_bound_s": 0.0,
        },
        "cloud": {
            "api_key": "${CANARY_CLAUDE}",
            "base_url": claude_url,
            "model": "claude-fake-1",
            "prices": {"claude-fake-1": {"input_usd": 1, "output_usd": 1}},
        },
        "budget": {"daily_external_usd": 5},
        "jobs": {"webhooks": {"allowed_hosts": ["127.0.0.1"], "secret": "${CANARY_SIGNS}"}},
        "telemetry": {"otlp_endpoint": places_url},
    }


def outspoken() -> Emulator:
    """A model server whose models say nothing but canaries, one of them slowly."""
    slow = EmulatedModel(
        name=SLOW,
        size_gib=1,
        vram_gib=1,
        prompt_tokens_per_s=1e6,
        decode_tokens_per_s=100 / SPEED,
        load_s=1,
        unload_s=1,
    )
    words = tuple(f" {word}" for word in ANSWERS.values())
    models = [
        one.model_copy(update={"vocabulary": words, "ends": one is not slow})
        for one in (*default_profiles(), slow)
    ]
    return Emulator(models, clock=SystemClock(), speed=SPEED, seed=1, max_loaded=5)


class Served:
    """A `hearth serve` of its own process."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def log(self) -> bytes:
        return self._log.read_bytes()

    async def until(self, *events: str) -> None:
        """Return once these are in the log."""
        async with in_time():
            words = [f'"{event}"'.encode() for event in events]
            # a file tells nobody
            while not all(word in self.log() for word in words):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    @property
    def url(self) -> str:
        return next(
            str(json.loads(line)["url"])
            for line in self.log().splitlines()
            if b'"gateway_started"' in line
        )


@asynccontextmanager
async def hearth_serving(config: Fields, ollama_url: str, folder: Path) -> AsyncIterator[Served]:
    file = folder / "hearth.yaml"
    log = folder.parent / f"{folder.name}.log"
    file.write_text(yaml.safe_dump(config))
    command = [
        sys.executable,
        "-X",
        "dev",
        "-W",
        "ignore",
        "-c",
        "from hearth.cli import main; main()",
    ]
    command += ["serve", "--ollama-url", ollama_url, "--port", "0", "--config", str(file)]
    secrets = {"CANARY_CLAUDE": CLAUDE_KEY, "CANARY_SIGNS": SECRETS["the secret that signs"]}
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"], **secrets}
    with log.open("wb") as output:
        async with started(
            *command, stdout=output, stderr=output, env=environment, cwd=folder
        ) as process:
            served = Served(log)
            await served.until("gateway_started")
            yield served
            process.terminate()
            await process.wait()


PAGES = (
    *words(
        "/ /healthz /readyz /metrics /openapi.json /llm/queue/status "
        "/llm/queue/item/1 /llm/log /llm/swaps /llm/models /llm/health"
    ),
    *words("/llm/history /llm/jobs /llm/admin/config /llm/admin/orders /v1/batches /v1/files"),
    *words("/llm/log/export /llm/admin/logs"),
)


def user(text: str, model: str = MODEL, **more: Any) -> Fields:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def inference() -> Iterator[tuple[str, Fields]]:
    said = PROMPTS
    refused = PROMPTS["refused"]
    few: Fields = {"max_tokens": 5}
    predict: Fields = {"options": {"num_predict": 5}}
    system: Fields = {"system": said["system"]}
    yield "/api/chat", user(said["chat"], **predict)
    yield (
        "/api/chat",
        {"model": MODEL, "messages": [{"role": "system", "content": said["system"]}], **predict},
    )
    yield "/api/generate", {"model": MODEL, "prompt": said["generate"], **system, **predict}
    yield "/v1/chat/completions", user(said["openai"], stream=True, user=refused, **few)
    yield "/v1/responses", {"model": MODEL, "max_output_tokens": 5, "input": said["responses"]}
    yield "/v1/messages", user(said["anthropic"], **system, **few)
    yield "/llm/completions", {"model": MODEL, "prompt": said["completion"], **few}
    yield "/api/embed", {"model": EMBEDDER, "input": said["embedding"]}
    yield "/v1/embeddings", {"model": EMBEDDER, "input": [said["embedding"]] * 2}
    # What is refused, in as many ways as there are.
    yield "/api/chat", {"model": MODEL, "messages": refused}
    yield "/api/generate", {"model": MODEL, "prompt": {"a": refused}}
    yield "/llm/completions", {"prompt": refused, "unknown": refused}
    webhook = f"http://elsewhere.test/{SECRETS['the webhook of a job']}"
    yield "/llm/jobs", {"request": {"model": MODEL, "prompt": refused}, "webhook": webhook}
    yield "/llm/admin/announce", {"task_type": "a", "at": refused}
    yield "/api/chat", user(refused, format={"type": refused})


async def post(url: str, path: str, body: object, *, key: str = OWNER, **headers: str) -> Seen:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await tell(url, request("POST", path, raw, key=key, **headers))


def speaks(body: bytes) -> bool:
    """Whether a model's words are in an answer."""
    return any(word.encode() in body for word in ANSWERS.values())


async def work(url: str, places_url: str) -> list[bytes]:
    """Every kind of work that there is; the answers of errors and of Hearth's own pages, none of
    which repeats a prompt.
    """
    answers = []
    for number, (path, body) in enumerate(inference()):
        target = f"{path}?api_key={SECRETS['a key in a query']}"
        cookie = f"session={SECRETS['a cookie']}"
        seen = await post(url, target, body, key=(OWNER, FRIEND)[number % 2], cookie=cookie)
        if seen.status >= 400:
            answers.append(seen.body)
        elif "format" not in body:  # a schema decides what is said
            assert speaks(seen.body) is ("embed" not in path), (path, seen.body)
    wrongs: list[Fields] = [
        {"x_api_key": MISTYPED},
        {"authorization": f"Basic {MISTYPED}"},
        {"authorization": f"Bearer {OWNER}", "x_api_key": MISTYPED},
    ]
    answers += [(await tell(url, request("GET", "/llm/health", **wrong))).body for wrong in wrongs]
    broken = b'{"model":"%b","prompt":"%b' % (MODEL.encode(), PROMPTS["refused"].encode())
    for path in (
        "/api/generate",
        "/v1/chat/completions",
        "/v1/messages",
        "/llm/jobs",
        "/llm/completions",
    ):
        answers += [(await post(url, path, broken)).body]
    for model in ("nowhere:1b", "nowhere:2b"):
        seen = await post(url, "/v1/messages", user(PROMPTS["cloud"], model, max_tokens=5))
        assert (CLAUDES_ANSWER.encode() in seen.body) is (model == "nowhere:1b")
    await interrupted(url)
    await durable(url, places_url)
    leaving = await Caller.to(url)
    await leaving.send(
        request("POST", "/api/chat", json.dumps(user(PROMPTS["chat"])).encode(), key=FRIEND)
    )
    leaving.leave()
    for _ in range(40):  # until the caller is over its rate, which is an alert
        await post(
            url, "/api/embed", {"model": EMBEDDER, "input": PROMPTS["embedding"]}, key=FRIEND
        )
    return answers


async def interrupted(url: str) -> None:
    """A stream that makes room in the middle and goes on, which compares what is said again with
    what was said.
    """
    stream = user(PROMPTS["chat"], SLOW, options={"num_predict": 200})
    short = {"model": SLOW, "prompt": PROMPTS["generate"], "options": {"num_predict": 5}}
    caller = await Caller.to(url)
    await caller.send(request("POST", "/api/chat", json.dumps(stream).encode(), key=OWNER))
    async with in_time():
        for _ in range(5):
            await caller.reader.readuntil(b'"done":false')
        assert speaks((await post(url, "/api/generate", short, key=HOUSE)).body)
        rest = await caller.until_closed()
    assert b'"done":true' in rest
    assert speaks(rest)
    caller.leave()


async def durable(url: str, places_url: str) -> None:
    asked = {"model": MODEL, "prompt": KEPT_PROMPTS["a job"], "options": {"num_predict": 5}}
    job = {"request": asked, "webhook": f"{places_url}/hook/{SECRETS['the webhook of a job']}"}
    assert (await post(url, "/llm/jobs", job)).status == 202
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": user(KEPT_PROMPTS["a batch"], max_tokens=5),
    }
    form = '--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
    form += (
        'Content-Disposition: form-data; name="file"; filename="x.jsonl"\r\n\r\n'
        f"{json.dumps(line)}\r\n--b--\r\n"
    )
    file = json.loads(
        (
            await post(
                url, "/v1/files", form.encode(), content_type="multipart/form-data; boundary=b"
            )
        ).body
    )
    batch = {
        "input_file_id": file["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    assert (await post(url, "/v1/batches", batch)).status == 200


@asynccontextmanager
async def listening(url: str, sinks: Sinks) -> AsyncIterator[None]:
    """Hear both streams during the block."""

    async def keep(caller: Caller, path: str) -> None:
        while more := await caller.reader.read(65536):
            sinks[path] += more

    callers = {path: await Caller.to(url) for path in STREAMS}
    for path, caller in callers.items():
        await caller.send(request("GET", path, key=OWNER))
    hearing = [asyncio.ensure_future(keep(caller, path)) for path, caller in callers.items()]
    try:
        yield
    finally:
        for caller in callers.values():
            caller.leave()
        await asyncio.gather(*hearing, return_exceptions=True)


def look_into(folder: Path, sinks: Sinks) -> None:
    """Every row of every table; and every file byte by byte, for what is nowhere on the disk."""
    connection = sqlite3.connect(folder / "hearth.db")
    tables = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    for table in tables:
        rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
        sinks[f"table {table}"] += b"\n".join(
            each if isinstance(each, bytes) else str(each).encode() for row in rows for each in row
        )
    connection.close()
    for file in folder.iterdir():
        if file.name != "hearth.yaml":
            sinks[f"file {file.name}"] += file.read_bytes()


async def test_no_secret_no_prompt_and_no_answer_is_anywhere_but_where_it_belongs(tmp_path: Path):
    sinks = Sinks()
    claude = FakeClaude()
    await claude.start()
    emulator = outspoken()
    ollama_url = await emulator.start()
    refused = refusal(
        401, "authentication_error", f"invalid x-api-key {CLAUDE_KEY} {PROMPTS['cloud']}"
    )
    claude.scripts = [Script(words=(CLAUDES_ANSWER,)), refused]
    async with places(sinks) as places_url:
        config = settings(places_url, claude.url, tmp_path)
        async with (
            hearth_serving(config, ollama_url, tmp_path) as served,
            listening(served.url, sinks),
        ):
            for answer in await work(served.url, places_url):
                sinks["answers of errors"] += answer
            await served.until("webhook_delivered", "batch_ended", "item_resumed", "alert_sent")
            await tell(served.url, request("POST", "/llm/admin/alert/test", key=OWNER))
            for page in PAGES:
                for key in (OWNER, FRIEND):
                    sinks[page] += (await tell(served.url, request("GET", page, key=key))).body
        sinks["log"] += served.log()
    await claude.stop()
    await emulator.stop()
    look_into(tmp_path, sinks)
    everywhere = {"log", "table invocation_log", "file hearth.db"} | {
        f"sent to {each}" for each in words("discord webhook ntfy hook v1")
    }
    assert everywhere | {"/llm/queue/stream", "/llm/dashboard/stream", *PAGES} <= set(sinks)
    assert json.dumps(claude.requests).count(PROMPTS["cloud"]) > 0
    on_disk = [
        (name, where) for name, where in sinks.found(SECRETS) if not allowed_on_disk(name, where)
    ]
    assert on_disk == []
    assert sinks.found(PROMPTS) == []
    kept = {where for _, where in sinks.found(KEPT_PROMPTS)}
    assert {where for where in kept if not where.startswith("file ")} <= {
        f"table {name}" for name in TABLES_WITH_PROMPTS
    }
    assert sinks.found({"Claude's answer": CLAUDES_ANSWER}) == []
    said = {where for _, where in sinks.found(ANSWERS) if not where.startswith("file ")}
    assert "table jobs" in said
    assert said <= {f"table {name}" for name in TABLES_WITH_ANSWERS}


def allowed_on_disk(name: str, where: str) -> bool:
    """Where a job's messages go has to be known until they have been sent."""
    return name == "the webhook of a job" and (
        where == "table jobs" or where.startswith("file hearth.db")
    )
