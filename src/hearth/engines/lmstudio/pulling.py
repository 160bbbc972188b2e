"""A pull as Ollama reports it, by a download of LM Studio. Source: its documentation of
`POST /api/v1/models/download` and `GET /api/v1/models/download/status/:job_id`, November 2026.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from urllib.parse import quote

from hearth.dialects.frames import object_in
from hearth.dialects.gojson import JsonObject, encode, folded
from hearth.dialects.stream import count_in
from hearth.engines.lmstudio.models import MOST_BYTES
from hearth.engines.openai_server.exchanges import JSON, NDJSON, Ready
from hearth.engines.openai_server.questions import Questions
from hearth.engines.port import Exchange
from hearth.types import JSON_BODY, BackendCall, Headers

PULL = "/api/pull"
DOWNLOAD = "/api/v1/models/download"
STATUS = "/api/v1/models/download/status/"
LOOK_S = 1.0
"""How often a download is looked at: it sends nothing by itself."""
_HUGGING_FACE = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/([^:]+)(?::(.+))?")
_IS_THERE = frozenset({"completed", "already_downloaded"})
_UNDER_WAY = frozenset({"downloading", "paused"})


async def pulled(questions: Questions, body: bytes) -> Exchange:
    """The answer to a pull that is asked for as Ollama has it. Raises as `Questions`."""
    asked = folded(object_in(body))
    name = asked.get("model") or asked.get("name")
    if not isinstance(name, str):
        return _refused(HTTPStatus.BAD_REQUEST, "model is required")
    call = BackendCall(method="POST", path=DOWNLOAD, headers=JSON_BODY, body=encode(_wanted(name)))
    said = await questions.whole(call)
    if said.status != HTTPStatus.OK:
        return _refused(said.status, said.error or f"POST {DOWNLOAD} answered {said.status}")
    pull = Pull(questions, said.fields)
    return pull if asked.get("stream") is not False else await _whole(pull)


def _wanted(name: str) -> JsonObject:
    """`hf.co/USER/REPO:Q4_K_M`, as Ollama's users write it, is a link and a quantization."""
    found = _HUGGING_FACE.fullmatch(name)
    if found is None:
        return {"model": name}
    link: JsonObject = {"model": f"https://huggingface.co/{found[1]}"}
    return link | ({"quantization": found[2]} if found[2] else {})


class Pull:
    """An `Exchange` with a line for each look at a download.

    It ends when the download does; a caller who leaves before does not end that, for which LM
    Studio has no route.
    """

    status: int = HTTPStatus.OK
    headers: Headers = NDJSON

    def __init__(self, questions: Questions, said: JsonObject) -> None:
        self._questions = questions
        self._said = said
        self._job = said.get("job_id")
        self._has_begun = False
        self._is_over = False

    async def take(self) -> tuple[bytes, ...]:
        if self._is_over:
            return ()
        if self._has_begun:
            await asyncio.sleep(LOOK_S)
            call = BackendCall(method="GET", path=f"{STATUS}{quote(str(self._job), safe='')}")
            _, self._said = await self._questions.ask(call)
        self._has_begun = True
        line = self._line()
        return (encode(line) + b"\n",)

    def _line(self) -> JsonObject:
        status = self._said.get("status")
        if status in _UNDER_WAY and isinstance(self._job, str):
            return {
                "status": f"pulling {self._job}" if status == "downloading" else "paused",
                "digest": self._job,
                "total": count_in(self._said, "total_size_bytes", MOST_BYTES) or 0,
                "completed": count_in(self._said, "downloaded_bytes", MOST_BYTES) or 0,
            }
        self._is_over = True
        if status in _IS_THERE:
            return {"status": "success"}
        return {"error": f"LM Studio says that the download is {status}; its app says why"}

    def close(self) -> None:
        """Each look has a connection of its own, which has ended."""


async def _whole(pull: Pull) -> Ready:
    last = b"{}"
    while lines := await pull.take():
        last = lines[-1]
    failed = "error" in object_in(last)
    return Ready(HTTPStatus.INTERNAL_SERVER_ERROR if failed else HTTPStatus.OK, last, JSON)


def _refused(status: int, error: str) -> Ready:
    return Ready(status, encode({"error": error}))
