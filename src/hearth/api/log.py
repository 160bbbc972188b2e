"""`GET /llm/log`: the items that have ended, latest first, for their own callers and for admins; `GET /llm/swaps`: the swaps.

A caller who is no admin sees its own items only. Swaps name models and nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from types import MappingProxyType
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from hearth.api.dependencies import Caller
from hearth.errors import BadRequest, NotFound
from hearth.gateway import Gateway
from hearth.ports import InvocationHistory
from hearth.types import InvocationFilter, Outcome, canonical_model

MAX_ROWS = 1000
_DURATION = re.compile(r"(\d{1,9})(s|m|h|d)", re.ASCII)
_UNIT_S: Mapping[str, float] = MappingProxyType({"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0})


class LogQuery(BaseModel):
    """What `/llm/log` takes; `since` and `until` as `instant_wall_s` reads them, `limit` in rows."""

    model_config = ConfigDict(extra="forbid")

    caller: str | None = None
    model: str | None = None
    outcome: Outcome | None = None
    since: str | None = None
    until: str | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 50


class SwapsQuery(BaseModel):
    """What `/llm/swaps` takes, as in `LogQuery`."""

    model_config = ConfigDict(extra="forbid")

    since: str | None = None
    until: str | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 50


class LogPages:
    """The handlers; each returns what its page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def log(self, query: Annotated[LogQuery, Query()], caller: Caller) -> dict[str, object]:
        """Items that have ended, latest first. Raises BadRequest, NotFound where no log is kept, StorageUnavailable."""
        history, (since, until) = self._history(), self._between(query)
        if not caller.admin and query.caller not in (None, caller.caller):
            return {"items": []}
        wanted = InvocationFilter(
            caller=query.caller if caller.admin else caller.caller,
            model=None if query.model is None else canonical_model(query.model),
            outcome=query.outcome,
            since_wall_s=since,
            until_wall_s=until,
            limit=query.limit,
        )
        return {"items": [asdict(found) for found in await history.find(wanted)]}

    async def swaps(self, query: Annotated[SwapsQuery, Query()]) -> dict[str, object]:
        """Swaps that have ended, latest first. Raises BadRequest, NotFound where no log is kept, StorageUnavailable."""
        history, (since, until) = self._history(), self._between(query)
        found = await history.swaps(since_wall_s=since, until_wall_s=until, limit=query.limit)
        return {"swaps": [asdict(swap) for swap in found]}

    def _history(self) -> InvocationHistory:
        if self._gateway.history is None:
            raise NotFound("no log is kept here: storage.enabled is off")
        return self._gateway.history

    def _between(self, query: LogQuery | SwapsQuery) -> tuple[float, float | None]:
        now_wall_s = self._gateway.clock.wall()
        since = 0.0 if query.since is None else instant_wall_s("since", query.since, now_wall_s)
        return since, None if query.until is None else instant_wall_s("until", query.until, now_wall_s)


def instant_wall_s(field: str, text: str, now_wall_s: float) -> float:
    """The instant that `text` means, in seconds since 1970: so long ago (`90s`, `15m`, `1h`, `2d`), or ISO 8601 with an offset.

    Raises:
        BadRequest: it is neither.
    """
    if (ago := _DURATION.fullmatch(text)) is not None:
        return now_wall_s - float(ago[1]) * _UNIT_S[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadRequest(f"{field}: write how long ago, such as 90s, 15m, 1h or 2d, or a time such as 2030-01-01T07:00:00Z")
    return moment.timestamp()
