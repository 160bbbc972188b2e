"""The control path to Ollama: what is installed, what is in memory, load this, drop that. It decides nothing about when to swap.

The rules of `/api/generate` with an empty prompt, `/api/embed` with an empty input and `/api/ps`: https://docs.ollama.com/api.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from hearth.backends.ollama import OllamaBackend
from hearth.errors import (
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    HearthError,
    ModelNotFound,
    SwapFailed,
    SwapTimedOut,
)
from hearth.types import MIB, BackendCall, InstalledModel, LoadOptions, ResidentModel

T = TypeVar("T")
Body = Mapping[str, object]

MAX_BODY_BYTES = 16 * 1024**2
"""A list of models takes less than a KiB for each."""
FOREVER = -1
"""`keep_alive` of a loaded model: Hearth alone decides when it goes."""
NOT_A_TEXT_MODEL = "does not support generate"


class Refused(BackendProtocolError):
    """The model server answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        self.status_code = status
        self.text = text
        super().__init__(f"The model server answered {status}: {text}")


class OllamaControl:
    """`ModelControl` over `OllamaBackend`.

    Every call but `probe` runs in a task of its own and ends by itself, answered or timed out, whether or not anybody still waits: Ollama
    aborts a load whose client has left, for everybody who waits for it.

    The reading methods raise BackendUnreachable (no connection), BackendTimeout (no answer within `timeout_s`, which is BackendUnreachable
    in `version`: that needs nothing of any model), BackendGone, BackendProtocolError.

    Args:
        timeout_s: of every call but `load` and `probe`, connection included.
    """

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        self._backend = OllamaBackend(base_url, connect_timeout_s=timeout_s, max_body_bytes=MAX_BODY_BYTES)
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[Any]] = set()

    async def version(self) -> str:
        """The version that the server reports."""
        try:
            version = (await self._read("/api/version")).get("version")
        except BackendTimeout as error:
            raise BackendUnreachable from error
        if not version:
            raise BackendProtocolError("The model server does not say its version: is it an Ollama?")
        return str(version)

    async def installed(self) -> tuple[InstalledModel, ...]:
        """The models on disk, tags included."""
        return tuple(
            InstalledModel(name=_text(model, "model"), digest=_text(model, "digest"), remote_host=_text(model, "remote_host"))
            for model in await self._models("/api/tags")
            if _text(model, "model")
        )

    async def resident(self) -> tuple[ResidentModel, ...]:
        """What is in memory; a model without sizes counts as 0 MiB."""
        return tuple(_resident(model) for model in await self._models("/api/ps") if _name_of(model))

    async def load(self, model: str, options: LoadOptions, timeout_s: float) -> None:
        """Load and keep, by an empty prompt; models that only embed, by an empty input. Success is the server's word: look at `resident`.

        Raises:
            ModelNotFound, SwapTimedOut, BackendUnreachable, and SwapFailed with the server's words for everything else.
        """
        pinned = {} if options.num_ctx is None else {"options": {"num_ctx": options.num_ctx}}
        late = SwapTimedOut(f"{model} did not load within {timeout_s:g} s.")
        await self._owned(self._change(model, {"keep_alive": FOREVER, **pinned}, timeout_s, late))

    async def unload(self, model: str) -> None:
        """Drop as soon as nothing runs on it; what is not loaded, too. Raises ModelNotFound, BackendUnreachable and SwapFailed."""
        late = SwapFailed(f"The model server did not say within {self._timeout_s:g} s that {model} goes.")
        await self._owned(self._change(model, {"keep_alive": 0}, self._timeout_s, late))

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        """Generate one token from a prompt of one; False where nothing is answered in time. Ends with whoever awaits it."""
        limits = {"num_predict": 1} if options.num_ctx is None else {"num_predict": 1, "num_ctx": options.num_ctx}
        body = {"model": model, "prompt": " ", "raw": True, "stream": False, "options": limits}
        try:
            await _within(timeout_s, self._send("POST", "/api/generate", body))
        except BackendTimeout:
            return False
        except BackendError:
            return True  # the request that is about to be sent meets the same and says so
        return True

    async def aclose(self) -> None:
        """Drop the calls that still run. Whoever awaits one of them gets BackendGone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._backend.aclose()

    async def _change(self, model: str, wish: Body, timeout_s: float, late: HearthError) -> None:
        try:
            await _within(timeout_s, self._generate_or_embed(model, wish))
        except BackendTimeout as error:
            raise late from error
        except Refused as error:
            if error.status_code == HTTPStatus.NOT_FOUND:
                raise ModelNotFound(error.text) from error
            raise SwapFailed(error.text) from error
        except (BackendGone, BackendProtocolError) as error:
            raise SwapFailed(error.message) from error

    async def _generate_or_embed(self, model: str, wish: Body) -> None:
        try:
            await self._send("POST", "/api/generate", {"model": model, **wish})
        except Refused as error:
            if error.status_code != HTTPStatus.BAD_REQUEST or NOT_A_TEXT_MODEL not in error.text:
                raise
            await self._send("POST", "/api/embed", {"model": model, "input": [], **wish})

    async def _models(self, path: str) -> list[dict[str, Any]]:
        models = (await self._read(path)).get("models")
        if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
            raise _no_answer()
        return models

    async def _read(self, path: str) -> dict[str, Any]:
        said = _json_in(await self._owned(_within(self._timeout_s, self._send("GET", path))))
        if not isinstance(said, dict):
            raise _no_answer()
        return said

    async def _send(self, method: str, path: str, body: Body | None = None) -> bytes:
        """The body of the answer. Raises Refused where that is an error."""
        raw = b"" if body is None else json.dumps(body).encode()
        answer = await self._backend.open(
            BackendCall(method=method, path=path, headers=((b"content-type", b"application/json"),), body=raw)
        )
        parts: list[bytes] = []
        try:
            while chunks := await answer.take():
                parts += chunks
        finally:
            answer.close()
        said = b"".join(parts)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            reported = _json_in(said)
            raise Refused(answer.status, str(reported.get("error") if isinstance(reported, dict) else said.decode(errors="replace")))
        return said

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
            task.exception()  # looked at, so that asyncio does not report it when nobody awaits the call any more


async def _within(timeout_s: float, call: Coroutine[Any, Any, T]) -> T:
    """Await a call. Raises BackendTimeout where that takes longer."""
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except TimeoutError as error:
        raise BackendTimeout from error


def _json_in(body: bytes) -> Any:  # noqa: ANN401 - whatever a server says
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _no_answer() -> BackendProtocolError:
    return BackendProtocolError("The model server sent something that is not an answer.")


def _text(model: Mapping[str, Any], name: str) -> str:
    text = model.get(name)
    return text if isinstance(text, str) else ""


def _number(model: Mapping[str, Any], name: str) -> int:
    number = model.get(name)
    return number if isinstance(number, int) else 0


def _name_of(model: Mapping[str, Any]) -> str:
    return _text(model, "model") or _text(model, "name")


def _resident(model: Mapping[str, Any]) -> ResidentModel:
    """Ollama lists no capabilities here: an embedding model is known by its architecture (`nomic-bert`), or by its name."""
    name, details = _name_of(model), model.get("details")
    family = _text(details, "family") if isinstance(details, dict) else ""
    return ResidentModel(
        name=name,
        size_mib=_number(model, "size") / MIB,
        vram_mib=_number(model, "size_vram") / MIB,
        context_tokens=_number(model, "context_length") or None,
        embeds="bert" in family.lower() or "embed" in name.lower(),
    )
