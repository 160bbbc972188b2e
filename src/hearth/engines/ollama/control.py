"""The control path to Ollama: what is installed, what is in memory, load this, drop that. It
decides nothing about when to swap, and leaves that never to Ollama, which can wedge for ever when a
model that waits to be evicted is asked for again (ollama/ollama issue 17408).

What changes something goes through the official client, by way of `DataPath`: httpx's own
connections would take three times as much of the loop that everybody waits for. What only reads is
plain JSON, and an answer that is not Ollama's is named. The rules of `/api/generate` with an empty
prompt, `/api/embed` with an empty input and `/api/ps` are those of Ollama's API page
(https://docs.ollama.com/api).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from collections.abc import Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from hearth.dialects.stream import count_in
from hearth.engines import process_memory
from hearth.engines.data_path import DataPath, HttpAnswer
from hearth.engines.ollama.traits import canonical_model
from hearth.errors import (
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    LoadError,
    ModelNotFound,
)
from hearth.types import (
    JSON_BODY,
    MIB,
    BackendCall,
    InstalledModel,
    JsonMapping,
    LoadOptions,
    ResidentModel,
)

if TYPE_CHECKING:
    import httpx
    import ollama

T = TypeVar("T")

MAX_BODY_BYTES = 16 * 1024**2
"""A list of models takes less than a KiB for each."""
LONG_LIST_BYTES = 256 * 1024
"""A longer list is read in a thread, so that nobody waits for it."""
FOREVER = -1
"""`keep_alive` of a loaded model: Hearth alone decides when it goes."""
NOT_A_TEXT_MODEL = "does not support generate"
PROCESSES = re.compile(r"ollama.*|llama-server.*")
"""Since 0.30 a model runs in a `llama-server`, before that in an `ollama`."""
VERSION = "/api/version"
INSTALLED = "/api/tags"
RESIDENT = "/api/ps"
SHOW = "/api/show"
_A_LIST = "an object with the list `models`"
EXPECTED = {
    VERSION: "an object with `version`",
    INSTALLED: _A_LIST,
    RESIDENT: _A_LIST,
    SHOW: "an object",
}


class _Transport:
    """`DataPath` as the transport of an httpx client. No timeouts of its own."""

    def __init__(self, backend: DataPath) -> None:
        self._backend = backend

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        import httpx  # noqa: PLC0415 - see `Control._client`

        headers = tuple((name.lower(), value) for name, value in request.headers.raw)
        path = request.url.raw_path.decode("ascii")
        answer, body = await _whole(
            self._backend,
            BackendCall(method=request.method, path=path, headers=headers, body=request.content),
        )
        return httpx.Response(
            answer.status, headers=list(answer.headers), content=body, request=request
        )

    async def aclose(self) -> None:
        await self._backend.aclose()


async def _whole(backend: DataPath, call: BackendCall) -> tuple[HttpAnswer, bytes]:
    answer = await backend.open(call)
    parts: list[bytes] = []
    try:
        while chunks := await answer.take():
            parts += chunks
    finally:
        answer.close()
    return answer, b"".join(parts)


class Control:
    """What is installed and in memory, by way of the official client.

    Every call but `load` and `probe` runs in a task of its own and ends by itself, answered or
    timed out, whether or not anybody still waits. Ollama aborts a load whose client has left:
    whoever calls `load` keeps it going.

    The reading methods raise BackendUnreachable (no connection), BackendTimeout (no answer within
    `timeout_s`, which is BackendUnreachable in `version`: that needs nothing of any model),
    BackendGone, BackendProtocolError (says which route answered what).

    Args:
        base_url: `http://host:port`.
        timeout_s: of every call but `load` and `probe`, connection included.
        setting: where the owner has written the address.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float,
        api_key: str = "",
        setting: str = "ollama.url",
    ) -> None:
        self._setting = setting
        self._backend = DataPath(
            base_url,
            connect_timeout_s=timeout_s,
            max_body_bytes=MAX_BODY_BYTES,
            api_key=api_key,
        )
        self._timeout_s = timeout_s
        self._is_here = process_memory.is_here(base_url)
        self._last_list: tuple[int, bytes] | None = None
        """The last list of models, word for word, and what it says."""
        self._installed: tuple[InstalledModel, ...] = ()
        self._opened: ollama.AsyncClient | None = None
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    def turn_to(self, base_url: str) -> None:
        """Ask there from now on; calls under way end where they are."""
        self._backend.turn_to(base_url)
        self._is_here = process_memory.is_here(base_url)

    async def version(self) -> str:
        try:
            return await self._read(VERSION, _version)
        except BackendTimeout as error:
            raise BackendUnreachable from error

    async def installed(self) -> tuple[InstalledModel, ...]:
        """As the port says; an answer is read once for as long as it stays the same."""
        answer, body = await self._ask(INSTALLED)
        if (answer.status, body) != self._last_list:
            read = partial(
                _read,
                INSTALLED,
                answer,
                body,
                lambda fields: tuple(_installed(model) for model in _models(fields)),
                self._setting,
            )
            is_long = len(body) > LONG_LIST_BYTES
            self._installed = await asyncio.to_thread(read) if is_long else read()
            self._last_list = answer.status, body
        return self._installed

    async def capabilities(self, model: str) -> frozenset[str] | None:
        answer, body = await self._ask(SHOW, {"model": model})
        if answer.status == HTTPStatus.NOT_FOUND:
            raise ModelNotFound(f"model '{model}' not found")
        return _read(SHOW, answer, body, _capabilities, self._setting)

    async def resident(self) -> tuple[ResidentModel, ...]:
        return await self._read(
            RESIDENT, lambda fields: tuple(_resident(model) for model in _models(fields))
        )

    async def memory_mib(self) -> float | None:
        return (
            await asyncio.to_thread(process_memory.resident_mib, PROCESSES)
            if self._is_here
            else None
        )

    async def load(self, model: str, options: LoadOptions) -> None:
        """As the port says: by an empty prompt; models that only embed, by an empty input."""
        pinned = _pinned(options)
        wish = {"keep_alive": FOREVER, "options": pinned} if pinned else {"keep_alive": FOREVER}
        await self._change(model, wish, None)

    async def unload(self, model: str) -> None:
        await self._owned(self._change(model, {"keep_alive": 0}, self._timeout_s))

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        limits = {"num_predict": 1, **_pinned(options)}
        body = {"model": model, "prompt": " ", "raw": True, "stream": False, "options": limits}
        await self._client()
        try:
            await _in_our_terms(self._send("POST", "/api/generate", body), timeout_s)
        except BackendTimeout:
            return False
        except BackendError:
            return True  # the request that is about to be sent meets the same and says so
        return True

    async def aclose(self) -> None:
        """Drop the calls that still run and the client.

        Whoever awaits one of them gets BackendGone.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._backend.aclose()

    async def _change(self, model: str, wish: JsonMapping, timeout_s: float | None) -> None:
        await self._client()
        import ollama  # noqa: PLC0415 - see `_client`

        try:
            await _in_our_terms(self._generate_or_embed(model, wish), timeout_s)
        except BackendTimeout as error:
            raise LoadError(
                f"The model server did not confirm within {timeout_s:g} s that it unloads {model}."
            ) from error
        except (BackendGone, BackendProtocolError) as error:
            refusal = error.__cause__
            if not isinstance(refusal, ollama.ResponseError):
                raise LoadError(error.message) from error
            is_missing = refusal.status_code == HTTPStatus.NOT_FOUND
            raise (ModelNotFound if is_missing else LoadError)(str(refusal.error)) from error

    async def _generate_or_embed(self, model: str, wish: JsonMapping) -> None:
        import ollama  # noqa: PLC0415 - see `_client`

        try:
            await self._send("POST", "/api/generate", {"model": model, **wish})
        except ollama.ResponseError as error:
            if error.status_code != HTTPStatus.BAD_REQUEST or NOT_A_TEXT_MODEL not in error.error:
                raise
            await self._send("POST", "/api/embed", {"model": model, "input": [], **wish})

    async def _read(self, path: str, understood: Callable[[JsonMapping], T]) -> T:
        return _read(path, *await self._ask(path), understood, self._setting)

    async def _ask(self, path: str, asked: JsonMapping | None = None) -> tuple[HttpAnswer, bytes]:
        body = b"" if asked is None else json.dumps(asked).encode()
        headers = () if asked is None else JSON_BODY
        return await self._owned(
            self._fetch(BackendCall(method=_method(path), path=path, headers=headers, body=body))
        )

    async def _fetch(self, call: BackendCall) -> tuple[HttpAnswer, bytes]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await _whole(self._backend, call)
        except TimeoutError as error:
            raise BackendTimeout from error
        except BackendProtocolError as error:
            raise BackendProtocolError(f"{call.method} {call.path}: {error.message}") from error

    async def _send(
        self, method: str, path: str, body: JsonMapping | None = None
    ) -> httpx.Response:
        """By the client's inner call: it has none for `/api/version`, and those for a load send
        more than a load needs.
        """
        request_raw: Any = (await self._client())._request_raw  # noqa: SLF001
        answer: httpx.Response = await request_raw(method, path, json=body)
        return answer

    async def _owned(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call in a task of its own."""
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or caller.cancelling():
                raise
            raise BackendGone("The connection to the model server was closed.") from None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # looked at, so that asyncio does not report it when nobody awaits the call any more
            task.exception()

    async def _client(self) -> ollama.AsyncClient:
        """The library takes a third of a second to import: with the first load, and in a thread,
        since callers wait then.
        """
        async with self._opening:
            if self._opened is None:
                library = await asyncio.to_thread(importlib.import_module, "ollama")
                self._opened = library.AsyncClient(
                    "http://model-server",
                    transport=_Transport(self._backend),
                    trust_env=False,
                    follow_redirects=False,
                )
            return self._opened


