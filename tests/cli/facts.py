"""Events with the uninteresting fields filled in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hearth.events import (
    ItemDispatched,
    ItemEnded,
    ItemInterrupted,
    ItemProtected,
    ItemQueued,
    ItemResumed,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
)
from hearth.types import Lane, Outcome, RequestId, Sequence, Way
from tests.observability import samples

HOME, CODER = "qwen2.5:32b-instruct-q6_K", "qwen2.5-coder:14b"


def _item(who: str, lane: Lane, model: str | None) -> dict[str, Any]:
    return {"sequence": Sequence(1), "request_id": RequestId(who), "lane": lane, "caller": "local", "model": model, "task_type": None}


def queued(
    who: str = "editor-1", *, at: float = 0.0, lane: Lane = Lane.EXTERNAL, model: str | None = CODER, position: int = 0
) -> ItemQueued:
    return ItemQueued(at=at, position=position, **_item(who, lane, model))


def dispatched(who: str = "editor-1", *, at: float = 0.0, attempt: int = 1, waited_s: float = 0.0) -> ItemDispatched:
    return ItemDispatched(at=at, attempt=attempt, waited_s=waited_s, **_item(who, Lane.EXTERNAL, CODER))


def interrupted(who: str = "editor-1", *, at: float = 0.0, ran_s: float = 1.0) -> ItemInterrupted:
    return ItemInterrupted(at=at, attempt=1, interrupt_count=1, ran_s=ran_s, **_item(who, Lane.EXTERNAL, CODER))


def resumed(who: str = "editor-1", *, at: float = 0.0, again_tokens: int = 120, catch_up_s: float = 0.4) -> ItemResumed:
    item = _item(who, Lane.EXTERNAL, CODER)
    return ItemResumed(at=at, attempt=2, how=Way.CONTINUE, again_tokens=again_tokens, verified_chars=0, catch_up_s=catch_up_s, **item)


def protected(who: str = "editor-1", *, at: float = 0.0) -> ItemProtected:
    return ItemProtected(at=at, interrupt_count=3, **_item(who, Lane.EXTERNAL, CODER))


def ended(
    who: str = "editor-1",
    *,
    at: float = 0.0,
    outcome: Outcome = Outcome.COMPLETED,
    reason: str = "",
    queue_s: float = 0.0,
    backend_s: float = 1.0,
) -> ItemEnded:
    measured: dict[str, Any] = {"queue_s": queue_s, "backend_s": backend_s, "total_s": queue_s + backend_s}
    return replace(samples.ended(outcome, at=at), reason=reason, **measured, **_item(who, Lane.EXTERNAL, CODER))


def swap_started(*, at: float = 0.0, why: str = "waiting", leaving: tuple[str, ...] = (HOME,), to_model: str = CODER) -> SwapStarted:
    return SwapStarted(at=at, from_models=leaving, to_model=to_model, why=why)


def swap_completed(*, at: float = 0.0, swap_s: float = 1.5) -> SwapCompleted:
    return SwapCompleted(at=at, from_models=(HOME,), to_model=CODER, swap_s=swap_s, vram_mib=None, offloaded=False)


def swap_failed(*, at: float = 0.0) -> SwapFailed:
    return SwapFailed(at=at, from_models=(HOME,), to_model=CODER, swap_s=1.0, reason="swap_failed", detail="no room")
