"""The message about the end of a job, and its signature. Pure.

Signed as Standard Webhooks has it (https://www.standardwebhooks.com): HMAC-SHA256 over `id.timestamp.body`, base64, as `v1,...`, so that
its libraries can check it. It never carries a request or a result: who is told can ask for them with its key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

from hearth.job_types import Delivery

BACKOFF_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0)
"""Between two attempts; the last one again and again."""
_PREFIX = "whsec_"


def body_of(delivery: Delivery) -> bytes:
    """What is posted, as JSON."""
    said = {
        "type": f"job.{delivery.state.value}",
        "job_id": delivery.job_id,
        "state": delivery.state.value,
        "task_type": delivery.task_type,
        "reason": delivery.reason,
        "accepted_wall_s": delivery.accepted_wall_s,
        "ended_wall_s": delivery.ended_wall_s,
    }
    return json.dumps(said, separators=(",", ":")).encode("ascii")


def headers_of(delivery: Delivery, body: bytes, secret: str, wall_s: float) -> dict[str, str]:
    """The headers of one attempt at an instant; every attempt of one message has the same `webhook-id`."""
    stamp = str(int(wall_s))
    return {
        "content-type": "application/json",
        "webhook-id": delivery.job_id,
        "webhook-timestamp": stamp,
        "webhook-signature": signature(secret, delivery.job_id, stamp, body),
    }


def signature(secret: str, message_id: str, stamp: str, body: bytes) -> str:
    """`v1,` and the signature in base64. A secret that begins with `whsec_` is the base64 of its bytes, any other is text."""
    digest = hmac.new(_key_of(secret), b".".join((message_id.encode(), stamp.encode(), body)), hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode("ascii")


def _key_of(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(_PREFIX)) if secret.startswith(_PREFIX) else secret.encode()


def pause_s(attempts: int) -> float:
    """Seconds between an attempt that failed, the `attempts`-th, and the next one."""
    return BACKOFF_S[min(max(1, attempts), len(BACKOFF_S)) - 1]
