"""What a simulated caller asks for and what it got; every prompt and every answer carries the
number of its asker (a canary).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from hearth.admission.admit import Adds, Admission
from hearth.admission.auth import Identity
from hearth.admission.http_checks import RequestHeaders
from hearth.api.app import rules_of
from hearth.api.request import Request
from hearth.api.submitting import submit
from hearth.dialects.request import read_request, seeded, ways_on
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.engines.ollama.traits import canonical_model
from hearth.errors import HearthError
from hearth.execution.request import Ticket
from hearth.gateway import Gateway
from hearth.job_types import Job
from hearth.jobs.queue import body_of
from hearth.queue.worker import LLMQueueWorker
from hearth.types import (
    JSON_BODY,
    BackendCall,
    Completion,
    JsonDict,
    Lane,
    LoadOptions,
    Priority,
    RequestId,
    ResumeMode,
)
from tests.support.fields import Fields
from tests.support.ollama_wire import Service, is_embedding, vector_of
from tests.support.virtual_time import loop_s

_CANARY = re.compile(rb"canary(\d+)x")
MAX_TOKENS = 100


@dataclass(slots=True, eq=False, kw_only=True)
class Ask:
    """One request of one caller."""

    number: int  # its own in the world
    life: int  # of the process that it went to
    caller: str
    model: str | None
    path: str = "/api/generate"
    stream: bool = False
    service_s: float = 1.0
    words: tuple[str, ...] = ()
    changeable: bool = False  # the model says something else each time
    patience_s: float | None = None  # after that its caller leaves; None never
    runs: int = 0
    continued: bool = False
    ticket: Ticket | None = None
    sequence: int = 0
    request_id: str = ""
    status: int = 0
    parts: list[bytes] = field(default_factory=list)
    error: HearthError | None = None
    refused: HearthError | None = None
    whole: bool = False  # the answer was read to its end, without an error
    left_at: float | None = None  # when its caller left
    # nobody reads the answer; it is kept with the job, or in a batch's file. With a `key` it is
    # asked for until it is taken.
    is_job: bool = False
    job_id: str = ""
    key: str | None = None
    webhook_url: str | None = None
    given_up: bool = False  # somebody who may has cancelled it

    @property
    def canary(self) -> str:
        return f"canary{self.number}x"

    @property
    def prompt(self) -> str:
        return f"say {self.canary}"

    @property
    def text(self) -> str:
        """What its caller was to read."""
        return json.dumps([vector_of(self.prompt)]) if self.embeds else "".join(self.words)

    @property
    def embeds(self) -> bool:
        return is_embedding(self.path)

    @property
    def by_claude(self) -> bool:
        return self.ticket is not None and self.ticket.served_by == "claude"

    def words_of_run(self, run: int) -> tuple[str, ...]:
        """What the model server says in a run, counted from 1."""
        return (*self.words[:2], f" run{run}", *self.words[3:]) if self.changeable else self.words

    def text_of_run(self, run: int) -> str:
        return self.text if self.embeds else "".join(self.words_of_run(run))

    def next_service(self, call: BackendCall) -> Service:
        """How the model server serves the next run, or says the rest of one from the text so
        far.
        """
        asked = json.loads(call.body or b"{}")
        if asked.get("raw"):
            words = self._rest(asked["prompt"].rpartition("<assistant>")[2])
            prompt_tokens = 30
        else:
            self.runs += 1
            words = self.words_of_run(self.runs)
            prompt_tokens = 5 + self.number % 7 if self.embeds else 10
        return Service(
            service_s=self.service_s,
            first_byte_s=self.service_s / 4,
            words=words,
            prompt_tokens=prompt_tokens,
        )

    def _rest(self, known: str) -> tuple[str, ...]:
        said = [
            self.words_of_run(run)
            for run in range(self.runs, 0, -1)
            if self.text_of_run(run).startswith(known)
        ]
        assert said, f"request {self.number} is to go on from {known!r}, which nobody has said"
        self.continued = True
        words = said[0]
        spoken = 0
        while words and len(words[0]) <= len(known) - spoken:
            spoken += len(words[0])
            words = words[1:]
        return (words[0][len(known) - spoken :], *words[1:]) if words else ()

    async def submitted(self, gateway: Gateway, caller: Identity, task_type: str | None) -> Ticket:
        """As the route does it."""
        route = INFERENCE_ROUTES[self.path]
        envelope, fields = read_request(
            route, json.dumps(self.body()).encode(), lambda _: LoadOptions()
        )
        body = envelope.body
        ways = tuple[ResumeMode, ...]()
        if self.stream:
            only_replay = self.number % 2 == 0
            ways = ways_on(route, body, fields, only_replay=only_replay, continue_diverged=True)
            body = seeded(route, body, fields, self.number)
        call = BackendCall(method="POST", path=self.path, headers=JSON_BODY, body=body)
        request = self._request(task_type)
        adds: Adds = "embedding" if self.embeds else "call"
        return await submit(
            gateway,
            request,
            Admission(rules_of(gateway), caller, request.headers, adds),
            replace(envelope, model=self.model or "", ways=ways),
            call,
        )

    def body(self) -> JsonDict:
        if self.embeds:
            return {"model": canonical_model(self.model or "a"), "input": self.prompt}
        said = (
            {"prompt": self.prompt}
            if self.path == "/api/generate"
            else {"messages": [{"role": "user", "content": self.prompt}]}
        )
        limit: JsonDict = (
            {"max_tokens": MAX_TOKENS}
            if self.path.startswith("/v1/")
            else {"options": {"num_predict": MAX_TOKENS}}
        )
        model = (
            self.model
            if self.model is None or self.model.startswith("claude-")
            else canonical_model(self.model)
        )
        return {"model": model, "stream": self.stream, **said, **limit}

    def _request(self, task_type: str | None) -> Request:
        """The part of an HTTP request that admission looks at; whoever answers it is not
        simulated.
        """
        values = {} if task_type is None else {b"x-task-type": task_type.encode()}
        unused: Any = dict.fromkeys(("peer", "receive", "answer", "disconnected", "connection"))
        headers = RequestHeaders(values=values, repeated=frozenset())
        request_id = RequestId(self.request_id)
        return Request(
            method="POST",
            path=self.path,
            target=self.path,
            headers=headers,
            request_id=request_id,
            reads_chunks=True,
            **unused,
        )

    def as_job(self, lane: Lane) -> Job:
        """The same as durable work."""
        return Job(
            job_id=self.job_id,
            caller=self.caller,
            lane=lane,
            priority=Priority.BACKGROUND,
            task_type=None,
            job_key=None,
            path=self.path,
            model=canonical_model(self.model or "a"),
            request=body_of(self.path, self.body()),
            webhook_url=self.webhook_url,
            idempotency_key=self.key,
        )

    @asynccontextmanager
    async def _patiently(self) -> AsyncIterator[None]:
        """Until the end of the answer, or of patience."""
        try:
            async with asyncio.timeout(self.patience_s):
                yield
            self.whole = True
        except TimeoutError:
            self.left_at = loop_s()
        except HearthError as error:
            self.error = error

    async def read(self, worker: LLMQueueWorker) -> None:
        """Read the answer to its end, or leave when patience ends."""
        assert self.ticket is not None
        reply = self.ticket.reply
        async with self._patiently():
            self.status = (await reply.head()).status
            while chunks := await reply.take():
                self.parts.extend(chunks)
        if self.left_at is not None:
            reply.abandon()
            if not self.by_claude:
                worker.cancel(self.ticket.sequence)

    async def wait_for(self, future: asyncio.Future[Completion]) -> None:
        """The same for a program that embeds the gateway."""
        async with self._patiently():
            self.parts.append(json.dumps({"response": (await future).output}).encode())
            self.status = 200

    def text_of_story(self) -> str:
        """All that came of it, for comparisons."""
        said = b"".join(self.parts).decode()
        return (
            f"{self.canary} {self.sequence} {self.runs} {self.status} {self.error!r} "
            f"{self.refused!r} {self.left_at} {said}"
        )

    def terminators(self) -> int:
        """How often the stream that came says that it is complete."""
        body = b"".join(self.parts)
        return (
            body.count(b"data: [DONE]" if self.path.startswith("/v1/") else b'"done":true')
            if self.stream
            else 0
        )

    def said(self) -> str:
        """The text in what came."""
        body = b"".join(self.parts)
        if self.embeds:
            return _vectors(body)
        if not self.path.startswith("/v1/"):
            lines = [json.loads(line) for line in body.splitlines()]
            return "".join(
                line.get("response", line.get("message", {}).get("content", "")) for line in lines
            )
        if not self.stream:
            return "".join(
                choice["message"]["content"] for choice in json.loads(body).get("choices", [])
            )
        events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
        return "".join(
            choice["delta"].get("content") or ""
            for event in events
            for choice in event.get("choices", [])
        )


def identity(caller: str, lane: Lane, *, allow_cloud: bool = False) -> Identity:
    """A caller with a key of that lane."""
    rights: Any = {
        "max_priority": Priority.CRITICAL,
        "models": (),
        "admin": False,
        "authenticated": True,
    }
    return Identity(caller=caller, lane=lane, allow_cloud=allow_cloud, **rights)


def askers_of(body: bytes) -> list[int]:
    """Whose canaries are in a body, in order."""
    return [int(number) for number in dict.fromkeys(_CANARY.findall(body))]


def words_of(number: int, count: int) -> tuple[str, ...]:
    """An answer of at least four words that nobody else gets."""
    return (f" canary{number}x", *(f" w{index}" for index in range(count + 2)), f" end{number}.")


def _vectors(body: bytes) -> str:
    said: Fields = json.loads(body) if body else {"error": ""}
    assert "error" not in said or not (said.keys() & {"embeddings", "data"}), (
        f"half an answer: {body!r}"
    )
    if "error" in said:
        return ""
    return json.dumps(
        said["embeddings"]
        if "embeddings" in said
        else [element["embedding"] for element in said["data"]]
    )
