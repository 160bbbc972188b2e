"""Anthropic's batches (`/v1/messages/batches`) over HTTP, on the store of OpenAI's.

A batch is there for the key that sent it, and in the API to which it was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, FailFast, Field

from hearth.api.body import RequestBody
from hearth.api.dependencies import (
    Caller,
    CurrentBody,
    CurrentRequest,
    idempotency_key_of,
    replayed_header,
)
from hearth.api.files import batches_of, send_parts
from hearth.api.jobs import owned_batch
from hearth.api.request import Request, until_disconnected
from hearth.clock import new_id, rfc3339_ms
from hearth.dialects.routes import Endpoint
from hearth.errors import BadRequest, NotFound
from hearth.gateway import Gateway
from hearth.job_types import Batch, Page, StoredFile
from hearth.jobs.batches import Batches
from hearth.jobs.message_batches import input_of
from hearth.types import DAY_S, MESSAGE_BATCH_PREFIX, JsonDict

MESSAGE_BATCHES_PATH = "/v1/messages/batches"
_RESULTS_SUFFIX = "/results"
RESULTS_PATH = f"{MESSAGE_BATCHES_PATH}/{{batch_id}}{_RESULTS_SUFFIX}"


class MessageRequest(BaseModel, extra="forbid"):
    """One request of a batch; what is wrong with `params` is said in its result."""

    custom_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any]


class MessageBatchBody(BaseModel, extra="forbid"):
    """What `POST /v1/messages/batches` takes."""

    requests: Annotated[list[MessageRequest], FailFast(), Field(min_length=1)]


class MessageBatchesQuery(BaseModel):
    """What `GET /v1/messages/batches` takes."""

    before_id: str | None = None
    after_id: str | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 20


class MessageBatchPages:
    """The handlers; those of what is small return what their page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(
        self, asked: MessageBatchBody, request: CurrentRequest, body: CurrentBody
    ) -> JSONResponse:
        """Take a batch: answered once it is on the disk.

        Raises:
            BadRequest, RateLimited: a batch counts once. KeyInUse, KeyReused, QueueFull,
            ShuttingDown, StorageUnavailable.
        """
        batches = batches_of(self._gateway)
        settings = self._gateway.settings
        total = len(asked.requests)
        if total > settings.batches.max_requests:
            raise BadRequest(
                f"requests: a batch may have {settings.batches.max_requests} requests, and this one"
                f" has {total}",
                remedy="batches.max_requests",
            )
        key = idempotency_key_of(request)
        caller = body.admission.identity
        lane = body.admission.admit().lane
        pairs = ((each.custom_id, each.params) for each in asked.requests)
        content = await body.run(partial(input_of, pairs, large=body.is_large))
        body.hold(len(content))
        new = Batch(
            batch_id=new_id(MESSAGE_BATCH_PREFIX),
            caller=caller.caller,
            lane=lane,
            priority=max(settings.jobs.priority, caller.max_priority),
            models=caller.models,
            endpoint=Endpoint.ANTHROPIC_MESSAGES.value,
            input_file_id="",
            window_text="24h",
            window_s=DAY_S,
            output_life_s=settings.batches.keep_files_days * DAY_S,
            total=total,
            idempotency_key=key,
            digest=sha256(content).hexdigest(),
        )
        batch = await batches.create_from(new, content)
        return JSONResponse(
            message_batch_view(batch),
            headers=replayed_header(is_new=batch.batch_id == new.batch_id),
        )

    async def batch(self, batch_id: str, caller: Caller) -> JsonDict:
        """One batch. Raises NotFound, StorageUnavailable."""
        batches = batches_of(self._gateway)
        return message_batch_view(await owned_batch(batches, batch_id, caller, of_messages=True))

    async def listed(
        self, query: Annotated[MessageBatchesQuery, Query()], caller: Caller
    ) -> JsonDict:
        """The caller's batches, the latest first.

        Raises BadRequest, NotFound for an unknown `before_id` or `after_id`, StorageUnavailable.
        """
        if query.before_id is not None and query.after_id is not None:
            raise BadRequest("before_id, after_id: send one of them")
        page = Page(
            caller=caller.caller,
            limit=query.limit + 1,
            after=query.after_id or query.before_id,
            ascending=query.before_id is not None,
            of_messages=True,
        )
        store = batches_of(self._gateway).store
        try:
            found = await store.list_batches(page)
        except NotFound as error:
            cursor = "before_id" if page.ascending else "after_id"
            raise NotFound(f"{cursor}: there is no such batch in your list") from error
        shown = [message_batch_view(each) for each in found[: query.limit]]
        if page.ascending:
            shown.reverse()
        return {
            "data": shown,
            "has_more": len(found) > query.limit,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
        }

    async def cancel(self, batch_id: str, caller: Caller) -> JsonDict:
        """Cancel a batch that has not ended; again is no error.

        Raises NotFound, StorageUnavailable.
        """
        batches = batches_of(self._gateway)
        await owned_batch(batches, batch_id, caller, of_messages=True)
        await batches.cancel(batch_id)
        return await self.batch(batch_id, caller)

    async def delete(self, batch_id: str, caller: Caller) -> JsonDict:
        """Delete a batch that has ended, with its results.

        Raises BadRequest for one that has not, NotFound, StorageUnavailable.
        """
        batches = batches_of(self._gateway)
        batch = await owned_batch(batches, batch_id, caller, of_messages=True)
        if batch.ended_wall_s is None:
            raise BadRequest(f"{batch_id} is still being processed; cancel it first")
        await batches.remove(batch.number)
        return {"id": batch_id, "type": "message_batch_deleted"}

    async def results(self, request: Request, body: RequestBody) -> None:
        """The results of a batch that has ended, one a line, piece by piece.

        Raises NotFound; StorageUnavailable, where the answer may have begun.
        """
        batches = batches_of(self._gateway)
        batch_id = request.path.removeprefix(f"{MESSAGE_BATCHES_PATH}/").removesuffix(
            _RESULTS_SUFFIX
        )
        batch = await owned_batch(batches, batch_id, body.admission.identity, of_messages=True)
        if batch.ended_wall_s is None:
            raise NotFound("this batch has no results before its processing_status is ended")
        files = [
            await batches.files.find(file_id)
            for file_id in (batch.output_file_id, batch.error_file_id)
            if file_id is not None
        ]
        there = [file for file in files if file is not None]
        if len(there) < len(files):
            raise NotFound("the results of this batch were deleted")
        await until_disconnected(request.disconnected, _send(batches, there, request))


