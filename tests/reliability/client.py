"""A client with a memory: what it wanted, what it was promised, what it was told. What is judged
later is this, not the gateway's word.

Plain sockets: one connection per caller, no retries but those that are asked for.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from hearth.types import frozen

LOOK_S = 0.05
"""Between two looks at what is left."""


@frozen
class Wish:
    """One job as the client wants it; its key is the prompt of the job, too."""

    key: str
    task_type: str | None = None
    model: str = "one"
    webhook: str | None = None

    def body(self) -> bytes:
        wanted = {
            "request": {"model": self.model, "prompt": self.key},
            "task_type": self.task_type,
            "webhook": self.webhook,
        }
        return json.dumps(
            {name: value for name, value in wanted.items() if value is not None}
        ).encode()


@dataclass(slots=True, kw_only=True)
class History:
    """The client's side of everything that happened.

    Attributes:
        wanted: every wish ever sent, by key, in the order of the first attempt.
        accepted: job id by key, of those that were answered 202.
        unwanted: keys of jobs that it tried to cancel; cancelled: of those, the confirmed ones.
        refused: answers of 503, which promise nothing.
    """

    wanted: dict[str, Wish] = field(default_factory=dict)
    accepted: dict[str, str] = field(default_factory=dict)
    unwanted: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    refused: int = 0

    def open(self) -> list[Wish]:
        """What was asked for and never answered."""
        return [wish for key, wish in self.wanted.items() if key not in self.accepted]


class Caller:
    """One connection; every method says whether there was an answer."""

    def __init__(self, url: str, history: History) -> None:
        self._address = urlsplit(url)
        self._history = history
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def submit(self, wish: Wish, *, keyed: bool = True) -> bool:
        """Ask for a job, with its key for Idempotency-Key unless it is to be asked for once
        only.
        """
        self._history.wanted.setdefault(wish.key, wish)
        more = f"Idempotency-Key: {wish.key}\r\n" if keyed else ""
        answer = await self._ask("POST", "/llm/jobs", wish.body(), more)
        if answer is None:
            return False
        status, said = answer
        if status == 202:
            before = self._history.accepted.setdefault(wish.key, said["id"])
            assert before == said["id"], "one key, two jobs"
        else:
            assert status == 503, said
            self._history.refused += 1
        return status == 202

    async def cancel(self, key: str) -> bool:
        """Cancel a job that was accepted; one that has ended stays as it is."""
        answer = await self._ask("DELETE", f"/llm/jobs/{self._history.accepted[key]}")
        self._history.unwanted.add(key)
        if answer is not None and answer[0] == 200 and answer[1]["cancelled"]:
            self._history.cancelled.add(key)
        return answer is not None

    async def is_idle(self) -> bool:
        """Whether all jobs have ended, in one look: between one for each state, a recovered job
        goes from running to queued.
        """
        answer = await self._ask("GET", "/llm/jobs?unended=true&limit=1")
        assert answer is not None, "the gateway died by itself"
        if answer[1]["jobs"]:
            await asyncio.sleep(LOOK_S)
            return False
        return True

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()

    async def _ask(
        self, method: str, path: str, body: bytes = b"", more: str = ""
    ) -> tuple[int, Any] | None:
        with suppress(OSError, asyncio.IncompleteReadError, ValueError):
            if self._streams is None:
                self._streams = await asyncio.open_connection(
                    self._address.hostname, self._address.port
                )
            reader, writer = self._streams
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: {self._address.netloc}\r\nContent-Type: "
                f"application/json\r\n{more}"
            )
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            return int(answer[9:12]), json.loads(await reader.readexactly(length))
        self.close()
        self._streams = None
        return None


async def worked_off(url: str, history: History) -> None:
    """Returns when everything that was asked for is accepted, and has ended."""
    caller = Caller(url, history)
    for wish in history.open():
        assert await caller.submit(wish)
    while not await caller.is_idle():
        pass
    caller.close()
