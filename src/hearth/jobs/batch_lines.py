"""What a file of requests must be, and the store as batches need it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from hearth.admission.auth import may_use
from hearth.config.settings import Settings
from hearth.dialects.gojson import LARGE_BYTES, GoJsonError, check_structure, decode
from hearth.dialects.routes import Endpoint
from hearth.errors import BadRequest, HearthError, ModelNotFound
from hearth.job_types import (
    Admission,
    BatchLine,
    BatchRecord,
    BatchStatus,
    EndedLine,
    LineOutcome,
    NewBatch,
    NewFile,
    Page,
    Problem,
    Stored,
    StoredFile,
    StoreLimits,
    WaitingJob,
)
from hearth.jobs.queue import body_of, envelope_of
from hearth.types import MIB


class FileUploads(Protocol):
    """Files on their way in: seen by nobody until they are complete. Raises StorageUnavailable where the disk is at fault."""

    async def begin(self, caller: str) -> int:
        """A file without content; its number. It is forgotten when the process ends before `seal`."""

    async def append(self, number: int, place: int, data: bytes, max_bytes: int, own_max_bytes: int | None = None) -> None:
        """Add pieces of `PART_BYTES` from a place on; only the last of a file may be shorter.

        Raises:
            QueueFull: with it, the store would keep more than `max_bytes` of files, requests and results, or more than `own_max_bytes`
                of its caller's.
        """

    async def seal(self, number: int, new: NewFile) -> StoredFile:
        """It is complete, and there from now on."""

    async def discard(self, number: int) -> None:
        """Give it up; nothing happens to a file that is complete."""


class FileRecords(Protocol):
    """Files that are complete; raises StorageUnavailable where the disk is at fault."""

    async def find(self, file_id: str) -> StoredFile | None:
        """One file."""

    async def list_files(self, page: Page) -> tuple[StoredFile, ...]:
        """A caller's files. Raises NotFound where it has none with the id `after`."""

    async def parts(self, number: int, after: int) -> tuple[tuple[int, bytes], ...]:
        """`(place, bytes)` of the next pieces after a place (-1: from the first), a few at a time; empty at the end."""

    async def remove(self, number: int) -> bool:
        """Delete it; False where that was done before. Raises BadRequest while a batch reads it."""

    async def sweep(self) -> bool:
        """Delete some of what is abandoned, expired or deleted; True while there is more."""


class FileAccounts(Protocol):
    """What everybody keeps, for the owner; raises StorageUnavailable where the disk is at fault."""

    async def list_all(self, caller: str | None, limit: int) -> tuple[StoredFile, ...]:
        """The files of everybody, or of one caller, the largest first."""

    async def stored(self) -> tuple[Stored, ...]:
        """What each caller keeps in the store, the most first."""


class BatchRecords(Protocol):
    """Batches by their ids; every change resolves once it is on the disk. Raises StorageUnavailable where it may not be."""

    async def add(self, new: NewBatch, max_open: int, own_max_open: int | None = None) -> BatchRecord:
        """Keep a batch, or say which one its idempotency key stands for.

        Raises:
            KeyReused: the key stands for another request.
            NotFound, QueueFull: there is no such file of its caller's; `max_open` batches are open, or `own_max_open` of its caller.
        """

    async def find(self, batch_id: str) -> BatchRecord | None:
        """One batch."""

    async def list_batches(self, page: Page) -> tuple[BatchRecord, ...]:
        """A caller's batches, the latest first. Raises NotFound where it has none with the id `after`."""

    async def cancel(self, batch_id: str) -> bool:
        """Have it end as cancelled; False where it has ended, or is about to."""

    async def open_of(self, caller: str) -> tuple[str, ...]:
        """The ids of a caller's batches that can be cancelled."""


class BatchProgress(Protocol):
    """The way of a batch. Every change is guarded by where it is now: what comes too late changes nothing and says so."""

    async def open_batches(self) -> tuple[BatchRecord, ...]:
        """All that have not ended, the oldest first."""

    async def note_lines(self, number: int, lines: Sequence[BatchLine], *, first: bool) -> bool:
        """Note requests of a batch that is being validated, `first` ones in place of all before; False where it is not, any more."""

    async def settle_validation(self, number: int, problems: Sequence[Problem], total: int, model: str | None) -> bool:
        """It is in progress, or has failed for its problems."""

    async def begin_end(self, number: int, ending: BatchStatus) -> bool:
        """No more of its requests start, and it will end as `ending`."""

    async def end(self, number: int) -> BatchRecord | None:
        """It ends as was decided, and its files can be seen; None where it had ended."""