async def _send(batches: Batches, files: Sequence[StoredFile], request: Request) -> None:
    headers = (
        (b"content-type", b"application/x-jsonl"),
        (b"content-length", b"%d" % sum(file.size_bytes for file in files)),
        (b"x-content-type-options", b"nosniff"),
        request.id_header,
    )
    await request.answer.head(200, headers)
    for file in files:
        await send_parts(batches, file, request)
    await request.answer.end()


def message_batch_view(batch: Batch) -> JsonDict:
    """A batch in Anthropic's words. Its requests are all `processing` until it ends, and
    `results_url` is a path, which the official clients put behind their base URL: Hearth does not
    know under which name it is reached.
    """
    has_ended = batch.ended_wall_s is not None
    status = "in_progress" if batch.cancelling_wall_s is None else "canceling"
    emulated: JsonDict = {"emulator": True} if batch.emulated else {}
    return emulated | {
        "id": batch.batch_id,
        "type": "message_batch",
        "processing_status": "ended" if has_ended else status,
        "request_counts": _counts(batch, has_ended=has_ended),
        "created_at": rfc3339_ms(batch.created_wall_s),
        "expires_at": rfc3339_ms(batch.expires_wall_s),
        "ended_at": _instant(batch.ended_wall_s),
        "cancel_initiated_at": _instant(batch.cancelling_wall_s),
        "archived_at": None,
        "results_url": (
            f"{MESSAGE_BATCHES_PATH}/{batch.batch_id}{_RESULTS_SUFFIX}" if has_ended else None
        ),
    }


def _counts(batch: Batch, *, has_ended: bool) -> JsonDict:
    if not has_ended:
        ended = dict.fromkeys(("succeeded", "errored", "canceled", "expired"), 0)
        return {"processing": batch.total, **ended}
    return {
        "processing": 0,
        "succeeded": batch.completed,
        "errored": batch.failed - batch.cancelled - batch.expired,
        "canceled": batch.cancelled,
        "expired": batch.expired,
    }


def _instant(wall_s: float | None) -> str | None:
    return None if wall_s is None else rfc3339_ms(wall_s)
