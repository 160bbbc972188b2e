"""What bodies full of escapes cost the others: 1.9 KB of zstd stand for 20 MiB, two come in a
second, with a key at its default limits.

`python -m benchmarks.escapes PORT` is the attacker, a process of its own that sends until it is
killed.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from statistics import quantiles
from time import monotonic, perf_counter, sleep

import yaml
from backports import zstd

from benchmarks import house
from benchmarks.driver import chat_request
from benchmarks.findings import Finding
from benchmarks.process import Child, cpu_s, free_port

ATTACKER = "sk-bench-attacker"
UNKNOWN = b"nowhere"
"""A model that is not installed: nothing of this reaches the model server, whose slots others
need.
"""
KINDS = (rb"\u0041", rb"\n", rb"\\", rb"\ud83d\ude00", rb"\ud83d", b"\xff")
BODY_BYTES = 20 * 1024 * 1024 - 1000
BODIES_PER_S = 2
QUIET_S = 10.0
ATTACKED_S = 60.0
ASK_EVERY_S = 0.02
TIMEOUT_S = 60.0
STALL_TARGET_MS = 100.0
RATIO_TARGET = 3.0
DEFAULT_LIMITS = {
    "requests_per_minute": 120,
    "requests_per_hour": 2000,
    "reading_s_per_minute": 3.0,
}


def measure(rounds: int, place: Path) -> list[Finding]:
    """Another caller's answers and `/healthz`, quiet and under attack."""
    with house.stub() as stub, _hearth(stub, place) as hearth:
        _check_key(hearth)
        quiet = _waits_ms(hearth, QUIET_S)
        before_s = cpu_s(hearth.pid)
        with subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-m", "benchmarks.escapes", str(hearth.port)]
        ) as attacker:
            attacked = _waits_ms(hearth, ATTACKED_S)
            used_s = cpu_s(hearth.pid) - before_s
            attacker.kill()
    chats, alive = ([each[name] for each in (quiet, attacked)] for name in ("chat", "healthz"))
    p99_ms = [quantiles(waits, n=100)[98] for waits in chats]
    subject = "escapes, 120 a minute"
    return [
        Finding(
            subject=subject,
            name="another caller's p99, of its quiet one",
            unit="",
            measured=p99_ms[1] / p99_ms[0],
            target=RATIO_TARGET,
            note=f"{p99_ms[0]:.1f} ms quiet, {p99_ms[1]:.1f} ms attacked",
        ),
        Finding(
            subject=subject,
            name="longest wait for /healthz, beyond the quiet one",
            unit="ms",
            measured=max(alive[1]) - max(alive[0]),
            target=STALL_TARGET_MS,
            beside={"quiet": max(alive[0])},
        ),
        Finding(
            subject=subject, name="share of a core", unit="%", measured=100 * used_s / ATTACKED_S
        ),
    ]


def _hearth(stub: Child, place: Path) -> Child:
    port = free_port()
    config = yaml.safe_load(house.config_text(stub, place, port=port, parallel=1))
    digest = sha256(ATTACKER.encode()).hexdigest()
    config["auth"]["keys"].append({"name": "attacker", "sha256": digest})
    config["rate_limits"]["callers"] = {"attacker": DEFAULT_LIMITS}
    file = place / "config" / "hearth.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(config))
    return Child(house.serve_command(file), port)


def _check_key(hearth: Child) -> None:
    """Raises RuntimeError where the attacker is turned away before its bodies are read."""
    connection = http.client.HTTPConnection("127.0.0.1", hearth.port, timeout=TIMEOUT_S)
    headers = {"Authorization": f"Bearer {ATTACKER}"}
    connection.request("POST", "/v1/chat/completions", b'{"model": "%b"}' % UNKNOWN, headers)
    status = connection.getresponse().status
    if status == http.HTTPStatus.UNAUTHORIZED:
        raise RuntimeError("the attacker's key is not known")


def _waits_ms(hearth: Child, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of a chat and of a `/healthz` right after it, over and over."""
    waits: dict[str, list[float]] = {"chat": [], "healthz": []}
    connection = http.client.HTTPConnection("127.0.0.1", hearth.port, timeout=TIMEOUT_S)
    head, _, body = chat_request(hearth.port, "", streaming=False).partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    ends_at = monotonic() + seconds
    while monotonic() < ends_at:
        for name, asked in (
            ("chat", ("POST", "/api/chat", body, headers)),
            ("healthz", ("GET", "/healthz")),
        ):
            began = perf_counter()
            connection.request(*asked)
            connection.getresponse().read()
            waits[name].append((perf_counter() - began) * 1e3)
        sleep(ASK_EVERY_S)
    return waits


async def attack(port: int) -> None:
    """Send the bodies at their pace, each on a connection of its own, whatever is answered."""
    content = (kind * (BODY_BYTES // len(kind)) for kind in KINDS)
    chat = b'{"model":"%b","max_tokens":1,"messages":[{"role":"user","content":"%b"}]}'
    bodies = [zstd.compress(chat % (UNKNOWN, each), level=19) for each in content]
    sending = set[asyncio.Task[None]]()
    for body in itertools.cycle(bodies):
        sending.add(asyncio.create_task(_send(port, body)))
        await asyncio.sleep(1 / BODIES_PER_S)


async def _send(port: int, body: bytes) -> None:
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {ATTACKER}",
        "Content-Encoding: zstd",
    )
    head = "\r\n".join(
        [*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""]
    ).encode()
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        while await reader.read(65_536):
            pass
        writer.close()


if __name__ == "__main__":
    asyncio.run(attack(int(sys.argv[1])))
