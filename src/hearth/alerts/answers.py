"""What the answer to a post means: delivered, wait, try again, give this message up, or stop posting there.

Pure. Rules of Discord: https://discord.com/developers/docs/topics/rate-limits (a 429 says how long to wait in its JSON body and in
`Retry-After`; too many 401, 403, 404 and 429 get the whole address banned, so a webhook that is gone is left alone at once).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum

DEFAULT_WAIT_S = 5.0
"""After a 429 that does not say how long."""
MAX_WAIT_S = 3600.0
MAX_BACKOFF_S = 60.0
GONE = frozenset({401, 403, 404, 410})
PASSING = frozenset({408, 425})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back.

    Attributes:
        status: of the HTTP answer; None where there was none, and then `failure` says why.
        headers: names in lower case.
        body: its beginning.
        failure: timeout, dns, connect, tls, broken, or empty.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    failure: str = ""

    @property
    def name(self) -> str:
        """For logs and status: `http_204`, or the failure."""
        return self.failure if self.status is None else f"http_{self.status}"

    @property
    def delivered(self) -> bool:
        """Whether the target took it."""
        return self.status is not None and 200 <= self.status < 300


class Outcome(StrEnum):
    """What to do."""

    DELIVERED = "delivered"
    WAIT = "wait"
    RETRY = "retry"
    REFUSED = "refused"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do, and how many seconds no further post may go out (0 where the target does not say)."""

    outcome: Outcome
    wait_s: float = 0.0


def verdict_of(answer: Answer, wall_s: float) -> Verdict:
    """What an answer means; `wall_s` is the time of it, seconds since 1970, for targets that name a date."""
    status = answer.status
    if status is None:
        return Verdict(outcome=Outcome.RETRY)
    if answer.delivered:
        return Verdict(outcome=Outcome.DELIVERED, wait_s=_bucket_s(answer.headers))
    if status == 429:
        return Verdict(outcome=Outcome.WAIT, wait_s=_told_s(answer, wall_s) or DEFAULT_WAIT_S)
    if status in GONE:
        return Verdict(outcome=Outcome.GONE)
    if status >= 500 or status in PASSING:
        return Verdict(outcome=Outcome.RETRY, wait_s=_told_s(answer, wall_s))
    return Verdict(outcome=Outcome.REFUSED)


def backoff_s(failures: int) -> float:
    """The pause after so many failures in a row: 1, 2, 4 ... 60 seconds."""
    doublings = min(max(0, failures - 1), 10)
    return float(min(MAX_BACKOFF_S, 2.0**doublings))


def _told_s(answer: Answer, wall_s: float) -> float:
    """The longest wait that the answer asks for, 0 where it asks for none."""
    headers = answer.headers
    return max(
        _seconds(_json_wait(answer.body)),
        _retry_after_s(headers.get("retry-after", ""), wall_s),
        _seconds(headers.get("x-ratelimit-reset-after")),
    )


def _bucket_s(headers: Mapping[str, str]) -> float:
    """After an answer that leaves no further post: until there are some again."""
    if headers.get("x-ratelimit-remaining", "").strip() != "0":
        return 0.0
    return _seconds(headers.get("x-ratelimit-reset-after"))


def _json_wait(body: bytes) -> object:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return said.get("retry_after") if isinstance(said, dict) else None


def _retry_after_s(text: str, wall_s: float) -> float:
    if _seconds(text) or not text:
        return _seconds(text)
    try:
        return _seconds(parsedate_to_datetime(text).timestamp() - wall_s)
    except (ValueError, OverflowError):
        return 0.0


def _seconds(raw: object) -> float:
    """A usable number of seconds, 0 for anything else; never more than an hour."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return 0.0
    try:
        seconds = float(raw)
    except (ValueError, OverflowError):
        return 0.0
    return min(seconds, MAX_WAIT_S) if math.isfinite(seconds) and seconds > 0 else 0.0
