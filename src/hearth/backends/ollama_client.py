"""The official Ollama client, bent to what the control path needs: a timeout per call, `/api/version`, loading, errors of ours.

It speaks through `ollama.OllamaBackend`: httpx's own connections would take twice as much again, every few seconds, of the loop that
everybody waits for. Imported on first use only (it costs about a third of a second), by `ollama_control` and nobody else. Its calls must
not be cancelled by whoever stops waiting: Ollama aborts a load whose client has left. `ollama_control` sees to that.

The rules of `/api/generate` with an empty prompt, `/api/embed` with an empty input and `/api/ps` are those of Ollama's API page
(https://docs.ollama.com/api).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import TypeVar

import httpx
import ollama

from hearth.backends.ollama import OllamaBackend
from hearth.errors import (
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    ModelNotFound,
    SwapFailed,
    SwapTimedOut,
)
from hearth.types import MIB, BackendCall, InstalledModel, LoadOptions, ResidentModel

T = TypeVar("T")
Body = Mapping[str, object]

ORIGIN = "http://model-server"
"""What the library is told; where calls go is `OllamaBackend`'s."""
MAX_BODY_BYTES = 16 * 1024**2
"""A list of models takes less than a KiB for each."""
FOREVER = -1
"""`keep_alive` of a loaded model: Hearth alone decides when it goes."""
NOT_A_TEXT_MODEL = "does not support generate"


class Refused(BackendProtocolError):
    """The model server answered with an error."""

    def __init__(self, status_code: int, text: str) -> None:
        self.status_code = status_code
        self.text = text
        super().__init__(f"The model server answered {status_code}: {text}")


class _Listed(ollama.ListResponse.Model):
    """With what the package leaves out."""

    remote_host: str | None = None


class _Listing(ollama.ListResponse):
    models: Sequence[_Listed]


