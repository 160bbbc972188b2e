"""`/v1/files`: OpenAI's files, as batches need them. What belongs to others looks like what does
not exist, also to an admin.

An upload goes to the store as it comes in.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from hearth.admission.auth import Identity
from hearth.api.body import RequestBody
from hearth.api.dependencies import Caller
from hearth.api.forms import FileForm, boundary_of
from hearth.api.request import Request, until_disconnected
from hearth.clock import new_id
from hearth.errors import BadRequest, BodyTooLarge, CallerGone, NotFound
from hearth.gateway import Gateway
from hearth.job_types import PART_BYTES, Page, StoredFile, StoreLimits
from hearth.jobs.batches import WRITE_BYTES, Batches
from hearth.jobs.service import limits_of
from hearth.types import DAY_S, MIB, JsonDict

_SECONDS = re.compile(r"[0-9]{1,9}")


def life_s_of(form: FileForm, default_s: float) -> float:
    """For how many seconds the file of a whole form is to be kept.

    Raises BadRequest for a form that is not as it must be.
    """
    if form.filename is None:
        raise BadRequest("file: send one, as the part `file` of the form")
    if form.fields.get("purpose") != "batch":
        raise BadRequest("purpose: must be batch; no other purpose is supported")
    anchor = form.fields.get("expires_after[anchor]")
    seconds = form.fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return default_s
    if (
        anchor != "created_at"
        or seconds is None
        or not _SECONDS.fullmatch(seconds)
        or not 3600 <= int(seconds) <= 2592000
    ):
        raise BadRequest("expires_after: anchor must be created_at, and seconds 3600 to 2592000")
    return float(seconds)


FILES_PATH = "/v1/files"
_CONTENT_SUFFIX = "/content"
_TOO_LONG = "the file is longer than a file may be here"
_FORM_BYTES = 64 * 1024
"""What a form may have beside its file."""


class FilesQuery(BaseModel):
    """What `GET /v1/files` takes."""

    purpose: str | None = None
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"


def batches_of(gateway: Gateway) -> Batches:
    """Raises NotFound where there is no store to keep them in."""
    if gateway.batches is None:
        raise NotFound("there are no files and batches here", remedy="storage.enabled is off")
    return gateway.batches


def listing(entries: list[JsonDict], limit: int) -> JsonDict:
    """OpenAI's list of at most `limit` entries, of which one more was looked for."""
    shown = entries[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(entries) > limit,
    }


def file_view(file: StoredFile) -> JsonDict:
    """A file in OpenAI's words."""
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(file.created_wall_s),
        "expires_at": None if file.expires_wall_s is None else int(file.expires_wall_s),
        "filename": file.filename,
        "purpose": file.purpose,
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
    """The handlers; those of what is small return what their page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def file(self, file_id: str, caller: Caller) -> JsonDict:
        """One file. Raises NotFound, StorageUnavailable."""
        return file_view(await owned_file(batches_of(self._gateway), file_id, caller))

    async def listed(self, query: Annotated[FilesQuery, Query()], caller: Caller) -> JsonDict:
        """The caller's files. Raises NotFound for an unknown `after`, StorageUnavailable."""
        page = Page(
            caller=caller.caller,
            limit=query.limit + 1,
            after=query.after,
            ascending=query.order == "asc",
            purpose=query.purpose,
        )
        found = await batches_of(self._gateway).files.list_files(page)
        return listing([file_view(each) for each in found], query.limit)

    async def delete(self, file_id: str, caller: Caller) -> JsonDict:
        """Delete a file. Raises NotFound, BadRequest while a batch reads it, StorageUnavailable."""
        batches = batches_of(self._gateway)
        file = await owned_file(batches, file_id, caller)
        await batches.delete_file(file.number)
        return {"id": file_id, "object": "file", "deleted": True}

    async def upload(self, request: Request, body: RequestBody) -> None:
        """Take a file; answered once it is on the disk, and counted once against the rate limit."""
        batches = batches_of(self._gateway)
        form = FileForm(boundary_of(request.headers.text(b"content-type")))
        declared = request.headers.values.get(b"content-length")
        if (
            declared is not None
            and declared.isdigit()
            and int(declared[:20]) > self._limit_bytes() + _FORM_BYTES
        ):
            raise BodyTooLarge(_TOO_LONG, remedy="batches.max_file_mib")
        admitted = body.admission.admit()
        body.hold(2 * WRITE_BYTES)  # what waits for the disk, and the copy that goes there
        number = await batches.files.begin(body.admission.identity.caller)
        try:
            await self._fill(
                number,
                request,
                form,
                batches,
                limits_of(self._gateway.settings, admitted.lane),
            )
            life_s = life_s_of(form, self._gateway.settings.batches.keep_files_days * DAY_S)
            file = await batches.files.seal(
                number, file_id=new_id("file-"), filename=form.filename or "", life_s=life_s
            )
        except BaseException:
            batches.give_up(number)
            raise
        await request.answer_json(bytes(JSONResponse(file_view(file)).body))

    async def _fill(
        self, number: int, request: Request, form: FileForm, batches: Batches, limits: StoreLimits
    ) -> None:
        may_have = (limits.max_bytes, limits.own_max_bytes)
        waiting = bytearray()
        size = 0
        came = 0
        place = 0
        async for chunk in _body(request):
            data = form.feed(chunk)
            waiting += data
            size += len(data)
            came += len(chunk)
            if size > self._limit_bytes() or came > self._limit_bytes() + _FORM_BYTES:
                raise BodyTooLarge(_TOO_LONG, remedy="batches.max_file_mib")
            while len(waiting) >= WRITE_BYTES:
                await batches.files.append(number, place, bytes(waiting[:WRITE_BYTES]), *may_have)
                del waiting[:WRITE_BYTES]
                place += WRITE_BYTES // PART_BYTES
        form.end()
        if waiting:
            await batches.files.append(number, place, bytes(waiting), *may_have)

    def _limit_bytes(self) -> int:
        return int(self._gateway.settings.batches.max_file_mib * MIB)

    async def content(self, request: Request, body: RequestBody) -> None:
        """The content of a file, piece by piece.

        Raises NotFound; StorageUnavailable, where the answer may have begun.
        """
        batches = batches_of(self._gateway)
        file_id = request.path.removeprefix(f"{FILES_PATH}/").removesuffix(_CONTENT_SUFFIX)
        file = await owned_file(batches, file_id, body.admission.identity)
        await until_disconnected(request.disconnected, _send(batches, file, request))


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
        request.id_header,
    )
    await request.answer.head(200, headers)
    await send_parts(batches, file, request)
    await request.answer.end()


async def send_parts(batches: Batches, file: StoredFile, request: Request) -> None:
    """The content of a file, within an answer that has begun. Raises NotFound."""
    place = -1
    left = file.size_bytes
    while left > 0:
        parts = await batches.files.parts(file.number, place)
        if not parts:
            raise NotFound("the file was deleted while it was read")
        place = parts[-1][0]
        left -= sum(len(data) for _, data in parts)
        await request.answer.chunk(b"".join(data for _, data in parts))
