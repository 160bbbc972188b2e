"""Other programs that want memory of the card: each takes a lease in a way of its own, and knows
when it is to be free and when it has given it back.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import aiohttp

from tests.reliability.card import Claim
from tests.reliability.leased import CAPACITY_GB, GRACE_S, STOP_GRACE_S, World
from tests.support.fields import Fields
from tests.support.patience import in_time, within_limit
from tests.support.places import ROOT
from tests.support.processes import started

LEASES = "/llm/gpu/leases"
GRANTED_S = GRACE_S + STOP_GRACE_S + 2.0
MOST_HELD_S = 3.0
MOST_SECONDS = 6.0
AMOUNTS_GB = (None, None, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 5.5)
COMMAND = "from hearth.cli import main; main()"


@dataclass
class Lessees:
    """Takes leases and holds the card against them. `took_s`: until each was granted."""

    world: World
    chance: random.Random
    kinds: Counter[str] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def late(self) -> list[float]:
        return [took_s for took_s in self.took_s if took_s > GRANTED_S]

    def shown(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        took = sorted(self.took_s)
        return (
            f"{kinds}; {len(took)} were timed: granted after {took[len(took) // 2]:.2f} s (median)"
            f" and {took[-1]:.2f} s (most), {len(self.late)} after more than {GRANTED_S:g} s"
        )

    async def take_some(self, kind: str) -> None:
        """One lease of some size, from its begin to its end."""
        await self.take(kind, self.chance.choice(AMOUNTS_GB))

    async def take(self, kind: str, gb: float | None) -> None:
        self.kinds[kind] += 1
        await WAYS[kind](self, gb)

    async def until_its_end(self, gb: float | None) -> None:
        """For so many seconds, and asked until it is granted."""
        for_s = self.chance.uniform(1.0, MOST_SECONDS)
        lease_id, claim = await self.taken(gb, for_s, waits=False)
        while claim.granted_at is None and claim.is_in_force(time.monotonic()):
            await asyncio.sleep(0.02)
            if await self._is_granted(lease_id):
                self._granted(claim)
        await asyncio.sleep(max(0.0, (claim.until or 0.0) - time.monotonic()))
        del self.world.card.claims[lease_id]

    async def ended_by_hand(self, gb: float | None) -> None:
        """For ten minutes, ended before that; now and then renewed."""
        lease_id, claim = await self.taken(gb, 600.0, waits=True)
        await self._use()
        if self.chance.random() < 0.5:
            status, _ = await self.world.call("PUT", f"{LEASES}/{lease_id}", {"for_s": 500})
            assert status == 200
            await self._use()
        assert claim.granted_at is not None
        await self.end(lease_id)

    async def cancelled_at_once(self, gb: float | None) -> None:
        lease_id, _ = await self.taken(gb, 600.0, waits=False)
        await self.end(lease_id)

    async def too_large(self, _: float | None) -> None:
        body = {"gb": CAPACITY_GB + 1}
        status, said = await self.world.call("POST", LEASES, body)
        assert status == 409, said

    async def held(self, gb: float | None) -> None:
        """As long as a connection, which is closed at any moment, perhaps before it is granted."""
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_read=60)
        ) as session:
            asked_at = time.monotonic()
            url = f"{self.world.url}{LEASES}/hold"
            async with session.post(url, json=_size(gb)) as got:
                assert got.status == 200, await got.text()
                line = await got.content.readline()
                lease_id = json.loads(line)["id"]
                claim = Claim(gb, asked_at, time.monotonic())
                self.world.card.claims[lease_id] = claim
                if self.chance.random() < 0.7:
                    while json.loads(line)["state"] == "taken":
                        line = await got.content.readline()
                    assert json.loads(line)["state"] == "granted"
                    self._granted(claim)
                await self._use()
                del self.world.card.claims[lease_id]
                got.close()

    async def around_a_command(self, gb: float | None) -> None:
        """`hearth yield -- COMMAND`, of which one or the other is killed."""
        size = [] if gb is None else [f"{gb:g}gb"]
        environ = {
            "PYTHONPATH": f"{ROOT}/src",
            "PATH": os.defpath,
            "HOME": str(self.world.folder),
            "HEARTH_URL": self.world.url,
        }
        command = ("/bin/sh", "-c", "echo $$; exec sleep 600")
        asked_at = time.monotonic()
        async with started(
            *(sys.executable, "-c", COMMAND, "yield", *size, "--wait", "60", "--", *command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environ,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            async with in_time():
                line = await process.stdout.readline()
            assert line, await process.stderr.read()
            name = f"command {process.pid}"
            claim = self.world.card.claims[name] = Claim(gb, asked_at, time.monotonic())
            self._granted(claim, is_timed=False)  # it starts an interpreter first
            await self._use()
            del self.world.card.claims[name]
            pids = [process.pid, int(line)]
            self.chance.shuffle(pids)
            for pid in pids:  # the second is over with the first, or has no lease without it
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.5)
            await within_limit(process.wait())
            said = await process.stderr.read()
            if said:
                self.wrong.append(f"hearth yield wrote {said!r}")

    async def taken(self, gb: float | None, for_s: float, *, waits: bool) -> tuple[str, Claim]:
        """A lease that is known, or also granted, with its claim."""
        asked_at = time.monotonic()
        body = {**_size(gb), "for_s": for_s, "wait_s": 60 if waits else 0}
        status, said = await self.world.call("POST", LEASES, body)
        assert status == 201, said
        claim = Claim(gb, asked_at, time.monotonic(), asked_at + for_s)
        self.world.card.claims[said["id"]] = claim
        if waits and not said["granted"]:
            self.wrong.append(f"a lease of {gb} GiB was not granted in a minute")
        elif said["granted"]:
            self._granted(claim)
        return said["id"], claim

    async def end(self, lease_id: str) -> None:
        del self.world.card.claims[lease_id]
        status, said = await self.world.call("DELETE", f"{LEASES}/{lease_id}")
        assert (status, said) == (200, {"ended": [lease_id]})

    async def listed(self) -> dict[str, Fields]:
        _, said = await self.world.call("GET", LEASES)
        return {lease["id"]: lease for lease in said["leases"]}

    async def _is_granted(self, lease_id: str) -> bool:
        lease = (await self.listed()).get(lease_id)
        return lease is not None and bool(lease["granted"])

    def _granted(self, claim: Claim, *, is_timed: bool = True) -> None:
        claim.granted_at = time.monotonic()
        if is_timed:
            self.took_s.append(claim.granted_at - claim.asked_at)
        self.world.card.look()

    async def _use(self) -> None:
        """The program works for a while."""
        await asyncio.sleep(self.chance.uniform(0.0, MOST_HELD_S))


def _size(gb: float | None) -> Fields:
    return {} if gb is None else {"gb": gb}


Way = Callable[[Lessees, Any], Awaitable[None]]
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "until its end": Lessees.until_its_end,
        "ended by hand": Lessees.ended_by_hand,
        "cancelled at once": Lessees.cancelled_at_once,
        "too large": Lessees.too_large,
        "held": Lessees.held,
        "around a command": Lessees.around_a_command,
    }
)
