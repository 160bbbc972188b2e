"""`/llm/admin/...`: what the owner orders. Each order answers with all that are in force, and may be given twice.

Admins only, as everything under `/llm/admin`. Called by `api.control`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from hearth.dialects.demands import is_model_name
from hearth.errors import BadRequest, NotFound, OrderRefused
from hearth.gateway import Gateway


class NothingBody(BaseModel):
    """What the orders take that need no more words; no body at all is the same."""

    model_config = ConfigDict(extra="forbid")


class ModelBody(BaseModel):
    """What the orders about a model take."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[str, Field(min_length=1, max_length=256)]

    def name(self) -> str:
        """Raises BadRequest for what can be no model's name."""
        if not is_model_name(self.model):
            raise BadRequest("invalid model name")
        return self.model


class OrderPages:
    """The handlers; each returns the orders in force."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._orders = gateway.orders

    async def shown(self) -> dict[str, object]:
        """The orders in force."""
        return self._orders.shown()

    async def drain(self, _: NothingBody | None = None) -> dict[str, object]:
        """Refuse new work, finish what was taken."""
        self._orders.drain()
        return self._orders.shown()

    async def pause(self, _: NothingBody | None = None) -> dict[str, object]:
        """Let external work wait."""
        self._orders.pause()
        return self._orders.shown()

    async def resume(self, _: NothingBody | None = None) -> dict[str, object]:
        """End drain and pause."""
        self._orders.resume()
        return self._orders.shown()

    async def pin(self, about: ModelBody) -> dict[str, object]:
        """Keep a model from being swapped away for external work. Raises BadRequest, ModelNotFound, OrderRefused."""
        await self._orders.pin(about.name())
        return self._orders.shown()

    async def unpin(self, _: NothingBody | None = None) -> dict[str, object]:
        """Pin nothing."""
        self._orders.unpin()
        return self._orders.shown()

    async def load(self, about: ModelBody) -> dict[str, object]:
        """Bring a model in. Raises BadRequest, ModelNotFound, OrderRefused."""
        await self._orders.load(about.name())
        return self._orders.shown()

    async def confirm_clock(self, _: NothingBody | None = None) -> dict[str, object]:
        """The wall clock is right: delete what is old by it again. Raises NotFound where nothing is kept."""
        if self._gateway.confirm_clock is None:
            raise NotFound("nothing is kept here: storage.enabled is off")
        self._gateway.confirm_clock()
        return {"clock_in_doubt": False}

    async def unload(self, about: ModelBody) -> dict[str, object]:
        """Have an unused model leave. Raises BadRequest, ModelNotFound, OrderRefused."""
        if not await self._orders.unload(about.name()):
            raise OrderRefused(f"{about.name()} is not in memory")
        return self._orders.shown()


def add_order_pages(app: FastAPI, pages: OrderPages) -> None:
    """Put the pages into the application."""
    app.add_api_route("/llm/admin/orders", pages.shown)
    app.add_api_route("/llm/admin/drain", pages.drain, methods=["POST"])
    app.add_api_route("/llm/admin/pause", pages.pause, methods=["POST"])
    app.add_api_route("/llm/admin/resume", pages.resume, methods=["POST"])
    app.add_api_route("/llm/admin/pin", pages.pin, methods=["POST"])
    app.add_api_route("/llm/admin/unpin", pages.unpin, methods=["POST"])
    app.add_api_route("/llm/admin/load", pages.load, methods=["POST"])
    app.add_api_route("/llm/admin/confirm-clock", pages.confirm_clock, methods=["POST"])
    app.add_api_route("/llm/admin/unload", pages.unload, methods=["POST"])
