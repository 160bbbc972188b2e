"""Routes that run no model: forwarded to the model server without queueing, models that
run elsewhere taken out of its lists, and aliases put into them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qs, quote

from hearth.api.body import RequestBody
from hearth.api.models import DELETE_PATH
from hearth.api.request import Request, until_disconnected
from hearth.dialects.gojson import JsonObject, JsonValue, decode, encode, lookup
from hearth.dialects.request import count_tokens
from hearth.dialects.routes import MANAGEMENT_ROUTES
from hearth.dialects.stream import proxy_failure
from hearth.engines.port import Engine, Exchange
from hearth.engines.table import Row
from hearth.errors import (
    BackendError,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    BadRequest,
    HearthError,
    NotServed,
)
from hearth.gateway import Gateway
from hearth.types import JSON_BODY, MIB, BackendCall

_FORWARDED_UNQUEUED = (b"content-type", b"accept", b"user-agent")
_LISTS = {"/api/tags": ("models", "name"), "/v1/models": ("data", "id")}
_NAMES = {
    "/api/tags": ("name", "model"),
    "/api/ps": ("name", "model"),
    "/v1/models": ("id",),
}
_MERGED = {**_LISTS, "/api/ps": ("models", "name")}
_ALIAS_FOR = "alias_for"
"""Marks an alias; its models, as far as they are installed."""
_SHOW = "/api/show"
_ONE_MODEL = "/v1/models/"
_BLOBS = "/api/blobs/"
_NAME_FIELDS = ("model", "name", "source", "from")
"""Of bodies of routes that run no model: fields that name one."""
_PLAIN = "/:@"
"""Stand in names of models, and need no escape in a path."""
_SHOW_BYTES = 64 * 1024
"""A body that asks about a model is shorter."""
_LIST_BYTES = 16 * MIB
LIST_TIMEOUT_S = 5.0
"""An engine that has not sent its list within this is left out of the list of all."""


class Passthrough:
    """Forwards single requests to the backend."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def handle(self, request: Request, body: RequestBody) -> None:
        """Forward one request; the connection to the backend closes when the caller leaves.

        Raises HearthError, also amid an answer.
        """
        content = b"" if request.method in ("GET", "HEAD") else await body.read()
        if self._gateway.settings.aliases and request.path.startswith((_SHOW, _ONE_MODEL)):
            answer = await self._of_alias(request, content)
            if answer is not None:
                await request.answer_json(answer)
                return
        call = replace(_call_of(request), body=content)
        if request.path in MANAGEMENT_ROUTES:
            await until_disconnected(request.disconnected, self._manage(call, request))
            self._gateway.list_may_differ()
            return
        is_merged = request.path in _MERGED and not self._gateway.engines.is_single
        answering = self._merge if is_merged else self._forward
        await until_disconnected(request.disconnected, answering(call, request))

    async def upload(self, request: Request, body: RequestBody) -> None:
        """Forward a file of a model piece by piece: it may be larger than memory. Raises
        HearthError.
        """
        call = replace(_call_of(request), upload=body.pieces())
        await until_disconnected(request.disconnected, self._forward(call, request))

    async def _of_alias(self, request: Request, content: bytes) -> bytes | None:
        """What is known of an alias; None where the request is not about one."""
        gateway = self._gateway
        aliases = gateway.aliases
        if request.path != _SHOW:
            alias = aliases.named(request.path.removeprefix(_ONE_MODEL))
            return encode(self._listed_as_model(alias)) if alias else None
        alias = aliases.named(_model_in(content))
        if not alias:
            return None
        models = await aliases.choices(alias, aliases.models_of(alias), None)
        likely = aliases.likely(alias)
        shown = dict[str, JsonObject]()
        failed: HearthError = NotServed(f"The alias {alias} has no models.")
        for model in models:
            try:
                shown[model] = await self._shown(model)
            except BackendError as error:
                failed = error
        if not shown:
            raise failed
        able = list(dict.fromkeys(one for each in shown.values() for one in _capabilities(each)))
        answer = shown.get(likely, next(iter(shown.values()))) | {_ALIAS_FOR: list(models)}
        return encode(answer | {"capabilities": able} if able else answer)

    async def _shown(self, model: str) -> JsonObject:
        """What the model server says of a model. Raises HearthError."""
        engines = self._gateway.engines
        body = encode({"model": engines.own_name(model)})
        call = BackendCall(method="POST", path=_SHOW, headers=JSON_BODY, body=body)
        exchange = await engines.of(model).open(call)
        try:
            content = await _whole(exchange, "answer")
            shown = await asyncio.to_thread(_object_in, content)
        finally:
            exchange.close()
        if exchange.status != HTTPStatus.OK or shown is None:
            raise BackendError(f"The model server says nothing of {model}.")
        return shown

    def _listed_as_model(self, alias: str) -> JsonObject:
        """An alias as OpenAI's list has models."""
        models = self._gateway.aliases.models_of(alias)
        return {
            "id": alias,
            "object": "model",
            "created": 0,
            "owned_by": "hearth",
            _ALIAS_FOR: list(models),
        }

    async def _merge(self, call: BackendCall, request: Request) -> None:
        """Answer with the lists of all engines that answer, as one. Raises BackendError."""
        gateway = self._gateway
        call = replace(call, method="GET")  # what a HEAD asks for has to be counted, too
        rows = [row for row in gateway.answering if request.path in row.engine.addresses]
        asked = await asyncio.gather(
            *(self._list_of(row, call) for row in rows), return_exceptions=True
        )
        part, key = _MERGED[request.path]
        failed: BaseException = BackendUnreachable()
        merged: dict[str, JsonValue] = {}
        found: JsonObject | None = None
        for each in asked:
            if isinstance(each, BaseException):
                failed = each
            else:
                found = found or each
                for one in cast("list[dict[str, str]]", each[part]):
                    merged.setdefault(gateway.engines.canonical(one[key]).lower(), {**one})
        if found is None:
            raise failed
        body = encode({**found, part: list(merged.values())})
        if request.path in _LISTS:
            body = await self._with_aliases(body, request.path)
        await request.answer_json(body)

    async def _list_of(self, row: Row, call: BackendCall) -> JsonObject:
        """The list of one engine, with those of its models that it is asked for, under the names
        that callers use. Raises BackendError.
        """
        path = call.path.partition("?")[0]
        part, key = _MERGED[path]
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                status, content = await _read(row.engine, call)
        except TimeoutError as error:
            raise BackendTimeout from error
        listed = await asyncio.to_thread(_object_in, content)
        entries = None if listed is None else listed.get(part)
        if status != HTTPStatus.OK or listed is None or not isinstance(entries, list):
            raise BackendProtocolError(f"{row.engine.title} answered with no list of models.")
        engines = self._gateway.engines
        named: list[JsonValue] = []
        for entry in entries:
            name = entry.get(key) if isinstance(entry, dict) else None
            if isinstance(entry, dict) and isinstance(name, str):
                called = engines.called(row, name)
                if engines.row_of(called) is row or not engines.lists(called):
                    given = {field: called for field in _NAMES[path] if field in entry}
                    named.append({**entry, **given})
        return {**listed, part: named}

    async def _with_aliases(self, content: bytes, path: str) -> bytes:
        """A list of models as callers see it."""
        gateway = self._gateway
        aliases = gateway.settings.aliases
        named = {name: gateway.aliases.installed(aliases[name]) for name in aliases}
        canonical = gateway.engines.canonical
        hidden = gateway.models_elsewhere.union(canonical(name).lower() for name in aliases)
        return await asyncio.to_thread(_changed, content, path, hidden, named, canonical)

    def _engine_for(self, call: BackendCall, request: Request) -> tuple[Engine, BackendCall]:
        """Who answers, and what it is asked: the engine of the model that the request is about,
        else the first that serves this address.
        """
        engines = self._gateway.engines
        pattern = request.path
        asked = _asked_in(call.body)
        field, model = self._known_of(asked)
        if request.path.startswith(_ONE_MODEL):
            pattern = f"{_ONE_MODEL}{{model:path}}"
            model = request.path.removeprefix(_ONE_MODEL)
            if (own := engines.own_name(model)) != model:
                call = replace(call, path=_ONE_MODEL + quote(own, safe=_PLAIN))
        elif request.path.startswith(_BLOBS):
            pattern = f"{_BLOBS}{{digest}}"
        elif model and (named := engines.wire_name(model)) != model:
            call = replace(call, body=encode({**asked, field: named}))
        row = engines.row_of(model) if model else engines.first
        first = (row,) if model else self._gateway.answering
        rows = (*first, *engines.rows.values())
        served = (each.engine for each in rows if pattern in each.engine.addresses)
        return next(served, row.engine), call

    def _known_of(self, asked: JsonObject) -> tuple[str, str]:
        """The field that names an installed model, else the first that names any, and the name."""
        named = [
            (field, name)
            for wanted in _NAME_FIELDS
            for field, name in asked.items()
            if field.lower() == wanted and isinstance(name, str)
        ]
        installed = (each for each in named if self._gateway.name_of(each[1]) is not None)
        return next(installed, named[0] if named else ("", ""))

    async def _manage(self, call: BackendCall, request: Request) -> None:
        """Have an engine change what it has on its disk. Raises HearthError."""
        gateway = self._gateway
        engines = gateway.engines
        asked = _asked_in(call.body)
        field, model = self._known_of(asked)
        row = self._row_asked(request)
        is_ours = row is None or row is engines.row_of(model)
        if row is None:
            row = engines.known_row(model) or engines.serving(request.path)
        if request.path not in row.engine.addresses:
            raise _unmanaged(request.path, row, model)
        if is_ours and model and (named := engines.wire_name(model)) != model:
            call = replace(call, body=encode({**asked, field: named}))
        is_known = gateway.name_of(model) is not None or bool(gateway.aliases.named(model))
        if is_ours and is_known and request.path == DELETE_PATH:
            await gateway.orders.clear_for_deletion(model)
        await self._forward_to(row.engine, call, request)

    def _row_asked(self, request: Request) -> Row | None:
        """The engine that the query names; None for none. Raises BadRequest."""
        query = request.target.partition("?")[2]
        name = next(iter(parse_qs(query).get("engine", ())), None)
        rows = self._gateway.engines.rows
        if name is not None and name not in rows:
            raise BadRequest(f"engine: there is none of this name; there are {', '.join(rows)}")
        return None if name is None else rows[name]

    async def _forward(self, call: BackendCall, request: Request) -> None:
        engine, call = self._engine_for(call, request)
        await self._forward_to(engine, call, request)

    async def _forward_to(self, engine: Engine, call: BackendCall, request: Request) -> None:
        exchange = await engine.open(call)
        try:
            failed = proxy_failure(exchange.status, exchange.headers)
            if failed is not None:
                raise failed
            own = request.id_header
            elsewhere = self._gateway.models_elsewhere
            aliases = self._gateway.settings.aliases
            if (
                (elsewhere or aliases)
                and request.method == "GET"
                and exchange.status == HTTPStatus.OK
                and request.path in _LISTS
            ):
                kept = tuple(
                    header for header in exchange.headers if header[0].lower() != b"content-length"
                )
                content = await _whole(exchange, "list of models")
                listed = await self._with_aliases(content, request.path)
                await request.answer.whole(exchange.status, (*kept, own), listed)
                return
            await request.answer.head(exchange.status, (*exchange.headers, own))
            while chunks := await exchange.take():
                for chunk in chunks:
                    await request.answer.chunk(chunk)
            await request.answer.end()
        finally:
            exchange.close()

    async def count_tokens(self, request: Request, body: RequestBody) -> None:
        """Answer Anthropic's token count, which no engine need have, with the estimate that the
        queue uses. Raises BadRequest.
        """
        await request.answer_json(await body.parsed(count_tokens, await body.read()))


