"""Validating one batch, a piece of its file at a time. Nothing runs before the whole file is in order.

It begins anew when the process does. Built and called by `desk`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hearth.batch_types import BatchLine, BatchRecord, Problem
from hearth.batches.lines import RawLine, Splitter, Terms, check_line
from hearth.batches.ports import BatchProgress, FileRecords
from hearth.config.settings import Settings
from hearth.errors import ModelNotFound
from hearth.types import MIB

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
