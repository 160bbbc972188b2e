"""What the stream may say: a state in which something of everything goes on."""

from __future__ import annotations

import json

from hearth.api.dashboard.feed import DashboardFeed
from tests.api.dashboard.browsing import Site
from tests.api.dashboard.listening import guest
from tests.support.fields import Fields

AT = 1_767_571_200.0
JOB = {"caller": "n8n", "task_type": "letter", "model": "a:1", "accepted": AT}
FAILED = JOB | {
    "reason": "backend_status",
    "error": "no",
    "status": 400,
    "ended": AT,
    "attempts": 1,
}
JOBS: Fields = {
    "counts": {"queued": 9, "running": 1, "completed": 3, "failed": 1, "cancelled": 0},
    "oldest": AT,
    "off_peak": {"now": False, "changes": AT + 60},
    "waiting": {
        "job_1": JOB | {"ahead": 0, "not_before": AT + 1e9, "attempts": 1},
        "job_2": JOB | {"ahead": 1, "start": AT},
    },
    "running": {"job_0": JOB | {"sequence": 4}},
    "failed": {"job_9": FAILED},
}
ORDERS = {
    "draining": True,
    "paused": ["external"],
    "pinned": "a:1",
    "loads": ["b:1"],
    "unloads": ["a:1"],
    "since": {"paused": AT},
}
LEASES: Fields = {
    "state": "yielding",
    "to": "a game, another program",
    "since": AT,
    "waiting": 2,
    "in_the_way": ["a:1"],
    "held": [
        {"source": "games", "reason": "Doom", "caller": "", "since": AT, "granted": True},
        {"source": "api", "reason": "", "caller": "n8n", "since": AT, "granted": False},
    ],
}
CLOUD = {
    "state": "down",
    "model": "claude",
    "running": 1,
    "callers": {"n8n": {"used_usd": 1.0, "limit_usd": 2.0}},
}
CLOUD |= {
    "spent_today_usd": 1.0,
    "limit_today_usd": 2.0,
    "reserved_usd": 0.5,
    "internal_spent_today_usd": 0,
}
TARGET = {
    "name": "discord",
    "host": "discord.test",
    "state": "failing",
    "sent": 2,
    "failed": 1,
    "problem": "the receiver has moved to https://new.test: set its new address",
}
IN_HOUSE: Fields = {
    "reason": "it does not answer",
    "draining": True,
    "announced": {"digest": AT + 1e9},
    "alerts": {
        "active": [
            {"type": "swap_failed", "severity": "critical", "subject": "llama"},
            {"type": "gpu_hot", "severity": "warning", "subject": "0"},
            {"type": "unheard_of", "subject": ""},
        ],
        "targets": [TARGET],
    },
    "cloud": CLOUD,
    "storage": {"state": "failing", "waiting_rows": 3},
}
SLEEPERS: Fields = {
    "c:1": {"level": "offload", "host_mib": 9216, "residual_mib": 512, "since": AT},
    "d:1": {"level": "discard", "host_mib": 0, "residual_mib": 512, "since": AT},
}
ON_GPU: Fields = {
    "readings": "ok",
    "device": "A card",
    "throttled": True,
    "throttle_reasons": ["power"],
    "utilisation_pct": 3.0,
}
ON_GPU |= {
    "foreign_mib": 100,
    "capacity_mib": 24_000,
    "swap": {"from": ["a:1"], "to": "b:1", "since": AT, "cost_s": 5.0, "why": "waiting"},
}


async def full_state(house: Site, key: str = "") -> Fields:
    """What the stream says of a house in which something of everything goes on."""
    await house.ask("a:1", "ended", long=False, key=key)
    await house.ask("a:1", "runs", key=key)
    await house.ask("b:1", "waits", key=key)
    async for _ in house.gateway.worker.changes():
        if (
            len(house.gateway.records.timeline.ended) == 1
            and len(house.gateway.worker.scheduler.gateway.running) == 1
        ):
            break
    frames = DashboardFeed(house.gateway).frames(guest())
    frame = await anext(frames)
    await frames.aclose()
    state: Fields = json.loads(frame.decode().partition("data: ")[2])["state"]
    config = state["house"]["config"] | {
        "problems": ["line 3: no"],
        "restart_pending": ["server.port"],
        "source": "/etc/x.yaml",
    }
    return (
        state
        | {"sleepers": SLEEPERS}
        | {"jobs": JOBS, "orders": ORDERS, "leases": LEASES}
        | {"house": state["house"] | IN_HOUSE | {"config": config}, "gpu": state["gpu"] | ON_GPU}
    )


def frame_of(state: Fields) -> str:
    """As the stream says it."""
    return f"event: state\ndata: {json.dumps({'now': AT, 'state': state})}\n\n"
