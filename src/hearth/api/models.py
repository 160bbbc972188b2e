"""`/llm/models`: every model with all that is known of it, and what the engines can do that have
them.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping

from fastapi import Response

from hearth.api.dependencies import Caller
from hearth.execution.engine_watch import EngineWatch
from hearth.gateway import Gateway
from hearth.scheduling.estimates import Measured
from hearth.scheduling.warm import Warmth
from hearth.types import InstalledModel, JsonDict, SleepLevel, frozen

PULL_PATH = "/api/pull"
DELETE_PATH = "/api/delete"
_ANY_MODEL = "NAME"
"""Stands for a model where it is said how one is installed."""
_RENDERED_MODELS = 250
_UNMEASURED = Measured(load_s=None, read_tokens_per_s=None, write_tokens_per_s=None)
_COLD = Warmth(conversations=0, tokens=0, reread_s=0.0)


class ModelPages:
    """The handler; it returns what the page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def models(self, caller: Caller) -> JsonDict:
        """Every model: where it is, whether it is in memory, who waits for it, its size, context
        and measured speed; and what the engines can do.
        """
        rows = await self._gateway.models()
        beside = {"engines": self._engines(), "may_manage": caller.admin}
        content = await asyncio.to_thread(_rendered, rows, self._facts(), beside)
        # The annotation describes the page; FastAPI sends a response as it is, and would render a
        # long list in the loop.
        return Response(content, media_type="application/json")  # type: ignore[return-value]

    def _engines(self) -> list[JsonDict]:
        watches = self._gateway.worker.watch.watches.values()
        return [_engine(watch) for watch in watches if watch.up or watch.is_expected]

    def _facts(self) -> _Facts:
        gateway = self._gateway
        view = gateway.worker.runtime.view
        watch = gateway.worker.watch
        known = watch.known_name
        now = gateway.clock.monotonic()
        named = gateway.settings.models
        aliases = defaultdict[str, list[str]](list)
        for alias, models in gateway.settings.aliases.items():
            for name in gateway.aliases.installed(models):
                aliases[name].append(alias)
        return _Facts(
            installed={model.name: model for model in watch.installed},
            listed_by=gateway.engines.listed_by,
            loads=view.loads,
            need_mib=view.need_mib,
            context_tokens={known(each.name): each.context_tokens for each in watch.resident},
            num_ctx={known(name): model.num_ctx for name, model in named.items()},
            measured=view.measured(),
            warmth={model: view.warmth(model, now) for model in view.residents},
            saved=view.saved_conversations(),
            asleep={known(name): level for name, level in gateway.engines.asleep().items()},
            pinned=gateway.orders.pinned,
            aliases=aliases,
        )


@frozen
class _Facts:
    """What is known of models at one moment, each by their names; a thread asks for it."""

    installed: Mapping[str, InstalledModel]
    listed_by: Callable[[], Mapping[str, list[str]]]
    loads: Callable[[str], bool]
    need_mib: Callable[[str], float | None]
    context_tokens: Mapping[str, int | None]
    num_ctx: Mapping[str, int | None]
    measured: Mapping[str, Measured]
    warmth: Mapping[str, Warmth]
    saved: Mapping[str, int]
    asleep: Mapping[str, SleepLevel]
    pinned: str | None
    aliases: Mapping[str, list[str]]

    def of(self, name: str, engines: list[str]) -> JsonDict:
        """What is shown beside what the dashboard's feed has of a model, which these list."""
        listed = self.installed.get(name) or InstalledModel(name=name)
        measured = self.measured.get(name, _UNMEASURED)
        warmth = self.warmth.get(name, _COLD)
        accepts = listed.capabilities
        can = accepts if listed.abilities is None else listed.abilities
        return {
            "engines": engines,
            "loads": self.loads(name),
            "asleep": self.asleep.get(name),
            "file_mib": _rounded(listed.file_mib),
            "need_mib": _rounded(self.need_mib(name)),
            "context_tokens": self.context_tokens.get(name),
            "num_ctx": self.num_ctx.get(name),
            "max_context_tokens": listed.max_context_tokens,
            "load_s": _rounded(measured.load_s),
            "read_tokens_per_s": _rounded(measured.read_tokens_per_s),
            "write_tokens_per_s": _rounded(measured.write_tokens_per_s),
            "warm_conversations": warmth.conversations,
            "warm_tokens": warmth.tokens,
            "saved_conversations": self.saved.get(name, 0),
            "pinned": name == self.pinned,
            "aliases": self.aliases.get(name, []),
            "capabilities": None if can is None else sorted(can),
            "accepts": None if accepts is None else sorted(accepts),
        }


def _engine(watch: EngineWatch) -> JsonDict:
    row = watch.row
    engine = row.engine
    return {
        "name": row.name,
        "kind": row.kind,
        "title": engine.title,
        "up": watch.up,
        "problem": watch.problem or None,
        "version": watch.version,
        "elastic": row.is_elastic,
        "on_card": engine.on_card,
        "loads": engine.loads_on_request,
        "can_pull": PULL_PATH in engine.addresses,
        "can_delete": DELETE_PATH in engine.addresses,
        "how_to_install": engine.how_to_install(_ANY_MODEL),
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def _rendered(models: list[JsonDict], facts: _Facts, beside: JsonDict) -> bytes:
    """Some models at a time: each call into C keeps the interpreter's lock, and so the loop
    waiting.
    """
    listed_by = facts.listed_by()
    pieces = []
    for start in range(0, len(models), _RENDERED_MODELS):
        rows = [
            row | facts.of(name := str(row["name"]), listed_by.get(name.lower(), []))
            for row in models[start : start + _RENDERED_MODELS]
        ]
        pieces.append(_json(rows)[1:-1])
    return f'{{"models":[{",".join(pieces)}],{_json(beside)[1:]}'.encode()


def _json(shown: object) -> str:
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
