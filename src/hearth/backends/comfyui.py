"""Asks a ComfyUI how many jobs it has, and to free its memory. Follows no redirect and uses no
proxy.
"""

from __future__ import annotations

from typing import Annotated

import aiohttp
from pydantic import BaseModel, Field, ValidationError

from hearth.backends.poster import DaemonResolver, failure_word, system_lookup
from hearth.types import QueueLook, __version__

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 4096
"""The answer of a ComfyUI has 40."""
OTHER_SERVER = "other_server"
FREE = {"unload_models": True, "free_memory": True}


class _Counts(BaseModel):
    queue_remaining: Annotated[int, Field(strict=True, ge=0)]


class _Prompt(BaseModel):
    """What `GET /prompt` answers since the first releases: waiting and running jobs as one number
    (`PromptServer.get_queue_info`). `/queue` has the same with every workflow in full, which may be
    megabytes.
    """

    exec_info: _Counts


class ComfyUi:
    """The `Renderer` over HTTP, with a connection per question, since a kept one may be dead when
    it is needed. `timeout_s`: for each answer as a whole.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def look(self, url: str) -> QueueLook:
        """Jobs that wait and run; one that is being rendered counts."""
        answer = await self._ask("GET", f"{url}/prompt")
        if isinstance(answer, str):
            return QueueLook(problem=answer)
        try:
            found = _Prompt.model_validate_json(answer)
        except ValidationError:
            return QueueLook(problem=OTHER_SERVER)
        return QueueLook(jobs=found.exec_info.queue_remaining)

    async def free(self, url: str) -> QueueLook:
        """It does so between jobs, at once where it has none."""
        answer = await self._ask("POST", f"{url}/free", json=FREE)
        return QueueLook(problem=answer if isinstance(answer, str) else "")

    async def aclose(self) -> None:
        """Close what is open; a later question opens it again."""
        session = self._session
        self._session = None
        if session is not None:
            await session.close()

    async def _ask(self, method: str, url: str, json: object = None) -> bytes | str:
        """The body of a good answer, else the problem."""
        if self._session is None:
            self._session = _open_session(self._timeout_s)
        try:
            async with self._session.request(
                method, url, json=json, allow_redirects=False
            ) as response:
                if response.status != 200:
                    return f"http_{response.status}"
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        return OTHER_SERVER
                return bytes(body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return failure_word(error)


def _open_session(timeout_s: float) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(resolver=DaemonResolver(system_lookup), force_close=True)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # what is small on the way may be large in memory
        trust_env=False,
        headers={"User-Agent": f"hearth-gateway/{__version__}", "Accept-Encoding": "identity"},
    )