class DataPath(httpx.AsyncBaseTransport):
    """httpx's way to the model server: one call after the other on a kept connection. Raises what `OllamaBackend.open` does."""

    def __init__(self, backend: OllamaBackend) -> None:
        self._backend = backend

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The whole answer."""
        headers = tuple((name.lower(), value) for name, value in request.headers.raw)
        path = request.url.raw_path.decode("ascii")
        answer = await self._backend.open(BackendCall(method=request.method, path=path, headers=headers, body=request.content))
        parts: list[bytes] = []
        try:
            while chunks := await answer.take():
                parts += chunks
        finally:
            answer.close()
        return httpx.Response(answer.status, headers=list(answer.headers), content=b"".join(parts))

    async def aclose(self) -> None:
        """End the connections."""
        await self._backend.aclose()


class ControlClient(ollama.AsyncClient):
    """All timeouts are whole calls, in seconds.

    The reading methods raise BackendUnreachable (no connection), BackendTimeout (no answer within `timeout_s`, which is BackendUnreachable
    in `server_version`: that needs nothing of any model), BackendGone, BackendProtocolError.
    """

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        backend = OllamaBackend(base_url, connect_timeout_s=timeout_s, max_body_bytes=MAX_BODY_BYTES)
        super().__init__(ORIGIN, transport=DataPath(backend), trust_env=False, follow_redirects=False)

    async def server_version(self) -> str:
        """The version that the server reports."""
        try:
            version = await self._read(self._version_said())
        except BackendTimeout as error:
            raise BackendUnreachable from error
        if not version:
            raise BackendProtocolError("The model server does not say its version: is it an Ollama?")
        return version

    async def _version_said(self) -> str:
        said = (await self._send("GET", "/api/version")).json()
        return str(said.get("version") or "")

    async def installed(self) -> tuple[InstalledModel, ...]:
        """The models on disk, tags included."""
        listed = await self._read(self._request(_Listing, "GET", "/api/tags"))
        return tuple(_installed(model) for model in listed.models if model.model)

    async def resident(self) -> tuple[ResidentModel, ...]:
        """What is in memory; a model without sizes counts as 0 MiB."""
        listed = await self._read(self.ps())
        return tuple(_resident(model) for model in listed.models if model.model or model.name)

    async def load(self, model: str, options: LoadOptions, timeout_s: float) -> None:
        """Load and keep, by an empty prompt; models that only embed, by an empty input.

        Raises:
            ModelNotFound, SwapTimedOut, BackendUnreachable, and SwapFailed with the server's words for everything else.
        """
        pinned = {} if options.num_ctx is None else {"options": {"num_ctx": options.num_ctx}}
        try:
            await self._change(model, {"keep_alive": FOREVER, **pinned}, timeout_s)
        except BackendTimeout as error:
            raise SwapTimedOut(f"{model} did not load within {timeout_s:g} s.") from error

    async def unload(self, model: str) -> None:
        """Drop as soon as nothing runs on it. Raises ModelNotFound, BackendUnreachable and SwapFailed."""
        try:
            await self._change(model, {"keep_alive": 0}, self._timeout_s)
        except BackendTimeout as error:
            raise SwapFailed(f"The model server did not say within {self._timeout_s:g} s that {model} goes.") from error

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        """Generate one token from a prompt of one; False where nothing is answered in time."""
        limits = {"num_predict": 1} if options.num_ctx is None else {"num_predict": 1, "num_ctx": options.num_ctx}
        body = {"model": model, "prompt": " ", "raw": True, "stream": False, "options": limits}
        try:
            await self._post("/api/generate", body, timeout_s)
        except BackendTimeout:
            return False
        except BackendError:
            return True  # the request that is about to be sent meets the same and says so
        return True

    async def _change(self, model: str, wish: Body, timeout_s: float) -> None:
        try:
            await self._generate_or_embed(model, wish, timeout_s)
        except Refused as error:
            if error.status_code == HTTPStatus.NOT_FOUND:
                raise ModelNotFound(error.text) from error
            raise SwapFailed(error.text) from error
        except (BackendGone, BackendProtocolError) as error:
            raise SwapFailed(error.message) from error

    async def _generate_or_embed(self, model: str, wish: Body, timeout_s: float) -> None:
        try:
            await self._post("/api/generate", {"model": model, **wish}, timeout_s)
        except Refused as error:
            if error.status_code != HTTPStatus.BAD_REQUEST or NOT_A_TEXT_MODEL not in error.text:
                raise
            await self._post("/api/embed", {"model": model, "input": [], **wish}, timeout_s)

    async def _post(self, path: str, body: Body, timeout_s: float) -> None:
        await _in_our_terms(self._send("POST", path, body), timeout_s)

    async def _read(self, call: Coroutine[object, object, T]) -> T:
        return await _in_our_terms(call, self._timeout_s)

    async def _send(self, method: str, path: str, body: Body | None = None) -> httpx.Response:
        answer = await self._request_raw(method, path, json=body)  # type: ignore[no-untyped-call]  # untyped in the package
        if not isinstance(answer, httpx.Response):
            raise BackendProtocolError
        return answer


async def _in_our_terms(call: Coroutine[object, object, T], timeout_s: float) -> T:
    """Await a call of the library and translate what it raises; BackendTimeout: connected, but no answer in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except TimeoutError as error:
        raise BackendTimeout from error
    except ollama.ResponseError as error:
        raise Refused(error.status_code, str(error.error)) from error
    except (ValueError, TypeError, AttributeError) as error:
        # An answer of the wrong shape (HTML, a JSON list, a bare JSON string as the error) meets the library's parsing unprepared.
        raise BackendProtocolError("The model server sent something that is not an answer.") from error


def _installed(model: _Listed) -> InstalledModel:
    return InstalledModel(name=model.model or "", digest=model.digest or "", remote_host=model.remote_host or "")


def _resident(model: ollama.ProcessResponse.Model) -> ResidentModel:
    """Ollama lists no capabilities here: an embedding model is known by its architecture (`nomic-bert`), or by its name."""
    name, family = model.model or model.name or "", (model.details and model.details.family) or ""
    return ResidentModel(
        name=name,
        size_mib=(model.size or 0) / MIB,
        vram_mib=(model.size_vram or 0) / MIB,
        context_tokens=model.context_length,
        embeds="bert" in family.lower() or "embed" in name.lower(),
    )
