"""Events as the gateway emits them."""

from __future__ import annotations

from typing import Any

from hearth.events import ItemEnded, ItemQueued, SwapCompleted, SwapFailed
from hearth.types import Lane, Outcome, RequestId, Sequence


def ended(sequence: int, **changes: Any) -> ItemEnded:
    values: dict[str, Any] = {
        "at": 1000.0,
        "request_id": RequestId(f"req_{sequence}"),
        "lane": Lane.EXTERNAL,
        "caller": "webui",
        "model": "llama3.1:8b",
        "task_type": None,
        "outcome": Outcome.COMPLETED,
        "reason": "",
        "attempts": 1,
        "interrupt_count": 0,
        "queue_s": 2.5,
        "swap_s": 1.5,
        "first_byte_s": 0.5,
        "backend_s": 7.5,
        "total_s": 10.0,
        "prompt_tokens": 12,
        "output_tokens": 34,
        "status": 200,
    }
    return ItemEnded(sequence=Sequence(sequence), **{**values, **changes})


def queued(sequence: int, *, at: float, caller: str, **changes: Any) -> ItemQueued:
    values: dict[str, Any] = {
        "request_id": RequestId(f"req_{sequence}"),
        "lane": Lane.EXTERNAL,
        "model": "llama3.1:8b",
        "task_type": None,
        "position": 0,
    }
    return ItemQueued(at=at, sequence=Sequence(sequence), caller=caller, **{**values, **changes})


def swapped(at: float = 1000.0) -> SwapCompleted:
    return SwapCompleted(at=at, from_models=("a:1", "b:2"), to_model="c:3", swap_s=4.0, vram_mib=9000.0, offloaded=True)


def swap_failed(at: float = 1000.0) -> SwapFailed:
    return SwapFailed(at=at, from_models=(), to_model="c:3", swap_s=120.0, reason="swap_timeout", detail="no answer")