def _unmanaged(path: str, row: Row, model: str) -> NotServed:
    """What a caller is told whose engine does not do this through its API."""
    verb = path.rpartition("/")[2]
    title = row.engine.title
    whose = f"{model} is a model of {title}, which" if model else title
    how = row.engine.how_to_install(model) if verb == "pull" else row.engine.how_to_manage(row.url)
    return NotServed(f"{whose} does not {verb} models on request: {how}")


def _call_of(request: Request) -> BackendCall:
    """What the model server is asked, but for the body."""
    values = request.headers.values
    headers = tuple((name, values[name]) for name in _FORWARDED_UNQUEUED if name in values)
    return BackendCall(method=request.method, path=request.target, headers=headers)


async def _read(engine: Engine, call: BackendCall) -> tuple[int, bytes]:
    """The status and the body of an engine's list. Raises BackendError."""
    exchange = await engine.open(call)
    try:
        return exchange.status, await _whole(exchange, "list of models")
    finally:
        exchange.close()


async def _whole(exchange: Exchange, what: str) -> bytes:
    content = bytearray()
    while chunks := await exchange.take():
        content += b"".join(chunks)
        if len(content) > _LIST_BYTES:
            raise BackendProtocolError(f"The model server's {what} is too long.")
    return bytes(content)