def _pinned(options: LoadOptions) -> dict[str, int]:
    return {} if options.num_ctx is None else {"num_ctx": options.num_ctx}


async def _in_our_terms(call: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    """Await a call of the library and translate what it raises; BackendTimeout: no answer in
    time.
    """
    import ollama  # noqa: PLC0415 - see `Control._client`

    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except TimeoutError as error:
        raise BackendTimeout from error
    except ollama.ResponseError as error:
        if str(error.error).lstrip().startswith("<"):  # of a proxy, and no reason to show anybody
            raise BackendProtocolError(
                f"The model server answered {error.status_code} with HTML."
            ) from None
        raise BackendProtocolError(
            f"The model server answered {error.status_code}: {error.error}"
        ) from error
    except (ValueError, TypeError, AttributeError) as error:
        # An answer of the wrong shape (HTML, a JSON list, a bare JSON string as the error) meets
        # the library's parsing unprepared.
        raise BackendProtocolError("The model server sent an invalid answer.") from error


# What the routes answer.


class _Odd(Exception):
    """An answer is not Ollama's; names what it is instead, and quotes nothing of it."""


def _method(path: str) -> str:
    return "POST" if path == SHOW else "GET"


def _read(
    path: str,
    answer: HttpAnswer,
    body: bytes,
    understood: Callable[[JsonMapping], T],
    setting: str,
) -> T:
    """What `understood` makes of the JSON object there; it raises _Odd for what is not Ollama's."""
    try:
        return understood(_json_object(answer.status, body))
    except _Odd as odd:
        text = (
            f"{_method(path)} {path} answered {answer.status} with {odd}; 200 with {EXPECTED[path]}"
            " was expected"
        )
        raise BackendProtocolError(f"{text}; {setting} must lead to Ollama.") from odd


def _json_object(status: int, body: bytes) -> JsonMapping:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if status != HTTPStatus.OK or not isinstance(fields, dict):
        raise _Odd(_kind_of(body))
    return fields


_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a truth value",
    type(None): "null",
}


