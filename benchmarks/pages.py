"""How fast the pages of the dashboard get what they show, in a home with ninety days of log, and
how long the gateway's loop is held up meanwhile.

Every address that a page asks for is asked over HTTP of a gateway as `hearth serve` runs it, one
after the other, over a store with a million requests that the release before has written.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import copyfile
from statistics import median
from time import monotonic, perf_counter, sleep
from urllib.request import Request, urlopen

import yaml

from benchmarks import house, long_log
from benchmarks.findings import Finding
from benchmarks.keys import authorization
from benchmarks.probed import longest_ms
from benchmarks.process import Child, free_port

OWNER = "sk-bench-owner"
SUBJECT = f"pages, {long_log.ROWS:,} requests"
TARGET_MS = 200.0
STALL_TARGET_MS = 20.0
START_TIMEOUT_S = 300.0
TIMEOUT_S = 60.0
SETTLE_S = 3.0
"""What a start does after it listens, such as a last collection of garbage, is no page's."""
FRAME_END = b"\n\n"
MOST_BYTES = 1 << 20
"""Of an export; what comes after it comes as fast."""

_HISTORY = {
    f"history {window}{by}": f"/llm/history?window={window}{query}"
    for window in ("24h", "7d", "30d", "90d")
    for by, query in (
        ("", ""),
        (", by caller", "&group=caller"),
        (", by model", "&group=model"),
        (", by engine", "&group=engine"),
        (", one caller by model", "&caller=caller-3&group=model"),
        (", one model", "&model=model-1:8b"),
        (", one engine", "&engine=vllm"),
    )
}
ADDRESSES = {
    "log": "/llm/log?limit=50",
    "log, 1,000 rows": "/llm/log?limit=1000",
    "log, a caller": "/llm/log?caller=caller-3&limit=50",
    "log, a rare caller": f"/llm/log?caller={long_log.RARE}&limit=50",
    "log, nobody": "/llm/log?caller=nobody&limit=50",
    "log, a model": "/llm/log?model=model-1:8b&limit=50",
    "log, failed": "/llm/log?outcome=failed&limit=50",
    "log, failed of a caller in a month": "/llm/log?outcome=failed&caller=caller-3&since=30d",
    "log, an engine": "/llm/log?engine=vllm&limit=50",
    "log, a task type of a lane": "/llm/log?task_type=summary&lane=internal&limit=50",
    "log, one id": "/llm/log?request_id=req_000000000000",
    "log, two months ago": "/llm/log?until=60d&limit=50",
    "log, a caller two months ago": "/llm/log?until=60d&caller=caller-3&limit=50",
    "swaps": "/llm/swaps?limit=1000",
    **_HISTORY,
    "models": "/llm/models",
    "keys": "/llm/admin/keys",
    "one's own key": "/llm/key",
    "settings": "/llm/admin/config",
    "settings, what a saved file would change": "/llm/admin/config/pending",
    "log of the gateway": "/llm/admin/logs",
    "mode": "/llm/mode",
    "status": "/llm/queue/status",
}
FIRST_FRAME = "/llm/dashboard/stream"
EXPORT = "/llm/log/export?format=jsonl"


def measure(rounds: int, place: Path) -> list[Finding]:
    """A first start on the store of the release before, then each address once per round."""
    store = place / "written.db"
    long_log.write(store)
    with house.stub() as stub:
        port = free_port()
        config = _write_config(stub, place, port)
        copyfile(store, place / f"hearth-{port}.db")
        first_s = _start_s(config, place, port)
        long_log.tell_engines(place / f"hearth-{port}.db")
        stalls = place / "stalls"
        with _hearth(config, stalls, port) as hearth:
            sleep(SETTLE_S)
            asked = [_asked(name, hearth, path, stalls, rounds) for name, path in ADDRESSES.items()]
            asked.append(_asked("dashboard, first frame", hearth, FIRST_FRAME, stalls, rounds))
            first_mib, stall = _asked("export, first MiB", hearth, EXPORT, stalls, rounds)
            asked.append((replace(first_mib, target=None), stall))  # a download, and no page waits
            started_s = hearth.started_s
    return [
        Finding(
            subject=SUBJECT,
            name="first start after the upgrade",
            unit="s",
            measured=first_s,
            beside={"a later start": started_s},
        ),
        *(finding for findings in asked for finding in findings),
    ]


def _write_config(stub: Child, place: Path, port: int) -> Path:
    config = yaml.safe_load(house.config_text(stub, place, port=port, parallel=1))
    digest = sha256(OWNER.encode()).hexdigest()
    config["auth"]["keys"].append({"name": "owner", "sha256": digest, "admin": True})
    config["storage"]["max_mib"] = 4096
    file = place / "config" / f"hearth-{port}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(config))
    return file


def _hearth(config: Path, stalls: Path, port: int) -> Child:
    command = [sys.executable, "-m", "benchmarks.probed", str(config), str(stalls)]
    log = config.with_suffix(".log")
    return Child(command, port, log=log, start_timeout_s=START_TIMEOUT_S)


def _start_s(config: Path, place: Path, port: int) -> float:
    with _hearth(config, place / "stalls", port) as hearth:
        return hearth.started_s


def _asked(
    name: str, hearth: Child, path: str, stalls: Path, rounds: int
) -> tuple[Finding, Finding]:
    """How long the answer took, and by how much the loop was late meanwhile."""
    began = monotonic()
    took_ms = [_answered_ms(hearth, path) for _ in range(rounds)]
    stalled_ms = longest_ms(stalls, began, monotonic())
    return (
        Finding(
            subject=SUBJECT,
            name=name,
            unit="ms",
            measured=median(took_ms),
            target=TARGET_MS,
            beside={"max": max(took_ms)},
        ),
        Finding(
            subject=SUBJECT,
            name=f"{name}: loop held up",
            unit="ms",
            measured=stalled_ms,
            target=STALL_TARGET_MS,
        ),
    )


def _answered_ms(hearth: Child, path: str) -> float:
    """Until the whole answer is there; of an endless one, its first frame."""
    url = f"{hearth.url}{path}"
    request = Request(url, headers=authorization(OWNER))  # noqa: S310 - a URL of our own
    began = perf_counter()
    with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
        if FIRST_FRAME not in url:
            answer.read(MOST_BYTES)
        else:
            received = b""
            while FRAME_END not in received:
                received += answer.read1()
    return (perf_counter() - began) * 1e3
