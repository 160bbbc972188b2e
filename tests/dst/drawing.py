"""What a simulated world is like: what there is, and settings, drawn once, since making them would
cost more than a world.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from random import Random
from typing import NamedTuple

from hearth.config.choices import Sharing
from hearth.config.scheduler_settings import YieldSettings
from hearth.config.settings import (
    AgingSettings,
    AuthSettings,
    BackendSettings,
    BudgetSettings,
    CallerLimits,
    CloudSettings,
    EmbeddingSettings,
    GpuSettings,
    JobSettings,
    KeySettings,
    ModelSettings,
    OllamaSettings,
    PolicyName,
    QueueSettings,
    RateLimitSettings,
    SchedulingSettings,
    ServerSettings,
    Settings,
    WebhookSettings,
    Window,
)
from hearth.types import Priority
from tests.dst.outside import FICKLE, GOOD, HAIKU, LITERAL, PRICES

MODELS = ("a", "b", "c")
CALLERS = ("ada", "bob", "eve")
CAPACITY_MIB = 20 * 1024.0
SECRETS = ("a secret of the owner", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
POOL = 48
ZONES = ("UTC", "Europe/Berlin", "America/Chicago")
"""The days of all three contain the first six hours of a world: whoever changes the zone spends the
same money.
"""
ALL_DAY = (Window(start_minute=0, end_minute=0),)
NEVER = (Window(start_minute=720, end_minute=721),)

# worlds 3, 8, 13 ... may have more. Together with the 48 settings that are drawn, every house can.
EVERY = 5
OFFSET = 3


class More(StrEnum):
    """What only some worlds have beside their queue, jobs and cloud: most stay small and fast."""

    EMBEDDINGS = "embeddings"  # callers embed, one input at a time, and share calls
    BATCHES = "batches"
    WEBHOOKS = "webhooks"  # jobs have somebody who is to be told
    FOREIGNER = "foreigner"  # somebody else uses the model server
    # the owner drains, loads and unloads too, and whoever cancels cancels everything that he has
    ORDERS = "orders"
    DISK = "disk"  # the disk fails now and then, and callers of jobs ask again
    LEASES = "leases"  # other programs are given the card's memory


def more_of(number: int) -> frozenset[More]:
    """What the world of a number has."""
    if number % EVERY != OFFSET:
        return frozenset()
    # drawn apart: the others stay what they were
    rng = Random(f"more of {number}")
    later = (More.DISK, More.LEASES)
    drawn = {kind for kind in More if kind not in later and rng.random() < 0.5}
    return frozenset(drawn) | {
        kind for kind in later if Random(f"{kind} of {number}").random() < 0.5
    }


class Drawn(NamedTuple):
    """One house."""

    capacity_mib: float | None  # of the card; None has room for one model
    # at the start; later ones come into force by reloads and agree with the card
    settings: tuple[Settings, ...]


@cache
def houses() -> tuple[Drawn, ...]:
    """All houses that there are."""
    rng = Random(0)
    others = Random(1)
    zones = Random(2)
    shares = Random(3)
    yields = Random(4)
    return tuple(_drawn(rng, others, zones, shares, yields) for _ in range(POOL))


def _drawn(rng: Random, others: Random, zones: Random, shares: Random, yields: Random) -> Drawn:
    shared = rng.random() < 0.4
    settings = tuple(
        _with_shares(_with_others(_settings(rng, shared=shared), others, zones), shares)
        for _ in range(3)
    )
    settings = tuple(_yielding(each, yields) for each in settings)
    return Drawn(CAPACITY_MIB if shared else None, settings)


def _yielding(settings: Settings, rng: Random) -> Settings:
    yielding = YieldSettings(hold_s=rng.choice((2.0, 60.0)), grace_s=rng.choice((0.0, 0.0, 3.0)))
    return settings.replace(gpu=settings.gpu.model_copy(update={"yield": yielding}))


def _with_shares(settings: Settings, rng: Random) -> Settings:
    """A third of the houses, and of the reloads, has callers who share in some lane."""
    fifo: tuple[Sharing, Sharing] = ("fifo", "fifo")
    sharing = rng.choice((fifo, fifo, fifo, fifo, ("fair", "fifo"), ("fair", "fair")))
    queue = settings.queue.replace(sharing=sharing[0], internal_sharing=sharing[1])
    return settings.replace(queue=queue)


def _with_others(settings: Settings, rng: Random, zones: Random) -> Settings:
    """What came later is drawn from elsewhere: the stories stay the same.

    In no zone is it noon for hours: `NEVER` stays what it says.
    """
    webhooks = WebhookSettings(
        allowed_hosts=rng.choice(((GOOD, FICKLE, LITERAL), (GOOD, LITERAL))),
        secret=rng.choice(SECRETS),
        max_attempts=rng.choice((2, 4)),
        timeout_s=2.0,
    )
    return settings.replace(
        jobs=settings.jobs.replace(webhooks=webhooks),
        embeddings=EmbeddingSettings(
            max_inputs=rng.choice((2, 8)), max_wait_ms=rng.choice((50.0, 50.0, 1000.0))
        ),
        scheduling=settings.scheduling.replace(time_zone=zones.choice(ZONES)),
    )


def _settings(rng: Random, *, shared: bool) -> Settings:
    return Settings(
        scheduling=_scheduling(rng),
        queue=QueueSettings(
            max_external_depth=rng.choice((2, 100)),
            max_internal_depth=rng.choice((3, 100)),
            max_interrupt_count=rng.choice((1, 3)),
            max_wait_s=rng.choice((0.0, 0.0, 6.0)),
        ),
        priority_map={"urgent": Priority.CRITICAL, "bulk": Priority.BACKGROUND},
        rate_limits=RateLimitSettings(
            default=CallerLimits(
                requests_per_minute=rng.choice((3, 6, 100)), requests_per_hour=rng.choice((4, 500))
            ),
            callers={"eve": CallerLimits(requests_per_minute=2)} if rng.random() < 0.3 else {},
        ),
        budget=BudgetSettings(daily_external_usd=rng.choice((0.011, 0.02, 5.0))),
        gpu=GpuSettings(
            home_model=rng.choice(("", "a", "b")),
            swap_timeout_s=20.0,
            restore_home_delay_s=8.0,
            vram_gb=CAPACITY_MIB / 1024 if shared else None,
            parallel=rng.choice((1, 1, 2)),
        ),
        models={name: ModelSettings(vram_gb=8.0) for name in MODELS} if shared else {},
        backend=BackendSettings(wait_when_down_s=rng.choice((3.0, 10.0))),
        ollama=OllamaSettings(first_byte_timeout_s=8.0, idle_timeout_s=8.0),
        cloud=CloudSettings(
            api_key="sk-fake",
            model=HAIKU,
            prices=PRICES,
            timeout_s=5.0,
            max_retries=1,
            when_wait_over_s=rng.choice((None, 5.0)),
        ),
        server=ServerSettings(shutdown_grace_s=2.0),
        auth=AuthSettings(
            keys=(
                KeySettings(
                    name="bob",
                    sha256="0" * 64,
                    allow_cloud=True,
                    daily_usd=rng.choice((None, 0.015)),
                ),
            )
        ),
        jobs=JobSettings(
            max_attempts=rng.choice((1, 3)),
            max_in_queue=rng.choice((1, 4)),
            on_restart=rng.choice(("requeue", "requeue", "fail")),
        ),
    )


def _scheduling(rng: Random) -> SchedulingSettings:
    return SchedulingSettings(
        active_hours=rng.choice((ALL_DAY, ALL_DAY, ALL_DAY, NEVER)),
        time_zone="UTC",
        policy=rng.choice(tuple(PolicyName)),
        max_swap_wait_s=rng.choice((4.0, 16.0)),
        residency_factor=rng.choice((0.5, 3.0)),
        preempt_min_remaining_s=rng.choice((0.0, 0.0, 2.0)),
        preempt_restart_bound_s=0.0,
        started_streams=rng.choice(("replay", "replay", "finish")),
        unreplayable_streams=rng.choice(("finish", "error")),
        preempt_finish_bound_s=rng.choice((1.0, 60.0)),
        aging=AgingSettings(promote_after_s=rng.choice((0.0, 8.0))),
    )
