"""The jobs that wait in the store, in their order, and the requests that they are made of.

What a job asks the model server: checked when it is accepted, put into its final form when it runs.

A job has no reader who waits, so its answer is always one whole document: `stream` is switched off.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from math import inf
from typing import Any

from hearth.config.settings import Settings, load_options
from hearth.dialects.gojson import encode_large
from hearth.dialects.request import Envelope, read_envelope
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.errors import BadRequest, KeyInUse
from hearth.execution.request import Submission
from hearth.job_types import StartedJob, WaitingJob
from hearth.types import BackendCall, Headers, Lane, QueueItem, RequestId, WorkKind

RETRY_AFTER_S = 1.0


class KeysInUse:
    """Each key of a caller is in use at most once."""

    def __init__(self) -> None:
        self._used: set[tuple[str, str]] = set()

    @contextmanager
    def use(self, caller: str, key: str | None) -> Iterator[None]:
        """For the time of the block, nobody else may use the key; without one, nothing is in the way. Raises KeyInUse."""
        if key is None:
            yield
            return
        if (caller, key) in self._used:
            raise KeyInUse(retry_after_s=RETRY_AFTER_S)
        self._used.add((caller, key))
        try:
            yield
        finally:
            self._used.discard((caller, key))


JSON_BODY: Headers = ((b"content-type", b"application/json"),)
_GUESSES = (("messages", Endpoint.CHAT), ("prompt", Endpoint.GENERATE), ("input", Endpoint.EMBED))


def endpoint_of(request: Mapping[str, object], endpoint: str | None) -> str:
    """The inference route that a request is meant for; without a word about it, the native one that takes such a body.

    Raises:
        BadRequest: there is no such route, or none can be told.
    """
    if endpoint is not None:
        if endpoint not in INFERENCE_ROUTES:
            raise BadRequest(f"endpoint: write one of {', '.join(INFERENCE_ROUTES)}")
        return endpoint
    for field, path in _GUESSES:
        if field in request:
            return path.value
    raise BadRequest("request: it has neither messages, prompt nor input; write the body of an inference route")


def body_of(path: str, request: Mapping[str, Any], *, large: bool = False) -> bytes:
    """The request as the whole body of its route, a `large` one in pieces. Raises BadRequest for what JSON cannot say."""
    whole = {name: value for name, value in request.items() if name != "stream_options"}
    if INFERENCE_ROUTES[path].kind is WorkKind.GENERATE:
        whole["stream"] = False
    try:
        return encode_large(whole) if large else json.dumps(whole, allow_nan=False, separators=(",", ":")).encode("ascii")
    except ValueError as error:
        raise BadRequest("request: it holds a number that JSON does not have") from error


def envelope_of(path: str, body: bytes, settings: Settings, *, model: str | None = None) -> Envelope:
    """What the queue must know of a request; `model` is the installed name of the one that it is for, where that is known.

    Raises:
        BadRequest, ModelNotFound: in the words of Ollama; and for a body that only loads or unloads a model.
    """
    envelope = read_envelope(INFERENCE_ROUTES[path], body, lambda called: load_options(settings, model or called))
    if envelope.kind in (WorkKind.LOAD, WorkKind.UNLOAD) or envelope.max_tokens == 0:
        raise BadRequest("request: it asks for nothing; give a prompt or messages, and no num_predict of 0")
    return envelope


def item_of(job: WaitingJob, started: StartedJob, model: str, settings: Settings) -> Submission:
    """A started job as the GPU's queue takes it; its request id is the job's. Raises as `envelope_of`."""
    envelope = envelope_of(started.path, started.request, settings, model=model)
    item = QueueItem(
        lane=job.lane,
        priority=job.priority,
        caller=job.caller,
        model=model,
        request_id=RequestId(job.job_id),
        task_type=job.task_type,
        kind=envelope.kind,
        dialect=envelope.dialect,
        prompt_tokens=envelope.prompt_tokens,
        max_tokens=envelope.max_tokens,
    )
    call = BackendCall(method="POST", path=started.path, headers=JSON_BODY, body=envelope.body)
    return Submission(item=item, call=call, durable=True)


def digest_of(*parts: object) -> str:
    """What tells one submission from another, SHA-256 in hex; the order of keys in objects does not."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode("ascii")).hexdigest()


