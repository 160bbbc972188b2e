"""`/v1/files`: OpenAI's files, as batches need them. Uploaded, shown, listed, read and deleted by the key that they belong to.

What belongs to others looks like what does not exist, also to an admin. An upload goes to the disk as it comes in, a download comes from
there as it goes out.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from hearth.admission.auth import Identity
from hearth.admission.gate import admission_of, count
from hearth.api.asgi import unless_gone
from hearth.api.dependencies import Caller
from hearth.api.multipart import FileForm, boundary_of, life_s_of
from hearth.api.request import Body, Request
from hearth.clock import new_file_id
from hearth.errors import BadRequest, BodyTooLarge, CallerGone, NotFound
from hearth.gateway import Gateway
from hearth.job_types import PART_BYTES, NewFile, Page, Purpose, StoredFile, StoreLimits
from hearth.jobs.batches import Batches
from hearth.jobs.service import limits_of
from hearth.types import MIB

FILES_PATH = "/v1/files"
_CONTENT_SUFFIX = "/content"
DAY_S = 86_400.0
_TOO_LONG = "the file is longer than batches.max_file_mib allows"
_WRITE_BYTES = 16 * PART_BYTES
_FORM_BYTES = 64 * 1024
"""What a form may have beside its file."""


class FilesQuery(BaseModel):
    """What `GET /v1/files` takes."""

    model_config = ConfigDict(extra="ignore")

    purpose: str | None = None
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"


def batches_of(gateway: Gateway) -> Batches:
    """Raises NotFound where there is no store to keep them in."""
    if gateway.batches is None:
        raise NotFound("there are no files and batches here: they need the store (storage.enabled)")
    return gateway.batches


def listing(entries: list[dict[str, object]], limit: int) -> dict[str, object]:
    """OpenAI's list of at most `limit` entries, of which one more was looked for."""
    shown = entries[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(entries) > limit,
    }


def file_view(file: StoredFile) -> dict[str, object]:
    """A file in OpenAI's words."""
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(file.created_wall_s),
        "expires_at": None if file.expires_wall_s is None else int(file.expires_wall_s),
        "filename": file.filename,
        "purpose": file.purpose.value,
        "status": "processed",
        "status_details": None,
    }


async def owned_file(batches: Batches, file_id: str, caller: Identity) -> StoredFile:
    """Raises NotFound for what does not exist or belongs to others, StorageUnavailable."""
    file = await batches.files.find(file_id)
    if file is None or file.caller != caller.caller:
        raise NotFound("there is no such file")
    return file


class FilePages:
    """The handlers of what is small; each returns what its page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def file(self, file_id: str, caller: Caller) -> dict[str, object]:
        """One file. Raises NotFound, StorageUnavailable."""
        return file_view(await owned_file(batches_of(self._gateway), file_id, caller))

    async def listed(self, query: Annotated[FilesQuery, Query()], caller: Caller) -> dict[str, object]:
        """The caller's files. Raises NotFound for an unknown `after`, StorageUnavailable."""
        page = Page(caller=caller.caller, limit=query.limit + 1, after=query.after, ascending=query.order == "asc", purpose=query.purpose)
        found = await batches_of(self._gateway).files.list_files(page)
        return listing([file_view(each) for each in found], query.limit)

    async def delete(self, file_id: str, caller: Caller) -> dict[str, object]:
        """Delete a file. Raises NotFound, BadRequest while a batch reads it, StorageUnavailable."""
        batches = batches_of(self._gateway)
        file = await owned_file(batches, file_id, caller)
        await batches.delete_file(file.number)
        return {"id": file_id, "object": "file", "deleted": True}


