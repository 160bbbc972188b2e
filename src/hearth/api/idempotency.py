"""`Idempotency-Key` as it stands in a request, and what an answer says where it was used before. Called by `api.jobs` and `api.batches`."""

from __future__ import annotations

from hearth.api.visit import Visit
from hearth.errors import BadRequest

MAX_KEY_CHARS = 255


def key_of(visit: Visit) -> str | None:
    """The key of a request, None where it has none. Raises BadRequest for one that is too long, empty, not printable, or there twice."""
    raw = visit.headers.get(b"idempotency-key")
    if raw is None:
        return None
    key = raw.decode("latin-1")
    if b"idempotency-key" in visit.headers.repeated or not 1 <= len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise BadRequest(f"send one Idempotency-Key of 1 to {MAX_KEY_CHARS} printable characters")
    return key


def headers_of(*, is_new: bool) -> dict[str, str]:
    """Header fields of the answer to what was taken just now, or before."""
    return {} if is_new else {"idempotency-replayed": "true"}