def _changed(
    body: bytes,
    path: str,
    hidden: frozenset[str],
    aliases: Mapping[str, Sequence[str]],
    canonical: Callable[[str], str],
) -> bytes:
    """A list of models without those that run elsewhere or have the name of an alias, and with the
    aliases of installed models, each as the first of these that is listed; else as it came.
    """
    part, key = _LISTS[path]
    try:
        listed = json.loads(body)
        here = [each for each in listed[part] if canonical(each[key]).lower() not in hidden]
        known = {canonical(each[key]).lower(): each for each in here}
        first = {
            alias: next((known[name.lower()] for name in models if name.lower() in known), None)
            for alias, models in aliases.items()
        }
        listed[part] = here + [
            each | dict.fromkeys(_NAMES[path], alias) | {_ALIAS_FOR: aliases[alias]}
            for alias, each in first.items()
            if each is not None
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return body
    return json.dumps(listed, ensure_ascii=False, separators=(",", ":")).encode()


def _capabilities(shown: JsonObject) -> list[JsonValue]:
    has = shown.get("capabilities")
    return has if isinstance(has, list) else []


def _model_in(content: bytes) -> str:
    """The model that a body of `/api/show` names; empty where it names none."""
    asked = _asked_in(content)
    model = lookup(asked, "model") or lookup(asked, "name")
    return model if isinstance(model, str) else ""


def _asked_in(content: bytes) -> JsonObject:
    """The fields of a body of a route that runs no model; none of one that is too long."""
    return (_object_in(content) if len(content) <= _SHOW_BYTES else None) or {}


def _object_in(content: bytes) -> JsonObject | None:
    try:
        found = decode(content)
    except HearthError:
        return None
    return found if isinstance(found, dict) else None