def _kind_of(body: bytes) -> str:
    if not body.strip():
        return "an empty body"
    if body.lstrip().startswith(b"<"):
        return "HTML"
    try:
        return _KINDS.get(type(json.loads(body)), "a number")
    except (ValueError, RecursionError):
        return "something that is no JSON"


def _version(fields: JsonMapping) -> str:
    version = _text(fields, "version")
    if not version:
        raise _Odd("an object without `version`")
    return version


def _models(fields: JsonMapping) -> list[JsonMapping]:
    """The models that have a name."""
    models = fields.get("models")
    if not isinstance(models, list):
        raise _Odd("an object without the list `models`")
    if not all(isinstance(model, dict) for model in models):
        raise _Odd("a model that is no object")
    return [model for model in models if _name_of(model)]


def _name_of(model: JsonMapping) -> str:
    return _text(model, "model") or _text(model, "name")


def _text(fields: JsonMapping, name: str) -> str:
    text = fields.get(name)
    if text is not None and not isinstance(text, str):
        raise _Odd(f"`{name}` that is no string")
    return text or ""


def _number(fields: JsonMapping, name: str) -> float:
    number = fields.get(name)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
        raise _Odd(f"`{name}` that is no number")
    return number or 0.0


def _installed(model: JsonMapping) -> InstalledModel:
    return InstalledModel(
        name=canonical_model(_name_of(model)),
        digest=_text(model, "digest"),
        remote_host=_text(model, "remote_host"),
        capabilities=_capabilities(model),
        file_mib=_number(model, "size") / MIB or None,
        max_context_tokens=_max_context(model),
    )


def _max_context(model: JsonMapping) -> int | None:
    """Old versions do not list it."""
    details = model.get("details")
    return count_in(details, "context_length") or None if isinstance(details, dict) else None


def _capabilities(model: JsonMapping) -> frozenset[str] | None:
    """Not listed by old versions, nor for models that run elsewhere."""
    listed = model.get("capabilities")
    named = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    return frozenset(named) or None


def _resident(model: JsonMapping) -> ResidentModel:
    """Ollama lists no capabilities here: an embedding model is known by its architecture
    (`nomic-bert`), or by its name.
    """
    details = model.get("details") or {}
    if not isinstance(details, dict):
        raise _Odd("`details` that are no object")
    name = canonical_model(_name_of(model))
    family = _text(details, "family")
    return ResidentModel(
        name=name,
        size_mib=_number(model, "size") / MIB,
        vram_mib=_number(model, "size_vram") / MIB,
        context_tokens=int(_number(model, "context_length")) or None,
        embeds="bert" in family.lower() or "embed" in name.lower(),
    )
