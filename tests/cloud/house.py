"""A whole gateway that may ask Claude: the emulator for local models, a fake Claude, a store on
disk, the official clients.

async with open_cloud_home(tmp_path) as home:
    home.claude_api.scripts = [Script(cut_after=2)]
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hearth.cloud.service import Cloud
from hearth.config.settings import (
    BudgetSettings,
    CloudPriceSettings,
    CloudSettings,
    KeySettings,
    Settings,
    StorageSettings,
)
from hearth.events import ItemEnded
from hearth.types import Lane, nano_usd
from tests.support.fake_claude import KEY, FakeClaude
from tests.support.fields import Fields
from tests.support.home import HELLO, Home, house_settings, open_home
from tests.support.http import Got
from tests.support.keys import key_of
from tests.support.patience import WITHIN_S, in_time

RICH = "hearth_rich"
STAY = "hearth_stay"
POOR = "hearth_poor"
BOSS = "hearth_boss"
SAVER = "hearth_saver"
CLOUD_KEYS = (
    key_of("rich", RICH, allow_cloud=True),
    key_of("stay", STAY, allow_cloud=True, local_only=True),
    key_of("poor", POOR),
    key_of("boss", BOSS, allow_cloud=True, lane=Lane.INTERNAL, admin=True),
    key_of("saver", SAVER, allow_cloud=True, daily_usd=0.01),
)
HAIKU = "claude-fake-1"
ELSEWHERE = "nowhere-local:70b"
"""A model that the emulator does not have."""
BODY: Fields = {"model": ELSEWHERE, "messages": HELLO}


@dataclass
class CloudHome(Home):
    """A home with Claude in reach."""

    claude_api: FakeClaude
    database: Path

    @property
    def cloud(self) -> Cloud:
        assert self.gateway.cloud is not None
        return self.gateway.cloud

    @property
    def ended(self) -> list[ItemEnded]:
        return self.events.of(ItemEnded)

    async def ends(self, count: int) -> list[ItemEnded]:
        """The items that have ended, once there are so many."""
        await self.events.until(lambda: len(self.ended) >= count)
        return self.ended

    async def chat(self, body: Fields, key: str = RICH, path: str = "/api/chat") -> Got:
        return await self.post(path, body, key)

    async def ledger(self) -> list[tuple[str, float, float | None]]:
        """`(state, reserved, settled)` of every row, once all is written."""
        await self.cloud.budget.flush()
        return ledger_rows(self.database)

    async def billed_equals_ledger(self) -> None:
        rows, billed = await self.ledger(), self.claude_api.billed_nano_usd
        assert {state for state, _, _ in rows} <= {"settled", "released"}
        assert sum(nano_usd(settled or 0.0) for *_, settled in rows) == billed
        shown = self.spent()
        assert nano_usd(shown["spent_today_usd"] + shown["internal_spent_today_usd"]) == billed
        assert (shown["reserved_usd"], shown["running"]) == (0.0, [])

    async def backend_is(self, *, up: bool) -> None:
        """Return once Hearth has noticed."""
        async with in_time():
            await self.until(
                lambda status: (
                    status["backend"]["up"] is up
                    and (self.gateway.worker.scheduler.device.down_since is None) is up
                )
            )

    def spent(self) -> Fields:
        shown: Fields = self.cloud.status()
        return shown


def ledger_rows(path: Path) -> list[tuple[str, float, float | None]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return list(
            connection.execute("SELECT state, reserved_usd, settled_usd FROM ledger ORDER BY rowid")
        )


def cloud_settings(
    url: str,
    folder: Path,
    *,
    keys: tuple[KeySettings, ...] = CLOUD_KEYS,
    daily_usd: float = 5.0,
    alert_pct: float = 80.0,
    grace_s: float = 0.0,
    base: Settings | None = None,
    **cloud: Any,
) -> Settings:
    settings = base or house_settings(keys=keys)
    prices = {HAIKU: CloudPriceSettings(input_usd=1.0, output_usd=5.0)}
    given: Fields = {
        "model": HAIKU,
        "prices": prices,
        "timeout_s": WITHIN_S,
        "max_retries": 2,
        "default_max_tokens": 100,
    }
    return settings.replace(
        auth=settings.auth.replace(keys=keys),
        backend=settings.backend.replace(check_interval_s=0.2),
        budget=BudgetSettings(daily_external_usd=daily_usd, alert_pct=alert_pct),
        cloud=CloudSettings(api_key=KEY, base_url=url, **given | cloud),
        storage=StorageSettings(path=str(folder / "hearth.db"), reserve_mib=0),
        server=settings.server.replace(shutdown_grace_s=grace_s),
    )


@asynccontextmanager
async def open_cloud_home(
    folder: Path, claude: FakeClaude | None = None, **settings: Any
) -> AsyncIterator[CloudHome]:
    """A home for the time of the block."""
    api = claude or FakeClaude()
    if not api.url:
        await api.start()
    try:
        async with open_home(cloud_settings(api.url, folder, **settings), store=True) as home:
            opened = CloudHome(**vars(home), claude_api=api, database=folder / "hearth.db")
            yield opened
            home.emulator = opened.emulator
    finally:
        await api.stop()