class BatchLines(Protocol):
    """The requests of a batch: each of them is still to be done, or written once. Raises StorageUnavailable."""

    async def waiting(self, batch: int, most: int) -> tuple[BatchLine, ...]:
        """The next lines without a job: so many that `most` have one."""

    async def admit(self, batch: int, admissions: Sequence[Admission], limits: StoreLimits) -> tuple[WaitingJob, ...]:
        """Make jobs of the first lines, as many as may wait, of those that have none. Raises QueueFull; then none is made."""

    async def running(self, batch: int) -> tuple[tuple[WaitingJob, bool], ...]:
        """The jobs of a batch that have not ended, and of each whether it is on its way."""

    async def ended(self, batch: int) -> tuple[EndedLine, ...]:
        """Lines whose jobs have ended, some of them at a time."""

    async def record(self, batch: int, outcomes: Sequence[LineOutcome]) -> None:
        """Write and count what came of lines, and forget their jobs; what was written before is not written again."""


class BatchUpkeep(Protocol):
    """Forgetting; raises StorageUnavailable."""

    async def forget(self, before_wall_s: float) -> bool:
        """Delete some of what ended batches do not need, and of those that ended before an instant; True while there is more."""


ENDPOINTS = (
    Endpoint.OPENAI_CHAT.value,
    Endpoint.OPENAI_COMPLETIONS.value,
    Endpoint.OPENAI_EMBEDDINGS.value,
    Endpoint.OPENAI_RESPONSES.value,
)
"""What batches may ask for."""
MAX_CUSTOM_ID_CHARS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLine:
    """A line of a file; `text` is None where it is longer than any request may be. `start` and `length` in bytes, without its end."""

    line: int
    start: int
    length: int
    text: bytes | None


class Splitter:
    """Cuts a file into lines as it comes, without those that say nothing; lines are counted from 1, those too."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pieces: list[bytes] = []
        self._line = 1
        self._start = 0
        self._length = 0

    def feed(self, data: bytes) -> list[RawLine]:
        """The lines that end in the next bytes of the file."""
        *ended, rest = data.split(b"\n")
        found = [line for piece in ended if (line := self._close(piece)) is not None]
        self._grow(rest)
        return found

    def end(self) -> list[RawLine]:
        """The last line, where no line break ends it."""
        last = self._close(b"")
        return [] if last is None else [last]

    def _grow(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._length <= self._limit_bytes:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def _close(self, piece: bytes) -> RawLine | None:
        self._grow(piece)
        text = b"".join(self._pieces) if self._length <= self._limit_bytes else None
        line = RawLine(line=self._line, start=self._start, length=self._length, text=text)
        self._line, self._start = self._line + 1, self._start + self._length + 1
        self._pieces, self._length = [], 0
        return None if text is not None and not text.strip() else line


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the lines of a batch are held to; `models`: patterns of those that its caller may use."""

    endpoint: str
    models: tuple[str, ...]
    settings: Settings


def check_line(raw: RawLine, terms: Terms) -> BatchLine | Problem:
    """The request in a line, its model as it is written there; or the first thing that is wrong with it."""
    if raw.text is None:
        return Problem(code="line_too_long", message="This line is longer than server.max_body_mib allows.", line=raw.line)
    try:
        check_structure(raw.text)
    except BadRequest as error:
        return Problem(code="invalid_request", message=error.message, line=raw.line)
    value = _parsed(raw.text)
    if value is None:
        return Problem(code="invalid_json_line", message="This line is not parseable as a JSON object.", line=raw.line)
    return _wrong_envelope(value, raw.line, terms.endpoint) or _checked_body(value, raw, terms)


def request_in(text: bytes, endpoint: str) -> bytes:
    """The body of the request in a line that was checked, as its route takes it."""
    value = _parsed(text) or {}
    return body_of(endpoint, cast("dict[str, object]", value["body"]), large=len(text) > LARGE_BYTES)


def _parsed(text: bytes) -> dict[str, object] | None:
    try:
        value: object = decode(text) if len(text) > LARGE_BYTES else json.loads(text)
    except (ValueError, RecursionError, GoJsonError):
        return None
    return value if isinstance(value, dict) else None


def _wrong_envelope(value: Mapping[str, object], line: int, endpoint: str) -> Problem | None:
    for name in ("custom_id", "method", "url", "body"):
        if value.get(name) is None:
            return Problem(code="missing_required_parameter", message=f"Missing required parameter: '{name}'.", line=line, param=name)
    custom_id, body = value["custom_id"], value["body"]
    named = isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS and custom_id.isprintable()
    streams = isinstance(body, dict) and bool(body.get("stream"))
    rules = (
        (named, "invalid_custom_id", f"custom_id must be 1 to {MAX_CUSTOM_ID_CHARS} printable characters.", "custom_id"),
        (value["method"] == "POST", "invalid_method", "The method must be POST.", "method"),
        (value["url"] == endpoint, "invalid_url", f"The url must be the endpoint of the batch, {endpoint}.", "url"),
        (isinstance(body, dict), "invalid_request", "The body must be an object.", "body"),
        (not streams, "invalid_request", "A batch cannot stream; leave stream out.", "body.stream"),
    )
    broken = next((rule for rule in rules if not rule[0]), None)
    return None if broken is None else Problem(code=broken[1], message=broken[2], line=line, param=broken[3])