Rank = tuple[bool, int]
"""Internal before external; then the priority, which external work has none of."""
_Kind = tuple[Rank, str | None, str]


def rank_of(job: WaitingJob) -> Rank:
    """What goes before the order of acceptance."""
    return (True, 0) if job.lane is Lane.EXTERNAL else (False, int(job.priority))


def place_of(job: WaitingJob) -> tuple[Rank, int]:
    """The sort key of all jobs."""
    return (rank_of(job), job.number)


class Line:
    """Numbers in order."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    @property
    def head(self) -> int:
        """The least; there must be one."""
        return self._numbers[0]

    def add(self, number: int) -> None:
        """A number that is not in it."""
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
        else:
            insort(self._numbers, number)

    def discard(self, number: int) -> None:
        """Without this one; one that is not in it is no error."""
        index = self.before(number)
        if index < len(self._numbers) and self._numbers[index] == number:
            del self._numbers[index]

    def before(self, number: int) -> int:
        """How many are less."""
        return bisect_left(self._numbers, number)


class Lines:
    """One line per rank, task type and model; those of suspects and of off-peak jobs apart. Empty lines are forgotten."""

    def __init__(self) -> None:
        self._parts: dict[tuple[bool, bool], dict[_Kind, Line]] = {}

    def add(self, job: WaitingJob) -> None:
        """At its place in the line of its kind."""
        part = self._parts.setdefault((job.suspect, job.off_peak), {})
        part.setdefault((rank_of(job), job.task_type, job.model), Line()).add(job.number)

    def discard(self, job: WaitingJob) -> None:
        """Out of its line; one that stands in none is no error."""
        part, kind = self._parts.get((job.suspect, job.off_peak), {}), (rank_of(job), job.task_type, job.model)
        line = part.get(kind)
        if line is not None:
            line.discard(job.number)
            if not len(line):
                del part[kind]

    def heads(self, *, suspect: bool, off_peak: bool) -> Iterable[int]:
        """The least number of each line."""
        return (line.head for line in self._parts.get((suspect, off_peak), {}).values())


class Due:
    """Jobs that may not start before an instant, in order of the instants."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int]] = []

    def add(self, wall_s: float, number: int) -> None:
        """A job with its instant."""
        insort(self._entries, (wall_s, number))

    def discard(self, wall_s: float, number: int) -> bool:
        """Whether it was here, and is not any more."""
        index = bisect_left(self._entries, (wall_s, number))
        found = index < len(self._entries) and self._entries[index] == (wall_s, number)
        if found:
            del self._entries[index]
        return found

    def take_until(self, wall_s: float) -> list[int]:
        """Those whose instant has come, taken out, the earliest first."""
        index = bisect_right(self._entries, (wall_s, inf))
        taken = [number for _, number in self._entries[:index]]
        del self._entries[:index]
        return taken

    def first_after(self, wall_s: float) -> float | None:
        """The next instant, None where there is none."""
        index = bisect_right(self._entries, (wall_s, inf))
        return self._entries[index][0] if index < len(self._entries) else None


BATCH_LIMIT = 32
"""So many jobs of one model in a row, while older ones of other models wait."""