class FileTransfer:
    """The handlers of what may be large."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def upload(self, request: Request, caller: Identity, body: Body) -> None:
        """Take a file; answered once it is on the disk.

        Raises:
            UnsupportedMedia, BadRequest: it is no form with a file and the purpose `batch`.
            BodyTooLarge: the file is longer than `batches.max_file_mib`.
            RateLimited: an upload counts once. QueueFull: the store, or the caller's share of it, is full. NoRoomForBodies.
                StorageUnavailable. CallerGone.
        """
        batches, form = batches_of(self._gateway), FileForm(boundary_of(request.headers.text(b"content-type")))
        declared = request.headers.get(b"content-length")
        if declared is not None and declared.isdigit() and int(declared[:20]) > self._limit_bytes() + _FORM_BYTES:
            raise BodyTooLarge(_TOO_LONG)
        admission = admission_of(caller, request.headers, self._gateway.config)
        count(caller, admission, self._gateway.rate_limiter, self._gateway.clock.monotonic())
        body.hold(2 * _WRITE_BYTES)  # what waits for the disk, and the copy that goes there
        number = await batches.uploads.begin(caller.caller)
        try:
            await self._fill(number, request, form, batches, limits_of(self._gateway.config.settings, admission.lane))
            file = await batches.uploads.seal(number, self._named(form, caller))
        except BaseException:
            batches.give_up(number)
            raise
        await request.answer_json(bytes(JSONResponse(file_view(file)).body))

    async def _fill(self, number: int, request: Request, form: FileForm, batches: Batches, limits: StoreLimits) -> None:
        may_have = (limits.max_bytes, limits.own_max_bytes)
        waiting, size, came, place = bytearray(), 0, 0, 0
        async for chunk in _body(request):
            data = form.feed(chunk)
            waiting += data
            size += len(data)
            came += len(chunk)
            if size > self._limit_bytes() or came > self._limit_bytes() + _FORM_BYTES:
                raise BodyTooLarge(_TOO_LONG)
            while len(waiting) >= _WRITE_BYTES:
                await batches.uploads.append(number, place, bytes(waiting[:_WRITE_BYTES]), *may_have)
                del waiting[:_WRITE_BYTES]
                place += _WRITE_BYTES // PART_BYTES
        form.end()
        if waiting:
            await batches.uploads.append(number, place, bytes(waiting), *may_have)

    def _named(self, form: FileForm, caller: Identity) -> NewFile:
        if form.filename is None:
            raise BadRequest("file: send one, as the part `file` of the form")
        if form.fields.get("purpose") != Purpose.BATCH.value:
            raise BadRequest("purpose: write batch; files have no other use here")
        life_s = life_s_of(form.fields, self._gateway.config.settings.batches.keep_files_days * DAY_S)
        return NewFile(file_id=new_file_id(), caller=caller.caller, filename=form.filename, life_s=life_s)

    def _limit_bytes(self) -> int:
        return int(self._gateway.config.settings.batches.max_file_mib * MIB)

    async def content(self, request: Request, caller: Identity, _: Body) -> None:
        """The content of a file, piece by piece. Raises NotFound; StorageUnavailable, where the answer may have begun."""
        batches = batches_of(self._gateway)
        file_id = request.path.removeprefix(f"{FILES_PATH}/").removesuffix(_CONTENT_SUFFIX)
        file = await owned_file(batches, file_id, caller)
        await unless_gone(request.receive, _send(batches, file, request))


async def _body(request: Request) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def _send(batches: Batches, file: StoredFile, request: Request) -> None:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", file.filename)
    headers = (
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % file.size_bytes),
        (b"content-disposition", f'attachment; filename="{name}"'.encode("ascii")),
        (b"x-content-type-options", b"nosniff"),
        (b"x-request-id", request.request_id.encode("ascii")),
    )
    await request.answer.head(200, headers)
    place, left = -1, file.size_bytes
    while left > 0:
        parts = await batches.files.parts(file.number, place)
        if not parts:
            raise NotFound("the file was deleted while it was read")
        place = parts[-1][0]
        left -= sum(len(data) for _, data in parts)
        await request.answer.chunk(b"".join(data for _, data in parts))
    await request.answer.end()