def _checked_body(value: Mapping[str, object], raw: RawLine, terms: Terms) -> BatchLine | Problem:
    body = value["body"]
    assert isinstance(body, dict)
    try:
        model = envelope_of(terms.endpoint, body_of(terms.endpoint, body, large=raw.length > LARGE_BYTES), terms.settings).model
    except ModelNotFound as error:
        return Problem(code="model_not_found", message=error.message, line=raw.line, param="body.model")
    except HearthError as error:
        return Problem(code="invalid_request", message=error.message, line=raw.line, param="body")
    if not may_use(terms.models, model):
        says = "The key that sent this batch may not use this model."
        return Problem(code="model_not_allowed", message=says, line=raw.line, param="body.model")
    return BatchLine(line=raw.line, custom_id=str(value["custom_id"]), model=model, start=raw.start, length=raw.length)


MAX_PROBLEMS = 100
"""So many are told of; the rest of the file is not read."""
LINES_TOGETHER = 1000


class Check:
    """One batch that is being validated; in memory are the ids of its requests and one piece of its file."""

    def __init__(
        self,
        batch: BatchRecord,
        *,
        files: FileRecords,
        progress: BatchProgress,
        settings: Settings,
        resolve: Callable[[str], Awaitable[str]],
    ) -> None:
        self._batch = batch
        self._files = files
        self._progress = progress
        self._max_requests = settings.batches.max_requests
        self._resolve = resolve
        self._terms = Terms(endpoint=batch.endpoint, models=batch.models, settings=settings)
        self._splitter = Splitter(int(settings.server.max_body_mib * MIB))
        self._place = -1
        self._begun = False
        self._seen: set[str] = set()
        self._names: dict[str, str | None] = {}
        self._problems: list[Problem] = []
        self._total = 0

    async def advance(self) -> bool:
        """Check the next piece; False once that was the last one, and the batch is in progress or has ended.

        Raises:
            StorageUnavailable: begin with a new check.
        """
        parts = await self._files.parts(self._batch.input_file, self._place)
        raw = [line for _, data in parts for line in self._splitter.feed(data)] if parts else self._splitter.end()
        good = await self._checked(raw)
        if not await self._note(good):
            return False
        if parts:
            self._place = parts[-1][0]
        if parts and len(self._problems) < MAX_PROBLEMS and self._total <= self._max_requests:
            return True
        await self._settle()
        return False

    async def _note(self, lines: list[BatchLine]) -> bool:
        """False where the batch is not being validated any more. What an earlier process noted goes first."""
        for start in range(0, max(1, len(lines)), LINES_TOGETHER):
            if not await self._progress.note_lines(self._batch.number, lines[start : start + LINES_TOGETHER], first=not self._begun):
                return False
            self._begun = True
        return True

    async def _checked(self, raw: list[RawLine]) -> list[BatchLine]:
        found = await asyncio.to_thread(lambda: [check_line(line, self._terms) for line in raw])
        self._total += len(found)
        kept = list[BatchLine]()
        for each in found:
            line = each if isinstance(each, Problem) else await self._known(each)
            if isinstance(line, Problem):
                self._problems.append(line)
            else:
                kept.append(line)
        return kept

    async def _known(self, line: BatchLine) -> BatchLine | Problem:
        """The line under the installed name of its model."""
        if line.custom_id in self._seen:
            says = "The custom_id of this line was used by an earlier one."
            return Problem(code="duplicate_custom_id", message=says, line=line.line, param="custom_id")
        self._seen.add(line.custom_id)
        if line.model not in self._names:
            self._names[line.model] = await self._name_of(line.model)
        name = self._names[line.model]
        if name is None:
            return Problem(code="model_not_found", message="This model is not installed.", line=line.line, param="body.model")
        return BatchLine(line=line.line, custom_id=line.custom_id, model=name, start=line.start, length=line.length)

    async def _name_of(self, model: str) -> str | None:
        try:
            return await self._resolve(model)
        except ModelNotFound:
            return None

    async def _settle(self) -> None:
        if self._total > self._max_requests:
            says = f"A batch may have {self._max_requests} requests (batches.max_requests); the file has more."
            self._problems.insert(0, Problem(code="too_many_requests", message=says))
        elif self._total == 0:
            self._problems.append(Problem(code="empty_file", message="The file holds no request."))
        models = set(self._names.values())
        model = models.pop() if len(models) == 1 else None
        await self._progress.settle_validation(self._batch.number, self._problems[:MAX_PROBLEMS], self._total, model)
