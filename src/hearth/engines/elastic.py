"""The data path to an engine that is many machines behind one address.

What answers may be what stands before the machines. It says "not now" while they are busy or still
start, and it has nothing of its own to say where the machine with a request is gone. Both are told
from answers of a model here, for every dialect. Source: Ray Serve 2.60, which answers 503 in plain
text with Retry-After beyond `max_queued_requests`, and 500 in plain text where a replica was killed
(recorded); the documentation of other gateways, which answer 429 or 503 in the same cases.
"""

from __future__ import annotations

import asyncio
import math
from email.utils import parsedate_to_datetime

from hearth.engines.data_path import DataPath, HttpAnswer
from hearth.errors import BackendError, BackendUnreachable, EngineRefused, ProxyFailed
from hearth.types import BackendCall, Headers

REACH_S = 5.0
LONGEST_PAUSE_S = 300.0
"""A refusal for longer is an answer: a quota that is used up rather than machines that are busy."""
_BUSY = 503
_TOO_MANY = 429
_OF_MACHINES = frozenset({500, 502, 504})


class ElasticPath(DataPath):
    """As `DataPath`; `open` also raises EngineRefused, and ProxyFailed for a lost machine."""

    async def reach(self) -> None:
        """Connect and ask for nothing, which wakes no machine. Raises BackendUnreachable."""
        try:
            async with asyncio.timeout(REACH_S):
                _, writer = await asyncio.open_connection(self._origin.host, self._origin.port)
        except OSError as error:
            raise BackendUnreachable from error
        writer.close()

    async def open(self, call: BackendCall) -> HttpAnswer:
        answer = await super().open(call)
        failed = _failure_in(answer.status, answer.headers)
        if failed is None:
            return answer
        answer.close()
        raise failed


def _failure_in(status: int, headers: Headers) -> BackendError | None:
    """None where it is the model server's own answer to the request."""
    pause_s = _pause_in(headers)
    is_refusal = status == _BUSY or (status == _TOO_MANY and pause_s is not None)
    if is_refusal and (pause_s or 0.0) <= LONGEST_PAUSE_S:
        return EngineRefused(
            f"The engine takes no more requests at the moment ({status}).", retry_after_s=pause_s
        )
    is_json = dict(headers).get(b"content-type", b"").lower().startswith(b"application/json")
    if status in _OF_MACHINES and not is_json:
        return ProxyFailed(f"The engine lost the request ({status}).")
    return None


def _pause_in(headers: Headers) -> float | None:
    """Seconds of Retry-After, a date counted from that of the answer (RFC 9110, section 10.2.3);
    None where it says neither.
    """
    fields = dict(headers)
    told = fields.get(b"retry-after", b"")
    try:
        seconds = float(told)
    except ValueError:
        return _until(told, fields.get(b"date", b""))
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _until(then: bytes, now: bytes) -> float | None:
    try:
        begin, end = (parsedate_to_datetime(one.decode("latin-1")) for one in (now, then))
        return max(0.0, (end - begin).total_seconds())
    except (ValueError, TypeError):  # no date, or one of them names no time zone
        return None
