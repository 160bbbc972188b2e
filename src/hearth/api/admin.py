"""`/llm/admin/...`: what the owner orders, and what only the owner may see.

Each order answers with all that are in force, and may be given twice. Admins may see and delete the
files of others but never read them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import Query
from fastapi.responses import JSONResponse
from pydantic import AwareDatetime, BaseModel, Field

from hearth.api.files import batches_of, file_view
from hearth.dialects.request import is_model_name
from hearth.errors import BadRequest, ConfigError, NotFound, OrderRefused
from hearth.gateway import Gateway
from hearth.types import MIB, JsonDict


class AnnounceBody(BaseModel, extra="forbid"):
    """What `/llm/admin/announce` takes; `at` is ISO 8601 with an offset, or seconds since 1970."""

    task_type: Annotated[str, Field(min_length=1, max_length=64)]
    at: AwareDatetime


class NothingBody(BaseModel, extra="forbid"):
    """What the orders take that need no more words; no body at all is the same."""


class ModelBody(BaseModel, extra="forbid", strict=True):
    """What the orders about a model take."""

    model: Annotated[str, Field(min_length=1, max_length=256)]

    def name(self) -> str:
        """Raises BadRequest for what can be no model's name."""
        if not is_model_name(self.model):
            raise BadRequest("invalid model name")
        return self.model


class AllFilesQuery(BaseModel, extra="forbid"):
    """What `GET /llm/admin/files` takes."""

    caller: str | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class ModelLogQuery(BaseModel, extra="forbid"):
    """What `GET /llm/admin/models/log` takes."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    after: Annotated[int, Field(ge=0, le=10**15)] = 0


class AdminPages:
    """The handlers; each returns what its page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._orders = gateway.orders

    async def preempt(self) -> JsonDict:
        """Ask the running external items to yield now."""
        return {"preempted": self._gateway.worker.preempt_external()}

    async def announce(self, announced: AnnounceBody) -> JsonDict:
        """Keep the GPU free for an internal task at a known time.

        Raises BadRequest for a time that has passed.
        """
        at_wall_s = announced.at.timestamp()
        if at_wall_s <= self._gateway.clock.wall():
            raise BadRequest("at: this time has passed; give a time in the future")
        self._gateway.worker.announce(announced.task_type, at_wall_s)
        return {"task_type": announced.task_type, "at": announced.at.isoformat()}

    async def test_alerts(self) -> JsonDict:
        """Send a test message to every place for messages; what each answered.

        Raises NotFound where there is none.
        """
        alerter = self._gateway.alerter
        if alerter is None:
            raise NotFound("this gateway was built without alerts")
        return {"targets": await alerter.test()}

    async def configuration(self) -> JsonDict:
        """Every setting in force, secrets shortened, and how it came to be."""
        return self._gateway.config_in_force()

    async def pending(self) -> JsonDict:
        """What the saved file would change, each setting with what is in force and whether a reload
        applies it (`hot`) or a restart; `problems` where it is not usable. Raises ShuttingDown.
        """
        gateway = self._gateway
        found = await gateway.reloader.pending()
        page: JsonDict = {"source": str(gateway.config.source or "defaults")}
        if isinstance(found, ConfigError):
            return page | {"problems": list(found.problems), "changes": []}
        changes = [asdict(each) for each in gateway.in_force.difference(found)]
        return page | {"problems": [], "changes": changes}

    async def reload(self) -> JSONResponse:
        """Read the configuration's file again, changed or not: 422 with every problem where it is
        not usable. Raises ShuttingDown.
        """
        accepted = await self._gateway.reload_file()
        summary = self._gateway.config_summary()
        if accepted:
            return JSONResponse({"reloaded": True, **summary})
        error = "the configuration file is not usable; nothing was changed"
        return JSONResponse({"reloaded": False, "error": error, **summary}, status_code=422)

    async def shown(self) -> JsonDict:
        """The orders in force."""
        return self._orders.shown()

    async def _kept(self) -> JsonDict:
        """The orders in force, once a restart would find them."""
        await self._gateway.keep_orders()
        return self._orders.shown()

    async def drain(self, _: NothingBody | None = None) -> JsonDict:
        """Refuse new work, finish what was taken."""
        self._orders.drain()
        return self._orders.shown()  # a restart ends it, so it is not kept

    async def pause(self, _: NothingBody | None = None) -> JsonDict:
        """Let external work wait."""
        self._orders.pause()
        return await self._kept()

    async def resume(self, _: NothingBody | None = None) -> JsonDict:
        """End drain and pause."""
        self._orders.resume()
        return await self._kept()

    async def pin(self, about: ModelBody) -> JsonDict:
        """Keep a model from being swapped away for external work.

        Raises BadRequest, ModelNotFound, OrderRefused.
        """
        await self._orders.pin(about.name())
        return await self._kept()

    async def unpin(self, _: NothingBody | None = None) -> JsonDict:
        """Pin nothing."""
        self._orders.unpin()
        return await self._kept()

    async def load(self, about: ModelBody) -> JsonDict:
        """Bring a model in. Raises BadRequest, ModelNotFound, OrderRefused."""
        await self._orders.load(about.name())
        return await self._kept()

    async def confirm_clock(self, _: NothingBody | None = None) -> JsonDict:
        """The wall clock is right: delete what is old by it again.

        Raises NotFound where nothing is kept.
        """
        if self._gateway.confirm_clock is None:
            raise NotFound("nothing is stored: storage.enabled is off")
        self._gateway.confirm_clock()
        return {"clock_in_doubt": False}

    async def unload(self, about: ModelBody) -> JsonDict:
        """Have an unused model leave. Raises BadRequest, ModelNotFound, OrderRefused."""
        if not await self._orders.unload(about.name()):
            raise OrderRefused(f"{about.name()} is not in memory")
        return await self._kept()

    async def model_log(self, query: Annotated[ModelLogQuery, Query()]) -> JsonDict:
        """The last lines that a model's server has written, at most 200; `next` is the `after` for
        those that follow.

        Raises NotFound: no such model, or Hearth has not started its server.
        """
        found = self._gateway.engines.log_after(query.model, query.after)
        if found is None:
            raise NotFound(f"Hearth does not start the server of {query.model}, so it has no log")
        lines, following = found
        return {"model": query.model, "lines": lines, "next": following}

    async def stored(self) -> JsonDict:
        """How much each caller keeps. Raises NotFound, StorageUnavailable."""
        found = await batches_of(self._gateway).files.stored()
        kept = sum(each["file_bytes"] + each["job_bytes"] for each in found)
        max_mib = self._gateway.settings.jobs.max_stored_mib
        return {"kept_mib": round(kept / MIB, 3), "max_stored_mib": max_mib, "callers": found}

    async def files(self, query: Annotated[AllFilesQuery, Query()]) -> JsonDict:
        """The files of everybody, or of one caller, the largest first.

        Raises NotFound, StorageUnavailable.
        """
        found = await batches_of(self._gateway).files.list_all(query.caller, query.limit)
        return {"files": [file_view(each) | {"caller": each.caller} for each in found]}

    async def delete(self, file_id: str) -> JsonDict:
        """Delete anybody's file.

        Raises NotFound, BadRequest while a batch reads it, StorageUnavailable.
        """
        batches = batches_of(self._gateway)
        file = await batches.files.find(file_id)
        if file is None:
            raise NotFound("there is no such file")
        await batches.delete_file(file.number)
        return {"id": file_id, "caller": file.caller, "deleted": True}