class Board:
    """The jobs that wait in the store, without their requests."""

    def __init__(self) -> None:
        self._waiting: dict[int, WaitingJob] = {}
        self._numbers: dict[str, int] = {}
        self._ranks: dict[Rank, Line] = {}
        self._lines = Lines()
        self._later = Due()
        self._called_at = 0.0
        self._batch_model = ""
        self._batch_jobs = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: WaitingJob) -> None:
        """A job waits; again is harmless."""
        self.remove(job.job_id)
        self._waiting[job.number] = job
        self._numbers[job.job_id] = job.number
        self._ranks.setdefault(rank_of(job), Line()).add(job.number)
        if job.not_before_wall_s is None:
            self._lines.add(job)
        else:
            self._later.add(job.not_before_wall_s, job.number)

    def remove(self, job_id: str) -> WaitingJob | None:
        """Take a job out; None where it is not here."""
        number = self._numbers.pop(job_id, None)
        if number is None:
            return None
        job = self._waiting.pop(number)
        self._ranks[rank_of(job)].discard(number)
        if not (job.not_before_wall_s is not None and self._later.discard(job.not_before_wall_s, number)):
            self._lines.discard(job)
        return job

    def take(
        self, wall_s: float, *, off_peak: bool, running: Iterable[WaitingJob], paused: bool = False, served: str | None = None
    ) -> WaitingJob | None:
        """The job to start now, taken out; None where none may.

        Args:
            off_peak: it is outside active hours.
            running: the jobs that are in the GPU's queue or running.
            paused: external ones may not start.
            served: the model that the GPU served last, for whomever. While jobs are on their way theirs is served next.
        """
        busy = tuple(running)
        if served and not busy and served != self._batch_model:
            self._batch_model, self._batch_jobs = served, 0
        self._call_up(wall_s)
        chosen = None if any(job.suspect for job in busy) else self._choose(off_peak, paused, busy)
        if chosen is not None:
            self.remove(chosen.job_id)
            self._batch_jobs = self._batch_jobs + 1 if chosen.model == self._batch_model else 1
            self._batch_model = chosen.model
        return chosen

    def position(self, job_id: str) -> int | None:
        """How many jobs are ahead of a waiting one; None where it does not wait."""
        number = self._numbers.get(job_id)
        if number is None:
            return None
        own = rank_of(self._waiting[number])
        return sum(len(line) for rank, line in self._ranks.items() if rank < own) + self._ranks[own].before(number)

    def in_line(self) -> list[WaitingJob]:
        """All that wait, in the order in which `position` counts them."""
        return [self._waiting[number] for rank in sorted(self._ranks) for number in self._ranks[rank]]

    def next_due(self, wall_s: float) -> float | None:
        """The first instant after `wall_s` at which a job may start that may not yet; None where there is none."""
        return self._later.first_after(wall_s)

    def _call_up(self, wall_s: float) -> None:
        """Put those whose time has come into their lines, and send those back whose time has not: the wall clock may jump."""
        if wall_s < self._called_at:
            early = [job for job in self._waiting.values() if wall_s < (job.not_before_wall_s or 0.0) <= self._called_at]
            for job in early:
                self.add(job)
        self._called_at = wall_s
        for number in self._later.take_until(wall_s):
            self._lines.add(self._waiting[number])

    def _choose(self, off_peak: bool, paused: bool, busy: Sequence[WaitingJob]) -> WaitingJob | None:  # noqa: FBT001
        suspects, others = (self._heads(suspect=suspect, off_peak=off_peak, paused=paused) for suspect in (True, False))
        if suspects:
            return None if busy else _oldest_of_type(min(suspects, key=place_of), others)
        ready = _in_type_order(others, busy)
        if not ready:
            return None
        first = min(ready, key=place_of)
        if self._batch_jobs >= BATCH_LIMIT:
            return first
        batch = [job for job in ready if job.model == self._batch_model and rank_of(job) == rank_of(first)]
        return min(batch, key=place_of, default=first)

    def _heads(self, *, suspect: bool, off_peak: bool, paused: bool) -> list[WaitingJob]:
        """The first of every line that may start now."""
        numbers = self._lines.heads(suspect=suspect, off_peak=False)
        if off_peak:
            numbers = chain(numbers, self._lines.heads(suspect=suspect, off_peak=True))
        heads = [self._waiting[number] for number in numbers]
        return [job for job in heads if job.lane is Lane.INTERNAL] if paused else heads


def _oldest_of_type(suspect: WaitingJob, others: list[WaitingJob]) -> WaitingJob:
    """What has to start before a suspect, if anything: the process that died had put it back already."""
    older = [job for job in others if job.task_type is not None and job.task_type == suspect.task_type]
    return min((suspect, *older), key=place_of)


def _in_type_order(due: list[WaitingJob], busy: Sequence[WaitingJob]) -> list[WaitingJob]:
    """Without the jobs that would pass an older one of their type: it waits, or is on its way with another model."""
    heads: dict[str, WaitingJob] = {}
    for job in due:
        if job.task_type is not None and (job.task_type not in heads or place_of(job) < place_of(heads[job.task_type])):
            heads[job.task_type] = job
    return [job for job in due if job.task_type is None or (job is heads[job.task_type] and _follows(job, busy))]


def _follows(job: WaitingJob, busy: Sequence[WaitingJob]) -> bool:
    """Whether those of its type that are on their way run on its own model: then the GPU's queue keeps their order."""
    return all(other.model == job.model for other in busy if other.task_type == job.task_type)
